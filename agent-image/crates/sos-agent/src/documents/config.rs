//! agent-config: the configuration of one agent (spec/node-config.md, section 3).
//!
//! Parsing is strict: an unknown field, a missing field or a value out of bounds is an error that names the JSON path. The whole document is
//! checked once; the agent validates nothing later.

pub mod attachment;
pub mod keys;
pub mod peers;
pub mod peers_file;
pub mod source;

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Deserializer};
use sos_daemon::document::{self, ConfigError};
use sos_wire::{AgentId, SiteId};

mod check;

pub use attachment::{Bridge, Discovery, Intake, Interface, NetworkPolicies, Pod};

/// Maximum number of peer sites (node-config.md clause 13).
pub const MAX_PEERS: usize = 1_024;
/// Maximum number of services (node-config.md clause 13).
pub const MAX_SERVICES: usize = 4_096;
/// Maximum number of prefixes or port ranges in one list (controller-config.md clause 4).
pub const MAX_LIST: usize = 64;
/// Maximum number of agents of one peer site: a site's address plan has no room for more.
pub const MAX_AGENTS_PER_PEER: usize = 1_024;
/// Maximum number of pods (node-config.md clause 38): more than four times a kubelet's default of 110.
pub const MAX_PODS: usize = 512;
/// Maximum number of stream ports: one for each path label, 0 to 7 (node-config.md clause 9).
pub const MAX_STREAM_PORTS: u16 = 8;

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentConfig {
    /// Always `v1alpha1`.
    pub version: String,
    /// Grows with every change; a document with a lower generation is refused.
    pub generation: u64,
    /// Hash of the rest of the document (controller-config.md clause 2).
    pub hash: String,
    /// Name of the node.
    pub node: String,
    /// Name of the agent pool.
    pub pool: String,
    /// Id of this agent (spec/README.md clause 6).
    #[serde(deserialize_with = "from_text")]
    pub agent_id: AgentId,
    /// The site this agent serves.
    pub site: Site,
    /// The only interface that the data plane uses. Absent at a site without bridges.
    #[serde(default)]
    pub interface: Option<Interface>,
    /// Destination of beacons and orders. Absent at a site without bridges.
    #[serde(default)]
    pub discovery: Option<Discovery>,
    /// Own addresses of streams by path label, at a site without bridges.
    #[serde(default)]
    pub wan: Vec<Ipv4Addr>,
    /// Interception of connections at a site without bridges.
    #[serde(default)]
    pub intake: Option<Intake>,
    /// Pods of this node to intercept, with intake `Pods`. If absent: every pod of the node with an address of the site.
    #[serde(default)]
    pub pods: Option<Vec<Pod>>,
    /// Ports on which this agent accepts its peers' streams.
    pub stream_ports: StreamPorts,
    /// Peer sites.
    pub peers: Vec<Peer>,
    /// Services with clients or servers at this site.
    pub services: Vec<Service>,
    /// Limits of namespaces, at a site without bridges. Written only if there are any.
    #[serde(default)]
    pub shares: Vec<Share>,
    /// Limits.
    pub limits: Limits,
    /// Address and port of `/metrics`, `/healthz` and `/readyz`.
    pub metrics_address: SocketAddr,
    /// Maximum duration of a drain after SIGTERM, in seconds.
    pub drain_seconds: u32,
}

/// Maximum fraction of the agent's sessions for the services of one namespace.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Name of the namespace.
    pub namespace: String,
    /// Percentage of `limits.sessions`.
    pub percent: u8,
}

/// A site by name, id and prefixes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Site {
    /// Name.
    pub name: String,
    /// Number, from 1.
    #[serde(deserialize_with = "site_id")]
    pub id: SiteId,
    /// Prefixes of the site's hosts.
    pub prefixes: Vec<Ipv4Net>,
    /// Rewriting of addresses and ports at the site.
    pub rewrite: Rewrite,
}

/// Actions of the site's switches on a flow's packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Rewrite {
    /// Switches change only MAC addresses: the agent uses the hosts' addresses.
    Transparent,
    /// Switches rewrite addresses and ports: the agent sees its own address and port, and each host sees the other host's address and port.
    OpenFlow,
}

/// Stream ports: first + path label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamPorts {
    /// Port of label 0.
    pub first: u16,
    /// Number of labels.
    pub count: u16,
}

impl StreamPorts {
    /// True if a port is a stream port.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        port >= self.first && port - self.first < self.count
    }
}

/// A peer site and its agents.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Site name.
    pub site: String,
    /// Site number.
    #[serde(rename = "siteID", deserialize_with = "site_id")]
    pub site_id: SiteId,
    /// Prefixes of the site's hosts.
    pub prefixes: Vec<Ipv4Net>,
    /// Agent that dials the streams.
    #[serde(default)]
    pub dial: Dial,
    /// The site's agents.
    pub agents: Vec<PeerAgent>,
}

/// Agent that dials the streams between this agent and a peer site's agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub enum Dial {
    /// The agent with the lower id.
    #[default]
    #[serde(rename = "ByID")]
    ById,
    /// This agent.
    Always,
    /// The peer's agents, from any address: NAT or a firewall prevents connections to these agents.
    Never,
}

/// Owner of the routes that streams take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteOwner {
    /// The agent, in its own namespace.
    Agent,
    /// The machine: only a stream's handshake takes routes of the agent ([`crate::netns::stream_routes`]).
    Machine,
}

/// One agent of a peer site.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct PeerAgent {
    /// Agent id.
    #[serde(deserialize_with = "from_text")]
    pub id: AgentId,
    /// Its node's name.
    pub node: String,
    /// Address of the agent's streams in both directions, on every label that has no separate address.
    pub address: Ipv4Addr,
    /// Addresses by path label, if the agent has several; the first is `address`. The agent has no other labels.
    #[serde(default)]
    pub addresses: Vec<Ipv4Addr>,
    /// Prefixes of servers beside this agent: no other agent of the site can connect to them from the clients' addresses. Only at a site
    /// without bridges.
    #[serde(default)]
    pub prefixes: Vec<Ipv4Net>,
    /// Port of label 0.
    pub first_stream_port: u16,
}

impl PeerAgent {
    /// True if the agent has streams at an address.
    #[must_use]
    pub fn has_address(&self, address: Ipv4Addr) -> bool {
        self.address == address || self.addresses.contains(&address)
    }
}

/// Side of a service at this site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Role {
    /// The clients are here.
    Ingress,
    /// The servers are here.
    Egress,
}

/// Set-up of a service's flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Setup {
    /// Reactive: the controller sees every first SYN.
    Reactive,
    /// Proactive: wildcard entries; the controller sees no SYN.
    Proactive,
}

/// Time at which a client of a proactive service is accepted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Accept {
    /// Immediately.
    #[default]
    Early,
    /// Immediately if the server and port accepted a connection recently, otherwise after the server has accepted.
    Learned,
    /// After the server has accepted.
    Confirmed,
}

/// Source address of connections to servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Source {
    /// The client's address and port.
    #[default]
    Preserve,
    /// The agent's address, as with an ordinary proxy.
    Agent,
}

/// Header of the PROXY protocol at the start of connections to servers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum ProxyProtocol {
    /// No header.
    #[default]
    None,
    /// Version 2, binary.
    V2,
}

/// One service.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// `namespace/name`.
    pub id: String,
    /// This site's side.
    pub role: Role,
    /// Name of the peer site.
    pub peer: String,
    /// Its set-up.
    pub setup: Setup,
    /// Acceptance of clients that arrive without an order. Omitted if Early, so that documents for older agents do not change.
    #[serde(default)]
    pub accept: Accept,
    /// Source address of connections to the service's servers. Written only if `Agent`.
    #[serde(default)]
    pub source: Source,
    /// Header of connections to the service's servers, with source `Agent`. Written only if `V2`.
    #[serde(default, rename = "proxyProtocol")]
    pub proxy_protocol: ProxyProtocol,
    /// Client prefixes.
    pub from: Vec<Ipv4Net>,
    /// Server prefixes.
    pub to: Vec<Ipv4Net>,
    /// Server ports.
    pub ports: Vec<PortRange>,
    /// Transport settings.
    pub transport: Transport,
    /// Sessions use encrypted streams only, and existing unencrypted streams are closed. Written only if set.
    #[serde(default, rename = "encryptedOnly")]
    pub encrypted_only: bool,
    /// Number of path labels that the service's sessions may use, counted from label 0.
    pub labels: u16,
}

impl Service {
    /// Namespace of the service.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.id.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// True if the service's SYNs are held until the server has accepted.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.setup == Setup::Proactive && self.accept != Accept::Early
    }

    /// Path labels that the service's sessions may use, as a mask: bit L = label L.
    #[must_use]
    pub fn label_mask(&self) -> u32 {
        (1 << self.labels.min(MAX_STREAM_PORTS)) - 1
    }
}

/// An inclusive range of TCP ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortRange {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

/// Transport settings; 0: the agent decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Transport {
    /// Number of streams of one session.
    pub streams: u16,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Reorder queue in bytes.
    pub queue_bytes: u32,
    /// Congestion control of the streams.
    pub congestion_control: CongestionControl,
    /// Encryption of the streams. Written only if they are encrypted, so that documents for older agents do not change.
    #[serde(default)]
    pub encryption: Encryption,
    /// Compression of data. Written only if allowed, so that documents for older agents do not change.
    #[serde(default)]
    pub compression: Compression,
    /// Transport of the streams. Written only if QUIC, so that documents for older agents do not change.
    #[serde(default)]
    pub protocol: Protocol,
}

/// Transport of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Protocol {
    /// TCP.
    #[default]
    #[serde(rename = "TCP")]
    Tcp,
    /// QUIC, with TCP as fallback (frame.md section 5).
    #[serde(rename = "QUIC")]
    Quic,
}

/// Encryption of streams.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Encryption {
    /// None: streams are authenticated by the handshake, but their data is readable on the path.
    #[default]
    None,
    /// TLS 1.3 (frame.md section 3).
    #[serde(rename = "TLS")]
    Tls,
}

/// Compression of data between agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// Compress as long as the agents measure that compression makes a session faster (frame.md section 4).
    Adaptive,
}

/// Congestion control of streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum CongestionControl {
    /// The agent decides.
    Auto,
    /// RFC 9438.
    Cubic,
    /// The kernel's bbr.
    #[serde(rename = "BBR")]
    Bbr,
    /// RFC 5681.
    Reno,
}

impl CongestionControl {
    /// The configured congestion control, or `None` if the agent decides.
    #[must_use]
    pub fn fixed(self) -> Option<sos_pathctl::CongestionControl> {
        match self {
            Self::Auto => None,
            Self::Cubic => Some(sos_pathctl::CongestionControl::Cubic),
            Self::Bbr => Some(sos_pathctl::CongestionControl::Bbr),
            Self::Reno => Some(sos_pathctl::CongestionControl::Reno),
        }
    }
}

/// Limits of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// Concurrent sessions.
    pub sessions: u32,
    /// Memory of all sessions together, MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    /// Memory of one session, MiB.
    #[serde(rename = "sessionMemoryMiB")]
    pub session_memory_mib: u32,
}

impl AgentConfig {
    /// Percentage of `limits.sessions` for the services of a namespace; `None` without a limit.
    #[must_use]
    pub fn share(&self, namespace: &str) -> Option<u8> {
        self.shares.iter().find(|share| share.namespace == namespace).map(|share| share.percent)
    }

    /// True if the agent opens its sockets inside pods' network namespaces.
    #[must_use]
    pub fn is_in_pods(&self) -> bool {
        matches!(self.intake, Some(Intake::Pods { .. }))
    }

    /// True if the plain path of a connection must be open before the connection is accelerated (docs/adr/0059).
    #[must_use]
    pub fn checks_paths(&self) -> bool {
        matches!(self.intake, Some(Intake::Pods { network_policies: NetworkPolicies::Respect }))
    }

    /// Parses and checks a document.
    ///
    /// # Errors
    /// The first error, with its JSON path.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let config: Self = document::parse(text)?;
        config.check()?;
        document::check_hash(text, &config.hash)?;
        Ok(config)
    }

    /// Returns the first changed field of a new document that a running agent cannot apply: identity, interface and listeners are set up
    /// only at start.
    #[must_use]
    pub fn restart_reason(&self, next: &Self) -> Option<&'static str> {
        let changes = [
            (self.node != next.node || self.pool != next.pool, "node"),
            (self.agent_id != next.agent_id, "agentId"),
            (self.site.id != next.site.id, "site.id"),
            (self.site.rewrite != next.site.rewrite, "site.rewrite"),
            (self.interface != next.interface, "interface"),
            (self.discovery != next.discovery, "discovery"),
            (self.wan != next.wan, "wan"),
            (self.intake != next.intake && !(self.is_in_pods() && next.is_in_pods()), "intake"),
            (self.stream_ports != next.stream_ports, "streamPorts"),
            (self.metrics_address != next.metrics_address, "metricsAddress"),
        ];
        changes.into_iter().find(|(changed, _)| *changed).map(|(_, name)| name)
    }

    /// The bridge to which the agent is attached; `None` at a site without bridges.
    #[must_use]
    pub fn bridge(&self) -> Option<Bridge<'_>> {
        let (interface, discovery) = (self.interface.as_ref()?, self.discovery.as_ref()?);
        Some(Bridge { config: self, interface, discovery })
    }

    /// Owner of the routes that streams take.
    #[must_use]
    pub fn route_owner(&self) -> RouteOwner {
        if self.bridge().is_some() { RouteOwner::Agent } else { RouteOwner::Machine }
    }

    /// The agent's own address of a path's streams.
    #[must_use]
    pub fn stream_address(&self, label: u8) -> Ipv4Addr {
        match &self.interface {
            Some(interface) => interface.address.addr(),
            None => self.wan.get(usize::from(label)).copied().unwrap_or(Ipv4Addr::UNSPECIFIED),
        }
    }

    /// The peer site of this name.
    #[must_use]
    pub fn peer(&self, site: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.site == site)
    }
}

pub(crate) fn from_text<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<T, D::Error>
where
    T::Err: std::fmt::Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

pub(crate) fn site_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SiteId, D::Error> {
    NonZeroU16::deserialize(deserializer).map(|id| SiteId(id.get()))
}

#[cfg(test)]
pub(crate) mod tests;
