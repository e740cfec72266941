//! What a plan cannot mend.

use crate::flow::FlowKey;

/// Something that is not as the config wants it and that no change mends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bridge's name is taken.
    #[error("bridge {bridge} was not made for this site and is left alone")]
    ForeignBridge {
        /// The bridge.
        bridge: String,
    },
    /// Another Open vSwitch of the node has the kernel's datapath.
    #[error(
        "bridge {bridge} is not put on the kernel's datapath: another Open vSwitch of this node has it, and two cannot share it. \
         Set spec.datapath.type of the SosSite to Auto, or leave the node out of the site"
    )]
    DatapathTaken {
        /// The bridge.
        bridge: String,
    },
    /// A bridge that shall go carries others' ports.
    #[error("bridge {bridge} is kept as long as others' ports are on it: {}", ports.join(", "))]
    BridgeInUse {
        /// The bridge.
        bridge: String,
        /// Ports of others.
        ports: Vec<String>,
    },
    /// A port cannot be on the bridge.
    #[error("port {port} is refused: {reason}")]
    Refused {
        /// The port.
        port: String,
        /// Why.
        reason: String,
    },
    /// A device is not there yet.
    #[error("port {port} is waited for: there is no such device")]
    Waiting {
        /// The port.
        port: String,
    },
    /// Another port has its number.
    #[error("port {port} has the number {number} instead of {wanted}, so entries with port numbers miss it")]
    PortNumber {
        /// The port.
        port: String,
        /// The number it shall have.
        wanted: u16,
        /// The number it has.
        number: u16,
    },
    /// Open vSwitch complains.
    #[error("port {port}: {error}")]
    PortError {
        /// The port.
        port: String,
        /// The complaint.
        error: String,
    },
    /// A device takes only smaller packets than the bridge.
    #[error("port {port} has an MTU of {mtu}, the bridge {wanted}")]
    Mtu {
        /// The port.
        port: String,
        /// Its MTU.
        mtu: u32,
        /// The bridge's.
        wanted: u32,
    },
    /// Somebody else has an entry in a base entry's place.
    #[error(
        "base entry `{key}` is not installed: an entry of cookie {cookie:#x} with other actions is in its place"
    )]
    FlowTaken {
        /// The place.
        key: FlowKey,
        /// Whose entry it is.
        cookie: u64,
    },
    /// Open vSwitch forwards nothing yet.
    #[error("Open vSwitch waits for its entries to be restored (flow-restore-wait)")]
    RestoreWait,
    /// Segmentation offload is expected and off.
    #[error("Open vSwitch runs without userspace-tso-enable: offloads of the ports are switched off")]
    TsoOff,
}

impl Problem {
    /// Whether somebody has to do something about it; the others pass or only cost speed.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        !matches!(
            self,
            Self::Waiting { .. }
                | Self::BridgeInUse { .. }
                | Self::Mtu { .. }
                | Self::RestoreWait
                | Self::TsoOff
        )
    }

    /// The port it is about.
    #[must_use]
    pub fn port(&self) -> Option<&str> {
        match self {
            Self::Refused { port, .. }
            | Self::Waiting { port }
            | Self::PortNumber { port, .. }
            | Self::PortError { port, .. }
            | Self::Mtu { port, .. } => Some(port),
            _ => None,
        }
    }
}
