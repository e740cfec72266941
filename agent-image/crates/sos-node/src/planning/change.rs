//! Changes to a node, as values.

use std::net::IpAddr;

use crate::observation::flow::Flow;
use crate::observation::observed::{Device, Offloads, Row};

/// Place of an interface on a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A port of its own.
    Own,
    /// A member of [`crate::observation::observed::BOND`]. The first member is added with the bond, and the last one is removed with it,
    /// because a port has at least one interface.
    Bond {
        /// True if the bond has no other member at this moment.
        alone: bool,
    },
}

/// One change. [`crate::planning::plan`] decides on changes, and [`crate::encode`] turns them into commands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Create a VXLAN device, mark it as created by this program and set it up.
    AddTunnel {
        /// The device.
        name: String,
        /// VXLAN network identifier.
        vni: u32,
        /// Address of the other node.
        remote: IpAddr,
        /// Destination UDP port.
        udp_port: u16,
        /// Its MTU.
        mtu: u32,
        /// Ownership mark.
        alias: String,
    },
    /// Mark a device as created by this program.
    TagLink {
        /// The device.
        name: String,
        /// Ownership mark.
        alias: String,
    },
    /// Set a device's MTU.
    SetLinkMtu {
        /// The device.
        name: String,
        /// MTU in bytes.
        mtu: u32,
    },
    /// Set a device up.
    SetLinkUp {
        /// The device.
        name: String,
    },
    /// Set a device down.
    SetLinkDown {
        /// The device.
        name: String,
    },
    /// Create the veth pair at which the kernel resets connections, mark the device on the bridge as created by this program and set both
    /// ends up.
    AddReject {
        /// The device on the bridge.
        name: String,
        /// Its peer.
        peer: String,
        /// Ownership mark.
        alias: String,
    },
    /// Make the kernel reset TCP connections that arrive on a device.
    SetRejectRules {
        /// The device.
        peer: String,
    },
    /// Remove the pair and its rules.
    DeleteReject {
        /// The device on the bridge.
        name: String,
    },
    /// Remove a device.
    DeleteLink {
        /// The device.
        name: String,
    },
    /// Create a bridge.
    AddBridge {
        /// The bridge.
        name: String,
        /// Columns of its row.
        row: Row,
    },
    /// Set columns of a bridge.
    SetBridge {
        /// The bridge.
        name: String,
        /// The columns.
        row: Row,
    },
    /// Delete a bridge with all its ports.
    DeleteBridge {
        /// The bridge.
        name: String,
    },
    /// Replace a bridge's controllers.
    SetControllers {
        /// The bridge.
        bridge: String,
        /// Their targets.
        targets: Vec<String>,
    },
    /// Set the certificates with which Open vSwitch connects to controllers by TLS. Open vSwitch follows changes of the files by itself.
    SetTls {
        /// Columns of the row in table SSL.
        row: Row,
    },
    /// Remove the certificates.
    RemoveTls,
    /// Add a port to a bridge, or a member to [`crate::observation::observed::BOND`].
    AddPort {
        /// The bridge.
        bridge: String,
        /// The port or member.
        name: String,
        /// Columns of the port's or the bond's row.
        port: Row,
        /// Columns of its interface's row.
        interface: Row,
        /// Place of the interface.
        place: Place,
    },
    /// Set columns of a port, of [`crate::observation::observed::BOND`] or, without columns of the port's row, of a member.
    SetPort {
        /// The port, bond or member.
        name: String,
        /// Columns of the port's row.
        port: Row,
        /// Columns of its interface's row.
        interface: Row,
    },
    /// Remove a port from a bridge, or a member from [`crate::observation::observed::BOND`].
    DeletePort {
        /// The bridge.
        bridge: String,
        /// The port or member.
        name: String,
        /// Place of the interface.
        place: Place,
    },
    /// Set or clear the "no flood" flag of a port.
    SetNoFlood {
        /// The bridge.
        bridge: String,
        /// The port.
        port: String,
        /// True to exclude the port from flooding.
        no_flood: bool,
    },
    /// Set the "no packet-in" flag of a port, which tells controllers that Open vSwitch watches its far end. Entries that send packets to
    /// the controller by an action still do so.
    SetNoPacketIn {
        /// The bridge.
        bridge: String,
        /// The port.
        port: String,
    },
    /// Add and remove flow entries in one transaction.
    EditFlows {
        /// The bridge.
        bridge: String,
        /// Entries to add; each replaces the entry with its key.
        add: Vec<Flow>,
        /// Entries to remove, by key and cookie.
        remove: Vec<Flow>,
    },
    /// Enable or disable offloads of a device.
    SetOffloads {
        /// The device.
        device: Device,
        /// The offloads.
        which: Offloads,
        /// True to enable.
        on: bool,
    },
    /// Delete the session entries that output to an agent's port.
    ForgetAgent {
        /// The bridge.
        bridge: String,
        /// The port's number.
        ofport: u16,
    },
    /// Add an address to a device.
    AddAddress {
        /// The device.
        device: String,
        /// The address with its prefix length.
        address: String,
    },
    /// Add a route through a device.
    AddRoute {
        /// The device.
        device: String,
        /// The route as in [`crate::planning::local::LocalPort::routes`].
        route: String,
    },
    /// End flow-restore-wait, so that Open vSwitch forwards although the start script has not reported the entries as restored.
    EndRestoreWait,
}

impl Change {
    /// True for changes to Open vSwitch's database: adjacent database changes share a transaction.
    #[must_use]
    pub fn is_database(&self) -> bool {
        matches!(
            self,
            Self::AddBridge { .. }
                | Self::SetBridge { .. }
                | Self::DeleteBridge { .. }
                | Self::SetControllers { .. }
                | Self::SetTls { .. }
                | Self::RemoveTls
                | Self::AddPort { .. }
                | Self::SetPort { .. }
                | Self::DeletePort { .. }
                | Self::EndRestoreWait
        )
    }

    /// One word for the metric `sos_node_changes_total`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::AddTunnel { .. } => "add_tunnel",
            Self::TagLink { .. } => "tag_link",
            Self::SetLinkMtu { .. } => "set_link_mtu",
            Self::SetLinkUp { .. } => "set_link_up",
            Self::SetLinkDown { .. } => "set_link_down",
            Self::AddReject { .. } => "add_reject",
            Self::SetRejectRules { .. } => "set_reject_rules",
            Self::DeleteReject { .. } => "delete_reject",
            Self::DeleteLink { .. } => "delete_link",
            Self::AddBridge { .. } => "add_bridge",
            Self::SetBridge { .. } => "set_bridge",
            Self::DeleteBridge { .. } => "delete_bridge",
            Self::SetControllers { .. } => "set_controllers",
            Self::SetTls { .. } => "set_tls",
            Self::RemoveTls => "remove_tls",
            Self::AddPort { .. } => "add_port",
            Self::SetPort { .. } => "set_port",
            Self::DeletePort { .. } => "delete_port",
            Self::SetNoFlood { .. } => "set_no_flood",
            Self::SetNoPacketIn { .. } => "set_no_packet_in",
            Self::EditFlows { .. } => "edit_flows",
            Self::SetOffloads { .. } => "set_offloads",
            Self::ForgetAgent { .. } => "forget_agent",
            Self::AddAddress { .. } => "add_address",
            Self::AddRoute { .. } => "add_route",
            Self::EndRestoreWait => "end_restore_wait",
        }
    }
}
