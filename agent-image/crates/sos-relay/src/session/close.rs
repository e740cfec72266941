//! Closing: one agent has finished while the other agent's host is still reading (frame.md clause 10).

use std::time::Instant;

use sos_wire::{Backlog, Body};

use super::{Session, State};
use crate::receiving::receiver::Violation;

impl Session {
    /// Handles an Ack; an Ack without credit also means that the peer's session is over.
    pub(super) fn handle_ack(
        &mut self,
        (offset, credit): (u64, u64),
        backlog: Backlog,
        now: Instant,
    ) -> Result<(), Violation> {
        self.sender.handle_credit(credit);
        self.probe_at = None;
        self.sender.handle_ack(offset).map_err(|_| Violation)?;
        self.sender.handle_backlog(offset, backlog, now);
        // A running session always grants credit.
        self.peer_through |= credit == 0;
        Ok(())
    }

    /// True if both agents have all data, whether or not this agent's host has it.
    pub(super) fn has_all(&self) -> bool {
        self.sender.is_finished() && self.receiver.has_all()
    }

    /// True if only this agent's host still has to take data: the state of the peer and of the streams no longer matters.
    pub(super) fn needs_no_peer(&self) -> bool {
        self.peer_through && self.has_all()
    }

    /// True if the loss of the peer's process would end the session. For tests.
    pub fn needs_peer(&self) -> bool {
        matches!(self.state, State::Running) && !self.needs_no_peer()
    }

    /// Returns the closing Ack, once, after this end has finished, for a peer that may not have finished. If the Ack is lost, the peer
    /// repeats its own acknowledgement.
    pub fn closing_ack(&mut self) -> Option<Body> {
        let due = matches!(self.state, State::Closed) && !std::mem::replace(&mut self.peer_through, true);
        due.then(|| Body::Ack {
            offset: self.receiver.delivered() + 1,
            credit: 0,
            backlog: Backlog::default(),
        })
    }
}
