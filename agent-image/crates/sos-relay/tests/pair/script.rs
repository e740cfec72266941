//! Script of hosts and streams for one run.

use bytes::Bytes;

/// A time from its first to before its last millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// One host: its bytes, and its reading.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostScript {
    pub(crate) bytes: usize,
    /// Its bytes do not compress.
    pub(crate) noise: bool,
    /// Bytes written at once.
    pub(crate) write_step: usize,
    /// Interval; 0 is each millisecond.
    pub(crate) write_every_ms: u64,
    /// Bytes read each millisecond.
    pub(crate) read_step: usize,
    /// Reads nothing before this time.
    pub(crate) read_from_ms: u64,
    /// Reads nothing in these times.
    pub(crate) read_pauses: Vec<Span>,
    /// Earliest time of its FIN: a connection stays open in one direction.
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
    /// Delay after which the two ends notice the death.
    pub(crate) notice_ms: [u64; 2],
    /// Its path counts as lossy: the tail is sent twice.
    pub(crate) lossy: bool,
    /// Black hole: nothing passes in these times, and everything does after them, as the transport retransmits.
    pub(crate) pauses: Vec<Span>,
}

/// Fate of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// It has drained for as long as allowed: it resets its sessions, and closes its streams a second later.
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
    /// By end: compresses data where that pays, and streams accept that.
    pub(crate) compress: [bool; 2],
    /// Interval at which a busy agent sees what has arrived; 0 is at once.
    pub(crate) turn_ms: u64,
    pub(crate) agent: Option<AgentScript>,
    pub(crate) neighbours: Vec<Neighbour>,
}

/// Bytes that encode their position, differently in each direction; with `noise`, incompressible.
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
