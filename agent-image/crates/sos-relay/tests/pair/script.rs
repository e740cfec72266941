//! What hosts and streams do in one run.

use bytes::Bytes;

/// One host: what it sends, and how it reads.
#[derive(Debug, Clone)]
pub(crate) struct HostScript {
    pub(crate) bytes: usize,
    /// Bytes written each millisecond.
    pub(crate) write_step: usize,
    /// Bytes read each millisecond.
    pub(crate) read_step: usize,
    /// Reads nothing before this time.
    pub(crate) read_from_ms: u64,
    /// Resets its connection at this time.
    pub(crate) reset_at_ms: Option<u64>,
}

#[derive(Debug, Clone)]
pub(crate) struct StreamScript {
    pub(crate) born_ms: u64,
    pub(crate) dies_ms: Option<u64>,
    pub(crate) delay_ms: u64,
    /// Bytes per millisecond.
    pub(crate) rate: usize,
    /// How much later than the death the two ends hear of it.
    pub(crate) notice_ms: [u64; 2],
}

#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) hosts: [HostScript; 2],
    pub(crate) streams: Vec<StreamScript>,
    pub(crate) connect_ms: u64,
    pub(crate) block: usize,
    pub(crate) budget: usize,
}

/// Bytes that tell their own position, differently in each direction.
pub(crate) fn pattern(len: usize, direction: usize) -> Bytes {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8).wrapping_mul(7) ^ (i >> 16) ^ (direction * 0x55)) as u8)
        .collect()
}
