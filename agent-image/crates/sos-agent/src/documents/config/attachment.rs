//! Attachment of an agent: to a site's bridge, with switches that redirect connections and controllers that order sessions; or to the
//! machine's routes, without switches and controllers (docs/adr/0056).

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use serde::Deserialize;
use sos_wire::MacAddress;

use crate::documents::config::{AgentConfig, from_text};

/// The bridge of an agent's site.
#[derive(Debug, Clone, Copy)]
pub struct Bridge<'a> {
    /// The whole configuration.
    pub config: &'a AgentConfig,
    /// The agent's interface on the bridge.
    pub interface: &'a Interface,
    /// Destination of beacons and orders.
    pub discovery: &'a Discovery,
}

/// Interception of connections without switches.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", deny_unknown_fields)]
pub enum Intake {
    /// The hosts' routes go through this machine, which forwards their packets.
    Routed {
        /// Interface towards the hosts.
        interface: String,
        /// Address that hosts use as gateway, and that a program moves between the site's nodes. The agent serves only while its interface
        /// has the address. Written only if the site has one.
        #[serde(default, rename = "virtualAddress")]
        virtual_address: Option<Ipv4Addr>,
    },
    /// The agent opens its sockets inside the network namespaces of its node's pods ([`AgentConfig::pods`]).
    Pods {
        /// Handling of network policies.
        #[serde(default, rename = "networkPolicies")]
        network_policies: NetworkPolicies,
    },
}

impl Intake {
    /// The interface and the virtual address that the agent follows, if any.
    #[must_use]
    pub fn followed(&self) -> Option<(&str, Ipv4Addr)> {
        match self {
            Self::Routed { interface, virtual_address } => Some((interface, (*virtual_address)?)),
            Self::Pods { .. } => None,
        }
    }
}

/// Handling of network policies on the plain paths of a pod's connections (docs/adr/0059).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum NetworkPolicies {
    /// Accelerate a connection only if the plain path is open for the client.
    Respect,
    /// Do not check the plain path.
    #[default]
    Ignore,
}

/// A pod of the agent's node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pod {
    /// `namespace/name`, for messages.
    pub name: String,
    /// Address of the pod, by which the agent finds the pod's network namespace.
    pub address: Ipv4Addr,
}

/// The agent's interface.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Interface {
    /// Name inside the agent's namespace.
    pub name: String,
    /// Address with the prefix length of the site's subnet.
    pub address: Ipv4Net,
    /// MAC address.
    #[serde(deserialize_with = "from_text")]
    pub mac: MacAddress,
    /// MTU in bytes.
    pub mtu: u32,
    /// Gateway to destinations outside the subnet.
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
    /// Address that belongs to no host.
    pub address: Ipv4Addr,
    /// MAC address for the discovery address.
    #[serde(deserialize_with = "from_text")]
    pub mac: MacAddress,
    /// UDP port of beacons.
    pub beacon_port: u16,
    /// UDP port of orders.
    pub order_port: u16,
    /// TCP port of the listener for clients, at a site with rewriting.
    pub redirect_port: u16,
}
