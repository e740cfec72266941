//! Driver of an end: the part of the real driver between a host's socket and the streams.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sos_relay::{Cause, Event, Session, StreamId, StreamView};
use sos_wire::{Body, EndReason, Frame, Keeper, Kept, Marks, Payload};

use super::{Happening, MS, NUMBER, Stream, World};

/// Size of a stream's queue: two blocks of the default size.
const STREAM_ROOM: usize = 128 << 10;
/// CPU time of compressing a block.
const CPU: Duration = Duration::from_micros(200);
/// Bound on the frames of one turn: more than the memory and the block size of any script allow.
const MAX_FRAMES_AT_ONCE: usize = 100_000;

/// Bytes that the real driver would keep in a pipe.
#[derive(Debug)]
struct Elsewhere(Bytes);

impl Keeper for Elsewhere {}

fn kept(bytes: Bytes) -> Payload {
    let len = bytes.len();
    Payload::Kept(Kept::new(Arc::new(Elsewhere(bytes)), len))
}

/// Content of a payload, in memory or not.
fn bytes(payload: &Payload) -> Bytes {
    match payload {
        Payload::Bytes(bytes) => bytes.clone(),
        Payload::Kept(kept) => {
            let keeper = (kept.keeper() as &dyn Any).downcast_ref::<Elsewhere>().unwrap();
            keeper.0.slice(kept.range())
        }
    }
}

/// Marks that change with the number of bytes written.
fn marks_at(written: usize) -> Marks {
    Marks { dscp: 0, ttl: u8::try_from(written / 20_000).unwrap_or(u8::MAX) }
}

impl World {
    pub(super) fn read(&mut self, i: usize) {
        self.hosts[i].reading = false;
        let Some(session) = &mut self.ends[i].session else { return };
        let host = &mut self.hosts[i];
        assert!(host.marks[1].ttl <= marks_at(host.received).ttl, "marks apply from their byte on");
        let mut left = host.script.read_step;
        for chunk in session.deliverable() {
            let n = chunk.len().min(left);
            assert!(
                host.expected[host.received..].starts_with(&bytes(chunk)[..n]),
                "delivered is a prefix of sent"
            );
            host.received += n;
            left -= n;
        }
        session.handle_delivered(host.script.read_step - left, self.now);
        session.handle_unacknowledged(0, self.now);
    }

    /// Runs one turn of an end, like the real driver.
    pub(super) fn drive(&mut self, end: usize) {
        while let Some((stream, frame)) = self.ends[end].answers.pop_front() {
            let i = usize::try_from(stream.0).unwrap();
            if self.streams[i].known[end] {
                self.push(i, end, frame);
            }
        }
        let Some(mut session) = self.ends[end].session.take() else { return };
        self.hand_in(end, &mut session);
        let mut frames = 0;
        while let Some(mut transmit) = session.poll_transmit(self.now, &self.views(end)) {
            frames += 1;
            assert!(frames < MAX_FRAMES_AT_ONCE, "the session comes to rest: {:?}", transmit.frame);
            session.assert_invariants();
            transmit.frame.body = self.pack(end, transmit.frame.body);
            self.push(usize::try_from(transmit.stream.0).unwrap(), end, transmit.frame);
            self.hand_in(end, &mut session);
        }
        self.note_full(end, &session);
        self.watch(end, &mut session);
        for cause in Cause::ALL {
            self.retransmitted[cause] = self.retransmitted[cause].max(session.stats().retransmitted[cause]);
        }
        if session.is_closed() {
            let (reason, delivered) = (self.ends[end].closed.unwrap(), session.stats().delivered);
            self.ends[end].ended.insert(NUMBER, reason, delivered, self.now);
            self.part(end, session, reason);
            return self.through(end);
        }
        self.ends[end].session = Some(session);
    }

    /// Sends the closing Ack of a session.
    fn part(&mut self, end: usize, mut session: Session, reason: EndReason) {
        let Some(stream) = (0..self.streams.len()).find(|i| self.streams[*i].known[end]) else { return };
        if reason == EndReason::Finished
            && let Some(body) = session.closing_ack()
        {
            self.push(stream, end, Frame { session: NUMBER, body });
        }
    }

    /// Returns the frame to send for `body`, compressed if that pays; compression takes [`CPU`] per block.
    fn pack(&mut self, end: usize, body: Body) -> Body {
        let Some(compression) = &mut self.ends[end].compression else { return body };
        let asked = Cell::new(0);
        let cpu = || CPU * asked.replace(asked.get() + 1);
        let body = compression.pack(body, true, self.now, cpu);
        let (done, sum) = (compression.take_done(), &mut self.compressed[end]);
        (sum.original, sum.wire, sum.cpu) =
            (sum.original + done.original, sum.wire + done.wire, sum.cpu + done.cpu);
        body
    }

    fn note_full(&mut self, end: usize, session: &Session) {
        let full = session.has_transmit() && !self.views(end).iter().any(|view| view.has_room);
        if let Some(compression) = self.ends[end].compression.as_mut().filter(|_| full) {
            compression.handle_waiting();
        }
    }

    fn hand_in(&mut self, end: usize, session: &mut Session) {
        let host = &mut self.hosts[end];
        let room = session.local_room().min(host.allowed - host.written);
        if room > 0 {
            let piece = host.source.slice(host.written..host.written + room);
            // As in the real driver, bytes that may be compressed are in memory.
            host.keeps = !host.keeps && self.ends[end].compression.is_none();
            host.marks[0] = marks_at(host.written);
            session.handle_local_marks(host.marks[0]);
            session.handle_local_data(if host.keeps { kept(piece) } else { piece.into() });
            host.written += room;
        }
        let ends_from = self.start + MS * u32::try_from(host.script.eof_at_ms).unwrap();
        if host.written == host.script.bytes && self.now >= ends_from && !host.eof_told {
            host.eof_told = true;
            session.handle_local_eof();
        }
    }

    fn watch(&mut self, end: usize, session: &mut Session) {
        self.hosts[end].marks[1] = session.poll_marks().unwrap_or(self.hosts[end].marks[1]);
        while let Some(event) = session.poll_event() {
            assert_eq!(self.ends[end].closed, None, "no event follows Closed");
            let said = self.hosts[1 - end].marks[0];
            let host = &mut self.hosts[end];
            match event {
                Event::Opened => {}
                Event::Finished => {
                    assert_eq!(host.received, host.expected.len(), "the end comes after everything");
                    host.saw_end = true;
                    assert_eq!(host.marks[1], said, "the last marks arrive before the end");
                }
                Event::Reset(_) => host.saw_reset = true,
                Event::Closed(reason) => self.ends[end].closed = Some(reason),
            }
        }
        session.assert_invariants();
        let connected =
            end == 0 || self.now >= self.start + MS * u32::try_from(self.script.connect_ms).unwrap();
        self.check_memory(end, session);
        if !self.hosts[end].reading && connected && session.deliverable().next().is_some() {
            self.hosts[end].reading = true;
            let from = self.start + MS * u32::try_from(self.hosts[end].script.read_from_ms).unwrap();
            let time = self.after_pauses(end, from.max(self.now + MS));
            self.schedule(time, Happening::Read(end));
        }
        if let Some(deadline) = session.poll_timeout()
            && self.ends[end].timer.is_none_or(|timer| deadline < timer)
        {
            self.ends[end].timer = Some(deadline);
            self.schedule(deadline.max(self.now), Happening::Timeout(end));
        }
    }

    fn views(&self, end: usize) -> Vec<StreamView> {
        let known = self.streams.iter().enumerate().filter(|(_, s)| s.known[end]);
        known.map(|(i, s)| self.view(StreamId(i as u64), s, end)).collect()
    }

    /// Statistics of the transport; no more bytes are acknowledged after the stream has failed.
    fn view(&self, id: StreamId, stream: &Stream, end: usize) -> StreamView {
        let (direction, script) = (&stream.directions[end], &stream.script);
        let queued = direction.queued;
        let rtt = MS * 2 * u32::try_from(script.delay_ms).unwrap();
        let stalled = self.silent_since(script).is_some_and(|since| self.now >= since + 2 * rtt + 300 * MS);
        let window = script.rate as u64 * 2 * script.delay_ms;
        StreamView {
            id,
            label: u8::try_from(id.0).unwrap(),
            has_room: queued < STREAM_ROOM,
            queued,
            queued_total: direction.queued_total,
            acked: direction.acked,
            rtt,
            window,
            slow_start: false,
            stalled,
            suspect: false,
            parallelism: usize::MAX,
            reserved: false,
            lossy: script.lossy,
        }
    }
}
