//! What a session sends next.

use std::time::{Duration, Instant};

use sos_wire::Body;

use super::{Opening, Session, State};
use crate::scheduler::{Demand, StreamId, StreamView, quickest};

impl Session {
    /// Control first: it is small, and acknowledgements keep the other direction moving.
    pub(super) fn transmit_running(
        &mut self,
        now: Instant,
        streams: &[StreamView],
    ) -> Option<(StreamId, Body)> {
        self.note_stalled(streams);
        self.sender.set_rate(streams.iter().map(StreamView::rate).fold(0.0, f64::max));
        let control = self.transmit_opened(streams).or_else(|| self.transmit_ack(streams));
        if control.is_some() {
            return control;
        }
        let Some(len) = self.sender.next_len() else {
            if streams.iter().any(|s| s.has_room) {
                self.sender.note_stall();
            }
            return self.transmit_lone_open(streams).or_else(|| self.reinject(now, streams));
        };
        let stream = self.choose(streams, len)?;
        // Open goes first on every stream, so that data never meets an agent that has not heard of the session (frame.md clause 7).
        if let Some(open) = self.open_for(stream) {
            return Some((stream, open));
        }
        self.sender.next(stream, due(now, streams, stream, len)).map(|body| (stream, body))
    }

    fn choose(&mut self, streams: &[StreamView], len: usize) -> Option<StreamId> {
        let demand = Demand { len, left: self.sender.left(), window: self.sender.window() };
        self.scheduler.choose(streams, demand)
    }

    /// What a stream holds that has stalled while others move is sent again there, and it is asked again whether the peer has the session:
    /// as if it had died, but it may come back.
    fn note_stalled(&mut self, streams: &[StreamView]) {
        let moving = streams.iter().any(|s| !s.stalled);
        for view in streams {
            let known = self.stalled.contains(&view.id);
            if view.stalled && moving && !known {
                self.stalled.insert(view.id);
                self.handle_stream_lost(view.id);
            } else if !view.stalled && known {
                self.stalled.remove(&view.id);
            }
        }
    }

    fn reinject(&mut self, now: Instant, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let stream = quickest(streams)?;
        let view = *streams.iter().find(|s| s.id == stream && !s.stalled)?;
        // There Open would have to go first.
        if matches!(&self.opening, Opening::Repeat { sent_on, .. } if !sent_on.contains(&stream)) {
            return None;
        }
        self.sender.reinject(stream, |len| now + view.arrival(len), now).map(|body| (stream, body))
    }

    /// Open without data: the server may be the one to speak first.
    fn transmit_lone_open(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let Opening::Repeat { sent_on, .. } = &self.opening else { return None };
        if !sent_on.is_empty() {
            return None;
        }
        let stream = self.choose(streams, 0)?;
        self.open_for(stream).map(|body| (stream, body))
    }

    fn open_for(&mut self, stream: StreamId) -> Option<Body> {
        let Opening::Repeat { open, sent_on } = &mut self.opening else { return None };
        let credit = self.receiver.limit();
        sent_on.insert(stream).then(|| Body::Open { credit, open: *open })
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

    pub(super) fn transmit_reset(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        let State::Resetting { reason, told, .. } = &mut self.state else { return None };
        let stream = streams.iter().filter(|s| s.has_room).map(|s| s.id).find(|id| !told.contains(id))?;
        told.insert(stream);
        Some((stream, Body::Reset { reason: *reason }))
    }
}

/// When a block that is put on a stream now should have arrived.
fn due(now: Instant, streams: &[StreamView], stream: StreamId, len: usize) -> Instant {
    let view = streams.iter().find(|s| s.id == stream);
    now + view.map_or(Duration::ZERO, |view| view.arrival(len))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use sos_wire::SessionNumber;

    use super::*;
    use crate::budget::Budget;
    use crate::{ASK_AGAIN, Event, SessionConfig};

    #[test]
    fn what_waits_beside_a_stream_with_room_is_asked_for_again() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let config = SessionConfig {
            number: SessionNumber(1),
            block: 0,
            max_memory: 1 << 20,
            stream_wait: second,
            rtt: Duration::from_millis(20),
        };
        let mut session = Session::accept(&config, &Budget::new(64 << 20), now).unwrap();
        session.handle_stream_up(StreamId(0));
        session.handle_stream_up(StreamId(1));
        session.handle_connected();
        let full = StreamView {
            id: StreamId(0),
            has_room: false,
            queued: 0,
            rtt: config.rtt,
            window: 1 << 20,
            grows: false,
            stalled: false,
            doubtful: false,
            spare: false,
        };
        let doubtful = StreamView { id: StreamId(1), has_room: true, doubtful: true, ..full };
        assert_eq!(session.poll_transmit(now, &[full, doubtful]), None, "Opened waits for the first");
        assert_eq!(session.poll_timeout(), Some(now + ASK_AGAIN));
        session.handle_timeout(now + ASK_AGAIN);
        let sent = session.poll_transmit(now + ASK_AGAIN, &[StreamView { has_room: true, ..full }, doubtful]);
        assert_eq!(sent.map(|sent| sent.stream), Some(StreamId(0)));
        assert_eq!((session.poll_timeout(), session.poll_event()), (None, None::<Event>));
    }
}
