//! Counters of one session.

use std::ops::{Index, IndexMut};

/// Cause of a retransmission over another stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The stream of the bytes failed.
    Died,
    /// The stream of the bytes stalled while other streams made progress.
    Stalled,
    /// The bytes were expected sooner over another path.
    Late,
    /// The bytes were the tail of the host's data, on a lossy path.
    Tail,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 4] = [Self::Died, Self::Stalled, Self::Late, Self::Tail];
}

/// The local host's retransmitted bytes, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retransmitted([u64; Cause::ALL.len()]);

impl Index<Cause> for Retransmitted {
    type Output = u64;

    fn index(&self, cause: Cause) -> &u64 {
        &self.0[cause as usize]
    }
}

impl IndexMut<Cause> for Retransmitted {
    fn index_mut(&mut self, cause: Cause) -> &mut u64 {
        &mut self.0[cause as usize]
    }
}

/// Statistics of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Bytes of the local host sent at least once.
    pub sent: u64,
    /// Bytes of the local host that the peer has acknowledged.
    pub acknowledged: u64,
    /// Bytes of the local host that are held: unacknowledged or unsent.
    pub held: u64,
    /// Bytes of the peer that the local host has taken.
    pub delivered: u64,
    /// The local host's retransmitted bytes.
    pub retransmitted: Retransmitted,
    /// Number of times that bytes and a stream were available but no credit.
    pub credit_stalls: u64,
    /// Bytes that wait behind a gap.
    pub reorder_bytes: u64,
    /// The receive window.
    pub window: u64,
}
