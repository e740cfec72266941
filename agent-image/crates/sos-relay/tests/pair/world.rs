//! Two sessions, their hosts and the streams between them, in virtual time.
//!
//! A stream is a FIFO queue with a rate, a delay and space for two blocks. If it fails, everything on it is lost, and each end notices the
//! failure at its own time. All changes are timed events. After each event, both ends are driven until they have nothing more to do, and
//! their invariants are checked.

mod ends;
mod troubles;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sos_relay::{
    Budget, ClosedSessions, Compressed, Compression, Reservation, Retransmitted, Session, SessionConfig,
    StreamId,
};
use sos_wire::{Body, EndReason, Frame, Marks, Open, SessionNumber, SessionUuid};

use crate::script::{HostScript, Script, StreamScript, pattern};

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Bound on the events at one time: a timer that is always due immediately would stop virtual time.
const MAX_STEPS_AT_ONCE: u32 = 100_000;
const NUMBER: SessionNumber = SessionNumber(1);

struct Host {
    script: HostScript,
    source: Bytes,
    /// The host's last bytes are kept outside memory.
    keeps: bool,
    written: usize,
    /// Number of bytes that the host may have written by now.
    allowed: usize,
    eof_told: bool,
    received: usize,
    /// Marks of the host's own bytes, and of the bytes that it has received.
    marks: [Marks; 2],
    expected: Bytes,
    saw_end: bool,
    saw_reset: bool,
    reading: bool,
    /// The host has reset its connection.
    reset: bool,
}

#[derive(Default)]
struct Direction {
    queue: VecDeque<Frame>,
    queued: usize,
    busy: bool,
    /// Frames in flight, in order.
    flying: VecDeque<Frame>,
    /// Bytes queued so far.
    queued_total: u64,
    /// Queued bytes that have been delivered.
    acked: u64,
}

struct Stream {
    script: StreamScript,
    alive: bool,
    /// Both directions, by sending end.
    directions: [Direction; 2],
    known: [bool; 2],
}

struct End {
    session: Option<Session>,
    compression: Option<Compression>,
    ended: ClosedSessions,
    closed: Option<EndReason>,
    answers: VecDeque<(StreamId, Frame)>,
    timer: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Born(usize),
    Dies(usize),
    Notice(usize, usize),
    Sent(usize, usize),
    /// The first frame in flight on a stream arrives.
    Arrives(usize, usize),
    Write(usize),
    Read(usize),
    ResetHost(usize),
    Connected,
    Timeout(usize),
    /// An agent resets its sessions and is about to close its streams.
    Drained(usize),
    /// An agent's process ends.
    Killed(usize),
    /// Another session of an agent starts, or ends.
    NeighbourComes(usize),
    NeighbourGoes(usize),
}

pub(crate) struct World {
    start: Instant,
    pub(crate) now: Instant,
    /// Number of events at this time.
    now_steps: u32,
    events: BinaryHeap<Reverse<(Instant, u64, Happening)>>,
    sequence: u64,
    ends: [End; 2],
    hosts: [Host; 2],
    streams: Vec<Stream>,
    script: Script,
    budgets: [Arc<Budget>; 2],
    neighbours: Vec<Option<Reservation>>,
    /// The end whose agent's process has been replaced.
    gone: Option<usize>,
    max_memory: usize,
    /// Maximum of the bytes that either end has retransmitted.
    pub(crate) retransmitted: Retransmitted,
    /// Compression, by end.
    pub(crate) compressed: [Compressed; 2],
}

impl World {
    pub(crate) fn new(script: Script) -> Self {
        Self::with_memory(script, 4 << 20)
    }

    /// A world whose sessions may hold `max_memory` bytes in each direction.
    pub(crate) fn with_memory(script: Script, max_memory: usize) -> Self {
        #[allow(clippy::disallowed_methods)] // The start of virtual time; only differences are used.
        let start = Instant::now();
        let sources: Vec<Bytes> =
            script.hosts.iter().enumerate().map(|(i, h)| pattern(h.bytes, i, h.noise)).collect();
        let host = |i: usize| Host {
            script: script.hosts[i].clone(),
            source: sources[i].clone(),
            keeps: false,
            written: 0,
            allowed: 0,
            eof_told: false,
            received: 0,
            marks: Default::default(),
            expected: sources[1 - i].clone(),
            saw_end: false,
            saw_reset: false,
            reading: false,
            reset: false,
        };
        let end = |i: usize| End {
            session: None,
            compression: script.compress[i].then(|| Compression::new(start)),
            ended: ClosedSessions::default(),
            closed: None,
            answers: VecDeque::new(),
            timer: None,
        };
        let stream = |s: &StreamScript| Stream {
            script: s.clone(),
            alive: false,
            directions: Default::default(),
            known: [false; 2],
        };
        let budgets = [Budget::new(script.budget), Budget::new(script.budget)];
        let mut world = Self {
            start,
            now: start,
            now_steps: 0,
            events: BinaryHeap::new(),
            sequence: 0,
            ends: [end(0), end(1)],
            hosts: [host(0), host(1)],
            streams: script.streams.iter().map(stream).collect(),
            budgets,
            neighbours: script.neighbours.iter().map(|_| None).collect(),
            gone: None,
            max_memory,
            script,
            retransmitted: Retransmitted::default(),
            compressed: Default::default(),
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        let open = Open {
            session: SessionUuid([9; 16]),
            client: "10.0.0.11:40000".parse().unwrap(),
            server: "10.0.0.139:80".parse().unwrap(),
            marks: Marks::default(),
            block_bytes: 0,
            queue_bytes: 0,
        };
        self.ends[0].session = Session::open(&self.config(), open, &self.budgets[0], self.now);
        for i in 0..self.streams.len() {
            self.at(self.streams[i].script.born_ms, Happening::Born(i));
            if let Some(dies) = self.streams[i].script.dies_ms {
                self.at(dies, Happening::Dies(i));
            }
        }
        for i in 0..2 {
            self.at(0, Happening::Write(i));
            self.at(self.script.hosts[i].eof_at_ms, Happening::Write(i));
            if let Some(reset) = self.script.hosts[i].reset_at_ms {
                self.at(reset, Happening::ResetHost(i));
            }
        }
        self.begin_troubles();
    }

    fn config(&self) -> SessionConfig {
        let longest = self.streams.iter().map(|s| s.script.delay_ms).max().unwrap();
        SessionConfig {
            number: NUMBER,
            block: self.script.block,
            max_memory: self.max_memory,
            stream_wait: 10_000 * MS,
            rtt: MS * 2 * u32::try_from(longest).unwrap(),
            rate: 0.0,
        }
    }

    fn at(&mut self, ms: u64, what: Happening) {
        let time = self.start + MS * u32::try_from(ms).unwrap();
        self.schedule(time, what);
    }

    fn after(&mut self, delay: Duration, what: Happening) {
        self.schedule(self.now + delay, what);
    }

    fn schedule(&mut self, time: Instant, what: Happening) {
        self.sequence += 1;
        self.events.push(Reverse((time, self.sequence, what)));
    }

    /// Runs until both ends are closed or virtual time is up. Returns whether both are closed.
    pub(crate) fn run(&mut self, limit: Duration) -> bool {
        while self.next_time().is_some_and(|time| time <= self.start + limit) {
            self.step();
            if self.ends.iter().all(|e| e.closed.is_some() && e.answers.is_empty()) {
                return true;
            }
        }
        false
    }

    fn next_time(&self) -> Option<Instant> {
        self.events.peek().map(|Reverse((time, ..))| *time)
    }

    /// Handles the next event at both ends.
    fn step(&mut self) {
        let Some(Reverse((time, _, what))) = self.events.pop() else { return };
        self.now_steps = if time == self.now { self.now_steps + 1 } else { 0 };
        assert!(self.now_steps < MAX_STEPS_AT_ONCE, "time stands still: {what:?}");
        self.now = time;
        self.happen(what);
        self.drive(0);
        self.drive(1);
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Born(i) => self.born(i),
            Happening::Dies(i) => {
                self.streams[i].alive = false;
                let [a, b] = self.streams[i].script.notice_ms;
                self.after(MS * u32::try_from(a).unwrap(), Happening::Notice(i, 0));
                self.after(MS * u32::try_from(b).unwrap(), Happening::Notice(i, 1));
            }
            Happening::Notice(i, end) => {
                self.streams[i].known[end] = false;
                if let Some(session) = &mut self.ends[end].session {
                    session.handle_stream_closed(StreamId(i as u64), self.now);
                }
            }
            Happening::Sent(i, from) => self.sent(i, from),
            Happening::Arrives(i, to) => self.arrives(i, to),
            Happening::Write(i) => self.write(i),
            Happening::Read(i) => self.read(i),
            Happening::ResetHost(i) => {
                let reason = [EndReason::ClientReset, EndReason::ServerReset][i];
                if let Some(session) = &mut self.ends[i].session {
                    session.handle_local_reset(reason);
                    self.hosts[i].reset = true;
                }
            }
            Happening::Connected => {
                if let Some(session) = &mut self.ends[1].session {
                    session.handle_connected();
                }
            }
            Happening::Timeout(end) => {
                self.ends[end].timer = None;
                if let Some(session) = &mut self.ends[end].session {
                    session.handle_timeout(self.now);
                }
            }
            Happening::Drained(end) => self.drained(end),
            Happening::Killed(end) => self.killed(end),
            Happening::NeighbourComes(i) => self.neighbour_comes(i),
            Happening::NeighbourGoes(i) => self.neighbours[i] = None,
        }
    }

    fn write(&mut self, i: usize) {
        let host = &mut self.hosts[i];
        host.allowed = (host.allowed + host.script.write_step).min(host.script.bytes);
        let pause = MS * u32::try_from(host.script.write_every_ms.max(1)).unwrap();
        if host.allowed < host.script.bytes {
            self.after(pause, Happening::Write(i));
        }
    }

    fn stream_up(&mut self, i: usize, end: usize) {
        self.streams[i].known[end] = true;
        if let Some(session) = &mut self.ends[end].session {
            session.handle_stream_up(StreamId(i as u64));
        }
    }

    /// Completes the transmission of a stream's first frame, and starts the next frame.
    fn sent(&mut self, i: usize, from: usize) {
        if let Some(until) = self.paused(i) {
            return self.schedule(until, Happening::Sent(i, from));
        }
        let (alive, delay) = (self.streams[i].alive, self.streams[i].script.delay_ms);
        let direction = &mut self.streams[i].directions[from];
        direction.busy = false;
        if let Some(frame) = direction.queue.pop_front() {
            direction.queued -= frame.wire_len();
            if alive {
                direction.flying.push_back(frame);
                let time = self.turn(self.now + MS * u32::try_from(delay).unwrap());
                self.schedule(time, Happening::Arrives(i, 1 - from));
            }
        }
        self.start_sending(i, from);
    }

    /// Next time at which an agent polls.
    fn turn(&self, time: Instant) -> Instant {
        let turn = Duration::from_millis(self.script.turn_ms.max(1)).as_micros();
        let micros = (time - self.start).as_micros();
        let late = if self.script.turn_ms == 0 { 0 } else { (turn - micros % turn) % turn };
        time + Duration::from_micros(u64::try_from(late).unwrap())
    }

    fn start_sending(&mut self, i: usize, from: usize) {
        let rate = self.streams[i].script.rate;
        let direction = &mut self.streams[i].directions[from];
        if direction.busy {
            return;
        }
        if let Some(frame) = direction.queue.front() {
            direction.busy = true;
            let time = Duration::from_micros((frame.wire_len() * 1000 / rate) as u64);
            self.after(time, Happening::Sent(i, from));
        }
    }

    fn push(&mut self, i: usize, from: usize, frame: Frame) {
        let direction = &mut self.streams[i].directions[from];
        direction.queued += frame.wire_len();
        direction.queued_total += frame.wire_len() as u64;
        direction.queue.push_back(frame);
        self.start_sending(i, from);
    }

    fn arrives(&mut self, i: usize, to: usize) {
        if let Some(until) = self.paused(i) {
            return self.schedule(until, Happening::Arrives(i, to));
        }
        let frame = self.streams[i].directions[1 - to].flying.pop_front().unwrap();
        // Frames in flight are lost when a stream fails, and an end that knows of the failure reads no more frames from the stream.
        if !self.streams[i].alive || !self.streams[i].known[to] {
            return;
        }
        self.streams[i].directions[1 - to].acked += frame.wire_len() as u64;
        if to == 1 && self.ends[1].session.is_none() && matches!(frame.body, Body::Open { .. }) {
            self.accept(StreamId(i as u64));
        }
        let (now, end) = (self.now, &mut self.ends[to]);
        match &mut end.session {
            Some(session) => session.handle_frame(frame.body, now),
            None => {
                let answer = end.ended.answer(frame.session, &frame.body, now);
                end.answers
                    .extend(answer.map(|body| (StreamId(i as u64), Frame { session: frame.session, body })));
            }
        }
    }

    fn accept(&mut self, from: StreamId) {
        if self.ends[1].ended.contains(NUMBER) {
            return;
        }
        assert_eq!(self.ends[1].closed, None, "a session that is over does not begin again");
        let Some(mut session) = Session::accept(&self.config(), &self.budgets[1], self.now) else {
            return self.refuse(from);
        };
        let known = (0..self.streams.len()).filter(|i| self.streams[*i].known[1]);
        known.for_each(|i| session.handle_stream_up(StreamId(i as u64)));
        self.ends[1].session = Some(session);
        self.after(MS * u32::try_from(self.script.connect_ms).unwrap(), Happening::Connected);
    }

    fn refuse(&mut self, from: StreamId) {
        let (reason, end) = (EndReason::InternalLimit, &mut self.ends[1]);
        end.ended.insert(NUMBER, reason, 0, self.now);
        end.answers.push_back((from, Frame { session: NUMBER, body: Body::Reset { reason } }));
    }

    /// State, for the message of a failed test.
    pub(crate) fn describe(&self) -> String {
        let end = |i: usize| {
            let (end, host) = (&self.ends[i], &self.hosts[i]);
            let stats = end.session.as_ref().map(Session::stats);
            format!(
                "{i}: wrote {}, received {}, closed {:?}, {stats:?}\n",
                host.written, host.received, end.closed
            )
        };
        format!("after {:?}\n{}{}", self.elapsed(), end(0), end(1))
    }

    pub(crate) fn received(&self, end: usize) -> usize {
        self.hosts[end].received
    }

    pub(crate) fn saw_end(&self, end: usize) -> bool {
        self.hosts[end].saw_end
    }

    pub(crate) fn saw_reset(&self, end: usize) -> bool {
        self.hosts[end].saw_reset
    }

    /// End reason of the session at this end; `None` if the session is running or never started.
    pub(crate) fn closed(&self, end: usize) -> Option<EndReason> {
        self.ends[end].closed
    }

    pub(crate) fn budget_used(&self) -> usize {
        self.budgets.iter().map(|b| b.used()).sum()
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now - self.start
    }
}
