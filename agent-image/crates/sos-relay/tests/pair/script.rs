//! What hosts and streams do in one run.

use bytes::Bytes;

/// A time from its first to before its last millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// One host: what it sends, and how it reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostScript {
    pub(crate) bytes: usize,
    /// What it sends does not become shorter by being compressed.
    pub(crate) noise: bool,
    /// Bytes written at once.
    pub(crate) write_step: usize,
    /// And how often; 0 is each millisecond.
    pub(crate) write_every_ms: u64,
    /// Bytes read each millisecond.
    pub(crate) read_step: usize,
    /// Reads nothing before this time.
    pub(crate) read_from_ms: u64,
    /// Reads nothing in these times.
    pub(crate) read_pauses: Vec<Span>,
    /// Says no earlier than this that it will send no more: a connection stays open in one direction.
    pub(crate) eof_at_ms: u64,
    /// Resets its connection at this time.
    pub(crate) reset_at_ms: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct StreamScript {
    pub(crate) born_ms: u64,
    pub(crate) dies_ms: Option<u64>,
    pub(crate) delay_ms: u64,
    /// Bytes per millisecond.
    pub(crate) rate: usize,
    /// How much later than the death the two ends hear of it.
    pub(crate) notice_ms: [u64; 2],
    /// Its path is said to lose segments: what was sent last is sent twice.
    pub(crate) lossy: bool,
    /// Nothing gets through in these times, and everything does after them: a black path under a transport that tries again.
    pub(crate) pauses: Vec<Span>,
}

/// What becomes of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It has drained for as long as it may: it resets its sessions, and closes its streams a second later.
    Drained,
    /// Its process ends, and another one begins.
    Killed,
    /// The same, when its session is over.
    Through,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentScript {
    pub(crate) end: usize,
    pub(crate) at_ms: u64,
    pub(crate) leaving: Leaving,
}

/// Another session of an agent, which takes this share of the budget that is free.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbour {
    pub(crate) end: usize,
    pub(crate) lives: Span,
    pub(crate) percent: usize,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Script {
    pub(crate) hosts: [HostScript; 2],
    pub(crate) streams: Vec<StreamScript>,
    pub(crate) connect_ms: u64,
    pub(crate) block: usize,
    pub(crate) budget: usize,
    /// By end: what it sends is compressed where that pays, and streams take that.
    pub(crate) compress: [bool; 2],
    /// What arrives is seen by an agent this often, its processor being busy; 0 is at once.
    pub(crate) turn_ms: u64,
    pub(crate) agent: Option<AgentScript>,
    pub(crate) neighbours: Vec<Neighbour>,
}

/// Bytes that tell their own position, differently in each direction; with `noise`, such that nothing makes them shorter.
pub(crate) fn pattern(len: usize, direction: usize, noise: bool) -> Bytes {
    if noise {
        let mut state = direction as u64 + 1;
        let next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        };
        return std::iter::repeat_with(next).take(len).collect();
    }
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8).wrapping_mul(7) ^ (i >> 16) ^ (direction * 0x55)) as u8)
        .collect()
}
