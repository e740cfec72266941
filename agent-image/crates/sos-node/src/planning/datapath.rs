//! The bridge's datapath, and ownership of the kernel's datapath.
//!
//! A network namespace has one datapath of each kind, and each belongs to one ovs-vswitchd. An ovs-vswitchd that opens the kernel's
//! datapath removes all ports that are not in its own database (`open_dpif_backer` in Open vSwitch), so only one ovs-vswitchd may use this
//! datapath. The user-space datapath is safe: a second ovs-vswitchd fails to open it, and the first ovs-vswitchd is not affected
//! (docs/adr/0025-run-a-dedicated-open-vswitch-never-the-nodes-own.md).

use std::collections::BTreeSet;

use crate::config::{DatapathType, NodeConfig};
use crate::observation::observed::{Observed, Row, text};

/// `system` or `netdev`. A bridge that was created while the kernel had no datapath keeps its type, because a change would interrupt every
/// flow. A bridge meant for the kernel's datapath also keeps its type while another Open vSwitch owns that datapath.
#[must_use]
pub fn datapath_type(config: &NodeConfig, observed: &Observed) -> &'static str {
    match (config.bridge.datapath_type, existing(config, observed)) {
        (DatapathType::System, Some(existing)) if is_anothers(config, observed) => existing,
        (DatapathType::System, _) => "system",
        (DatapathType::Netdev, _) => "netdev",
        (DatapathType::Auto, Some(existing)) => existing,
        (DatapathType::Auto, None) if observed.kernel_datapath && !is_anothers(config, observed) => "system",
        (DatapathType::Auto, None) => "netdev",
    }
}

/// True if the bridge is meant for the kernel's datapath but another Open vSwitch of this node owns it.
#[must_use]
pub fn is_refused(config: &NodeConfig, observed: &Observed) -> bool {
    config.bridge.datapath_type == DatapathType::System && is_anothers(config, observed)
}

/// True if our bridge may be put on the kernel's datapath, so that the ports of this datapath must be observed.
#[must_use]
pub fn asks_for_kernel(config: &NodeConfig, observed: &Observed) -> bool {
    match config.bridge.datapath_type {
        DatapathType::System => !is_ours(observed),
        DatapathType::Auto => existing(config, observed).is_none(),
        DatapathType::Netdev => false,
    }
}

/// Datapath of our bridge, if the bridge exists.
fn existing(config: &NodeConfig, observed: &Observed) -> Option<&'static str> {
    let name = config.bridge.name.as_str();
    let existing = observed.bridges.get(name).filter(|_| observed.owns_bridge(name, config.site_id));
    existing.map(|bridge| datapath_of(&bridge.row))
}

fn datapath_of(row: &Row) -> &'static str {
    if text(row, "datapath_type") == "netdev" { "netdev" } else { "system" }
}

/// True if a bridge of our own Open vSwitch is on the kernel's datapath, which is therefore ours.
fn is_ours(observed: &Observed) -> bool {
    observed.bridges.values().any(|bridge| datapath_of(&bridge.row) == "system")
}

/// True if another Open vSwitch owns the kernel's datapath. A datapath that contains our bridge's port belongs to our Open vSwitch: the
/// kernel keeps the datapath of a killed ovs-vswitchd.
fn is_anothers(config: &NodeConfig, observed: &Observed) -> bool {
    let ports = &observed.kernel_ports;
    !is_ours(observed) && !ports.is_empty() && !ports.contains(config.bridge.name.as_str())
}

/// Parse `ovs-dpctl show`: the ports of all datapaths, except ports that represent a datapath itself.
#[must_use]
pub fn parse_ports(printed: &str) -> BTreeSet<String> {
    let mut datapath = "";
    let mut ports = BTreeSet::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with(' ')) {
            datapath = name.split_once('@').map_or(name, |(_, name)| name);
        } else if let Some((number, rest)) =
            line.trim().strip_prefix("port ").and_then(|port| port.split_once(": "))
        {
            let name = rest.split_whitespace().next().unwrap_or_default();
            if number.parse::<u32>().is_ok() && !name.is_empty() && name != datapath {
                ports.insert(name.to_owned());
            }
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_the_ports_of_the_kernels_datapaths() {
        let printed = "system@ovs-system:\n  lookups: hit:12 missed:3 lost:0\n  flows: 2\n  masks: hit:9 total:1 hit/pkt:0.60\n  caches:\n    \
                       masks-cache: size:256\n  port 0: ovs-system (internal)\n  port 1: br-int (internal)\n  port 2: eth1\n  \
                       port 3: genev_sys_6081 (geneve: packet_type=ptap)\n";
        assert_eq!(parse_ports(printed), ["br-int", "eth1", "genev_sys_6081"].map(str::to_owned).into());
        assert_eq!(parse_ports("system@ovs-system:\n  port 0: ovs-system (internal)\n"), [].into());
        assert_eq!(parse_ports(""), [].into());
    }
}
