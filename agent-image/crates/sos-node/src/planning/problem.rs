//! Problems that a plan cannot solve.

use crate::observation::flow::FlowKey;

/// A difference from the config that no planned change can remove.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The bridge's name is in use by a bridge of another owner.
    #[error("bridge {bridge} was not created for this site: left unchanged")]
    ForeignBridge {
        /// The bridge.
        bridge: String,
    },
    /// Another Open vSwitch of the node owns the kernel's datapath.
    #[error(
        "bridge {bridge} is not put on the kernel's datapath: another Open vSwitch of this node has it, and two cannot share it. \
         Set spec.datapath.type of the SosSite to Auto, or leave the node out of the site"
    )]
    DatapathTaken {
        /// The bridge.
        bridge: String,
    },
    /// A bridge to be removed carries foreign ports.
    #[error("bridge {bridge} is kept while it has foreign ports: {}", ports.join(", "))]
    BridgeInUse {
        /// The bridge.
        bridge: String,
        /// Foreign ports.
        ports: Vec<String>,
    },
    /// A port must not be on the bridge.
    #[error("port {port} is refused: {reason}")]
    Refused {
        /// The port.
        port: String,
        /// The reason.
        reason: String,
    },
    /// A device does not exist yet.
    #[error("port {port} waits for its device, which does not exist")]
    Waiting {
        /// The port.
        port: String,
    },
    /// Open vSwitch gave the port another number than the configured number.
    #[error(
        "port {port} has the number {number} instead of {wanted}, so entries that match or output by port number do not apply to it"
    )]
    PortNumber {
        /// The port.
        port: String,
        /// The desired number.
        wanted: u16,
        /// The actual number.
        number: u16,
    },
    /// Open vSwitch reports an error.
    #[error("port {port}: {error}")]
    PortError {
        /// The port.
        port: String,
        /// The error.
        error: String,
    },
    /// The MTU of a device is smaller than the MTU of the bridge.
    #[error("port {port} has an MTU of {mtu}, the bridge {wanted}")]
    Mtu {
        /// The port.
        port: String,
        /// Its MTU.
        mtu: u32,
        /// The bridge's MTU.
        wanted: u32,
    },
    /// A foreign entry has the key of a base entry.
    #[error(
        "base entry `{key}` is not installed: an entry of cookie {cookie:#x} with other actions is in its place"
    )]
    FlowTaken {
        /// The key.
        key: FlowKey,
        /// Cookie of the foreign entry.
        cookie: u64,
    },
    /// Open vSwitch does not forward yet.
    #[error("Open vSwitch waits for its entries to be restored (flow-restore-wait)")]
    RestoreWait,
    /// The controllers need TLS, and there are no certificates.
    #[error("the controllers require TLS, and sos-node runs without --openflow-tls: replace the node's pod")]
    NoCertificates,
    /// A file for TLS cannot be read.
    #[error("the controllers require TLS, and {file}")]
    UnreadableCertificates {
        /// The file and the reason.
        file: String,
    },
    /// Segmentation offload is expected but off.
    #[error("Open vSwitch runs without userspace-tso-enable: offloads of the ports are switched off")]
    TsoOff,
}

impl Problem {
    /// True if the problem needs action; other problems disappear by themselves or only reduce throughput.
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

    /// The port concerned.
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
