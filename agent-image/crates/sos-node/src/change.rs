//! Changes to a node, as values.

use std::net::IpAddr;

use crate::flow::Flow;
use crate::observed::{Device, Offloads, Row};

/// One change. [`crate::plan`] decides on changes, and [`crate::encode`] turns them into commands.
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
    /// Add a port to a bridge.
    AddPort {
        /// The bridge.
        bridge: String,
        /// The port.
        name: String,
        /// Columns of the port's row.
        port: Row,
        /// Columns of its interface's row.
        interface: Row,
    },
    /// Set columns of a port.
    SetPort {
        /// The port.
        name: String,
        /// Columns of the port's row.
        port: Row,
        /// Columns of its interface's row.
        interface: Row,
    },
    /// Remove a port from a bridge.
    DeletePort {
        /// The bridge.
        bridge: String,
        /// The port.
        name: String,
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
        /// The route as in [`crate::local::LocalPort::routes`].
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
            Self::AddReject { .. } => "add_reject",
            Self::SetRejectRules { .. } => "set_reject_rules",
            Self::DeleteReject { .. } => "delete_reject",
            Self::DeleteLink { .. } => "delete_link",
            Self::AddBridge { .. } => "add_bridge",
            Self::SetBridge { .. } => "set_bridge",
            Self::DeleteBridge { .. } => "delete_bridge",
            Self::SetControllers { .. } => "set_controllers",
            Self::AddPort { .. } => "add_port",
            Self::SetPort { .. } => "set_port",
            Self::DeletePort { .. } => "delete_port",
            Self::SetNoFlood { .. } => "set_no_flood",
            Self::EditFlows { .. } => "edit_flows",
            Self::SetOffloads { .. } => "set_offloads",
            Self::ForgetAgent { .. } => "forget_agent",
            Self::AddAddress { .. } => "add_address",
            Self::AddRoute { .. } => "add_route",
            Self::EndRestoreWait => "end_restore_wait",
        }
    }
}
