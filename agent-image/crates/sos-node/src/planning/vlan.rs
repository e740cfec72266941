//! Foreign ports in a VLAN other than that of the agents' ports: traffic from them is forwarded as plain traffic.
//!
//! Agents are in VLAN 0, the VLAN of frames without an 802.1Q tag. Open vSwitch applies the VLAN of a port only in its own forwarding
//! (NORMAL). For every other entry, a frame from an access port of VLAN 100 is untagged. The controllers' entries would thus redirect
//! connections of such a port to an agent, whose answers in VLAN 0 would never arrive. Each such port has an entry that outputs to NORMAL,
//! with a higher priority than all entries of controllers (spec/node-config.md clause 34).

use std::collections::BTreeSet;

use crate::config::NodeConfig;
use crate::observation::flow::{Flow, FlowKey, base_cookie};
use crate::observation::observed::{Observed, Port, Row, text};

/// Priority above all other entries of table 0: ports in other VLANs carry no traffic for SOS.
const PRIORITY: u16 = 65_100;
/// The bridge's own port as ovs-ofctl(8) shows it, and its number in OpenFlow 1.0, which the database uses.
const LOCAL: (u16, &str) = (0xfffe, "LOCAL");

/// VLAN of untagged frames that a port receives (ovs-vswitchd.conf.db(5), Port, "VLAN Configuration"). None if they are in no VLAN of the
/// bridge: the port drops these frames or puts all frames into a customer's tunnel.
#[must_use]
pub fn of_untagged(port: &Row) -> Option<u16> {
    let tag = text(port, "tag").parse().ok();
    let trunks: BTreeSet<u16> =
        text(port, "trunks").split(',').filter_map(|vlan| vlan.parse().ok()).collect();
    let carries = |vlan: u16| trunks.is_empty() || trunks.contains(&vlan);
    match (text(port, "vlan_mode"), tag) {
        ("access", tag) => Some(tag.unwrap_or(0)),
        ("trunk", _) | ("", None) => carries(0).then_some(0),
        ("", Some(tag)) => Some(tag),
        // Open vSwitch admits the native VLAN even if it is not among the trunks, unless it is 0.
        ("native-tagged" | "native-untagged", tag) => match tag.unwrap_or(0) {
            0 => carries(0).then_some(0),
            native => Some(native),
        },
        // For dot1q-tunnel and the modes of later versions, `None` selects plain forwarding, which is always safe.
        _ => None,
    }
}

/// The entries, by port number.
#[must_use]
pub fn entries(config: &NodeConfig, observed: &Observed) -> Vec<Flow> {
    let Some(bridge) = observed.bridges.get(config.bridge.name.as_str()) else { return vec![] };
    let ports = bridge.ports.iter().filter(|name| !observed.owns_port(name, config.site_id));
    let others = ports.filter_map(|name| observed.ports.get(name));
    let numbers: BTreeSet<u16> =
        others.filter(|port| of_untagged(&port.row) != Some(0)).flat_map(numbers).collect();
    numbers.into_iter().map(|number| entry(config, number)).collect()
}

/// All numbers of a port: a bond has several.
fn numbers(port: &Port) -> impl Iterator<Item = u16> {
    port.ofport.into_iter().chain(port.more_ofports.iter().copied())
}

fn entry(config: &NodeConfig, number: u16) -> Flow {
    let port = if number == LOCAL.0 { LOCAL.1.to_owned() } else { number.to_string() };
    let key = FlowKey { table: 0, priority: PRIORITY, matches: format!("in_port={port}") };
    Flow { key, cookie: base_cookie(config), actions: "NORMAL".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(mode: &str, tag: &str, trunks: &str) -> Option<u16> {
        let columns = [("vlan_mode", mode), ("tag", tag), ("trunks", trunks)];
        let set = columns.into_iter().filter(|(_, value)| !value.is_empty());
        of_untagged(&set.map(|(column, value)| (column.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn the_port_determines_the_vlan_of_untagged_frames() {
        assert_eq!(vlan("", "", ""), Some(0), "a trunk of all VLANs, the default of a port");
        assert_eq!(vlan("", "", "0,7"), Some(0));
        assert_eq!(vlan("", "", "7,8"), None, "the port drops untagged frames");
        assert_eq!(vlan("trunk", "100", ""), Some(0), "a trunk has no tag");
        assert_eq!(vlan("trunk", "", "7"), None);
        for (mode, trunks) in [("", ""), ("", "7,8"), ("access", ""), ("access", "7")] {
            assert_eq!(vlan(mode, "100", trunks), Some(100));
            assert_eq!(vlan(mode, "0", trunks), Some(0), "VLAN 0 is the VLAN of untagged frames");
        }
        assert_eq!(vlan("access", "", ""), Some(0));
        for mode in ["native-tagged", "native-untagged"] {
            assert_eq!(vlan(mode, "100", ""), Some(100));
            assert_eq!(vlan(mode, "100", "7"), Some(100));
            assert_eq!(vlan(mode, "", ""), Some(0));
            assert_eq!(vlan(mode, "0", "7"), None);
        }
        assert_eq!(vlan("dot1q-tunnel", "100", ""), None);
        assert_eq!(vlan("dot1q-tunnel", "0", ""), None);
        assert_eq!(vlan("something-new", "0", ""), None);
    }
}
