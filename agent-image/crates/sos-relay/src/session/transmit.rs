//! Transmission: the next frame of a session.

use std::time::Instant;

use sos_wire::Body;

use super::{Opening, Session, State};
use crate::sending::scheduler::{Demand, StreamId, StreamView, quickest};
use crate::sending::sender::Place;
use crate::stats::Cause;

impl Session {
    /// Sends control frames first: they are small, and acknowledgements keep the other direction moving.
    pub(super) fn transmit_running(
        &mut self,
        now: Instant,
        streams: &[StreamView],
    ) -> Option<(StreamId, Body)> {
        self.note_stalled(streams);
        self.sender.set_rate(streams.iter().map(StreamView::rate).fold(0.0, f64::max));
        self.sender.set_streams(streams.iter().map(|s| (s.window, s.rtt)));
        let control = (self.transmit_opened(streams).or_else(|| self.transmit_marks(streams)))
            .or_else(|| self.transmit_ack(streams));
        if control.is_some() {
            return control;
        }
        let Some(len) = self.sender.next_len() else {
            if streams.iter().any(|s| s.has_room) {
                self.sender.note_stall();
            }
            return (self.transmit_lone_open(streams).or_else(|| self.double(now, streams)))
                .or_else(|| self.reinject(now, streams));
        };
        let stream = self.choose(streams, len)?;
        if let Some(first) = self.first_on(stream) {
            return Some((stream, first));
        }
        let view = streams.iter().find(|s| s.id == stream)?;
        self.sender.next(place(now, view, len)).map(|body| (stream, body))
    }

    fn choose(&mut self, streams: &[StreamView], len: usize) -> Option<StreamId> {
        let demand = Demand { len, left: self.sender.left(), window: self.sender.window() };
        self.scheduler.choose(streams, demand)
    }

    /// Retransmits the blocks of a stream that has stalled while other streams make progress, and checks whether the peer still has the
    /// session. The stream is treated as failed, although it may recover.
    fn note_stalled(&mut self, streams: &[StreamView]) {
        let moving = streams.iter().any(|s| !s.stalled);
        for view in streams {
            let known = self.stalled.contains(&view.id);
            if view.stalled && moving && !known {
                self.stalled.insert(view.id);
                self.handle_stream_lost(view.id, Cause::Stalled);
            } else if !view.stalled && known {
                self.stalled.remove(&view.id);
            }
        }
    }

    /// Sends the tail a second time, over another stream, if the path of the first stream is lossy.
    fn double(&mut self, now: Instant, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let first = self.sender.tail_on()?;
        streams.iter().find(|s| s.id == first && s.lossy)?;
        let others: Vec<_> = streams.iter().filter(|s| s.id != first && !s.stalled).copied().collect();
        let stream = quickest(&others)?;
        if let Some(first) = self.first_on(stream) {
            return Some((stream, first));
        }
        self.sender.double(now).map(|body| (stream, body))
    }

    /// Copies a block that is late on one path to another path.
    fn reinject(&mut self, now: Instant, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !self.sender.awaits_ack() || streams.iter().all(|s| s.label == streams[0].label) {
            return None;
        }
        let mut labels: Vec<u8> = streams.iter().map(|s| s.label).collect();
        labels.sort_unstable();
        labels.dedup();
        labels.into_iter().find_map(|label| self.reinject_by(label, now, streams))
    }

    fn reinject_by(&mut self, label: u8, now: Instant, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let there = streams.iter().filter(|s| s.label == label && s.has_room && works(s));
        let view = there.min_by_key(|s| s.arrival(self.sender.block()))?;
        // No copy on a stream that has not carried Open: Open would have to precede the copy.
        if matches!(&self.opening, Opening::Repeat { sent_on, .. } if !sent_on.contains(&view.id)) {
            return None;
        }
        // A copy must not arrive before its marks.
        if let Some(marks) = self.announced.before(view.id) {
            return Some((view.id, marks));
        }
        let expected = |put: &Place| expected(streams.iter().find(|s| s.id == put.stream)?, view, put, now);
        self.sender.reinject(|len| place(now, view, len), expected, now).map(|body| (view.id, body))
    }

    /// Sends Open without data, because the server may be the first to send.
    fn transmit_lone_open(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let Opening::Repeat { sent_on, again, .. } = &self.opening else { return None };
        if !sent_on.is_empty() && !again {
            return None;
        }
        let stream = self.choose(streams, 0)?;
        self.open_for(stream).map(|body| (stream, body))
    }

    pub(super) fn open_for(&mut self, stream: StreamId) -> Option<Body> {
        let Opening::Repeat { open, sent_on, again } = &mut self.opening else { return None };
        let credit = self.receiver.limit();
        let due = sent_on.insert(stream) | std::mem::take(again);
        due.then(|| Body::Open { credit, open: *open })
    }

    fn transmit_opened(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !matches!(self.opening, Opening::Announce) {
            return None;
        }
        let stream = quickest(streams)?;
        self.opening = Opening::Done;
        Some((stream, Body::Opened { credit: self.receiver.limit() }))
    }

    fn transmit_ack(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !self.receiver.ack_is_due() {
            return None;
        }
        let stream = quickest(streams)?;
        Some((stream, self.receiver.next_ack()))
    }

    /// Sends the Reset even without buffer space: it is the last frame and small, and a peer that misses it would wait forever.
    pub(super) fn transmit_reset(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let State::Resetting { reason, told } = &mut self.state else { return None };
        let stream = streams.iter().map(|s| s.id).find(|id| !told.contains(id))?;
        told.insert(stream);
        Some((stream, Body::Reset { reason: *reason }))
    }
}

/// True if a stream may carry redundant frames. Stalled and suspect streams may be down; on reserved streams, redundant frames would delay
/// other data.
fn works(view: &StreamView) -> bool {
    !view.stalled && !view.suspect && !view.reserved
}

/// Expected arrival of a block, if `other` may deliver it sooner.
///
/// `None` if `other` uses the same path, because then the copy would be late, too. `None` also if the transport reports the block's bytes
/// as acknowledged: the block has arrived, although the peer acknowledges it only after all earlier bytes. A path that has been silent for
/// longer than expected is assumed to stay silent for the same time once more.
fn expected(view: &StreamView, other: &StreamView, put: &Place, now: Instant) -> Option<Instant> {
    let overdue = now.saturating_duration_since(put.due + view.rtt / 2);
    (view.label != other.label && !view.has_passed(put.until)).then(|| put.due.max(now) + overdue)
}

/// Placement of a block that is queued on a stream now.
fn place(now: Instant, view: &StreamView, len: usize) -> Place {
    Place { stream: view.id, due: now + view.arrival(len), until: view.queued_total + len as u64 }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use sos_wire::{EndReason, SessionNumber};

    use super::*;
    use crate::budget::Budget;
    use crate::{ASK_AGAIN, Event, SessionConfig};

    const RTT: Duration = Duration::from_millis(20);

    fn config() -> SessionConfig {
        SessionConfig {
            number: SessionNumber(1),
            block: 0,
            max_memory: 1 << 20,
            stream_wait: Duration::from_secs(1),
            rtt: RTT,
            rate: 0.0,
        }
    }

    /// A session over two streams.
    fn session(now: Instant) -> Session {
        let mut session = Session::accept(&config(), &Budget::new(64 << 20), now).unwrap();
        session.handle_stream_up(StreamId(0));
        session.handle_stream_up(StreamId(1));
        session.handle_connected();
        session
    }

    fn stream(id: u64, label: u8) -> StreamView {
        StreamView { queued_total: 1000, ..StreamView::idle(id, label, RTT) }
    }

    #[test]
    fn an_unacknowledged_late_block_is_expected_twice_as_late() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let (slow, fast) = (stream(0, 0), stream(1, 1));
        let due = start + ms(30);
        let put = Place { stream: slow.id, due, until: 900 };
        assert_eq!(expected(&slow, &fast, &put, start), Some(due));
        assert_eq!(
            expected(&slow, &fast, &put, due + ms(10)),
            Some(due + ms(10)),
            "the acknowledgement may be in flight"
        );
        assert_eq!(expected(&slow, &fast, &put, due + ms(50)), Some(due + ms(50 + 40)));
        let same_path = StreamView { label: 0, ..fast };
        assert_eq!(expected(&slow, &same_path, &put, due + ms(50)), None);
        for (acked, until) in [(900, 900), (999, 900), (1000, 2000)] {
            let (there, put) = (StreamView { acked, ..slow }, Place { until, ..put });
            assert_eq!(expected(&there, &fast, &put, due + ms(50)), None, "{acked} of 1000 acknowledged");
        }
    }

    #[test]
    fn late_blocks_use_another_path_when_credit_is_exhausted() {
        let (start, ms) = (Instant::now(), Duration::from_millis);
        let mut session = session(start);
        session.handle_local_data(Bytes::from(vec![7; 1000]));
        let (slow, fast) = (stream(0, 0), StreamView { has_room: false, ..stream(1, 1) });
        let sent = |session: &mut Session, now, views: &[StreamView]| {
            while session.poll_event().is_some() {}
            std::iter::from_fn(|| session.poll_transmit(now, views))
                .map(|sent| sent.stream.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(sent(&mut session, start, &[slow, fast]), [0, 0], "Opened, then the data");
        let fast = StreamView { has_room: true, ..fast };
        let again = session.poll_timeout().unwrap();
        assert!(again >= start + ms(10), "the block is not late before it is due");
        assert_eq!(sent(&mut session, again, &[slow, fast]), [0; 0]);
        session.handle_timeout(again);
        let late = start + ms(10 + 10 + 16);
        assert!(session.poll_timeout().unwrap() <= late, "a timer checks for late blocks");
        assert_eq!(sent(&mut session, late, &[slow, fast]), [1]);
        assert_eq!(
            sent(&mut session, late + ms(100), &[slow, fast]),
            [0; 0],
            "the block is copied only once"
        );
    }

    #[test]
    fn retransmissions_avoid_reserved_streams() {
        let now = Instant::now();
        let slow = StreamView { rtt: 10 * RTT, ..stream(0, 0) };
        for (reserved, expected) in [(false, vec![0, 0, 1]), (true, vec![0, 0])] {
            let mut session = session(now);
            session.handle_local_data(Bytes::from(vec![7; 1000]));
            let mut sent: Vec<_> = std::iter::from_fn(|| session.poll_transmit(now, &[slow])).collect();
            let fast = StreamView { reserved, ..stream(1, 1) };
            sent.extend(std::iter::from_fn(|| session.poll_transmit(now, &[slow, fast])));
            assert_eq!(sent.iter().map(|sent| sent.stream.0).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn on_a_lossy_path_the_tail_uses_two_streams() {
        let now = Instant::now();
        let lossy = |id| StreamView { lossy: true, ..stream(id, 0) };
        for (views, doubled) in [([lossy(0), lossy(1)], true), ([stream(0, 0), stream(1, 0)], false)] {
            let mut session = session(now);
            session.handle_local_data(b"an answer".to_vec());
            session.handle_local_eof();
            let sent: Vec<_> = std::iter::from_fn(|| session.poll_transmit(now, &views)).collect();
            let on = |stream: u64| {
                let bodies = sent.iter().filter(|s| s.stream.0 == stream).map(|s| s.frame.body.clone());
                bodies.filter(|body| matches!(body, Body::Data { .. } | Body::Fin { .. })).collect::<Vec<_>>()
            };
            let first = if on(0).is_empty() { 1 } else { 0 };
            assert_eq!(on(first).len(), 2, "data and FIN");
            assert_eq!(on(1 - first), if doubled { on(first) } else { Vec::new() });
        }
    }

    #[test]
    fn a_reset_is_sent_without_buffer_space() {
        let mut session = session(Instant::now());
        let full = |id| StreamView { has_room: false, ..stream(id, 0) };
        session.handle_local_reset(EndReason::ServerReset);
        let sent: Vec<_> =
            std::iter::from_fn(|| session.poll_transmit(Instant::now(), &[full(0), full(1)])).collect();
        let reset = Body::Reset { reason: EndReason::ServerReset };
        assert_eq!(
            sent.iter().map(|s| (s.stream.0, &s.frame.body)).collect::<Vec<_>>(),
            [(0, &reset), (1, &reset)]
        );
        assert!(session.is_closed());
    }

    #[test]
    fn an_opener_without_an_answer_repeats_open_each_second() {
        let (mut now, second) = (Instant::now(), Duration::from_secs(1));
        let uuid = sos_wire::SessionUuid([1; 16]);
        let (client, server) = ("10.0.0.1:4000".parse().unwrap(), "10.0.1.1:80".parse().unwrap());
        let open = sos_wire::Open {
            session: uuid,
            client,
            server,
            marks: sos_wire::Marks::default(),
            block_bytes: 0,
            queue_bytes: 0,
        };
        let mut session = Session::open(&config(), open, &Budget::new(64 << 20), now).unwrap();
        session.handle_stream_up(StreamId(0));
        for at in 0..3 {
            let sent = session.poll_transmit(now, &[stream(0, 0)]).unwrap().frame.body;
            assert!(matches!(sent, Body::Open { .. }), "{sent:?} after {at} s");
            assert_eq!(session.poll_transmit(now, &[stream(0, 0)]), None);
            assert_eq!(session.poll_timeout(), Some(now + second));
            now += second;
            session.handle_timeout(now);
        }
        session.handle_frame(Body::Opened { credit: 1 << 20 }, now);
        assert_eq!(session.poll_transmit(now, &[stream(0, 0)]), None);
        assert_eq!(session.poll_timeout(), None, "no answer is outstanding");
    }

    #[test]
    fn a_frame_that_declines_a_stream_is_polled_after_an_interval() {
        let now = Instant::now();
        let mut session = session(now);
        let full = StreamView { has_room: false, ..stream(0, 0) };
        let suspect = StreamView { suspect: true, ..stream(1, 0) };
        assert_eq!(session.poll_transmit(now, &[full, suspect]), None, "Opened waits for the first stream");
        assert_eq!(session.poll_timeout(), Some(now + ASK_AGAIN));
        session.handle_timeout(now + ASK_AGAIN);
        let sent = session.poll_transmit(now + ASK_AGAIN, &[StreamView { has_room: true, ..full }, suspect]);
        assert_eq!(sent.map(|sent| sent.stream), Some(StreamId(0)));
        assert_eq!((session.poll_timeout(), session.poll_event()), (None, None::<Event>));
    }
}
