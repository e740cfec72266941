//! Types that sessions, configuration and callbacks share.

use std::time::Duration;

use sos_wire::EndReason;

/// A set of path labels: bit L = label L.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels(pub u32);

impl Labels {
    /// Number of possible labels.
    pub const COUNT: usize = u32::BITS as usize;
    /// Every label.
    pub const ALL: Self = Self(u32::MAX);

    /// True if a label is in the set.
    pub const fn contains(self, label: u8) -> bool {
        (label as usize) < Self::COUNT && self.0 >> label & 1 == 1
    }
}

/// Result of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEnd {
    /// Reason; [`EndReason::Finished`] if both directions finished.
    pub reason: EndReason,
    /// Bytes from client to server that this agent has relayed.
    pub bytes_up: u64,
    /// Bytes from server to client that this agent has relayed.
    pub bytes_down: u64,
    /// Time from the start of the session to its end, both at this agent.
    pub duration: Duration,
}
