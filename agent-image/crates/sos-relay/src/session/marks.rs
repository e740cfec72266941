//! DSCP and TTL of the hosts' packets (frame.md section 8).

use sos_wire::{Body, Marks, Payload};

use super::{Session, State};
use crate::sending::scheduler::{StreamId, StreamView, quickest};

impl Session {
    /// Notes the current marks of the local host's packets, which apply to its bytes from now on.
    pub fn handle_local_marks(&mut self, marks: Marks) {
        if matches!(self.state, State::Running) {
            self.announced.change(marks, self.sender.taken());
        }
    }

    /// Marks for the local host's connection from now on, if they have changed. Call before each use of [`Self::deliverable`].
    pub fn poll_marks(&mut self) -> Option<Marks> {
        let marks = self.marks.poll(self.receiver.delivered());
        if let Some(at) = self.marks.next() {
            self.receiver.split_ready(at);
        }
        marks
    }

    /// Bytes for the host, in order, up to the next change of marks.
    pub fn deliverable(&self) -> impl Iterator<Item = &Payload> {
        let limit = self.marks.next().map_or(u64::MAX, |at| at.saturating_sub(self.receiver.delivered()));
        let mut end = 0;
        self.receiver.ready().take_while(move |piece| {
            end += piece.len() as u64;
            end <= limit
        })
    }

    /// Announces a change without waiting for data: the peer also uses the marks for acknowledgements to its own host.
    pub(super) fn transmit_marks(&mut self, streams: &[StreamView]) -> Option<(StreamId, Body)> {
        if !self.announced.is_due() {
            return None;
        }
        let stream = quickest(streams)?;
        self.first_on(stream).map(|body| (stream, body))
    }

    /// Frame that must precede data on a stream: Open, so that data never arrives at an agent without the session (frame.md clause 7), and the
    /// marks of the data.
    pub(super) fn first_on(&mut self, stream: StreamId) -> Option<Body> {
        self.open_for(stream).or_else(|| self.announced.before(stream))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::{Duration, Instant};

    use bytes::Bytes;
    use sos_wire::{Open, SessionNumber, SessionUuid};

    use super::*;
    use crate::budget::Budget;
    use crate::{SessionConfig, Transmit};

    const SYN: Marks = Marks { dscp: 10, ttl: 64 };
    const LATER: Marks = Marks { dscp: 46, ttl: 64 };

    /// An opener and an acceptor, connected by two streams of one path.
    fn pair(now: Instant) -> (Session, Session) {
        let config = SessionConfig {
            number: SessionNumber(1),
            block: 0,
            max_memory: 1 << 20,
            stream_wait: Duration::from_secs(1),
            rtt: Duration::from_millis(20),
            rate: 0.0,
        };
        let (client, server) = ("10.0.0.11:1".parse().unwrap(), "10.0.0.139:2".parse().unwrap());
        let open = Open {
            session: SessionUuid([1; 16]),
            client,
            server,
            marks: SYN,
            block_bytes: 0,
            queue_bytes: 0,
        };
        let budget = Budget::new(64 << 20);
        let opener = Session::open(&config, open, &budget, now).unwrap();
        let mut acceptor = Session::accept(&config, &budget, now).unwrap();
        acceptor.handle_connected();
        (opener, acceptor)
    }

    /// Frames of a session, all on one stream.
    fn frames(session: &mut Session, stream: u64, now: Instant) -> Vec<Body> {
        let view = StreamView::idle(stream, 0, Duration::from_millis(20));
        session.handle_stream_up(view.id);
        let next = || session.poll_transmit(now, &[view]).map(|Transmit { frame, .. }| frame.body);
        std::iter::from_fn(next).collect()
    }

    fn kinds(frames: &[Body]) -> Vec<&'static str> {
        let kind = |body: &Body| match body {
            Body::Open { .. } => "open",
            Body::Marks { .. } => "marks",
            Body::Data { .. } => "data",
            _ => "other",
        };
        frames.iter().map(kind).collect()
    }

    fn say(session: &mut Session, marks: Marks, bytes: &'static [u8]) {
        session.handle_local_marks(marks);
        session.handle_local_data(Bytes::from_static(bytes));
    }

    /// Delivers everything to the host; returns each write with its marks.
    fn written(session: &mut Session, now: Instant) -> Vec<(Option<Marks>, Vec<u8>)> {
        let (mut writes, mut marks) = (Vec::new(), None);
        loop {
            marks = session.poll_marks().or(marks);
            let write: Vec<u8> = session.deliverable().flat_map(|p| p.bytes().unwrap().to_vec()).collect();
            if write.is_empty() {
                return writes;
            }
            session.handle_delivered(write.len(), now);
            writes.push((marks, write));
        }
    }

    #[test]
    fn marks_precede_their_bytes_on_each_stream() {
        let now = Instant::now();
        let (mut opener, _) = pair(now);
        say(&mut opener, SYN, b"one");
        assert_eq!(kinds(&frames(&mut opener, 1, now)), ["open", "data"], "Open has carried the marks");
        say(&mut opener, LATER, b"two");
        assert_eq!(kinds(&frames(&mut opener, 1, now)), ["marks", "data"]);
        say(&mut opener, LATER, b"three");
        assert_eq!(kinds(&frames(&mut opener, 2, now)), ["open", "marks", "data"]);
        opener.handle_local_marks(SYN);
        assert_eq!(kinds(&frames(&mut opener, 2, now)), ["marks"], "acknowledgements use the marks, too");
        opener.handle_stream_closed(StreamId(2), now);
        assert_eq!(
            kinds(&frames(&mut opener, 1, now)),
            ["marks", "data"],
            "frames on the closed stream may be lost"
        );
    }

    #[test]
    fn each_byte_is_written_with_its_marks_for_any_arrival_order() {
        let now = Instant::now();
        for reversed in [false, true] {
            let (mut opener, mut acceptor) = pair(now);
            let (mut sent, dscp) = (Vec::new(), |dscp| Marks { dscp, ttl: 64 });
            for n in 0..20 {
                say(&mut opener, dscp(n), b"ab");
                say(&mut opener, dscp(n), b"c");
                sent.extend(frames(&mut opener, 1, now));
            }
            if reversed {
                sent.reverse();
            }
            sent.into_iter().for_each(|body| acceptor.handle_frame(body, now));
            let written = written(&mut acceptor, now);
            assert_eq!(written.len(), 20);
            assert!(written.iter().zip(0..).all(|((marks, _), n)| *marks == Some(dscp(n))), "{written:?}");
            assert!(written.iter().all(|(_, bytes)| bytes == b"abc"), "{written:?}");
        }
    }
}
