//! A session at one agent: both halves, its streams and its teardown.

mod close;
mod interface;
mod marks;
mod transmit;

pub use interface::{Event, SessionConfig, Transmit};

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::{Body, EndReason, Frame, Open, Payload, SessionNumber};

use crate::budget::Budget;
use crate::marks::{Announced, Received};
use crate::receiving::credit::Window;
use crate::receiving::receiver::{Receiver, Violation};
use crate::sending::scheduler::{EarliestArrival, Scheduler, StreamId, StreamView};
use crate::sending::sender::Sender;
use crate::stats::{Cause, SessionStats};
use crate::{ASK_AGAIN, MAX_BLOCK, MIN_BLOCK};

/// Interval at which a session that waits for an acknowledgement repeats its own acknowledgement. The peer's acknowledgement may have been
/// lost with a stream whose failure the peer did not notice. If the peer's session is already over, the repeated acknowledgement makes the
/// peer's agent answer once more (frame.md clause 10). An opener that has received no frame of the peer's session repeats its Open.
/// Together with the 5 s to detect a dead stream, the interval is shorter than the time for which closed sessions are remembered.
const PROBE_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum State {
    Running,
    /// The Reset is being sent on every stream: if it were lost with its only stream, the peer would wait forever.
    Resetting {
        reason: EndReason,
        told: BTreeSet<StreamId>,
    },
    Closed,
}

/// State of the opening at this agent.
#[derive(Debug)]
enum Opening {
    /// The opener sends Open on every stream that it uses until it has seen Opened, and (`again`) once more if the peer is silent.
    Repeat {
        open: Open,
        sent_on: BTreeSet<StreamId>,
        again: bool,
    },
    /// The acceptor has not connected to the server yet.
    Connecting,
    /// The acceptor has to send Opened.
    Announce,
    Done,
}

/// One end of a session. The [crate] page shows the order of calls.
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
    /// A frame of the peer's session has arrived, so the peer knows of the session.
    heard: bool,
    /// The peer's session is over, because its host has received everything.
    peer_through: bool,
    probe_at: Option<Instant>,
    /// Streams that stalled while other streams made progress.
    stalled: BTreeSet<StreamId>,
    /// Next time to re-examine the streams: no stream with buffer space was good enough, or the first block may be late.
    ask_at: Option<Instant>,
    scheduler: Box<dyn Scheduler>,
    events: VecDeque<Event>,
}

impl Session {
    /// Creates the opener's end, at the ingress agent. `None` if the budget does not suffice for another session.
    pub fn open(config: &SessionConfig, open: Open, budget: &Arc<Budget>, now: Instant) -> Option<Self> {
        Self::new(config, Opening::Repeat { open, sent_on: BTreeSet::new(), again: false }, budget, now)
    }

    /// Creates the acceptor's end, at the egress agent, on the first Open with a session number. `None` if the budget does not suffice for
    /// another session.
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

    /// Sets the last measured round trip of the streams, and the minimum of their path.
    pub fn set_rtt(&mut self, rtt: Duration, lowest: Duration) {
        self.receiver.set_rtt(rtt, lowest);
        self.sender.set_rtt(lowest);
    }

    // --- the local host ---

    /// Number of bytes accepted from the host now. 0 = stop reading, which stops the host.
    pub fn local_room(&mut self) -> usize {
        if matches!(self.state, State::Running) { self.sender.room() } else { 0 }
    }

    /// Maximum number of bytes sent in one block. A payload outside this process's memory (in a kernel pipe) must not be longer.
    pub fn block(&self) -> usize {
        self.sender.block()
    }

    /// Takes bytes of the host, at most [`Self::local_room`].
    pub fn handle_local_data(&mut self, payload: impl Into<Payload>) {
        if matches!(self.state, State::Running) {
            self.sender.handle_data(payload.into());
        }
    }

    /// Takes the host's FIN.
    pub fn handle_local_eof(&mut self) {
        self.sender.handle_eof();
    }

    /// Handles the host's reset, or this agent's decision to abort the session. The peer is notified; the caller resets the host itself.
    pub fn handle_local_reset(&mut self, reason: EndReason) {
        if matches!(self.state, State::Running) {
            if self.needs_no_peer() {
                return self.close(reason);
            }
            self.clear();
            self.state = State::Resetting { reason, told: BTreeSet::new() };
        }
    }

    /// Notes that the server has accepted. For the acceptor only.
    pub fn handle_connected(&mut self) {
        if matches!(self.opening, Opening::Connecting) {
            self.opening = Opening::Announce;
            self.settle();
        }
    }

    /// True if the far host is known to be connected.
    pub fn is_opened(&self) -> bool {
        matches!(self.opening, Opening::Announce | Opening::Done)
    }

    /// Notes that the host has taken `n` bytes of [`Self::deliverable`].
    pub fn handle_delivered(&mut self, n: usize, now: Instant) {
        if matches!(self.state, State::Running) {
            self.receiver.handle_delivered(n, now);
            self.settle();
        }
    }

    /// Notes the number of bytes sent to the host and not acknowledged by it.
    pub fn handle_unacknowledged(&mut self, bytes: u64, now: Instant) {
        if matches!(self.state, State::Running) {
            self.receiver.handle_unacknowledged(bytes, now);
        }
    }

    /// Receive window to offer to the local host, in bytes: small on slow paths, because it holds data ahead of the far host.
    pub fn host_window(&self) -> u64 {
        self.sender.host_window()
    }

    /// Rate of the far host in bytes per second, as far as known; used as [`SessionConfig::rate`] of the next session.
    pub fn rate(&self) -> f64 {
        self.sender.delivery_rate()
    }

    /// Notes that the host accepts no more of [`Self::deliverable`] for now, or is not connected yet.
    pub fn handle_host_full(&mut self) {
        self.receiver.handle_full();
    }

    // --- the streams ---

    /// Adds a stream to the peer.
    pub fn handle_stream_up(&mut self, stream: StreamId) {
        self.streams.insert(stream);
        self.alone_since = None;
    }

    /// Removes a stream; its unacknowledged frames count as lost.
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
        if !self.needs_no_peer() {
            self.handle_stream_lost(stream, Cause::Died);
        }
    }

    /// Marks the frames of a failed or stalled stream for retransmission.
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
        // Repeat the acknowledgement even if it has not changed: the peer's answer shows whether the peer still has the session (frame.md
        // clause 10).
        if self.heard {
            self.receiver.repeat_ack();
        }
    }

    /// Takes a frame of this session.
    pub fn handle_frame(&mut self, body: Body, now: Instant) {
        if !matches!(self.state, State::Running) || self.needs_no_peer() {
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
            // The driver answers these frames, because they concern the hosts.
            Body::Probe { .. } | Body::HostState { .. } => Ok(()),
        };
        if result.is_err() {
            self.events.push_back(Event::Reset(EndReason::InternalLimit));
            return self.handle_local_reset(EndReason::InternalLimit);
        }
        self.settle();
    }

    /// Returns the next frame and its stream, or `None` if there is nothing to send now on streams with buffer space. Only Reset also uses
    /// streams without buffer space. `streams` are all established streams.
    pub fn poll_transmit(&mut self, now: Instant, streams: &[StreamView]) -> Option<Transmit> {
        let transmit = match self.state {
            State::Running if self.needs_no_peer() => None,
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

    /// Next time to call [`Self::poll_transmit`] even if no stream gets buffer space and no frame arrives.
    fn ask_again(&self, now: Instant, streams: &[StreamView]) -> Option<Instant> {
        let soon = now + ASK_AGAIN;
        if self.has_transmit() {
            let declined = streams.iter().any(|s| s.has_room);
            return declined.then(|| self.ask_at.map_or(soon, |at| at.min(soon)));
        }
        let paths = streams.iter().any(|s| s.label != streams[0].label);
        self.sender.late_at(now).filter(|_| paths).map(|at| at.max(soon))
    }

    /// True if [`Self::poll_transmit`] would return a frame if every stream had buffer space.
    pub fn has_transmit(&self) -> bool {
        match &self.state {
            State::Running if self.needs_no_peer() => false,
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

    /// Deadline for [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Instant> {
        let alone = self.alone_since.map(|since| since + self.stream_wait);
        match &self.state {
            State::Running if self.needs_no_peer() => None,
            State::Running => {
                let times = [self.receiver.ack_deadline(), self.probe_at, self.ask_at, alone];
                times.into_iter().flatten().min()
            }
            State::Resetting { .. } => alone,
            State::Closed => None,
        }
    }

    /// Handles deadlines. A due acknowledgement shows in [`Self::has_transmit`].
    pub fn handle_timeout(&mut self, now: Instant) {
        self.receiver.handle_timeout(now);
        self.ask_at = self.ask_at.filter(|at| *at > now);
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe();
            self.probe_at = Some(now + PROBE_AFTER);
        }
        let waited = self.alone_since.is_some_and(|since| since + self.stream_wait <= now);
        match self.state {
            State::Running if waited && !self.needs_no_peer() => self.end_by_reset(EndReason::PeerLost),
            State::Resetting { reason, .. } if waited => self.close(reason),
            _ => {}
        }
    }

    /// True while the session waits for an answer of the peer, or for the end of the peer's session.
    fn waits(&self) -> bool {
        let Opening::Repeat { sent_on, .. } = &self.opening else {
            return self.heard && (self.sender.awaits_ack() || self.has_all());
        };
        !sent_on.is_empty()
    }

    /// Checks whether the peer still has the session: repeats the acknowledgement, or Open if the peer may not know the session. A peer
    /// that is still connecting to the server does not answer.
    fn probe(&mut self) {
        match &mut self.opening {
            Opening::Repeat { again, .. } if !self.heard => *again = true,
            _ => self.receiver.repeat_ack(),
        }
    }

    /// Next event for the host.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Handles the loss of the peer: its process has restarted.
    pub fn handle_peer_lost(&mut self) {
        if !matches!(self.state, State::Closed) && !self.needs_no_peer() {
            self.end_by_reset(EndReason::PeerLost);
        }
    }

    /// True once the session is over.
    pub fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed)
    }

    /// Session number.
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
            retransmitted: self.sender.retransmitted,
            credit_stalls: self.sender.credit_stalls,
            reorder_bytes: self.receiver.reorder_bytes(),
            window: self.receiver.window_size(),
        }
    }

    /// Checks the invariants. For tests.
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

    /// Detects the end of the session.
    fn settle(&mut self) {
        match &self.state {
            State::Running => {
                // The FIN of a client that sends it immediately, without data, waits until the server has accepted.
                if !matches!(self.opening, Opening::Connecting) && self.receiver.poll_end() {
                    self.events.push_back(Event::Finished);
                }
                let told = self.receiver.is_finished() || self.needs_no_peer();
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

    /// Closes the session. The host may still be reading received bytes, but the session holds none of them.
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
