//! Path statistics and pacing of a stream, the same for TCP and QUIC.

use std::time::Duration;

/// The kernel's statistics of a stream's path (tcp(7), TCP_INFO), or the same for QUIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PathInfo {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Minimum round trip.
    pub min_rtt: Duration,
    /// Data segments sent, retransmissions included; cumulative.
    pub segments: u32,
    /// Segments retransmitted; cumulative.
    pub retransmitted: u32,
    /// Congestion window in bytes.
    pub window: u64,
    /// Slow start: the window doubles each round trip.
    pub slow_start: bool,
    /// First search for the rate: no slow start threshold has been set yet, so cubic is in its first slow start, or bbr in STARTUP. Always false
    /// over QUIC, where it is unknown.
    pub startup: bool,
    /// Bytes in the socket that have never been sent.
    pub unsent: u32,
    /// Segments in flight.
    pub outstanding: u32,
    /// Upper bound of the number of bytes in flight.
    pub in_flight: u64,
    /// Bytes acknowledged; cumulative.
    pub acknowledged: u64,
    /// Segments delivered, including those received behind a gap; cumulative, wraps.
    pub delivered: u32,
    /// Bytes of a full segment.
    pub mss: u32,
}

/// Pacing of a stream's segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// Unpaced: windows leave in bursts. A TCP socket that was once paced stays paced.
    Bursts,
    /// Spread over the round trip, as segments over QUIC always are.
    Spread,
    /// Spread, with a maximum rate in bytes per second.
    AtMost(u64),
}
