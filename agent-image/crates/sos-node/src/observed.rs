//! What there is on the node, as one value.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::flow::Flow;
use crate::local::Lost;
use crate::ovsdb::{Row, text};
use crate::reject::Rejected;

/// Key under which everything this program makes in Open vSwitch's database carries the site's id.
pub const OWNER_KEY: &str = "external_ids:sos-owner";
/// Key under which an uplink's port remembers which offloads were on before they were switched off.
pub const OFFLOADS_KEY: &str = "external_ids:sos-offloads";
/// Key under which a port remembers the number of the device it was put on for: Open vSwitch's datapath in user space goes on reading
/// from that one when another comes under the same name.
pub const DEVICE_KEY: &str = "external_ids:sos-device";
/// What stands before the site's id in the alias of a device this program made.
const ALIAS_PREFIX: &str = "sos-node:";

/// The alias of devices made for a site.
#[must_use]
pub fn link_alias(site_id: u16) -> String {
    format!("{ALIAS_PREFIX}{site_id}")
}

/// Open vSwitch itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OvsInfo {
    /// Its version, empty if it has not said.
    pub version: String,
    /// Whether segmentation offload in user space is switched on.
    pub tso: bool,
    /// Whether it forwards nothing until somebody says that its entries are restored.
    pub restore_wait: bool,
}

/// A bridge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Its row.
    pub row: Row,
    /// Names of its ports.
    pub ports: BTreeSet<String>,
    /// Its controllers, sorted.
    pub controllers: Vec<Controller>,
}

/// A controller of a bridge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Controller {
    /// Where it listens.
    pub target: String,
    /// In-band or out-of-band.
    pub connection_mode: String,
    /// Longest wait between attempts, in milliseconds.
    pub max_backoff: String,
    /// Idle time after which Open vSwitch asks whether it is still there, in milliseconds.
    pub inactivity_probe: String,
    /// Whether it is connected.
    pub connected: bool,
}

/// A port and its interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// The port's row.
    pub row: Row,
    /// Its interface's row.
    pub interface: Row,
    /// Its OpenFlow port number, if it has one.
    pub ofport: Option<u16>,
    /// Those of its other interfaces: a bond has several.
    pub more_ofports: Vec<u16>,
    /// What Open vSwitch says is wrong with it.
    pub error: Option<String>,
}

/// The parameters of a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier.
    pub vni: u32,
    /// The other end.
    pub remote: IpAddr,
    /// Destination UDP port.
    pub udp_port: u16,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// Its number: a device that was made anew has another one.
    pub index: u32,
    /// Whether it is switched on.
    pub up: bool,
    /// Whether it has a carrier.
    pub carrier: bool,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its alias.
    pub alias: Option<String>,
    /// The device it belongs to (a Linux bridge, a bond, Open vSwitch's kernel datapath).
    pub master: Option<String>,
    /// What it is: `veth`, `vxlan`, nothing for hardware.
    pub kind: Option<String>,
    /// If it is a VXLAN device to one place, which.
    pub vxlan: Option<Vxlan>,
    /// The device it stands on (a VLAN's, a macvlan's).
    pub lower: Option<String>,
    /// Its addresses but those of link scope, with their prefix lengths.
    pub addresses: Vec<String>,
    /// Those of them that run out unless somebody renews them.
    pub lent: Vec<String>,
    /// Whether a default route goes through it.
    pub default_route: bool,
    /// Where other routes through it lead to that do not follow from its addresses; at most a few.
    pub routes: Vec<String>,
}

/// Offloads that are on and can be switched off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The sender leaves checksums and segmentation to the device.
    pub tx: bool,
    /// Received packets are merged into larger ones.
    pub gro: bool,
}

/// A device whose offloads matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The namespace it is in, as a path; ours if none.
    pub netns: Option<String>,
    /// Its name there.
    pub name: String,
}

/// Everything that [`crate::plan::plan`] looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// Whether the kernel has Open vSwitch's datapath. Asked for, like the next, only where a bridge is to be put there.
    pub kernel_datapath: bool,
    /// Ports of the kernel's datapaths, whoever's they are.
    pub kernel_ports: BTreeSet<String>,
    /// Open vSwitch itself.
    pub ovs: OvsInfo,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Ports by name.
    pub ports: BTreeMap<String, Port>,
    /// Devices by name.
    pub links: BTreeMap<String, Link>,
    /// Flow entries of the config's bridge: at least the base entries.
    pub flows: Vec<Flow>,
    /// Ports of the config's bridge that flooding leaves out; only ports that OpenFlow knows are in the map.
    pub no_flood: BTreeMap<String, bool>,
    /// Offloads of the devices [`crate::desired::offload_devices`] names.
    pub offloads: BTreeMap<Device, Offloads>,
    /// Whether [`OvsInfo::restore_wait`] has lasted too long.
    pub restore_overdue: bool,
    /// Uplinks that cost the node its connections when they were put on the bridge, and which.
    pub cut_off: BTreeMap<String, String>,
    /// What the bridge's local port had before it was made anew and has no more.
    pub lost: Lost,
    /// Counters of the reject port's rules; none while the rules are missing.
    pub rejected: Option<Rejected>,
    /// Numbers of agents' ports that entries of sessions lead to although the agent is gone.
    pub stranded: BTreeSet<u16>,
}

impl Observed {
    /// The bridge a port is on.
    #[must_use]
    pub fn bridge_of(&self, port: &str) -> Option<&str> {
        self.bridges.iter().find(|(_, bridge)| bridge.ports.contains(port)).map(|(name, _)| name.as_str())
    }

    /// Whether a bridge was made for this site.
    #[must_use]
    pub fn owns_bridge(&self, bridge: &str, site_id: u16) -> bool {
        self.bridges.get(bridge).is_some_and(|bridge| owned(&bridge.row, site_id))
    }

    /// Whether a port was made for this site.
    #[must_use]
    pub fn owns_port(&self, port: &str, site_id: u16) -> bool {
        self.ports.get(port).is_some_and(|port| owned(&port.row, site_id))
    }

    /// Whether a device was made for this site.
    #[must_use]
    pub fn owns_link(&self, name: &str, site_id: u16) -> bool {
        self.links.get(name).is_some_and(|link| link.alias.as_deref() == Some(&link_alias(site_id)))
    }
}

fn owned(row: &Row, site_id: u16) -> bool {
    text(row, OWNER_KEY) == site_id.to_string()
}
