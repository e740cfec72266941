//! Result of path control for one stream's socket, and its bounds.

use std::time::Duration;

use crate::sample::{DeliverySample, RTT_UNKNOWN};

/// Unsent bytes that a stream's socket may hold, as sending time and as a minimum in bytes. Data of small sessions waits behind these
/// bytes.
const UNSENT: Duration = Duration::from_millis(10);
const UNSENT_MIN: u64 = 32 << 10;

/// Minimum round trip from which a stream is paced. Windows sent in bursts overrun queues on long paths. At 1 Gbit/s and 164 ms, most cubic
/// transfers of 10 s reached 744 to 863 Mbit/s without pacing; with pacing, a first transfer reached 860 and the next 896 Mbit/s. Without
/// delay, pacing gains nothing, and a timer for each burst costs a fifth of a sender's CPU time.
const PACED_FROM: Duration = Duration::from_millis(3);

/// Congestion control of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CongestionControl {
    /// RFC 9438; takes loss for congestion.
    Cubic,
    /// The kernel's bbr; models the path's rate.
    Bbr,
    /// RFC 5681; only by configuration.
    Reno,
}

/// Pacing of a stream's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// Unpaced: windows leave in bursts.
    Bursts,
    /// Spread over the round trip.
    Spread,
    /// Spread, with a maximum rate in bytes per second.
    AtMost(u64),
}

/// Bounds that the caller sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// Streams of a path reserved for interactive sessions: they take no share of a limit.
    pub reserved_streams: usize,
    /// Maximum number of streams of a path that carry bulk under bbr.
    pub bbr_streams: usize,
    /// Maximum number of unsent bytes in a stream's socket.
    pub max_unsent: u32,
}

/// Current configuration of a path's peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathConfig {
    /// Configured congestion control; if present, path control neither observes nor limits the path.
    pub congestion: Option<CongestionControl>,
    /// A service names the number of streams, so parallelism is not limited.
    pub streams_named: bool,
}

/// Decisions for a whole path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Congestion control of the path's streams.
    pub congestion: CongestionControl,
    /// Rate limit of each stream in bytes per second.
    pub stream_limit: Option<u64>,
    /// Maximum number of streams that carry bulk sessions; `usize::MAX`: all.
    pub parallelism: usize,
}

/// Settings for one stream's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketTuning {
    /// Congestion control.
    pub congestion: CongestionControl,
    /// bbr's model of the path has aged: set another congestion control and then bbr, to restart the model.
    pub restart_model: bool,
    /// Pacing.
    pub pacing: Pacing,
    /// Unsent bytes that the socket may hold.
    pub unsent: u32,
    /// Maximum number of the path's streams that carry bulk sessions; `usize::MAX`: all.
    pub parallelism: usize,
}

/// Unsent bytes for a socket, rounded to a power of two to save system calls.
pub(crate) fn unsent(delivery: Option<DeliverySample>, max: u32) -> u32 {
    let sent = delivery.map_or(0.0, |delivery| delivery.rate() * UNSENT.as_secs_f64());
    let bytes = (sent as u64).max(UNSENT_MIN).next_power_of_two();
    u32::try_from(bytes).unwrap_or(u32::MAX).min(max)
}

/// Pacing of a stream from its limit in bytes per second and its minimum round trip.
pub(crate) fn pacing(limit: Option<u64>, min_rtt: Duration) -> Pacing {
    let unlimited =
        if (PACED_FROM..RTT_UNKNOWN).contains(&min_rtt) { Pacing::Spread } else { Pacing::Bursts };
    limit.map_or(unlimited, Pacing::AtMost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_holds_ten_milliseconds_of_unsent_bytes() {
        const MAX: u32 = 512 << 10;
        let second = Duration::from_secs(1);
        let at = |bytes| {
            unsent(Some(DeliverySample { bytes, elapsed: second, rtt: second, min_rtt: second }), MAX)
        };
        assert_eq!((unsent(None, MAX), at(0), at(3_000_000)), (32 << 10, 32 << 10, 32 << 10));
        assert_eq!((at(6_250_000), at(25_000_000)), (64 << 10, 256 << 10));
        assert_eq!(at(1 << 40), MAX);
    }

    #[test]
    fn streams_of_long_paths_are_paced() {
        let unknown = Duration::from_micros(u32::MAX.into());
        for near in [Duration::ZERO, Duration::from_micros(2_999), unknown] {
            assert_eq!(pacing(None, near), Pacing::Bursts);
        }
        for far in [Duration::from_millis(3), Duration::from_millis(600)] {
            assert_eq!((pacing(None, far), pacing(Some(7), far)), (Pacing::Spread, Pacing::AtMost(7)));
        }
    }
}
