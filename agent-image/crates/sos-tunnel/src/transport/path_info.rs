//! Path statistics and pacing of a stream, the same for TCP and QUIC.

use std::time::Duration;

/// The kernel's statistics of a stream's path (tcp(7), TCP_INFO), or QUIC's in the same terms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Lowest round trip.
    pub min_rtt: Duration,
    /// Data segments sent, retransmissions included; cumulative.
    pub segments: u32,
    /// Segments retransmitted; cumulative.
    pub retransmitted: u32,
    /// Congestion window in bytes.
    pub window: u64,
    /// Slow start: the window doubles each round trip.
    pub slow_start: bool,
    /// First search for the rate: no slow start threshold has been set yet, so cubic is in its first slow start, or bbr in STARTUP. Unknown
    /// over QUIC, and always false.
    pub startup: bool,
    /// Bytes in the socket not sent once.
    pub unsent: u32,
    /// Segments in flight.
    pub outstanding: u32,
    /// Their bytes, at most.
    pub in_flight: u64,
    /// Bytes acknowledged; cumulative.
    pub acknowledged: u64,
    /// Segments delivered, those behind a gap included; cumulative, wraps.
    pub delivered: u32,
    /// Bytes of a full segment.
    pub mss: u32,
}

/// Pacing of a stream's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// None: windows leave in bursts. A TCP socket that was paced once stays so.
    Bursts,
    /// Spread over the round trip; over QUIC always.
    Spread,
    /// Spread, and at most this many bytes a second.
    AtMost(u64),
}
