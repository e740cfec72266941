//! Tunnels and base entries in the short form that all nodes of a site share (spec/node-config.md clause 47).

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use sos_daemon::document::ConfigError;

use super::{BaseFlow, MAX_BASE_FLOWS, MAX_TUNNELS, NodeConfig, Tunnel};
use crate::names::{DeviceName, FlowText};

/// First port number of tunnels; a tunnel's number is that of the other node (clause 6).
const TUNNEL_OFPORT: u16 = 35_000;

/// Nodes with tunnels to one another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Mesh {
    /// Destination UDP port of all tunnels.
    pub udp_port: u16,
    /// The nodes' addresses by their numbers, with this node itself.
    pub nodes: BTreeMap<u16, IpAddr>,
}

/// Entries of the base table that differ in their matches only.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct FlowGroup {
    /// The flow table.
    pub table: u8,
    /// The priority.
    pub priority: u16,
    /// The matches.
    pub matches: Vec<FlowText>,
    /// The actions.
    pub actions: FlowText,
}

/// VXLAN network identifier of the tunnel between two nodes: the same at both ends, and unique to the pair.
fn vni(a: u16, b: u16) -> u32 {
    let (low, high) = (u32::from(a.min(b)), u32::from(a.max(b)));
    // The highest number is below 2^12 (check_number), so the product is below 2^24.
    high * high.saturating_sub(1) / 2 + low
}

/// Replaces mesh and groups of a parsed document by the tunnels and base entries that they stand for.
///
/// # Errors
/// A number is out of bounds, the node has no number, or there are too many entries.
pub(super) fn expand(config: &mut NodeConfig) -> Result<(), ConfigError> {
    if let Some(mesh) = config.mesh.take() {
        let own = config.number.ok_or_else(|| ConfigError::new("number", "is missing"))?;
        check_number("number", own)?;
        config.tunnels.extend(tunnels(&mesh, own)?);
    }
    let groups = std::mem::take(&mut config.flow_groups);
    let entries = groups.iter().map(|group| group.matches.len()).sum::<usize>();
    if entries > MAX_BASE_FLOWS {
        return Err(ConfigError::new("flowGroups", format!("{entries} of at most {MAX_BASE_FLOWS}")));
    }
    config.base_flows.extend(groups.into_iter().flat_map(flows));
    Ok(())
}

fn check_number(path: &str, number: u16) -> Result<(), ConfigError> {
    if (1..=4_095).contains(&number) {
        return Ok(());
    }
    Err(ConfigError::new(path, format!("{number} is not within 1..=4095")))
}

/// The tunnels of the node with the number `own`; none if the mesh does not have it, as it has no address.
fn tunnels(mesh: &Mesh, own: u16) -> Result<Vec<Tunnel>, ConfigError> {
    if mesh.nodes.len() > MAX_TUNNELS + 1 {
        return Err(ConfigError::new(
            "mesh.nodes",
            format!("{} of at most {}", mesh.nodes.len(), MAX_TUNNELS + 1),
        ));
    }
    for number in mesh.nodes.keys() {
        check_number(&format!("mesh.nodes.{number}"), *number)?;
    }
    if !mesh.nodes.contains_key(&own) {
        return Ok(Vec::new());
    }
    let others = mesh.nodes.iter().filter(|(number, _)| **number != own);
    others.map(|(number, address)| tunnel(mesh.udp_port, own, *number, *address)).collect()
}

fn tunnel(udp_port: u16, own: u16, number: u16, remote: IpAddr) -> Result<Tunnel, ConfigError> {
    let name = DeviceName::try_from(format!("sosvx{number}"))
        .map_err(|error| ConfigError::new(format!("mesh.nodes.{number}"), error))?;
    Ok(Tunnel { name, ofport: TUNNEL_OFPORT + number, remote, vni: vni(own, number), udp_port, base: true })
}

fn flows(group: FlowGroup) -> impl Iterator<Item = BaseFlow> {
    let FlowGroup { table, priority, matches, actions } = group;
    matches.into_iter().map(move |r#match| BaseFlow { table, priority, r#match, actions: actions.clone() })
}
