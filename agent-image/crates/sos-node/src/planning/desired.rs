//! The node-config in Open vSwitch's terms.

use crate::config::{BondMode, NodeConfig, Presence};
use crate::observation::observed::{
    Controller, DEVICE_KEY, Device, OFFLOADS_KEY, OWNER_KEY, Observed, Offloads, Row, text,
};
use crate::planning::datapath::datapath_type;

/// Maximum wait between connection attempts to a controller, in milliseconds: reconnecting must not take longer than the start of the
/// controller's pod. Open vSwitch 3.1 stores the value but still waits 1, 2, 4, 8, 8 ... s (measured by packet capture). Versions that
/// honour the value reconnect within this time.
const MAX_BACKOFF_MS: u32 = 2_000;
/// Idle time in milliseconds after which Open vSwitch sends an echo request. If there is no reply within the same time, it disconnects.
const INACTIVITY_PROBE_MS: u32 = 5_000;
/// Controllers use OpenFlow 1.3. This program also uses 1.0 with ovs-ofctl(8), because later versions have no "no flood" flag on ports.
const PROTOCOLS: &str = "OpenFlow10,OpenFlow13";

/// Destination of the packets of Bidirectional Forwarding Detection (RFC 5880), a reserved MAC address (IEEE 802.1Q, 8.6.3): a bridge whose
/// Open vSwitch has no session drops them, instead of flooding them to its hosts.
const BFD_DESTINATION: &str = "01:80:c2:00:00:0e";

/// Interval and multiplier of Bidirectional Forwarding Detection (RFC 5880).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bfd {
    /// Time between two packets in milliseconds.
    pub interval_ms: u32,
    /// Number of consecutive lost packets after which a tunnel is lost.
    pub multiplier: u32,
}

/// BFD of each tunnel of a node. Up to 60 tunnels, a tunnel is lost after 1 s. With more tunnels the interval grows to 1 s, so that a node
/// sends at most 200 packets a second with up to 200 tunnels: Open vSwitch in user space reads all its ports for each packet. At least three
/// packets in a row must be lost, since a path may lose some packets all the time.
fn bfd(tunnels: usize) -> Bfd {
    let interval_ms = 100 * u32::try_from(tunnels.div_ceil(20).clamp(2, 10)).unwrap_or(10);
    Bfd { interval_ms, multiplier: (1_000 / interval_ms).max(3) }
}

/// Origin of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortKind {
    /// A device of the node that leads to other sites.
    Uplink,
    /// A device of the node that leads to hosts.
    Lan,
    /// A VXLAN device that this program creates.
    Tunnel,
    /// A device that an agent creates.
    Agent,
    /// One end of a veth pair of this program; at the other end the kernel resets connections.
    Reject,
}

impl PortKind {
    /// True for interfaces of the node, which get their former state back when they leave the bridge.
    #[must_use]
    pub fn is_interface(self) -> bool {
        matches!(self, Self::Uplink | Self::Lan)
    }
}

/// Port numbers of agents (spec/node-config.md clause 6): 34001 + slot, below the tunnels' numbers.
const AGENT_OFPORTS: std::ops::Range<u32> = 34_001..35_000;

/// True for an agent's port, identified by the port number that its row requests.
#[must_use]
pub fn is_agent_port(interface: &Row) -> bool {
    text(interface, "ofport_request").parse().is_ok_and(|number: u32| AGENT_OFPORTS.contains(&number))
}

/// A port that belongs on the bridge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredPort {
    /// The device.
    pub name: String,
    /// Its origin.
    pub kind: PortKind,
    /// Its OpenFlow port number.
    pub ofport: u16,
    /// True if it carries unlabelled traffic.
    pub base: bool,
    /// True for a member of the bond of the base uplinks.
    pub bonded: bool,
    /// BFD with its far end, if there is one.
    pub bfd: Option<Bfd>,
}

impl DesiredPort {
    /// True if flooding excludes the port (spec/node-config.md clause 7).
    #[must_use]
    pub fn no_flood(&self) -> bool {
        !self.base
    }

    /// Columns of the port's row, or further columns of a member's interface. They include the index of the port's network device (`device`) and, for interfaces of the node, the
    /// offloads to restore later (`offloads`).
    #[must_use]
    pub fn port_row(&self, site_id: u16, device: Option<u32>, offloads: Option<String>) -> Row {
        let mut row = Row::from([(OWNER_KEY.to_owned(), site_id.to_string())]);
        if !self.bonded {
            let protected = self.kind == PortKind::Tunnel && self.base;
            row.insert("protected".to_owned(), protected.to_string());
        }
        row.extend(device.map(|index| (DEVICE_KEY.to_owned(), index.to_string())));
        row.extend(offloads.map(|names| (OFFLOADS_KEY.to_owned(), names)));
        row
    }

    /// Columns of the port's interface row.
    #[must_use]
    pub fn interface_row(&self) -> Row {
        let mut row = Row::from([("ofport_request".to_owned(), self.ofport.to_string())]);
        if let Some(Bfd { interval_ms, multiplier }) = self.bfd {
            let columns = [
                ("enable", "true".to_owned()),
                ("min_tx", interval_ms.to_string()),
                ("min_rx", interval_ms.to_string()),
                ("mult", multiplier.to_string()),
                ("bfd_local_dst_mac", BFD_DESTINATION.to_owned()),
            ];
            row.extend(columns.map(|(key, value)| (format!("bfd:{key}"), value)));
        }
        row
    }

    /// True if Open vSwitch checks that the port's far end answers (spec/node-config.md clause 44).
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.bfd.is_some()
    }
}

/// The desired ports, in the order uplinks, LAN ports, tunnels, agent ports, reject port.
#[must_use]
pub fn ports(config: &NodeConfig) -> Vec<DesiredPort> {
    if config.state == Presence::Absent {
        return vec![];
    }
    let port = |name: &crate::names::DeviceName, kind, ofport, base| DesiredPort {
        name: name.to_string(),
        kind,
        ofport,
        base,
        bonded: kind == PortKind::Uplink && base && config.bond.is_some(),
        bfd: (kind == PortKind::Tunnel).then(|| bfd(config.tunnels.len())),
    };
    let uplinks = config.uplinks.iter().map(|p| port(&p.name, PortKind::Uplink, p.ofport, p.base));
    let lan = config.lan.iter().map(|p| port(&p.name, PortKind::Lan, p.ofport, true));
    let tunnels = config.tunnels.iter().map(|p| port(&p.name, PortKind::Tunnel, p.ofport, p.base));
    let agents = config.agent_ports.iter().map(|p| port(&p.name, PortKind::Agent, p.ofport, true));
    let reject = config.reject_port.iter().map(|p| port(&p.name, PortKind::Reject, p.ofport, false));
    uplinks.chain(lan).chain(tunnels).chain(agents).chain(reject).collect()
}

/// Columns of the bond's row; none without a bond (spec/node-config.md clause 42). Open vSwitch itself moves the traffic to another member.
#[must_use]
pub fn bond_row(config: &NodeConfig) -> Option<Row> {
    let bond = config.bond.as_ref().filter(|_| config.state == Presence::Present)?;
    let first = config.uplinks.iter().find(|uplink| uplink.base)?.name.to_string();
    let (mode, lacp) = match bond.mode {
        BondMode::ActiveBackup => ("active-backup", "off"),
        BondMode::BalanceTcp => ("balance-tcp", "active"),
    };
    let columns = [
        (OWNER_KEY, config.site_id.to_string()),
        ("bond_mode", mode.to_owned()),
        ("bond_updelay", (u32::from(bond.up_delay_seconds) * 1_000).to_string()),
        ("lacp", lacp.to_owned()),
        // Detect a silent partner within 3 s instead of 90 s (IEEE 802.1AX, 6.4.4).
        ("other_config:lacp-time", "fast".to_owned()),
        // Without LACP's answer, base traffic uses one member instead of none.
        ("other_config:lacp-fallback-ab", "true".to_owned()),
        ("other_config:bond-primary", first),
    ];
    Some(columns.map(|(column, value)| (column.to_owned(), value)).into())
}

/// Columns of the bridge's row.
#[must_use]
pub fn bridge_row(config: &NodeConfig, observed: &Observed) -> Row {
    let bridge = &config.bridge;
    [
        ("fail_mode", "secure".to_owned()),
        ("protocols", PROTOCOLS.to_owned()),
        ("datapath_type", datapath_type(config, observed).to_owned()),
        ("other_config:datapath-id", bridge.datapath_id.to_string()),
        ("other_config:hwaddr", local_mac(bridge.datapath_id.0)),
        (OWNER_KEY, config.site_id.to_string()),
    ]
    .map(|(column, value)| (column.to_owned(), value))
    .into()
}

/// MAC address of the bridge's local port: `06`, which is locally administered and not the start of a path MAC (02:53), followed by the low
/// 40 bits of the datapath id. By default Open vSwitch would use the MAC address of a port, and change it whenever the ports change.
fn local_mac(datapath_id: u64) -> String {
    let [_, _, _, a, b, c, d, e] = datapath_id.to_be_bytes();
    format!("06:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
}

/// The desired controllers of the bridge, sorted.
#[must_use]
pub fn controllers(config: &NodeConfig) -> Vec<Controller> {
    if config.state == Presence::Absent {
        return vec![];
    }
    let mut controllers: Vec<Controller> =
        config.controllers.iter().map(|target| controller(target.as_str())).collect();
    controllers.sort();
    controllers.dedup();
    controllers
}

/// Files of the folder of certificates, by their columns in table SSL; named as in a Secret of type kubernetes.io/tls.
pub const TLS_FILES: [(&str, &str); 3] =
    [("private_key", "tls.key"), ("certificate", "tls.crt"), ("ca_cert", "ca.crt")];

/// True if a controller is reached by TLS.
#[must_use]
pub fn needs_tls(config: &NodeConfig) -> bool {
    controllers(config).iter().any(|controller| controller.target.starts_with("ssl:"))
}

/// The row of table SSL for a folder of certificates.
#[must_use]
pub fn tls_row(site_id: u16, folder: &str) -> Row {
    let files = TLS_FILES.map(|(column, file)| (column.to_owned(), format!("{folder}/{file}")));
    files.into_iter().chain([(OWNER_KEY.to_owned(), site_id.to_string())]).collect()
}

/// A controller's row. The connection mode is out-of-band: the controller is reached over the node's own network, never through the
/// controlled bridge.
#[must_use]
pub fn controller(target: &str) -> Controller {
    Controller {
        target: target.to_owned(),
        connection_mode: "out-of-band".to_owned(),
        max_backoff: MAX_BACKOFF_MS.to_string(),
        inactivity_probe: INACTIVITY_PROBE_MS.to_string(),
        connected: false,
    }
}

/// True if packets that are too large, or lack their checksum, must not reach the bridge: the user-space datapath handles them only with its
/// segmentation offload on.
#[must_use]
pub fn offloads_must_be_off(config: &NodeConfig, observed: &Observed) -> bool {
    let tso = config.bridge.userspace_tso && observed.ovs.tso;
    config.state == Presence::Present && datapath_type(config, observed) == "netdev" && !tso
}

/// Devices whose offloads must be off: the devices of our ports, and the pod ends of ports that ovs-cni put on the bridge. None unless
/// [`offloads_must_be_off`].
#[must_use]
pub fn offload_devices(config: &NodeConfig, observed: &Observed) -> Vec<Device> {
    if !offloads_must_be_off(config, observed) {
        return vec![];
    }
    let ours = ports(config).into_iter().filter(|port| observed.links.contains_key(&port.name));
    let ours = ours.map(|port| Device { netns: None, name: port.name });
    let bridge = observed.bridges.get(config.bridge.name.as_str());
    let others =
        bridge.into_iter().flat_map(|bridge| &bridge.ports).filter_map(|name| observed.ports.get(name));
    let pods = others.filter_map(|port| {
        let column =
            |key| port.row.get(key).or_else(|| port.interface.get(key)).filter(|value| !value.is_empty());
        let (netns, name) = (column("external_ids:contNetns")?, column("external_ids:contIface")?);
        Some(Device { netns: Some(netns.clone()), name: name.clone() })
    });
    ours.chain(pods).collect()
}

/// Encode offloads as the text stored in a port's row.
#[must_use]
pub fn encode_offloads(offloads: Offloads) -> String {
    match (offloads.tx, offloads.gro) {
        (true, true) => "tx+gro",
        (true, false) => "tx",
        (false, true) => "gro",
        (false, false) => "none",
    }
    .to_owned()
}

/// Decode the text of [`encode_offloads`].
#[must_use]
pub fn parse_offloads(text: &str) -> Offloads {
    Offloads { tx: text.contains("tx"), gro: text.contains("gro") }
}

#[cfg(test)]
mod tests {
    use super::bfd;

    #[test]
    fn a_tunnel_is_lost_after_a_second_in_small_meshes_and_after_three_in_large_ones() {
        let lost_after = |tunnels| bfd(tunnels).interval_ms * bfd(tunnels).multiplier;
        assert_eq!(
            [0, 1, 40, 41, 60, 80, 100, 181, 1_024].map(lost_after),
            [1_000, 1_000, 1_000, 900, 900, 1_200, 1_500, 3_000, 3_000]
        );
        for tunnels in 0..=200 {
            assert!(1_000 * tunnels <= 200 * bfd(tunnels).interval_ms as usize, "{tunnels} tunnels");
        }
    }
}
