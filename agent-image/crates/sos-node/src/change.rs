//! What can be done to a node, as values.

use std::net::IpAddr;

use crate::flow::Flow;
use crate::observed::{Device, Offloads};
use crate::ovsdb::Row;

/// One change. [`crate::encode`] knows the commands, [`crate::plan`] when one is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Make a VXLAN device, mark it as ours and switch it on.
    AddTunnel {
        /// The device.
        name: String,
        /// VXLAN network identifier.
        vni: u32,
        /// The other end.
        remote: IpAddr,
        /// Destination UDP port.
        udp_port: u16,
        /// Its MTU.
        mtu: u32,
        /// The mark.
        alias: String,
    },
    /// Mark a device as ours.
    TagLink {
        /// The device.
        name: String,
        /// The mark.
        alias: String,
    },
    /// Give a device an MTU.
    SetLinkMtu {
        /// The device.
        name: String,
        /// In bytes.
        mtu: u32,
    },
    /// Switch a device on.
    SetLinkUp {
        /// The device.
        name: String,
    },
    /// Make the pair of devices where connections are reset, mark its outer end as ours and switch both on.
    AddReject {
        /// The device on the bridge.
        name: String,
        /// Its other end.
        peer: String,
        /// The mark.
        alias: String,
    },
    /// Have the kernel reset what comes in by a device.
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
    /// Make a bridge.
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
    /// Remove a bridge with all that is on it.
    DeleteBridge {
        /// The bridge.
        name: String,
    },
    /// Replace a bridge's controllers.
    SetControllers {
        /// The bridge.
        bridge: String,
        /// Where they listen.
        targets: Vec<String>,
    },
    /// Put a port on a bridge.
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
    /// Take a port off a bridge.
    DeletePort {
        /// The bridge.
        bridge: String,
        /// The port.
        name: String,
    },
    /// Let flooding leave a port out or not.
    SetNoFlood {
        /// The bridge.
        bridge: String,
        /// The port.
        port: String,
        /// Whether flooding leaves it out.
        no_flood: bool,
    },
    /// Add and remove flow entries, all at once.
    EditFlows {
        /// The bridge.
        bridge: String,
        /// Added; one takes the place of an entry with its key.
        add: Vec<Flow>,
        /// Removed, by key and cookie.
        remove: Vec<Flow>,
    },
    /// Switch offloads of a device on or off.
    SetOffloads {
        /// The device.
        device: Device,
        /// Which.
        which: Offloads,
        /// On or off.
        on: bool,
    },
    /// Take away the entries of sessions that lead to an agent's port.
    ForgetAgent {
        /// The bridge.
        bridge: String,
        /// The port's number.
        ofport: u16,
    },
    /// Give a device an address.
    AddAddress {
        /// The device.
        device: String,
        /// The address with its prefix length.
        address: String,
    },
    /// Make a route through a device.
    AddRoute {
        /// The device.
        device: String,
        /// The route as [`crate::local::LocalPort::routes`] has it.
        route: String,
    },
    /// Let Open vSwitch forward although nobody has said that its entries are restored.
    EndRestoreWait,
}

impl Change {
    /// Whether it is a change to Open vSwitch's database: neighbours of that kind go into one transaction.
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
