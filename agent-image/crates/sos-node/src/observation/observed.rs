//! State of the node, as one value.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::observation::flow::Flow;
use crate::observation::reject::Rejected;

/// Key for the site's id, on every object that this program creates in Open vSwitch's database.
pub const OWNER_KEY: &str = "external_ids:sos-owner";
/// Key on the port of an interface of the node for the offloads that were on before this program switched them off.
pub const OFFLOADS_KEY: &str = "external_ids:sos-offloads";
/// Key on a port for the index of the device for which the port was added: if another device takes over the name, Open vSwitch's user-space
/// datapath keeps reading from the old device.
pub const DEVICE_KEY: &str = "external_ids:sos-device";
/// Key on the port of an interface of the node that was down before this program set it up; the value is [`LINK_DOWN`].
pub const LINK_KEY: &str = "external_ids:sos-link";
/// Value of [`LINK_KEY`].
pub const LINK_DOWN: &str = "down";
/// Prefix of the site's id in the alias of a device of this program.
const ALIAS_PREFIX: &str = "sos-node:";

/// Name of the bond of the base uplinks in Open vSwitch's database. No device can have this name, because it has more than 15 characters.
pub const BOND: &str = "sos-base-uplinks";

/// The alias of devices created for a site.
#[must_use]
pub fn link_alias(site_id: u16) -> String {
    format!("{ALIAS_PREFIX}{site_id}")
}

/// One row, flattened to texts: a scalar under its column's name, a map under `column:key`, a set joined by commas.
/// Absent and empty values have no entry.
pub type Row = BTreeMap<String, String>;

/// A column of a row, empty if the row has none.
#[must_use]
pub fn text<'a>(row: &'a Row, column: &str) -> &'a str {
    row.get(column).map_or("", String::as_str)
}

/// Open vSwitch itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OvsInfo {
    /// Its version, empty if unknown.
    pub version: String,
    /// True if user-space segmentation offload is on.
    pub tso: bool,
    /// True while Open vSwitch does not forward, because its entries have not been reported as restored.
    pub restore_wait: bool,
}

/// Folder of certificates for TLS with controllers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFolder {
    /// Its path.
    pub path: String,
    /// The first of its files that cannot be read, with the reason.
    pub unreadable: Option<String>,
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
    /// Its target.
    pub target: String,
    /// In-band or out-of-band.
    pub connection_mode: String,
    /// Maximum wait between attempts, in milliseconds.
    pub max_backoff: String,
    /// Idle time after which Open vSwitch sends an echo request, in milliseconds.
    pub inactivity_probe: String,
    /// True if connected.
    pub connected: bool,
}

/// A port and its interface, or a member of [`BOND`]. Keys of this program are in the row of the port, or of the member's interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// The port's row.
    pub row: Row,
    /// Its interface's row.
    pub interface: Row,
    /// Its OpenFlow port number, if it has one.
    pub ofport: Option<u16>,
    /// Numbers of its other interfaces: a bond of another owner has several.
    pub more_ofports: Vec<u16>,
    /// True for a member of [`BOND`].
    pub bonded: bool,
    /// Error reported by Open vSwitch.
    pub error: Option<String>,
}

/// The parameters of a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vxlan {
    /// VXLAN network identifier.
    pub vni: u32,
    /// Remote endpoint.
    pub remote: IpAddr,
    /// Destination UDP port.
    pub udp_port: u16,
}

/// A network device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Link {
    /// The device's index: a recreated device has another index.
    pub index: u32,
    /// True if up.
    pub up: bool,
    /// True if it has a carrier.
    pub carrier: bool,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// Its alias.
    pub alias: Option<String>,
    /// The device to which it belongs (a Linux bridge, a bond, Open vSwitch's kernel datapath).
    pub master: Option<String>,
    /// Its kind, for example `veth` or `vxlan`; none for hardware.
    pub kind: Option<String>,
    /// Parameters of a VXLAN device with one remote.
    pub vxlan: Option<Vxlan>,
    /// The lower device, for example of a VLAN or macvlan device.
    pub lower: Option<String>,
    /// Its addresses with prefix lengths, except link-scope addresses.
    pub addresses: Vec<String>,
    /// Those of the addresses that have a lifetime.
    pub lent: Vec<String>,
    /// True if a default route uses it.
    pub default_route: bool,
    /// Destinations of other routes through the device that are not implied by its addresses; at most a few.
    pub routes: Vec<String>,
}

/// Offloads that are on and can be switched off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offloads {
    /// The sender leaves checksums and segmentation to the device.
    pub tx: bool,
    /// Received packets are merged into larger packets.
    pub gro: bool,
}

/// A device whose offloads matter.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// Path of the device's network namespace; none for the namespace of this process.
    pub netns: Option<String>,
    /// The device's name in that namespace.
    pub name: String,
}

/// Addresses and routes to restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Addresses.
    pub addresses: Vec<String>,
    /// Routes, to be added after the addresses.
    pub routes: Vec<String>,
}

impl Lost {
    /// True if there is nothing to restore.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }
}

/// Complete input of [`crate::planning::plan::plan`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// True if the kernel has Open vSwitch's datapath. This field and the next are observed only for a bridge that may be put on this
    /// datapath.
    pub kernel_datapath: bool,
    /// Ports of the kernel's datapaths, of any owner.
    pub kernel_ports: BTreeSet<String>,
    /// Open vSwitch itself.
    pub ovs: OvsInfo,
    /// Row of table SSL, if there is one.
    pub ssl: Option<Row>,
    /// Folder of certificates; none without `--openflow-tls`.
    pub tls: Option<TlsFolder>,
    /// Bridges by name.
    pub bridges: BTreeMap<String, Bridge>,
    /// Ports by name.
    pub ports: BTreeMap<String, Port>,
    /// Row of [`BOND`]; its members are in `ports`, and in `ports` of their bridge.
    pub bond: Option<Row>,
    /// Devices by name.
    pub links: BTreeMap<String, Link>,
    /// Flow entries of the config's bridge: at least the base entries.
    pub flows: Vec<Flow>,
    /// "No flood" flags of the config's bridge, for ports that OpenFlow knows.
    pub no_flood: BTreeMap<String, bool>,
    /// "No packet-in" flags, likewise.
    pub no_packet_in: BTreeMap<String, bool>,
    /// Offloads of the devices of [`crate::planning::desired::offload_devices`].
    pub offloads: BTreeMap<Device, Offloads>,
    /// True if [`OvsInfo::restore_wait`] has lasted too long.
    pub restore_overdue: bool,
    /// Uplinks that cut the node off when put on the bridge, each with the anchors that became unreachable.
    pub cut_off: BTreeMap<String, String>,
    /// Addresses and routes that the bridge's local port lost when it was recreated.
    pub lost: Lost,
    /// Counters of the reject port's rules; none while the rules are missing.
    pub rejected: Option<Rejected>,
    /// Numbers of departed agents' ports to which session entries still output.
    pub stranded: BTreeSet<u16>,
}

impl Observed {
    /// The bridge of a port.
    #[must_use]
    pub fn bridge_of(&self, port: &str) -> Option<&str> {
        self.bridges.iter().find(|(_, bridge)| bridge.ports.contains(port)).map(|(name, _)| name.as_str())
    }

    /// True if a bridge was created for this site.
    #[must_use]
    pub fn owns_bridge(&self, bridge: &str, site_id: u16) -> bool {
        self.bridges.get(bridge).is_some_and(|bridge| owned(&bridge.row, site_id))
    }

    /// True if a port was created for this site.
    #[must_use]
    pub fn owns_port(&self, port: &str, site_id: u16) -> bool {
        self.ports.get(port).is_some_and(|port| owned(&port.row, site_id))
    }

    /// True if the bond was created for this site.
    #[must_use]
    pub fn owns_bond(&self, site_id: u16) -> bool {
        self.bond.as_ref().is_some_and(|row| owned(row, site_id))
    }

    /// True if a device was created for this site.
    #[must_use]
    pub fn owns_link(&self, name: &str, site_id: u16) -> bool {
        self.links.get(name).is_some_and(|link| link.alias.as_deref() == Some(&link_alias(site_id)))
    }
}

fn owned(row: &Row, site_id: u16) -> bool {
    text(row, OWNER_KEY) == site_id.to_string()
}
