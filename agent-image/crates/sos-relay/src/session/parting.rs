//! The last of a session: one end is through while the other one's host takes its time (frame.md clause 10).

use std::time::Instant;

use sos_wire::{Backlog, Body};

use super::{Session, State};
use crate::receiver::Violation;

impl Session {
    /// Ack; without credit it also says that the peer's end is over.
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
        // Who runs grants more than that.
        self.peer_through |= credit == 0;
        Ok(())
    }

    /// The peer has everything and so has this end, but for its own host.
    pub(super) fn has_all(&self) -> bool {
        self.sender.is_finished() && self.receiver.has_all()
    }

    /// All that is left is for the own host to take what is here: whatever becomes of the peer and of the streams is of no matter any more.
    pub(super) fn is_left_alone(&self) -> bool {
        self.peer_through && self.has_all()
    }

    /// Whether the session ends with the peer's process. For tests.
    pub fn needs_peer(&self) -> bool {
        matches!(self.state, State::Running) && !self.is_left_alone()
    }

    /// What is said once to the peer, which may not be through, after this end has finished. It may be lost: the peer asks, too.
    pub fn farewell(&mut self) -> Option<Body> {
        let due = matches!(self.state, State::Closed) && !std::mem::replace(&mut self.peer_through, true);
        due.then(|| Body::Ack {
            offset: self.receiver.delivered() + 1,
            credit: 0,
            backlog: Backlog::default(),
        })
    }
}
