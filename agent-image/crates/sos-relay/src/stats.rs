//! Counters of one session.

use std::ops::{Index, IndexMut};

/// Why bytes were sent a second time, over another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Their stream died.
    Died,
    /// Their stream came to a stand while others moved.
    Stalled,
    /// They were expected sooner by another path.
    Late,
    /// They were the last of what the host had to say, on a path that loses segments.
    Tail,
}

impl Cause {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Died, Self::Stalled, Self::Late, Self::Tail];
}

/// Bytes of the local host sent a second time, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resent([u64; Cause::ALL.len()]);

impl Index<Cause> for Resent {
    type Output = u64;

    fn index(&self, cause: Cause) -> &u64 {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Resent {
    fn index_mut(&mut self, cause: Cause) -> &mut u64 {
        &mut self.0[cause as usize]
    }
}

/// What a session has done and holds. Rendered elsewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Bytes of the local host sent at least once.
    pub sent: u64,
    /// Bytes of the local host that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes of the local host that it keeps: sent and not acknowledged, and not sent yet.
    pub held: u64,
    /// Bytes of the peer that the local host has taken.
    pub delivered: u64,
    /// Bytes of the local host sent a second time.
    pub resent: Resent,
    /// Times there were bytes and a stream but no credit.
    pub credit_stalls: u64,
    /// Bytes that wait behind a gap.
    pub reorder_bytes: u64,
    /// The receive window.
    pub window: u64,
}
