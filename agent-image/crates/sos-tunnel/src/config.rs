//! Configuration of the tunnel and its peers, requests, statistics.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use sos_relay::{Retransmitted, sending::stream_reservation};
use sos_wire::{AgentId, BootId, Marks, SessionUuid, SiteId};

use crate::callbacks::{EgressHandler, Keys, Sockets};
use crate::first_byte::FirstByteTimes;
use crate::transport::segment_marks::SegmentMarks;
use crate::types::Labels;

/// Configuration of [`crate::Tunnel::start`].
#[derive(Clone)]
pub struct TunnelConfig {
    /// This agent.
    pub agent: AgentId,
    /// Boot id of this process.
    pub boot: BootId,
    /// This agent's site.
    pub site: SiteId,
    /// Bounds of this process.
    pub limits: Limits,
    /// Timeouts and intervals.
    pub timing: Timing,
    /// Pair keys.
    pub keys: Arc<dyn Keys>,
    /// Factory of stream sockets.
    pub sockets: Arc<dyn Sockets>,
    /// Egress legs.
    pub egress: Arc<dyn EgressHandler>,
    /// Socket filters that read DSCP and TTL of the hosts' segments; without filters sessions keep the initial values.
    pub segment_marks: Option<Arc<SegmentMarks>>,
}

impl fmt::Debug for TunnelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TunnelConfig")
            .field("agent", &self.agent)
            .field("boot", &self.boot)
            .finish_non_exhaustive()
    }
}

/// Bounds of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of concurrent sessions. New sessions above the limit are refused with [`sos_wire::RefuseReason::SessionLimit`].
    pub sessions: usize,
    /// Maximum memory that all sessions together may reserve, in bytes. A session reserves its first window when it starts (or is refused
    /// with [`sos_wire::RefuseReason::MemoryLimit`]) and more as the window grows; near the limit windows stop growing.
    pub memory: usize,
    /// Bytes that a session may reserve in each direction.
    pub session_memory: usize,
    /// Maximum number of streams that a peer may open to this agent per path label, including streams that are about to replace other
    /// streams.
    pub streams_per_path: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 4096, memory: 1 << 30, session_memory: 32 << 20, streams_per_path: 256 }
    }
}

/// Timeouts and intervals (frame.md clauses 3, 11 and 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Timeout of connecting, and of the handshake at the start of a stream.
    pub handshake: Duration,
    /// Maximum time that a session survives without a stream to its peer.
    pub stream_wait: Duration,
    /// Interval of pings on a stream.
    pub ping: Duration,
    /// Silence after which a stream is dead.
    pub silence: Duration,
    /// First pause before redialing; doubles up to `backoff_max`, each time shortened at random by up to half.
    pub backoff_min: Duration,
    /// Maximum pause before redialing.
    pub backoff_max: Duration,
    /// Timeout of opening a stream with QUIC, after which TCP is used instead. QUIC is retried after the same time, doubled for each
    /// consecutive failure.
    pub quic: Duration,
    /// Time for which plain streams continue once the peer's streams must be encrypted. Afterwards the acceptor closes the plain streams
    /// that the dialer has not replaced, one after the other. Also the maximum pause between attempts with QUIC.
    pub switch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            stream_wait: Duration::from_secs(10),
            ping: Duration::from_secs(1),
            silence: Duration::from_secs(5),
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(5),
            quic: Duration::from_secs(2),
            switch: Duration::from_secs(30),
        }
    }
}

/// Transport of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// QUIC over UDP, with TCP as fallback.
    Quic,
}

/// Agent of a pair that dials the streams (frame.md clause 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dial {
    /// The agent with the lower id.
    #[default]
    ById,
    /// This agent.
    Always,
    /// The peer, from any address: NAT or a firewall prevents connections to the peer.
    Never,
}

/// A peer agent for streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// The agent.
    pub agent: AgentId,
    /// The peer's site.
    pub site: SiteId,
    /// Addresses of the peer's streams in both directions, by path label; a label without an entry uses the first address.
    pub addresses: Vec<Ipv4Addr>,
    /// The peer's TCP and UDP port for path label 0.
    pub first_stream_port: u16,
    /// Number of streams to keep open, by path label.
    pub streams: BTreeMap<u8, usize>,
    /// Encrypts the peer's streams: plain streams are neither dialed nor accepted.
    pub encrypted: bool,
    /// Also closes established plain streams immediately: their sessions wait for encrypted streams, or end.
    pub encrypted_only: bool,
    /// Transport of streams that this agent dials.
    pub protocol: Protocol,
    /// Agent that dials the streams.
    pub dial: Dial,
}

impl PeerConfig {
    /// Default number of streams on label 0.
    pub const DEFAULT_STREAMS: usize = stream_reservation::DEFAULT_STREAMS;
    /// Additional streams per label, reserved for interactive sessions.
    pub const RESERVED_STREAMS: usize = stream_reservation::RESERVED_STREAMS;
    /// Maximum number of streams per path for a bulk session under bbr. Each stream sends at the highest rate that it has measured, and the
    /// sum of these rates exceeds the rate of the path (20 ms, 1 % loss, 200 Mbit/s: eight streams reach 0.89 of the wire and retransmit 17
    /// %, two reach 0.92).
    pub const BBR_STREAMS: usize = 2;

    /// The peer's address on a path; unspecified if the peer has no address.
    pub fn address(&self, label: u8) -> Ipv4Addr {
        let of_label = self.addresses.get(usize::from(label)).or(self.addresses.first());
        of_label.copied().unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// True if the peer may connect from this address. The handshake proves the peer's identity.
    pub fn has_address(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.dial == Dial::Never || self.addresses.iter().any(|own| IpAddr::V4(*own) == address)
    }

    /// True if the agent `own` dials the peer.
    pub fn is_dialed_by(&self, own: AgentId) -> bool {
        match self.dial {
            Dial::ById => self.agent > own,
            Dial::Always => true,
            Dial::Never => false,
        }
    }

    /// A peer with the default number of plain streams on label 0.
    pub fn new(agent: AgentId, site: SiteId, address: Ipv4Addr, first_stream_port: u16) -> Self {
        Self {
            agent,
            site,
            addresses: vec![address],
            first_stream_port,
            streams: BTreeMap::from([(0, Self::DEFAULT_STREAMS)]),
            encrypted: false,
            encrypted_only: false,
            protocol: Protocol::Tcp,
            dial: Dial::ById,
        }
    }
}

/// A session to open from this agent, the ingress agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRequest {
    /// Session id.
    pub session: SessionUuid,
    /// The egress agent.
    pub peer: AgentId,
    /// The client's address and port.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
    /// DSCP and TTL of the client's packets.
    pub marks: Marks,
    /// Routers between the two hosts' sites, which lower the TTL of plain packets.
    pub routers: u8,
    /// Block size in bytes, 0 = the default.
    pub block_bytes: u32,
    /// Maximum number of bytes that each agent holds in each direction, 0 = the default.
    pub queue_bytes: u32,
    /// Path labels that may be used.
    pub labels: Labels,
    /// Compress data towards the peer if that makes the session faster.
    pub compress: bool,
    /// Maximum number of streams per label; `None`: the service sets no number, so the default applies.
    pub streams: Option<usize>,
}

/// Statistics of one path: the streams of a label towards a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// The peer.
    pub peer: AgentId,
    /// The path label.
    pub label: u8,
    /// Established streams, at least one.
    pub streams: usize,
    /// Minimum round trip of the path's streams since paths were last read, zero = unknown.
    pub rtt: Duration,
    /// Minimum round trip that the kernel has seen recently, zero = unknown.
    pub min_rtt: Duration,
    /// Hosts' bytes, after compression and including retransmissions, that streams of the label have taken since this agent has known the
    /// peer.
    pub sent: u64,
    /// Hosts' bytes received over these streams.
    pub received: u64,
}

/// Number of streams of one path label towards a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStreams {
    /// The path label.
    pub label: u8,
    /// Streams established now.
    pub established: usize,
    /// Streams to be kept open.
    pub configured: usize,
}

impl PathStreams {
    /// Counts streams by label: `configured` to be kept open, `established` with these labels.
    pub(crate) fn by_label(
        configured: &BTreeMap<u8, usize>,
        established: impl Iterator<Item = u8>,
    ) -> Vec<Self> {
        let row = |(&label, &configured)| (label, Self { label, established: 0, configured });
        let mut rows: BTreeMap<u8, Self> = configured.iter().map(row).collect();
        for label in established {
            rows.entry(label).or_insert(Self { label, established: 0, configured: 0 }).established += 1;
        }
        rows.into_values().collect()
    }
}

/// Counters and gauges of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions open now.
    pub sessions: u64,
    /// Sessions begun.
    pub sessions_total: u64,
    /// Sessions that ended before both directions had finished.
    pub sessions_reset_total: u64,
    /// Sessions refused at a limit.
    pub sessions_refused_total: u64,
    /// Streams open now.
    pub streams: u64,
    /// Encrypted streams open now.
    pub streams_encrypted: u64,
    /// QUIC streams open now.
    pub streams_quic: u64,
    /// Number of times that QUIC failed on a path label, whose streams then used TCP for a while.
    pub quic_fallbacks_total: u64,
    /// Streams dialed or accepted with a successful handshake.
    pub streams_total: u64,
    /// Established streams that have ended, for any reason.
    pub streams_lost_total: u64,
    /// Handshakes that failed: wrong key, garbage, timeout, not permitted.
    pub handshakes_failed_total: u64,
    /// Handshakes that failed because a plain stream was refused: the peer's streams must be encrypted.
    pub plain_refused_total: u64,
    /// Hosts' bytes sent to peers, each counted once.
    pub bytes_sent_total: u64,
    /// Peers' bytes delivered to hosts.
    pub bytes_received_total: u64,
    /// Hosts' bytes sent compressed.
    pub compressed_bytes_total: u64,
    /// Size of these bytes after compression.
    pub compressed_wire_bytes_total: u64,
    /// CPU time of compression, including blocks that did not become shorter.
    pub compress_time_total: Duration,
    /// Hosts' bytes retransmitted over another stream, by cause.
    pub bytes_resent_total: Retransmitted,
    /// Number of times that a sender had bytes and a stream but no credit.
    pub credit_stalls_total: u64,
    /// Frames of unknown sessions.
    pub frames_unknown_total: u64,
    /// Bytes reserved of [`Limits::memory`].
    pub memory_reserved: u64,
    /// Bytes waiting in reorder buffers, as of each session's last poll.
    pub reorder_bytes: u64,
    /// Times from the acceptance of a client to the first byte of its server, for sessions that have received one.
    pub first_byte: FirstByteTimes,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_behind_nat_dials_whatever_its_id() {
        let (lower, higher) = (AgentId([1; 16]), AgentId([2; 16]));
        for (dial, by_lower, by_higher) in
            [(Dial::ById, true, false), (Dial::Always, true, true), (Dial::Never, false, false)]
        {
            let to = |agent| PeerConfig { dial, ..PeerConfig::new(agent, SiteId(1), Ipv4Addr::LOCALHOST, 1) };
            assert_eq!(
                (to(higher).is_dialed_by(lower), to(lower).is_dialed_by(higher)),
                (by_lower, by_higher)
            );
        }
    }

    #[test]
    fn a_path_without_a_stream_is_listed_with_those_that_should_exist() {
        let configured = BTreeMap::from([(0, 5), (1, 5)]);
        let rows = PathStreams::by_label(&configured, [0, 0, 3].into_iter());
        let row = |label, established, configured| PathStreams { label, established, configured };
        assert_eq!(rows, [row(0, 2, 5), row(1, 0, 5), row(3, 1, 0)]);
    }
}
