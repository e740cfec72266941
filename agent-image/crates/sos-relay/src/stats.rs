//! Counters of one session.

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
    /// Data frames sent again because their stream died, stalled or was too slow.
    pub resent_frames: u64,
    /// Times there were bytes and a stream but no credit.
    pub credit_stalls: u64,
    /// Bytes that wait behind a gap.
    pub reorder_bytes: u64,
    /// The receive window.
    pub window: u64,
}
