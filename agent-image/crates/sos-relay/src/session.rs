//! A session at one agent: both halves, the streams, the ends.

mod interface;
mod marks;
mod parting;
mod transmit;

pub use interface::{Event, SessionConfig, Transmit};

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::{Body, EndReason, Frame, Open, Payload, SessionNumber};

use crate::budget::Budget;
use crate::credit::Window;
use crate::marks::{Announced, Received};
use crate::receiver::{Receiver, Violation};
use crate::scheduler::{EarliestArrival, Scheduler, StreamId, StreamView};
use crate::sender::Sender;
use crate::stats::{Cause, SessionStats};
use crate::{ASK_AGAIN, MAX_BLOCK, MIN_BLOCK};

/// A sender that has waited this long for an acknowledgement repeats its own: the peer's may have died with a stream of whose death the
/// peer did not know, and the peer's session may be over (frame.md clause 10). An opener that knows of no session of the peer's repeats its
/// Open. Less than half of what ended sessions are remembered, with the 5 s that it takes to notice a dead stream.
const PROBE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum State {
    Running,
    /// The peer is being told, on every stream there is: a Reset that dies with its stream would leave the peer waiting.
    Resetting {
        reason: EndReason,
        told: BTreeSet<StreamId>,
    },
    Closed,
}

/// What this side has to do about opening.
#[derive(Debug)]
enum Opening {
    /// The opener repeats Open on every stream it uses until it has seen Opened, and (`again`) once more where nothing has been heard.
    Repeat {
        open: Open,
        sent_on: BTreeSet<StreamId>,
        again: bool,
    },
    /// The acceptor has not reached the server yet.
    Connecting,
    /// The acceptor owes an Opened.
    Announce,
    Done,
}

/// One end of a session. See the [crate] page for who calls what.
pub struct Session {
    number: SessionNumber,
    state: State,
    opening: Opening,
    acceptor: bool,
    sender: Sender,
    receiver: Receiver,
    announced: Announced,
    marks: Received,
    streams: BTreeSet<StreamId>,
    alone_since: Option<Instant>,
    stream_wait: Duration,
    /// Something of the peer's end of this session has arrived, so it knows of the session.
    heard: bool,
    /// The peer's end of this session is over: its host has been given everything.
    peer_through: bool,
    probe_at: Option<Instant>,
    /// Streams that stalled while others moved.
    stalled: BTreeSet<StreamId>,
    /// The streams are looked at again then: of those with room none was good enough, or what was sent first may be late.
    ask_at: Option<Instant>,
    scheduler: Box<dyn Scheduler>,
    events: VecDeque<Event>,
}

impl Session {
    /// The opener's end: near the client. `None` if the budget has no room for another session.
    pub fn open(config: &SessionConfig, open: Open, budget: &Arc<Budget>, now: Instant) -> Option<Self> {
        Self::new(config, Opening::Repeat { open, sent_on: BTreeSet::new(), again: false }, budget, now)
    }

    /// The acceptor's end, on the first Open of a number: near the server. `None` if the budget has no room for another session.
    pub fn accept(config: &SessionConfig, budget: &Arc<Budget>, now: Instant) -> Option<Self> {
        Self::new(config, Opening::Connecting, budget, now)
    }

    fn new(config: &SessionConfig, opening: Opening, budget: &Arc<Budget>, now: Instant) -> Option<Self> {
        let block = (config.block != 0).then(|| config.block.clamp(MIN_BLOCK, MAX_BLOCK));
        let window = Window::new(config.max_memory, config.rtt, budget)?;
        let mut sender = Sender::new(block, config.max_memory, budget.reserve(0)?);
        sender.set_rate_known(config.rate);
        sender.set_rtt(config.rtt);
        let mut announced = Announced::default();
        if let Opening::Repeat { open, .. } = &opening {
            announced.begin(open.marks);
        }
        Some(Self {
            number: config.number,
            state: State::Running,
            acceptor: matches!(opening, Opening::Connecting),
            heard: matches!(opening, Opening::Connecting),
            peer_through: false,
            probe_at: None,
            stalled: BTreeSet::new(),
            ask_at: None,
            opening,
            sender,
            receiver: Receiver::new(window),
            announced,
            marks: Received::default(),
            streams: BTreeSet::new(),
            alone_since: Some(now),
            stream_wait: config.stream_wait,
            scheduler: Box::new(EarliestArrival::new(config.number.0)),
            events: VecDeque::new(),
        })
    }

    /// Replaces the scheduler.
    pub fn set_scheduler(&mut self, scheduler: Box<dyn Scheduler>) {
        self.scheduler = scheduler;
    }

    /// The round trip time of the streams, as measured last, and the lowest that their path is known to have.
    pub fn set_rtt(&mut self, rtt: Duration, lowest: Duration) {
        self.receiver.set_rtt(rtt, lowest);
        self.sender.set_rtt(lowest);
    }

    // --- the local host ---

    /// How many bytes of the host may be handed in now. 0 = stop reading, which stops the host.
    pub fn local_room(&mut self) -> usize {
        if matches!(self.state, State::Running) { self.sender.room() } else { 0 }
    }

    /// Bytes that go on as they were handed in, if they are no more: what is not in memory is best handed in like that.
    pub fn block(&self) -> usize {
        self.sender.block()
    }

    /// Bytes of the host, at most [`Self::local_room`].
    pub fn handle_local_data(&mut self, payload: impl Into<Payload>) {
        if matches!(self.state, State::Running) {
            self.sender.handle_data(payload.into());
        }
    }

    /// The host will send no more.
    pub fn handle_local_eof(&mut self) {
        self.sender.handle_eof();
    }

    /// The host is gone, or this agent gives the session up. The peer is told; the caller resets the host itself.
    pub fn handle_local_reset(&mut self, reason: EndReason) {
        if matches!(self.state, State::Running) {
            if self.is_left_alone() {
                return self.close(reason);
            }
            self.clear();
            self.state = State::Resetting { reason, told: BTreeSet::new() };
        }
    }

    /// The server has accepted. At the acceptor only.
    pub fn handle_connected(&mut self) {
        if matches!(self.opening, Opening::Connecting) {
            self.opening = Opening::Announce;
            self.settle();
        }
    }

    /// Whether the far host is known to be connected.
    pub fn is_opened(&self) -> bool {
        matches!(self.opening, Opening::Announce | Opening::Done)
    }

    /// The host has taken `n` bytes of [`Self::deliverable`].
    pub fn handle_delivered(&mut self, n: usize, now: Instant) {
        if matches!(self.state, State::Running) {
            self.receiver.handle_delivered(n, now);
            self.settle();
        }
    }

    /// Of what the host has been given it has not acknowledged so many bytes.
    pub fn handle_unacknowledged(&mut self, bytes: u64, now: Instant) {
        if matches!(self.state, State::Running) {
            self.receiver.handle_unacknowledged(bytes, now);
        }
    }

    /// How much of the local host's bytes may be ahead of what the far host has acknowledged.
    pub fn ahead_limit(&self) -> u64 {
        self.sender.ahead_limit()
    }

    /// Bytes a second that the far host takes, as far as it is known: what [`SessionConfig::rate`] of the next session may be.
    pub fn rate(&self) -> f64 {
        self.sender.delivery_rate()
    }

    /// The host takes no more of [`Self::deliverable`] for now, or is not there yet.
    pub fn handle_host_full(&mut self) {
        self.receiver.handle_full();
    }

    // --- the streams ---

    /// A stream to the peer may be used.
    pub fn handle_stream_up(&mut self, stream: StreamId) {
        self.streams.insert(stream);
        self.alone_since = None;
    }

    /// A stream is gone with everything on it.
    pub fn handle_stream_closed(&mut self, stream: StreamId, now: Instant) {
        if !self.streams.remove(&stream) {
            return;
        }
        self.stalled.remove(&stream);
        if self.streams.is_empty() {
            self.alone_since = Some(now);
        }
        if let State::Resetting { told, .. } = &mut self.state {
            told.remove(&stream);
            return;
        }
        if !self.is_left_alone() {
            self.handle_stream_lost(stream, Cause::Died);
        }
    }

    /// What was on a stream may never arrive.
    fn handle_stream_lost(&mut self, stream: StreamId, cause: Cause) {
        self.sender.handle_stream_lost(stream, cause);
        self.announced.handle_stream_lost(stream);
        match &mut self.opening {
            Opening::Repeat { sent_on, .. } => {
                sent_on.remove(&stream);
            }
            Opening::Done if self.acceptor => self.opening = Opening::Announce,
            _ => {}
        }
        // Repeated even if nothing changed: the answer tells whether the peer still has the session (frame.md clause 10).
        if self.heard {
            self.receiver.repeat_ack();
        }
    }

    /// A frame of this session.
    pub fn handle_frame(&mut self, body: Body, now: Instant) {
        if !matches!(self.state, State::Running) || self.is_left_alone() {
            return;
        }
        self.heard = true;
        let result = match body {
            Body::Open { credit, .. } if self.acceptor => {
                self.sender.handle_credit(credit);
                Ok(())
            }
            Body::Opened { credit } if !self.acceptor => {
                self.sender.handle_credit(credit);
                if matches!(self.opening, Opening::Repeat { .. }) {
                    self.opening = Opening::Done;
                    self.events.push_back(Event::Opened);
                }
                Ok(())
            }
            Body::Data { offset, payload } => self.receiver.handle_data(offset, &payload, now),
            Body::Compressed { offset, length, payload } => {
                self.receiver.handle_compressed(offset, (length, &payload), now)
            }
            Body::Ack { offset, credit, backlog } => self.handle_ack((offset, credit), backlog, now),
            Body::Fin { offset } => self.receiver.handle_fin(offset, now),
            Body::Reset { reason } => return self.end_by_reset(reason),
            Body::Marks { offset, change, marks } => {
                self.marks.handle(change, offset, marks);
                Ok(())
            }
            // The wrong role, or a frame of the stream itself.
            Body::Open { .. }
            | Body::Opened { .. }
            | Body::Ping { .. }
            | Body::Pong { .. }
            | Body::GoAway
            | Body::Willing { .. }
            | Body::Connect { .. }
            | Body::Connected { .. }
            | Body::Release { .. } => Err(Violation),
            // They are about the hosts, and whoever drives this session answers them.
            Body::Probe { .. } | Body::HostState { .. } => Ok(()),
        };
        if result.is_err() {
            self.events.push_back(Event::Reset(EndReason::InternalLimit));
            return self.handle_local_reset(EndReason::InternalLimit);
        }
        self.settle();
    }

    /// The next frame, on one of the streams that have room, or `None` if there is nothing to send on them now; only Reset goes on any.
    /// `streams` are all that are up.
    pub fn poll_transmit(&mut self, now: Instant, streams: &[StreamView]) -> Option<Transmit> {
        let transmit = match self.state {
            State::Running if self.is_left_alone() => None,
            State::Running => {
                let transmit = self.transmit_running(now, streams);
                self.ask_at = if transmit.is_none() { self.ask_again(now, streams) } else { None };
                self.probe_at = self.probe_at.or(Some(now + PROBE_AFTER)).filter(|_| self.waits());
                transmit
            }
            State::Resetting { .. } => self.transmit_reset(streams),
            State::Closed => None,
        };
        self.settle();
        transmit.map(|(stream, body)| Transmit { stream, frame: Frame { session: self.number, body } })
    }

    /// When to look again, nothing having been sent, though no stream gets room nor anything to send.
    fn ask_again(&self, now: Instant, streams: &[StreamView]) -> Option<Instant> {
        let soon = now + ASK_AGAIN;
        if self.has_transmit() {
            let declined = streams.iter().any(|s| s.has_room);
            return declined.then(|| self.ask_at.map_or(soon, |at| at.min(soon)));
        }
        let paths = streams.iter().any(|s| s.label != streams[0].label);
        self.sender.late_at(now).filter(|_| paths).map(|at| at.max(soon))
    }

    /// Whether [`Self::poll_transmit`] would send something if every stream had room.
    pub fn has_transmit(&self) -> bool {
        match &self.state {
            State::Running if self.is_left_alone() => false,
            State::Running => {
                let opening = match &self.opening {
                    Opening::Repeat { sent_on, again, .. } => sent_on.is_empty() || *again,
                    Opening::Announce => true,
                    Opening::Connecting | Opening::Done => false,
                };
                opening
                    || self.announced.is_due()
                    || self.receiver.ack_is_due()
                    || self.sender.next_len().is_some()
            }
            State::Resetting { told, .. } => self.streams.iter().any(|s| !told.contains(s)),
            State::Closed => false,
        }
    }

    // --- time and ends ---

    /// When [`Self::handle_timeout`] is to be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.alone_since.map(|since| since + self.stream_wait);
        match &self.state {
            State::Running if self.is_left_alone() => None,
            State::Running => {
                let times = [self.receiver.ack_deadline(), self.probe_at, self.ask_at, alone];
                times.into_iter().flatten().min()
            }
            State::Resetting { .. } => alone,
            State::Closed => None,
        }
    }

    /// Time has passed. An acknowledgement that has become due shows in [`Self::has_transmit`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.receiver.handle_timeout(now);
        self.ask_at = self.ask_at.filter(|at| *at > now);
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe();
            self.probe_at = Some(now + PROBE_AFTER);
        }
        let waited = self.alone_since.is_some_and(|since| since + self.stream_wait <= now);
        match self.state {
            State::Running if waited && !self.is_left_alone() => self.end_by_reset(EndReason::PeerLost),
            State::Resetting { reason, .. } if waited => self.close(reason),
            _ => {}
        }
    }

    /// Whether something is awaited of the peer: its answer, or what follows it.
    fn waits(&self) -> bool {
        let Opening::Repeat { sent_on, .. } = &self.opening else {
            return self.heard && (self.sender.awaits_ack() || self.has_all());
        };
        !sent_on.is_empty()
    }

    /// Asks whether the peer still has the session. One that may never have heard of it is told again, and does not answer while it connects.
    fn probe(&mut self) {
        match &mut self.opening {
            Opening::Repeat { again, .. } if !self.heard => *again = true,
            _ => self.receiver.repeat_ack(),
        }
    }

    /// What to do for the host.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The peer is gone for good: its process has restarted.
    pub fn handle_peer_lost(&mut self) {
        if !matches!(self.state, State::Closed) && !self.is_left_alone() {
            self.end_by_reset(EndReason::PeerLost);
        }
    }

    /// Whether the session is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Its number.
    pub fn number(&self) -> SessionNumber {
        self.number
    }

    /// Counters and gauges.
    pub fn stats(&self) -> SessionStats {
        SessionStats {
            sent: self.sender.sent(),
            acknowledged: self.sender.acknowledged(),
            held: self.sender.held() as u64,
            delivered: self.receiver.delivered(),
            resent: self.sender.resent,
            credit_stalls: self.sender.credit_stalls,
            reorder_bytes: self.receiver.reorder_bytes(),
            window: self.receiver.window_size(),
        }
    }

    /// Checks what the comments promise. For tests.
    pub fn assert_invariants(&self) {
        assert_eq!(
            self.streams.is_empty(),
            self.alone_since.is_some(),
            "a session without streams is waiting for one"
        );
        if matches!(self.state, State::Running) {
            self.sender.assert_invariants();
            self.receiver.assert_invariants();
        } else {
            assert_eq!(self.sender.held(), 0, "a session that is over holds nothing");
        }
    }

    /// Notices ends that have been reached.
    fn settle(&mut self) {
        match &self.state {
            State::Running => {
                // A server that is not there yet cannot be told of the end: a client may end at once, without a word.
                if !matches!(self.opening, Opening::Connecting) && self.receiver.poll_end() {
                    self.events.push_back(Event::Finished);
                }
                let told = self.receiver.is_finished() || self.is_left_alone();
                if self.sender.is_finished() && self.receiver.has_ended() && told {
                    self.close(EndReason::Finished);
                }
            }
            State::Resetting { reason, told } => {
                let reason = *reason;
                if !self.streams.is_empty() && self.streams.iter().all(|s| told.contains(s)) {
                    self.close(reason);
                }
            }
            State::Closed => {}
        }
    }

    fn end_by_reset(&mut self, reason: EndReason) {
        if matches!(self.state, State::Running) {
            self.events.push_back(Event::Reset(reason));
        }
        self.close(reason);
    }

    /// The host may still take its time over what it was given; nothing of that is held here.
    fn close(&mut self, reason: EndReason) {
        self.clear();
        self.sender.release();
        self.receiver.release();
        self.state = State::Closed;
        self.events.push_back(Event::Closed(reason));
    }

    fn clear(&mut self) {
        self.sender.clear();
        self.receiver.clear();
    }
}
