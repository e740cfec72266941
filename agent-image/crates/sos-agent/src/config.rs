//! agent-config: what one agent needs to know (spec/node-config.md, section 3).
//!
//! Parsing is strict: an unknown field, a missing field or a value out of bounds is an error that names the JSON path, so
//! that whoever wrote the document can find it. What comes out is checked as a whole; inside the agent nothing is
//! validated again.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::str::FromStr;

use ipnet::Ipv4Net;
use serde::{Deserialize, Deserializer};
use sos_wire::{AgentId, MacAddress, SiteId};

use crate::canonical;

/// Largest document in bytes (node-config.md clause 13).
pub const MAX_DOCUMENT_BYTES: usize = 4 * 1024 * 1024;
/// Most peer sites (node-config.md clause 13).
pub const MAX_PEERS: usize = 1_024;
/// Most services (node-config.md clause 13).
pub const MAX_SERVICES: usize = 4_096;
/// Most prefixes or port ranges in one list (controller-config.md clause 4).
pub const MAX_LIST: usize = 64;
/// Most agents of one peer site: more would not fit a site's address plan, and a list must have a bound.
pub const MAX_AGENTS_PER_PEER: usize = 1_024;
/// Path labels are 0 to 7 (node-config.md clause 9).
pub const MAX_STREAM_PORTS: u16 = 8;
/// Longest interface name the kernel takes (IFNAMSIZ - 1).
const MAX_INTERFACE_NAME: usize = 15;

/// A configuration error: where, and what is wrong there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConfigError {
    /// JSON path of the field, `.` for the document itself.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl ConfigError {
    fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentConfig {
    /// Always `v1alpha1`.
    pub version: String,
    /// Grows with every change; a lower one is refused.
    pub generation: u64,
    /// Hash of the rest of the document (controller-config.md clause 2).
    pub hash: String,
    /// Name of the node.
    pub node: String,
    /// Name of the agent pool.
    pub pool: String,
    /// This agent's id (spec/README.md clause 6).
    #[serde(deserialize_with = "from_text")]
    pub agent_id: AgentId,
    /// The site this agent serves.
    pub site: Site,
    /// The one interface the data plane uses.
    pub interface: Interface,
    /// Where beacons and orders go.
    pub discovery: Discovery,
    /// Ports that peers' streams arrive on.
    pub stream_ports: StreamPorts,
    /// Peer sites.
    pub peers: Vec<Peer>,
    /// Services this site takes part in.
    pub services: Vec<Service>,
    /// Limits.
    pub limits: Limits,
    /// Address and port of `/metrics`, `/healthz` and `/readyz`.
    pub metrics_address: SocketAddr,
    /// How long running sessions may go on after SIGTERM, in seconds.
    pub drain_seconds: u32,
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
}

/// The agent's interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Interface {
    /// Name inside the agent's namespace.
    pub name: String,
    /// Address with the length of the site's subnet.
    pub address: Ipv4Net,
    /// MAC address.
    #[serde(deserialize_with = "from_text")]
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// Gateway for destinations outside the subnet.
    pub gateway: Option<Ipv4Addr>,
    /// Outer end of the veth pair in the host's namespace (attach `host` only).
    pub host_name: String,
    /// OpenFlow port number of the outer end on the bridge; the agent itself does not use it.
    pub host_port: u32,
}

/// The discovery address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Discovery {
    /// An address where nobody lives.
    pub address: Ipv4Addr,
    /// Its MAC address.
    #[serde(deserialize_with = "from_text")]
    pub mac: MacAddress,
    /// UDP port of beacons.
    pub beacon_port: u16,
    /// UDP port of orders.
    pub order_port: u16,
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

/// A peer site and its agents.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Site name.
    pub site: String,
    /// Site number.
    #[serde(rename = "siteID", deserialize_with = "site_id")]
    pub site_id: SiteId,
    /// Prefixes of its hosts.
    pub prefixes: Vec<Ipv4Net>,
    /// Its agents.
    pub agents: Vec<PeerAgent>,
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
    /// Address its streams come from and go to.
    pub address: Ipv4Addr,
    /// Port of label 0.
    pub first_stream_port: u16,
}

/// On which side of a service this site is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Role {
    /// The clients are here.
    Ingress,
    /// The servers are here.
    Egress,
}

/// How flows of a service are set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Setup {
    /// The controller sees every first SYN.
    Reactive,
    /// Wildcard entries; the controller sees nothing.
    Proactive,
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
    /// How it is set up.
    pub setup: Setup,
    /// Client prefixes.
    pub from: Vec<Ipv4Net>,
    /// Server prefixes.
    pub to: Vec<Ipv4Net>,
    /// Server ports.
    pub ports: Vec<PortRange>,
    /// Transport settings.
    pub transport: Transport,
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

/// Transport settings; 0 means that the agent decides.
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

/// Limits of one agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// Sessions at a time.
    pub sessions: u32,
    /// Memory of all sessions together, MiB.
    #[serde(rename = "memoryMiB")]
    pub memory_mib: u32,
    /// Memory of one session, MiB.
    #[serde(rename = "sessionMemoryMiB")]
    pub session_memory_mib: u32,
}

impl AgentConfig {
    /// Parses and checks a document.
    ///
    /// # Errors
    /// The first thing wrong with it, with its JSON path.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        if text.len() > MAX_DOCUMENT_BYTES {
            return Err(ConfigError::new(".", format!("larger than {MAX_DOCUMENT_BYTES} bytes")));
        }
        let mut reader = serde_json::Deserializer::from_slice(text);
        let config: Self = serde_path_to_error::deserialize(&mut reader)
            .map_err(|e| structural(&e.path().to_string(), e.inner().to_string()))?;
        reader.end().map_err(|e| ConfigError::new(".", e.to_string()))?;
        config.check()?;
        let hash = canonical::document_hash(text).map_err(|e| ConfigError::new(".", e.to_string()))?;
        if hash != config.hash {
            return Err(ConfigError::new("hash", format!("the document's hash is {hash}")));
        }
        Ok(config)
    }

    /// Says in what a new document differs that a running agent cannot take over: identity, interface and listeners are
    /// made once at start.
    #[must_use]
    pub fn restart_reason(&self, next: &Self) -> Option<&'static str> {
        let changes = [
            (self.node != next.node || self.pool != next.pool, "node"),
            (self.agent_id != next.agent_id, "agentId"),
            (self.site.id != next.site.id, "site.id"),
            (self.interface != next.interface, "interface"),
            (self.discovery != next.discovery, "discovery"),
            (self.stream_ports != next.stream_ports, "streamPorts"),
            (self.metrics_address != next.metrics_address, "metricsAddress"),
        ];
        changes.into_iter().find(|(changed, _)| *changed).map(|(_, name)| name)
    }

    /// The peer site of this name.
    #[must_use]
    pub fn peer(&self, site: &str) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.site == site)
    }

    fn check(&self) -> Result<(), ConfigError> {
        require(self.version == "v1alpha1", "version", "must be v1alpha1")?;
        require(self.generation >= 1, "generation", "must be 1 or more")?;
        require(!self.node.is_empty() && self.node.len() <= 63, "node", "must be 1 to 63 bytes long")?;
        check_list(&self.site.prefixes, "site.prefixes")?;
        self.check_interface()?;
        let ports = self.stream_ports;
        require((1..=MAX_STREAM_PORTS).contains(&ports.count), "streamPorts.count", "must be 1 to 8")?;
        require(
            ports.first != 0 && ports.first.checked_add(ports.count - 1).is_some(),
            "streamPorts.first",
            "must be 1 or more and leave room for count ports",
        )?;
        require(self.discovery.beacon_port != 0, "discovery.beaconPort", "must be 1 or more")?;
        require(self.discovery.order_port != 0, "discovery.orderPort", "must be 1 or more")?;
        require(
            self.discovery.order_port != self.discovery.beacon_port,
            "discovery.orderPort",
            "must differ from beaconPort",
        )?;
        self.check_limits()?;
        self.check_peers()?;
        self.check_services()
    }

    fn check_interface(&self) -> Result<(), ConfigError> {
        let interface = &self.interface;
        for (name, path) in
            [(&interface.name, "interface.name"), (&interface.host_name, "interface.hostName")]
        {
            let valid = (1..=MAX_INTERFACE_NAME).contains(&name.len())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
                && name != "."
                && name != "..";
            require(valid, path, "must be 1 to 15 letters, digits, '-', '_' or '.'")?;
        }
        require((576..=65_535).contains(&interface.mtu), "interface.mtu", "must be 576 to 65535")?;
        require(interface.mac.0[0] & 1 == 0, "interface.mac", "must not be a group address")?;
        let host = interface.address.addr();
        require(usable(host), "interface.address", "must be a host's address")?;
        if let Some(gateway) = interface.gateway {
            require(interface.address.contains(&gateway), "interface.gateway", "must be inside the subnet")?;
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        let limits = self.limits;
        require((1..=1_000_000).contains(&limits.sessions), "limits.sessions", "must be 1 to 1000000")?;
        require((16..=1_048_576).contains(&limits.memory_mib), "limits.memoryMiB", "must be 16 to 1048576")?;
        require(
            (1..=limits.memory_mib.min(65_536)).contains(&limits.session_memory_mib),
            "limits.sessionMemoryMiB",
            "must be 1 to memoryMiB, at most 65536",
        )?;
        require(self.drain_seconds <= 86_400, "drainSeconds", "must be 86400 or less")
    }

    fn check_peers(&self) -> Result<(), ConfigError> {
        require(self.peers.len() <= MAX_PEERS, "peers", "must be at most 1024")?;
        for (i, peer) in self.peers.iter().enumerate() {
            let path = format!("peers[{i}]");
            let known = self.peers[..i].iter().any(|p| p.site == peer.site || p.site_id == peer.site_id);
            require(!known, &path, "is a second entry for the same site")?;
            require(
                peer.site_id != self.site.id,
                &format!("{path}.siteID"),
                "must not be the agent's own site",
            )?;
            check_list(&peer.prefixes, &format!("{path}.prefixes"))?;
            require(
                peer.agents.len() <= MAX_AGENTS_PER_PEER,
                &format!("{path}.agents"),
                "must be at most 1024",
            )?;
            for (j, agent) in peer.agents.iter().enumerate() {
                let path = format!("{path}.agents[{j}]");
                require(agent.id != self.agent_id, &format!("{path}.id"), "is this agent's own id")?;
                require(usable(agent.address), &format!("{path}.address"), "must be a host's address")?;
                let room = agent.first_stream_port.checked_add(MAX_STREAM_PORTS - 1);
                require(
                    agent.first_stream_port != 0 && room.is_some(),
                    &format!("{path}.firstStreamPort"),
                    "must be 1 to 65528",
                )?;
            }
        }
        Ok(())
    }

    fn check_services(&self) -> Result<(), ConfigError> {
        require(self.services.len() <= MAX_SERVICES, "services", "must be at most 4096")?;
        for (i, service) in self.services.iter().enumerate() {
            let path = format!("services[{i}]");
            require(
                self.peer(&service.peer).is_some(),
                &format!("{path}.peer"),
                &format!("no peer site is named {:?}", service.peer),
            )?;
            check_list(&service.from, &format!("{path}.from"))?;
            check_list(&service.to, &format!("{path}.to"))?;
            check_ports(&service.ports, &format!("{path}.ports"))?;
            let transport = service.transport;
            require(transport.streams <= 256, &format!("{path}.transport.streams"), "must be at most 256")?;
            require(
                transport.block_bytes <= 262_144,
                &format!("{path}.transport.blockBytes"),
                "must be at most 262144 (frame.md clause 4)",
            )?;
        }
        Ok(())
    }
}

/// Serde names an object that lacks a field, not the field.
fn structural(path: &str, message: String) -> ConfigError {
    let missing = message.strip_prefix("missing field `").and_then(|rest| rest.split('`').next());
    // A key that is the empty string has an empty path.
    let path = if path.is_empty() { "." } else { path };
    match missing {
        Some(field) if path == "." => ConfigError::new(field, "is missing"),
        Some(field) => ConfigError::new(format!("{path}.{field}"), "is missing"),
        None => ConfigError::new(path, message),
    }
}

fn require(holds: bool, path: &str, message: &str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError::new(path, message)) }
}

fn usable(address: Ipv4Addr) -> bool {
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || address.is_broadcast())
}

fn check_list<T>(list: &[T], path: &str) -> Result<(), ConfigError> {
    require((1..=MAX_LIST).contains(&list.len()), path, "must have 1 to 64 elements")
}

fn check_ports(ports: &[PortRange], path: &str) -> Result<(), ConfigError> {
    check_list(ports, path)?;
    for (i, range) in ports.iter().enumerate() {
        require(range.first != 0, &format!("{path}[{i}].first"), "must be 1 or more")?;
        require(range.last >= range.first, &format!("{path}[{i}].last"), "must not be below first")?;
    }
    Ok(())
}

fn from_text<'de, D: Deserializer<'de>, T: FromStr>(deserializer: D) -> Result<T, D::Error>
where
    T::Err: std::fmt::Display,
{
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

fn site_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SiteId, D::Error> {
    NonZeroU16::deserialize(deserializer).map(|id| SiteId(id.get()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The agent-config of node edge1 in spec/node-config.md, with its services and peers filled in.
    pub(crate) fn document() -> Value {
        json!({
            "version": "v1alpha1", "generation": 12, "hash": "",
            "node": "edge1", "pool": "default", "agentId": "39b04f05ee16a2b7d5a16e9e68355a2f",
            "site": {"name": "west", "id": 1, "prefixes": ["10.0.0.0/25"]},
            "interface": {"name": "net0", "address": "10.0.0.126/24", "mac": "02:53:00:5f:0c:12", "mtu": 1500,
                          "gateway": null, "hostName": "sosag0", "hostPort": 201},
            "discovery": {"address": "198.18.255.254", "mac": "02:53:4f:53:00:01", "beaconPort": 9875,
                          "orderPort": 9876},
            "streamPorts": {"first": 10000, "count": 8},
            "peers": [{"site": "east", "siteID": 2, "prefixes": ["10.0.0.128/25"],
                       "agents": [{"id": "ad030578ad55bf67de8f32bef31dd55b", "node": "edge2",
                                   "address": "10.0.0.254", "firstStreamPort": 10000}]}],
            "services": [{"id": "default/bulk", "role": "Ingress", "peer": "east", "setup": "Reactive",
                          "from": ["10.0.0.0/25"], "to": ["10.0.0.128/25"],
                          "ports": [{"first": 22, "last": 22}, {"first": 5000, "last": 5999}],
                          "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0,
                                        "congestionControl": "Auto"}}],
            "limits": {"sessions": 4096, "memoryMiB": 1024, "sessionMemoryMiB": 32},
            "metricsAddress": "0.0.0.0:9465", "drainSeconds": 60
        })
    }

    /// Puts the right hash into a document.
    pub(crate) fn sealed(mut document: Value) -> Vec<u8> {
        let hash = canonical::document_hash(document.to_string().as_bytes()).unwrap();
        document["hash"] = json!(hash);
        document.to_string().into_bytes()
    }

    /// The parsed form of [`document`].
    pub(crate) fn config() -> AgentConfig {
        AgentConfig::parse(&sealed(document())).unwrap()
    }

    fn error_of(change: impl FnOnce(&mut Value)) -> ConfigError {
        let mut value = document();
        change(&mut value);
        AgentConfig::parse(&sealed(value)).unwrap_err()
    }

    #[test]
    fn reads_the_document_of_the_spec() {
        let config = config();
        assert_eq!(config.interface.address.addr(), Ipv4Addr::new(10, 0, 0, 126));
        assert_eq!(config.interface.mac, MacAddress([2, 0x53, 0, 0x5f, 0x0c, 0x12]));
        assert_eq!(config.services[0].ports[1], PortRange { first: 5000, last: 5999 });
        assert_eq!(config.peers[0].site_id, SiteId(2));
    }

    #[test]
    fn errors_name_the_path() {
        type Case = (&'static str, fn(&mut Value));
        let cases: [Case; 14] = [
            ("version", |d| d["version"] = json!("v2")),
            ("services[0].portz", |d| d["services"][0]["portz"] = json!([])),
            ("services[0].ports[1].last", |d| d["services"][0]["ports"][1]["last"] = json!(4999)),
            ("services[0].ports[0].first", |d| d["services"][0]["ports"][0]["first"] = json!(70000)),
            ("services[0].ports", |d| d["services"][0]["ports"] = json!([])),
            ("services[0].peer", |d| d["services"][0]["peer"] = json!("north")),
            ("services[0].to[0]", |d| d["services"][0]["to"] = json!(["10.0.0.300/25"])),
            ("peers[0].agents[0].id", |d| d["peers"][0]["agents"][0]["id"] = json!("zz")),
            ("peers[0].siteID", |d| d["peers"][0]["siteID"] = json!(1)),
            ("interface.mac", |d| d["interface"]["mac"] = json!("02:53")),
            ("interface.name", |d| d["interface"]["name"] = json!("net0 up")),
            ("interface.gateway", |d| d["interface"]["gateway"] = json!("10.9.0.1")),
            ("limits.sessionMemoryMiB", |d| d["limits"]["sessionMemoryMiB"] = json!(2048)),
            ("streamPorts.count", |d| d["streamPorts"]["count"] = json!(9)),
        ];
        for (path, change) in cases {
            assert_eq!(error_of(change).path, path);
        }
    }

    #[test]
    fn a_missing_field_is_named() {
        let error = error_of(|d| {
            d["limits"].as_object_mut().unwrap().remove("sessions");
        });
        assert_eq!(error.path, "limits.sessions");
        let error = error_of(|d| {
            d.as_object_mut().unwrap().remove("node");
        });
        assert_eq!(error.path, "node");
    }

    #[test]
    fn an_error_always_has_a_path() {
        assert_eq!(AgentConfig::parse(br#"{"":1}"#).unwrap_err().path, ".");
        assert_eq!(AgentConfig::parse(b"").unwrap_err().path, ".");
    }

    fn vectors(folder: &str) -> Vec<(String, Vec<u8>)> {
        let folder = format!("{}/../../../spec/vectors/config/{folder}", env!("CARGO_MANIFEST_DIR"));
        let files: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{folder}");
        files.iter().map(|file| (file.display().to_string(), std::fs::read(file).unwrap())).collect()
    }

    #[test]
    fn reads_the_golden_documents() {
        for (file, text) in vectors("agent") {
            assert!(AgentConfig::parse(&text).is_ok(), "{file}: {:?}", AgentConfig::parse(&text));
        }
    }

    #[test]
    fn refuses_the_bad_documents_by_their_path() {
        for (file, text) in vectors("bad/agent") {
            let case: Value = serde_json::from_slice(&text).unwrap();
            let error = AgentConfig::parse(case["document"].to_string().as_bytes()).unwrap_err();
            assert_eq!(error.path, case["path"].as_str().unwrap(), "{file}: {error}");
        }
    }

    #[test]
    fn a_changed_document_with_the_old_hash_is_refused() {
        let mut value: Value = serde_json::from_slice(&sealed(document())).unwrap();
        value["drainSeconds"] = json!(61);
        assert_eq!(AgentConfig::parse(value.to_string().as_bytes()).unwrap_err().path, "hash");
    }

    #[test]
    fn only_what_is_made_at_start_needs_a_restart() {
        let running = config();
        let mut next = running.clone();
        next.services.clear();
        next.limits.sessions = 1;
        assert_eq!(running.restart_reason(&next), None);
        next.interface.mtu = 1400;
        assert_eq!(running.restart_reason(&next), Some("interface"));
    }
}
