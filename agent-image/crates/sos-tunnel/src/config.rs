//! What the tunnel is told, and what it tells.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use sos_relay::Resent;
use sos_wire::{AgentId, BootId, EndReason, Marks, SessionUuid, SiteId};

use crate::hooks::{EgressHandler, Keys, Sockets};
use crate::segment_marks::SegmentMarks;

/// Everything [`crate::Tunnel::start`] needs.
#[derive(Clone)]
pub struct TunnelConfig {
    /// This agent.
    pub agent: AgentId,
    /// The life of this process.
    pub boot: BootId,
    /// This agent's site.
    pub site: SiteId,
    /// Bounds of this process.
    pub limits: Limits,
    /// How long things may take.
    pub timing: Timing,
    /// Pair keys.
    pub keys: Arc<dyn Keys>,
    /// How stream sockets are made.
    pub sockets: Arc<dyn Sockets>,
    /// Far legs.
    pub egress: Arc<dyn EgressHandler>,
    /// Filters that see DSCP and TTL of the hosts' segments; without them sessions keep those that they began with.
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
    /// Sessions open at once. At the bound new ones are refused with [`sos_wire::RefuseReason::SessionLimit`].
    pub sessions: usize,
    /// Bytes that all sessions together may promise to hold. A session reserves its first window when it begins (refused with
    /// [`sos_wire::RefuseReason::MemoryLimit`] if it cannot) and more as it grows; near the bound windows stop growing.
    pub memory: usize,
    /// Bytes a session may promise to hold in each direction.
    pub session_memory: usize,
    /// Streams a peer may have open towards this agent with one path label, those included that are about to take the place of others.
    pub streams_per_path: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { sessions: 4096, memory: 1 << 30, session_memory: 32 << 20, streams_per_path: 256 }
    }
}

/// How long things may take (frame.md clauses 3, 11 and 12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// Connecting and the exchange at the start of a stream, each.
    pub handshake: Duration,
    /// How long a session waits while there is no stream to its peer.
    pub stream_wait: Duration,
    /// How often streams are pinged.
    pub ping: Duration,
    /// After how much silence a stream is dead.
    pub silence: Duration,
    /// First pause before dialing again; doubles up to `backoff_max`, each time shortened at random by up to half.
    pub backoff_min: Duration,
    /// Longest pause before dialing again.
    pub backoff_max: Duration,
    /// How long a stream may take to come about over QUIC before it is one over TCP. QUIC is not tried again for as long, and twice as long
    /// each time in a row.
    pub quic: Duration,
    /// How long a plain stream may stand once its peer's streams are to be encrypted: until then the dialer has time to replace it. And the longest that
    /// QUIC is not tried again where it does not come about.
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

/// What streams are made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    #[default]
    Tcp,
    /// QUIC over UDP, and TCP where that does not come about.
    Quic,
}

/// An agent that streams are opened to and accepted from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// The agent.
    pub agent: AgentId,
    /// Its site.
    pub site: SiteId,
    /// Where its streams come from and go to.
    pub address: Ipv4Addr,
    /// Its TCP and UDP port of path label 0.
    pub first_stream_port: u16,
    /// How many streams to keep open on each path label.
    pub streams: BTreeMap<u8, usize>,
    /// Its streams are encrypted: plain ones are neither dialed nor taken.
    pub encrypted: bool,
    /// Not even those that stand already are used: sessions wait for encrypted ones, or end.
    pub encrypted_only: bool,
    /// What its streams are made of, if this agent dials them.
    pub protocol: Protocol,
}

impl PeerConfig {
    /// Streams on label 0 that are opened when nothing says otherwise. Four fill a path of
    /// 1 Gbit/s and take no more of it beside others than four connections would.
    pub const DEFAULT_STREAMS: usize = 4;
    /// Streams of each label besides them: one, which bulk sessions leave to the others.
    pub const LIGHT_STREAMS: usize = 1;
    /// Of streams whose congestion control models the path a session that is bulk uses so many over each path: each takes the best rate it has
    /// seen for its own, and the sum of such maxima is more than the path (20 ms, 1 % loss, 200 Mbit/s: eight reach 0.89 of the wire and send
    /// 17 % again, two reach 0.92).
    pub const MODELLED_STREAMS: usize = 2;

    /// A peer with the default number of plain streams on label 0.
    pub fn new(agent: AgentId, site: SiteId, address: Ipv4Addr, first_stream_port: u16) -> Self {
        Self {
            agent,
            site,
            address,
            first_stream_port,
            streams: BTreeMap::from([(0, Self::DEFAULT_STREAMS)]),
            encrypted: false,
            encrypted_only: false,
            protocol: Protocol::Tcp,
        }
    }
}

/// A set of path labels: bit L = label L.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Labels(pub u32);

impl Labels {
    /// How many labels there can be.
    pub const COUNT: usize = u32::BITS as usize;
    /// Every label.
    pub const ALL: Self = Self(u32::MAX);

    /// Whether a label is in the set.
    pub const fn contains(self, label: u8) -> bool {
        (label as usize) < Self::COUNT && self.0 >> label & 1 == 1
    }
}

/// A session to open from this agent, which is near the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRequest {
    /// Names the session.
    pub session: SessionUuid,
    /// The agent near the server.
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
    /// Most bytes that each agent holds of each direction, 0 = the default.
    pub queue_bytes: u32,
    /// Path labels that may be used.
    pub labels: Labels,
    /// Whether data towards the peer is compressed where that pays.
    pub compress: bool,
    /// Streams of each label that are used at most; `None`: as many as if no service named a number.
    pub streams: Option<usize>,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionEnd {
    /// Why; [`EndReason::Finished`] if both directions ended.
    pub reason: EndReason,
    /// Bytes from client to server that this agent has relayed.
    pub bytes_up: u64,
    /// Bytes from server to client that this agent has relayed.
    pub bytes_down: u64,
    /// From its beginning at this agent to its end there.
    pub duration: Duration,
}

/// What is known of one path: the streams of a label towards a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathStats {
    /// The peer.
    pub peer: AgentId,
    /// The path label.
    pub label: u8,
    /// Streams that stand, at least one.
    pub streams: usize,
    /// The lowest round trip that one of them has shown since paths were last asked for, zero = unknown.
    pub rtt: Duration,
    /// The lowest the kernel has seen lately, zero = unknown.
    pub min_rtt: Duration,
    /// Hosts' bytes handed to streams of the label since this agent knows the peer.
    pub sent: u64,
    /// Hosts' bytes that came in over them.
    pub received: u64,
}

/// Counters and gauges of the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Sessions open now.
    pub sessions: u64,
    /// Sessions begun.
    pub sessions_total: u64,
    /// Sessions that ended otherwise than by both directions ending.
    pub sessions_reset_total: u64,
    /// Sessions refused at a limit.
    pub sessions_refused_total: u64,
    /// Streams open now.
    pub streams: u64,
    /// Of them, those that are encrypted.
    pub streams_encrypted: u64,
    /// Of them, those over QUIC.
    pub streams_quic: u64,
    /// Times QUIC was to be and did not come about, so that streams of a path label are over TCP for a while.
    pub quic_fallbacks_total: u64,
    /// Streams opened or accepted whose exchange succeeded.
    pub streams_total: u64,
    /// Streams that died.
    pub streams_lost_total: u64,
    /// Exchanges that failed: wrong key, garbage, time out, not permitted.
    pub handshakes_failed_total: u64,
    /// Of them, plain streams refused because the peer's are to be encrypted.
    pub plain_refused_total: u64,
    /// Bytes of hosts sent to peers, each once.
    pub bytes_sent_total: u64,
    /// Bytes of peers delivered to hosts.
    pub bytes_received_total: u64,
    /// Bytes of hosts that were sent compressed.
    pub compressed_bytes_total: u64,
    /// What they were sent as, in bytes.
    pub compressed_wire_bytes_total: u64,
    /// Time of the processor spent on compressing, also what did not become shorter.
    pub compress_time_total: Duration,
    /// Bytes of hosts sent a second time over another stream, by cause.
    pub bytes_resent_total: Resent,
    /// Times a sender had bytes and a stream but no credit.
    pub credit_stalls_total: u64,
    /// Frames for sessions nobody knows.
    pub frames_unknown_total: u64,
    /// Bytes reserved of [`Limits::memory`].
    pub memory_reserved: u64,
    /// Bytes waiting in reorder buffers, as of each session's last turn.
    pub reorder_bytes: u64,
}
