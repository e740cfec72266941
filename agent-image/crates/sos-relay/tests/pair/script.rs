//! Script of hosts and streams for one run.

use bytes::Bytes;

/// A period in milliseconds; its end is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from_ms: u64,
    pub(crate) until_ms: u64,
}

/// Behavior of one host: its data and its reads.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostScript {
    pub(crate) bytes: usize,
    /// The host's data is incompressible.
    pub(crate) noise: bool,
    /// Bytes of one write.
    pub(crate) write_step: usize,
    /// Interval between writes; 0 = one millisecond.
    pub(crate) write_every_ms: u64,
    /// Bytes read each millisecond.
    pub(crate) read_step: usize,
    /// The host reads nothing before this time.
    pub(crate) read_from_ms: u64,
    /// The host reads nothing during these periods.
    pub(crate) read_pauses: Vec<Span>,
    /// Earliest time of the host's FIN; until then, its direction stays open.
    pub(crate) eof_at_ms: u64,
    /// The host resets its connection at this time.
    pub(crate) reset_at_ms: Option<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct StreamScript {
    pub(crate) born_ms: u64,
    pub(crate) dies_ms: Option<u64>,
    pub(crate) delay_ms: u64,
    /// Bytes per millisecond.
    pub(crate) rate: usize,
    /// Delay after which each end notices the failure.
    pub(crate) notice_ms: [u64; 2],
    /// The stream's path counts as lossy: the tail is sent twice.
    pub(crate) lossy: bool,
    /// Black hole: no data passes during these periods. All of it passes afterwards, because the transport retransmits.
    pub(crate) pauses: Vec<Span>,
}

/// Manner in which an agent leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leaving {
    /// The agent has drained for as long as allowed: it resets its sessions, and closes its streams a second later.
    Drained,
    /// The agent's process ends, and a new process starts.
    Killed,
    /// Like `Killed`, but once the agent's session is over.
    Through,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct AgentScript {
    pub(crate) end: usize,
    pub(crate) at_ms: u64,
    pub(crate) leaving: Leaving,
}

/// Another session of an agent, which reserves this share of the free budget.
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
    /// By end: the agent compresses data if that pays, and its streams accept compressed data.
    pub(crate) compress: [bool; 2],
    /// Interval at which a busy agent polls for received data; 0 = immediately.
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
