//! Which of Open vSwitch's datapaths the bridge is on, and whether the kernel's is ours to use.
//!
//! A network namespace has one datapath of each kind, and each belongs to one ovs-vswitchd. Who opens the kernel's takes all
//! ports off that its own database does not have (`open_dpif_backer` in Open vSwitch), so nobody but us may have it. The one
//! in user space needs no such care: who opens a second one fails, and the first does not notice
//! (docs/adr/0025-run-a-dedicated-open-vswitch-never-the-nodes-own.md).

use std::collections::BTreeSet;

use crate::config::{DatapathType, NodeConfig};
use crate::observed::Observed;
use crate::ovsdb::{Row, text};

/// `system` or `netdev`. A bridge that was made while the kernel had no datapath keeps what it has: changing it would
/// interrupt every flow. So does one that shall be on the kernel's while another Open vSwitch has that.
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

/// Whether the bridge shall be on the kernel's datapath and cannot, because another Open vSwitch of this node has it.
#[must_use]
pub fn is_refused(config: &NodeConfig, observed: &Observed) -> bool {
    config.bridge.datapath_type == DatapathType::System && is_anothers(config, observed)
}

/// Whether it matters what is in the kernel's datapath: our bridge may be put there.
#[must_use]
pub fn asks_for_kernel(config: &NodeConfig, observed: &Observed) -> bool {
    match config.bridge.datapath_type {
        DatapathType::System => !is_ours(observed),
        DatapathType::Auto => existing(config, observed).is_none(),
        DatapathType::Netdev => false,
    }
}

/// What our bridge is on, if it is there.
fn existing(config: &NodeConfig, observed: &Observed) -> Option<&'static str> {
    let name = config.bridge.name.as_str();
    let existing = observed.bridges.get(name).filter(|_| observed.owns_bridge(name, config.site_id));
    existing.map(|bridge| datapath_of(&bridge.row))
}

fn datapath_of(row: &Row) -> &'static str {
    if text(row, "datapath_type") == "netdev" { "netdev" } else { "system" }
}

/// Whether a bridge of our own Open vSwitch is on the kernel's datapath, which therefore is ours.
fn is_ours(observed: &Observed) -> bool {
    observed.bridges.values().any(|bridge| datapath_of(&bridge.row) == "system")
}

/// The kernel keeps a datapath whose process was killed: with our bridge's port in it, it was ours.
fn is_anothers(config: &NodeConfig, observed: &Observed) -> bool {
    let ports = &observed.kernel_ports;
    !is_ours(observed) && !ports.is_empty() && !ports.contains(config.bridge.name.as_str())
}

/// Reads what `ovs-dpctl show` prints: the ports of all datapaths but those that stand for a datapath itself.
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
    fn ports_of_the_kernels_datapaths() {
        let printed = "system@ovs-system:\n  lookups: hit:12 missed:3 lost:0\n  flows: 2\n  masks: hit:9 total:1 hit/pkt:0.60\n  caches:\n    \
                       masks-cache: size:256\n  port 0: ovs-system (internal)\n  port 1: br-int (internal)\n  port 2: eth1\n  \
                       port 3: genev_sys_6081 (geneve: packet_type=ptap)\n";
        assert_eq!(parse_ports(printed), ["br-int", "eth1", "genev_sys_6081"].map(str::to_owned).into());
        assert_eq!(parse_ports("system@ovs-system:\n  port 0: ovs-system (internal)\n"), [].into());
        assert_eq!(parse_ports(""), [].into());
    }
}
