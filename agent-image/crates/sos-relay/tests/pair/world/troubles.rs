//! Faults of agents, streams and hosts other than the failure of single streams, and invariants that hold despite them.

use std::time::{Duration, Instant};

use sos_relay::Session;
use sos_wire::EndReason;
use sos_wire::stream::frame::INITIAL_CREDIT;

use super::{Happening, MS, World};
use crate::script::{Leaving, Span, StreamScript};

/// Bytes that a sender may hold without a reservation.
const FLOOR: usize = 64 << 10;
/// Time for which a leaving agent's process outlives its resets, so that peers receive them, in milliseconds.
const CLOSE_PATIENCE_MS: u64 = 1000;
/// Delay of an agent that leaves after its session.
const THROUGH: Duration = Duration::from_millis(200);

impl World {
    pub(super) fn begin_troubles(&mut self) {
        if let Some(agent) = self.script.agent {
            match agent.leaving {
                Leaving::Killed => self.at(agent.at_ms, Happening::Killed(agent.end)),
                Leaving::Drained => {
                    self.at(agent.at_ms, Happening::Drained(agent.end));
                    self.at(agent.at_ms + CLOSE_PATIENCE_MS, Happening::Killed(agent.end));
                }
                Leaving::Through => {}
            }
        }
        for (i, neighbour) in self.script.neighbours.clone().into_iter().enumerate() {
            self.at(neighbour.lives.from_ms, Happening::NeighbourComes(i));
            self.at(neighbour.lives.until_ms, Happening::NeighbourGoes(i));
        }
    }

    /// Establishes a stream, unless an agent has been replaced meanwhile. Then the stream leads to a new process, and the peer loses the
    /// old one.
    pub(super) fn born(&mut self, i: usize) {
        if let Some(gone) = self.gone {
            if let Some(session) = &mut self.ends[1 - gone].session {
                let needed = session.needs_peer();
                session.handle_peer_lost();
                assert!(session.is_closed() || !needed, "no session outlives the process that it needs");
            }
            return;
        }
        self.streams[i].alive = true;
        (0..2).for_each(|end| self.stream_up(i, end));
    }

    pub(super) fn drained(&mut self, end: usize) {
        if let Some(session) = &mut self.ends[end].session {
            session.handle_local_reset(EndReason::PeerLost);
            self.hosts[end].saw_reset = true;
        }
    }

    /// Ends an agent's process: the kernel resets its hosts and closes its streams. The peer notices each closed stream after the delay of
    /// that stream.
    pub(super) fn killed(&mut self, end: usize) {
        self.gone = Some(end);
        if self.ends[end].session.take().is_some() {
            self.hosts[end].saw_reset = true;
            self.ends[end].closed.get_or_insert(EndReason::PeerLost);
        }
        for i in 0..self.streams.len() {
            self.streams[i].known[end] = false;
            if std::mem::take(&mut self.streams[i].alive) {
                let notice = MS * u32::try_from(self.streams[i].script.notice_ms[1 - end]).unwrap();
                self.after(notice, Happening::Notice(i, 1 - end));
            }
        }
    }

    /// Handles the end of a session: an agent that was to leave after its session leaves.
    pub(super) fn through(&mut self, end: usize) {
        if self.script.agent.is_some_and(|agent| agent.end == end && agent.leaving == Leaving::Through) {
            let at = self.moment(self.script.agent.map_or(0, |agent| agent.at_ms));
            self.schedule(at.max(self.now + THROUGH), Happening::Killed(end));
        }
    }

    pub(super) fn neighbour_comes(&mut self, i: usize) {
        let neighbour = self.script.neighbours[i];
        let budget = &self.budgets[neighbour.end];
        let free = budget.limit() - budget.used();
        self.neighbours[i] = budget.reserve(free / 100 * neighbour.percent);
    }

    /// End of a stream's black hole, if there is one.
    pub(super) fn paused(&self, i: usize) -> Option<Instant> {
        self.span_at(&self.streams[i].script.pauses, self.now).map(|span| self.moment(span.until_ms))
    }

    /// Time from which acknowledgements are overdue on a stream.
    pub(super) fn silent_since(&self, stream: &StreamScript) -> Option<Instant> {
        let paused = self.span_at(&stream.pauses, self.now).map(|span| span.from_ms);
        stream.dies_ms.or(paused).map(|ms| self.moment(ms)).filter(|since| *since <= self.now)
    }

    /// Postpones a host's read at `time` to the end of a pause.
    pub(super) fn after_pauses(&self, end: usize, time: Instant) -> Instant {
        let paused = self.span_at(&self.hosts[end].script.read_pauses, time);
        paused.map_or(time, |span| self.moment(span.until_ms))
    }

    /// Checks that the bytes held, as counted outside the session, stay within its windows, its memory and the budget.
    pub(super) fn check_memory(&self, end: usize, session: &Session) {
        let (stats, budget) = (session.stats(), &self.budgets[end]);
        let waiting =
            session.deliverable().map(|chunk| chunk.len() as u64).sum::<u64>() + stats.reorder_bytes;
        assert!(waiting <= stats.window, "{waiting} bytes for the host in a window of {}", stats.window);
        let most = self.max_memory.max(INITIAL_CREDIT as usize) as u64;
        assert!(stats.window <= most, "a window of {} where {most} are allowed", stats.window);
        if !session.is_closed() {
            let held = self.hosts[end].written - usize::try_from(stats.acknowledged).unwrap();
            assert!(self.hosts[end].reset || held <= self.max_memory.max(FLOOR), "{held} bytes of the host");
            assert!(budget.used() as u64 >= stats.window, "a window that is not reserved");
        }
        assert!(budget.used() <= budget.limit(), "more memory is reserved than exists");
    }

    /// Runs until no event is left or virtual time is up, so that frames in flight at the end of the sessions arrive, too. Returns the end
    /// of the last session.
    pub(crate) fn run_to_rest(&mut self, limit: Duration) -> Duration {
        let mut ended = self.elapsed();
        loop {
            let running = (0..2).any(|end| self.runs(end));
            let Some(time) = self.next_time().filter(|time| *time <= self.start + limit) else {
                return ended;
            };
            self.step();
            if running {
                ended = time - self.start;
            }
        }
    }

    /// True if an end has a session.
    pub(crate) fn runs(&self, end: usize) -> bool {
        self.ends[end].session.is_some()
    }

    /// True if a host has sent everything, its FIN included.
    pub(crate) fn said_all(&self, end: usize) -> bool {
        self.hosts[end].eof_told && self.hosts[end].written == self.hosts[end].script.bytes
    }

    /// True if a host has reset its connection itself.
    pub(crate) fn has_reset(&self, end: usize) -> bool {
        self.hosts[end].reset
    }

    fn moment(&self, ms: u64) -> Instant {
        self.start + MS * u32::try_from(ms).unwrap()
    }

    fn span_at(&self, spans: &[Span], time: Instant) -> Option<Span> {
        let within = |span: &&Span| self.moment(span.from_ms) <= time && time < self.moment(span.until_ms);
        spans.iter().find(within).copied()
    }
}
