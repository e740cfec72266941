//! node-config: the desired state of one node's switch (spec/node-config.md, section 1).
//!
//! Parsing is strict and happens once, here: an unknown field, a missing field or a value out of bounds is an error that names its JSON path.
//! [`crate::names`] has the types of names and texts that are used on command lines.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde::Deserialize;
use sos_daemon::document::{self, ConfigError};

use self::mesh::{FlowGroup, Mesh};
use crate::names::{ControllerTarget, DatapathId, DeviceName, FlowText};

mod mesh;

/// Document version that this program supports.
pub const VERSION: &str = "v1alpha1";
/// Maximum number of uplinks of one node.
pub const MAX_UPLINKS: usize = 64;
/// Maximum number of LAN ports of one node.
pub const MAX_LAN_PORTS: usize = 64;
/// Maximum number of tunnels of one node: one for each other node.
pub const MAX_TUNNELS: usize = 1_024;
/// Maximum number of agent ports of one node.
pub const MAX_AGENT_PORTS: usize = 256;
/// Maximum number of controllers of one bridge.
pub const MAX_CONTROLLERS: usize = 16;
/// Maximum number of base flow entries: a few per port and agent.
pub const MAX_BASE_FLOWS: usize = 16_384;
/// Maximum port number in Open vSwitch: `OFPP_MAX` of OpenFlow 1.0 less one.
const MAX_OFPORT: u16 = 0xfeff;
/// Maximum delay of a bond, in seconds.
const MAX_UP_DELAY_S: u16 = 600;
/// MTUs of Ethernet devices: from the IPv4 minimum of a link (RFC 791) to the usual jumbo frame.
const MTU_RANGE: std::ops::RangeInclusive<u32> = 576..=9_216;

/// Desired presence of the switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Presence {
    /// The switch exists as described.
    Present,
    /// Everything that this program created is removed.
    Absent,
}

/// Datapath of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum DatapathType {
    /// The kernel's datapath if Open vSwitch has loaded it, else the user-space datapath.
    Auto,
    /// The kernel's datapath.
    #[serde(rename = "system")]
    System,
    /// The user-space datapath.
    #[serde(rename = "netdev")]
    Netdev,
}

/// The bridge.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BridgeConfig {
    /// Its name.
    pub name: DeviceName,
    /// Its datapath id.
    pub datapath_id: DatapathId,
    /// Its datapath type.
    pub datapath_type: DatapathType,
    /// Maximum size of an IP packet, in bytes, that is forwarded without fragmentation.
    pub mtu: u32,
    /// True if Open vSwitch's user-space segmentation offload is expected to be on.
    pub userspace_tso: bool,
}

/// A network device of the node that leads to other sites.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Uplink {
    /// The device.
    pub name: DeviceName,
    /// Its OpenFlow port number.
    pub ofport: u16,
    /// True if it carries unlabelled traffic (clause 5).
    pub base: bool,
}

/// Distribution of base traffic over the uplinks of a bond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum BondMode {
    /// One uplink at a time.
    ActiveBackup,
    /// All uplinks, by connection, with LACP.
    #[serde(rename = "BalanceTCP")]
    BalanceTcp,
}

/// All base uplinks as one logical uplink (clause 42).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BondConfig {
    /// Its mode.
    pub mode: BondMode,
    /// Time in seconds for which an uplink must have a carrier before the bond uses it again.
    pub up_delay_seconds: u16,
}

/// A network device of the node that leads to hosts of the site.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LanPort {
    /// The device.
    pub name: DeviceName,
    /// Its OpenFlow port number.
    pub ofport: u16,
}

/// A VXLAN tunnel to another node, created by this program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Tunnel {
    /// The device.
    pub name: DeviceName,
    /// Its OpenFlow port number.
    pub ofport: u16,
    /// The other node.
    pub remote: IpAddr,
    /// VXLAN network identifier (RFC 7348), 24 bits; distinguishes tunnels that share a UDP port on receipt.
    pub vni: u32,
    /// Destination UDP port.
    pub udp_port: u16,
    /// True if it carries unlabelled traffic (clause 5).
    pub base: bool,
}

/// A port that an agent of this node creates.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AgentPort {
    /// The device.
    pub name: DeviceName,
    /// Its OpenFlow port number.
    pub ofport: u16,
}

/// A veth pair, created by this program, at which the kernel answers TCP with a reset (clause 35).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct RejectPort {
    /// The device on the bridge.
    pub name: DeviceName,
    /// Its peer.
    pub peer: DeviceName,
    /// Its OpenFlow port number.
    pub ofport: u16,
}

/// One entry of the base table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct BaseFlow {
    /// The flow table.
    pub table: u8,
    /// The priority.
    pub priority: u16,
    /// The match.
    pub r#match: FlowText,
    /// The actions.
    pub actions: FlowText,
}

/// The whole document.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct NodeConfig {
    /// Always [`VERSION`].
    pub version: String,
    /// Increases with every change.
    pub generation: u64,
    /// Hash of the rest (controller-config.md clause 2).
    pub hash: String,
    /// The node's name.
    pub node: String,
    /// The site's name.
    pub site: String,
    /// The site's id, which marks objects of this program as its own.
    #[serde(rename = "siteID")]
    pub site_id: u16,
    /// Desired presence.
    pub state: Presence,
    /// The bridge.
    pub bridge: BridgeConfig,
    /// Uplinks.
    pub uplinks: Vec<Uplink>,
    /// Tunnels.
    pub tunnels: Vec<Tunnel>,
    /// Agent ports.
    pub agent_ports: Vec<AgentPort>,
    /// Controllers.
    pub controllers: Vec<ControllerTarget>,
    /// The base table.
    pub base_flows: Vec<BaseFlow>,
    /// The bond of the base uplinks, if they form one.
    #[serde(default)]
    pub bond: Option<BondConfig>,
    /// LAN ports.
    #[serde(default)]
    pub lan: Vec<LanPort>,
    /// The port at which connections that must not be plain are reset; none if no service has `require`.
    #[serde(default)]
    pub reject_port: Option<RejectPort>,
    /// The node's number, with parts only.
    #[serde(default)]
    pub number: Option<u16>,
    /// Tunnels in their short form; [`NodeConfig::parse`] replaces them by `tunnels`.
    #[serde(default)]
    mesh: Option<Mesh>,
    /// Base entries in their short form; [`NodeConfig::parse`] replaces them by `base_flows`.
    #[serde(default)]
    flow_groups: Vec<FlowGroup>,
}

impl NodeConfig {
    /// Parse and check a document.
    ///
    /// # Errors
    /// The document is too large, is not JSON, breaks the schema or a bound, or its hash does not match its content.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let mut config: Self = document::parse(text)?;
        mesh::expand(&mut config)?;
        config.check()?;
        document::check_hash(text, &config.hash)?;
        Ok(config)
    }

    /// The same config with state Absent.
    #[must_use]
    pub fn absent(&self) -> Self {
        Self { state: Presence::Absent, ..self.clone() }
    }

    /// Low 32 bits of the hash, which distinguish base entries of different documents (clause 3).
    #[must_use]
    pub fn hash_low(&self) -> u32 {
        // `parse` admits only 64 hexadecimal digits; a config built otherwise gets 0, which is also a valid cookie.
        let start = self.hash.len().saturating_sub(8);
        self.hash.get(start..).and_then(|digits| u32::from_str_radix(digits, 16).ok()).unwrap_or(0)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.version != VERSION {
            return Err(ConfigError::new("version", format!("`{}` is not {VERSION}", self.version)));
        }
        if self.site_id == 0 {
            return Err(ConfigError::new("siteID", "0 is no site"));
        }
        if !MTU_RANGE.contains(&self.bridge.mtu) {
            return Err(ConfigError::new(
                "bridge.mtu",
                format!("{} is not within {MTU_RANGE:?}", self.bridge.mtu),
            ));
        }
        self.check_bounds()?;
        self.check_ports()?;
        self.check_bond()?;
        self.check_tunnels()
    }

    fn check_bounds(&self) -> Result<(), ConfigError> {
        let lists = [
            ("uplinks", self.uplinks.len(), MAX_UPLINKS),
            ("lan", self.lan.len(), MAX_LAN_PORTS),
            ("tunnels", self.tunnels.len(), MAX_TUNNELS),
            ("agentPorts", self.agent_ports.len(), MAX_AGENT_PORTS),
            ("controllers", self.controllers.len(), MAX_CONTROLLERS),
            ("baseFlows", self.base_flows.len(), MAX_BASE_FLOWS),
        ];
        match lists.into_iter().find(|(_, length, most)| length > most) {
            Some((name, length, most)) => Err(ConfigError::new(name, format!("{length} of at most {most}"))),
            None => Ok(()),
        }
    }

    /// Check that port names and numbers are unique on a bridge.
    fn check_ports(&self) -> Result<(), ConfigError> {
        let uplinks = self.uplinks.iter().map(|p| ("uplinks", &p.name, p.ofport)).enumerate();
        let lan = self.lan.iter().map(|p| ("lan", &p.name, p.ofport)).enumerate();
        let tunnels = self.tunnels.iter().map(|p| ("tunnels", &p.name, p.ofport)).enumerate();
        let agents = self.agent_ports.iter().map(|p| ("agentPorts", &p.name, p.ofport)).enumerate();
        let mut names = BTreeSet::from([&self.bridge.name]);
        let reject = self.reject_port.iter().map(|p| ("rejectPort", &p.name, p.ofport));
        let mut numbers = BTreeSet::new();
        let listed = uplinks.chain(lan).chain(tunnels).chain(agents);
        let listed = listed.map(|(i, (list, name, ofport))| (format!("{list}[{i}]"), name, ofport));
        for (path, name, ofport) in
            listed.chain(reject.map(|(path, name, ofport)| (path.to_owned(), name, ofport)))
        {
            if !names.insert(name) {
                return Err(ConfigError::new(format!("{path}.name"), format!("`{name}` is used twice")));
            }
            if !(1..=MAX_OFPORT).contains(&ofport) {
                let message = format!("{ofport} is not within 1..={MAX_OFPORT}");
                return Err(ConfigError::new(format!("{path}.ofport"), message));
            }
            if !numbers.insert(ofport) {
                return Err(ConfigError::new(format!("{path}.ofport"), format!("{ofport} is used twice")));
            }
        }
        match &self.reject_port {
            Some(port) if names.contains(&port.peer) => {
                Err(ConfigError::new("rejectPort.peer", format!("`{}` is used twice", port.peer)))
            }
            _ => Ok(()),
        }
    }

    fn check_bond(&self) -> Result<(), ConfigError> {
        let Some(bond) = &self.bond else { return Ok(()) };
        if bond.up_delay_seconds > MAX_UP_DELAY_S {
            let message = format!("{} is not within 0..={MAX_UP_DELAY_S}", bond.up_delay_seconds);
            return Err(ConfigError::new("bond.upDelaySeconds", message));
        }
        match self.uplinks.iter().filter(|uplink| uplink.base).count() {
            0 | 1 => Err(ConfigError::new("bond", "it needs several base uplinks")),
            _ => Ok(()),
        }
    }

    /// Check VNIs: the kernel distinguishes tunnels that share a UDP port by VNI only.
    fn check_tunnels(&self) -> Result<(), ConfigError> {
        let mut taken = BTreeSet::new();
        for (i, tunnel) in self.tunnels.iter().enumerate() {
            if tunnel.vni == 0 || tunnel.vni >= 1 << 24 {
                let message = format!("{} is not within 1..2^24", tunnel.vni);
                return Err(ConfigError::new(format!("tunnels[{i}].vni"), message));
            }
            if tunnel.udp_port == 0 {
                return Err(ConfigError::new(format!("tunnels[{i}].udpPort"), "0 is no port"));
            }
            if !taken.insert((tunnel.vni, tunnel.udp_port)) {
                let message = format!("{} is used twice with UDP port {}", tunnel.vni, tunnel.udp_port);
                return Err(ConfigError::new(format!("tunnels[{i}].vni"), message));
            }
        }
        Ok(())
    }
}

/// Reason for keeping the config in force despite a valid new document (controller-config.md clause 1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The new config is older.
    #[error("generation: {offered} is lower than {in_force}, which is in force")]
    Older {
        /// The generation offered.
        offered: u64,
        /// The generation in force.
        in_force: u64,
    },
    /// The new config has the same generation but other content.
    #[error("generation: {generation} is in force with another content")]
    Changed {
        /// The generation of both configs.
        generation: u64,
    },
}

/// True if `offered` replaces `in_force`; `Ok(false)` if both are the same.
///
/// # Errors
/// The offered config is older, or differs under the same generation.
pub fn supersedes(offered: &NodeConfig, in_force: Option<&NodeConfig>) -> Result<bool, Refusal> {
    let Some(old) = in_force else { return Ok(true) };
    if offered.generation < old.generation {
        return Err(Refusal::Older { offered: offered.generation, in_force: old.generation });
    }
    if offered.generation == old.generation && offered.hash != old.hash {
        return Err(Refusal::Changed { generation: offered.generation });
    }
    Ok(offered.generation > old.generation)
}
