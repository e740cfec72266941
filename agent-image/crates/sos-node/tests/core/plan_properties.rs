//! Properties of the plan over random nodes and configs, on a node in memory.

use std::collections::BTreeMap;

use crate::passes::{link, make, planned, reconcile};
use crate::support::fake::FakeNode;
use crate::support::{config, document};
use proptest::prelude::*;
use serde_json::{Value, json};
use sos_node::config::NodeConfig;
use sos_node::edge::node::MAX_ROUNDS;
use sos_node::observation::flow::{Flow, FlowKey};
use sos_node::observation::observed::{Bridge, DEVICE_KEY, Device, Link, Offloads, Port};
use sos_node::planning::change::Change;

const FOREIGN_COOKIE: u64 = 0x534f_0101_0300_0007;

/// Ports of a config that are on its bridge.
fn ports_on(config: &NodeConfig, node: &FakeNode) -> Vec<String> {
    let names = sos_node::planning::desired::ports(config).into_iter().map(|port| port.name);
    names
        .filter(|name| node.world.bridge_of(name) == Some("br-sos") && node.world.owns_port(name, 1))
        .collect()
}

/// Uplinks and LAN interfaces of a config.
fn interfaces(config: &NodeConfig) -> Vec<String> {
    let uplinks = config.uplinks.iter().map(|uplink| uplink.name.to_string());
    uplinks.chain(config.lan.iter().map(|port| port.name.to_string())).collect()
}

/// Ports of a random config: `(index of the device, base)`.
fn arb_config() -> impl Strategy<Value = NodeConfig> {
    // A device is a base uplink, a labelled uplink or a LAN interface.
    let interfaces =
        prop::collection::btree_map(0_usize..4, prop::sample::select(vec!["base", "labelled", "lan"]), 0..4);
    let tunnels = prop::collection::btree_map(0_usize..3, (any::<bool>(), 0_u32..2), 0..3);
    let agents = prop::collection::btree_set(0_usize..2, 0..2);
    let rest = (
        any::<bool>(),
        any::<bool>(),
        prop::sample::select(vec!["Auto", "netdev"]),
        0_usize..3,
        any::<(bool, bool, bool)>(),
        0_u8..3,
    );
    (interfaces, tunnels, agents, rest).prop_map(|(interfaces, tunnels, agents, rest)| {
        let (moved, tso, datapath, controllers, (small, rejects, bonded), salt) = rest;
        let offset = if moved { 10 } else { 0 };
        config(document(|d| {
            d["bridge"]["datapathType"] = json!(datapath);
            d["bridge"]["userspaceTso"] = json!(tso);
            d["bridge"]["mtu"] = json!(if small { 1400 } else { 1450 });
            d["controllers"] = (0..controllers).map(|i| json!(format!("{}:192.0.2.{i}:6653", if small { "ssl" } else { "tcp" }))).collect();
            let device = |i: &usize| json!({"name": format!("wan{i}"), "ofport": i + 1 + offset});
            let uplinks = interfaces.iter().filter(|(_, use_)| **use_ != "lan");
            d["uplinks"] = uplinks
                .map(|(i, use_)| {
                    let mut uplink = device(i);
                    uplink["base"] = json!(*use_ == "base");
                    uplink
                })
                .collect();
            d["lan"] = interfaces.iter().filter(|(_, use_)| **use_ == "lan").map(|(i, _)| device(i)).collect();
            d["tunnels"] = tunnels
                .iter()
                .map(|(i, (base, remote))| {
                    json!({"name": format!("sosvx{i}"), "ofport": i + 101, "remote": format!("192.0.2.{remote}"), "vni": 7 + i, "udpPort": 14789, "base": base})
                })
                .collect();
            d["agentPorts"] = agents.iter().map(|i| json!({"name": format!("sosag{i}"), "ofport": i + 34_001})).collect();
            if bonded && interfaces.values().filter(|use_| **use_ == "base").count() > 1 {
                d["bond"] = json!({"mode": if small { "BalanceTCP" } else { "ActiveBackup" }, "upDelaySeconds": salt});
            }
            if rejects {
                d["rejectPort"] = json!({"name": "sosrej0", "peer": "sosrej1", "ofport": 33_900});
            }
            d["baseFlows"] = flows_of(d, salt);
        }))
    })
}

/// A base table like the real one: NORMAL, drops for ports that are not base, and one entry that differs between configs.
fn flows_of(document: &Value, salt: u8) -> Value {
    let ports = ["uplinks", "tunnels"].iter().flat_map(|list| document[list].as_array().unwrap());
    let labelled = ports.filter(|port| port["base"] == json!(false));
    let drops = labelled.map(|port| json!({"table": 1, "priority": 1000, "match": format!("in_port={}", port["ofport"]), "actions": "drop"}));
    let salted = json!({"table": 0, "priority": 45000, "match": format!("ip,nw_src=10.0.0.{salt}"), "actions": "goto_table:1"});
    let normal = json!({"table": 1, "priority": 0, "match": "", "actions": "NORMAL"});
    let rejected = document.get("rejectPort");
    let rejected = rejected.map(|port| json!({"table": 0, "priority": 65049, "match": format!("in_port={}", port["ofport"]), "actions": "drop"}));
    drops.chain([salted, normal]).chain(rejected).collect()
}

/// A node before the first pass: devices, of which some are in use, and a foreign bridge whose ports may have our names.
fn arb_node() -> impl Strategy<Value = FakeNode> {
    let devices =
        prop::collection::btree_map(0_usize..4, (any::<bool>(), 0_u8..6, any::<(bool, bool)>()), 0..5);
    (devices, prop::collection::btree_set(0_usize..2, 0..3), any::<(bool, bool, bool, bool)>()).prop_map(
        |(devices, agents, rest)| {
            let (tso, kernel_datapath, tunnel_in_the_way, taken) = rest;
            let mut node = FakeNode::default();
            node.world.ovs.tso = tso;
            node.world.kernel_datapath = kernel_datapath;
            for (i, (up, use_, (tx, gro))) in devices {
                let name = format!("wan{i}");
                node.offloads.insert(Device { netns: None, name: name.clone() }, Offloads { tx, gro });
                let used = match use_ {
                    0 => Link { addresses: vec!["192.0.2.9".into()], ..link() },
                    1 => Link { default_route: true, ..link() },
                    2 => Link { master: Some("docker0".into()), ..link() },
                    _ => link(),
                };
                node.world.links.insert(name, Link { up, ..used });
            }
            for i in agents {
                node.world.links.insert(format!("sosag{i}"), link());
            }
            if tunnel_in_the_way {
                node.world.links.insert(
                    "sosvx0".into(),
                    Link { kind: Some("vxlan".into()), alias: Some("other".into()), ..link() },
                );
            }
            foreign_bridge(&mut node, taken);
            node
        },
    )
}

fn foreign_bridge(node: &mut FakeNode, taken: bool) {
    let row = BTreeMap::from([("fail_mode".to_owned(), "standalone".to_owned())]);
    let mut ports = ["br-int", "tap9"].map(String::from).to_vec();
    if taken && node.world.links.contains_key("wan1") {
        ports.push("wan1".into());
    }
    for name in &ports {
        node.world.ports.insert(name.clone(), Port { ofport: Some(1), ..Port::default() });
    }
    node.world
        .bridges
        .insert("br-int".into(), Bridge { row, ports: ports.into_iter().collect(), controllers: vec![] });
}

/// Adds foreign objects to our bridge: a pod's port, an entry, and an entry with the key of a base entry.
fn intrude(node: &mut FakeNode, same_actions: bool) {
    let Some(bridge) = node.world.bridges.get_mut("br-sos") else { return };
    bridge.ports.insert("veth7".into());
    let row = [("external_ids:contNetns", "/run/netns/a"), ("external_ids:contIface", "net1")];
    let row = row.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    node.world.ports.insert("veth7".into(), Port { row, ofport: Some(7), ..Port::default() });
    node.offloads.insert(
        Device { netns: Some("/run/netns/a".into()), name: "net1".into() },
        Offloads { tx: true, gro: false },
    );
    let entry = |matches: &str, actions: &str| Flow {
        key: FlowKey { table: 0, priority: 45_000, matches: matches.into() },
        cookie: FOREIGN_COOKIE,
        actions: actions.into(),
    };
    let place = "ip,nw_src=10.0.0.1";
    node.world.flows.retain(|flow| flow.key.matches != place);
    node.world.flows.push(entry(place, if same_actions { "goto_table:1" } else { "drop" }));
    node.world.flows.push(entry("in_port=7", "drop"));
}

/// Everything foreign on the node.
fn foreign(node: &FakeNode) -> [Vec<String>; 4] {
    let world = &node.world;
    let ours = |name: &str| world.owns_port(name, 1);
    let bridges: Vec<_> = world
        .bridges
        .iter()
        .filter(|(name, _)| !world.owns_bridge(name, 1))
        .map(|b| format!("{b:?}"))
        .collect();
    let ports: Vec<_> = world
        .ports
        .iter()
        .filter(|(name, _)| !ours(name) && *name != "br-sos")
        .map(|p| format!("{p:?}"))
        .collect();
    let links: Vec<_> = world
        .links
        .iter()
        .filter(|(name, _)| !world.owns_link(name, 1))
        .map(|(name, l)| format!("{name} {:?}", Link { up: true, ..l.clone() }))
        .collect();
    let mut flows: Vec<_> =
        world.flows.iter().filter(|flow| !flow.is_base()).map(|flow| format!("{flow:?}")).collect();
    flows.sort();
    [bridges, ports, links, flows]
}

/// True if each of our ports for labelled traffic is safe on a forwarding switch: flooding excludes the port, or traffic from it is
/// dropped.
fn loop_free(node: &FakeNode, labelled: &[(String, u16)]) -> bool {
    let forwards = node.world.flows.iter().any(|flow| flow.actions == "NORMAL");
    let dropped = |number: u16| {
        node.world.flows.iter().any(|f| f.key.matches == format!("in_port={number}") && f.actions == "drop")
    };
    let safe = |(name, number): &(String, u16)| {
        let attached = node.world.bridge_of(name) == Some("br-sos") && node.world.owns_port(name, 1);
        !attached || node.world.no_flood[name] || dropped(*number)
    };
    !forwards || labelled.iter().all(safe)
}

fn labelled(config: &NodeConfig) -> Vec<(String, u16)> {
    let ports = sos_node::planning::desired::ports(config).into_iter().filter(|port| !port.base);
    ports.map(|port| (port.name, port.ofport)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn one_pass_is_enough(mut node in arb_node(), former in arb_config(), wanted in arb_config(), same in any::<bool>()) {
        reconcile(&former, &mut node);
        intrude(&mut node, same);
        reconcile(&wanted, &mut node);
        let again = planned(&wanted, &node);
        prop_assert!(again.changes.is_empty(), "{:?}", again.changes);
    }

    #[test]
    fn a_port_whose_device_was_replaced_is_removed_then_added(mut node in arb_node(), wanted in arb_config()) {
        reconcile(&wanted, &mut node);
        let kept = node.clone();
        let devices = ports_on(&wanted, &kept);
        for name in &devices {
            node.replace_device(name, Offloads { tx: true, gro: true });
        }
        let first = planned(&wanted, &node);
        let taken = |c: &Change| matches!(c, Change::DeletePort { .. });
        prop_assert_eq!(first.changes.len(), devices.len());
        prop_assert!(first.changes.iter().all(taken), "removal and addition in one transaction would be no change: {:?}", first.changes);
        make(&first, &mut node);
        make(&planned(&wanted, &node), &mut node);
        prop_assert!(planned(&wanted, &node).changes.is_empty());
        prop_assert!(devices.iter().all(|name| node.world.bridge_of(name) == Some("br-sos")));
        prop_assert_eq!(&node.world.flows, &kept.world.flows);
        let mut left = node.clone();
        reconcile(&wanted.absent(), &mut left);
        for name in interfaces(&wanted).into_iter().filter(|name| devices.contains(name)) {
            let offloads = left.offloads[&Device { netns: None, name }];
            prop_assert_eq!(offloads, Offloads { tx: true, gro: true }, "a new device gets its own offloads back");
        }
        for name in &devices {
            node.world.links.remove(name);
        }
        make(&planned(&wanted, &node), &mut node);
        prop_assert!(devices.iter().all(|name| node.world.bridge_of(name).is_none()), "a port without a device is removed");
    }

    #[test]
    fn state_absent_keeps_the_offloads_of_a_new_device(mut node in arb_node(), wanted in arb_config(), tx in any::<bool>(), gro in any::<bool>()) {
        reconcile(&wanted, &mut node);
        let uplinks: Vec<String> = ports_on(&wanted, &node).into_iter().filter(|name| name.starts_with("wan")).collect();
        for name in &uplinks {
            node.replace_device(name, Offloads { tx, gro });
        }
        reconcile(&wanted.absent(), &mut node);
        for name in uplinks {
            prop_assert_eq!(node.offloads[&Device { netns: None, name }], Offloads { tx, gro });
        }
    }

    #[test]
    fn only_agents_ports_are_removed_if_no_device_is_stored(mut node in arb_node(), wanted in arb_config()) {
        reconcile(&wanted, &mut node);
        let kept = node.clone();
        node.world.ports.values_mut().for_each(|port| drop(port.row.remove(DEVICE_KEY)));
        let taken = planned(&wanted, &node).changes.into_iter().filter_map(|change| match change {
            Change::DeletePort { name, .. } => Some(name),
            _ => None,
        });
        let agents = ports_on(&wanted, &kept).into_iter().filter(|name| name.starts_with("sosag"));
        prop_assert_eq!(taken.collect::<Vec<_>>(), agents.collect::<Vec<_>>());
        reconcile(&wanted, &mut node);
        prop_assert_eq!(node, kept);
    }

    #[test]
    fn a_tunnel_whose_device_cannot_be_created_is_on_no_bridge(mut node in arb_node(), wanted in arb_config(), was_there in any::<bool>()) {
        if was_there {
            reconcile(&wanted, &mut node);
            node.world.links.retain(|name, _| !name.starts_with("sosvx"));
        }
        let of_tunnel = |change: &Change| matches!(change, Change::AddTunnel { .. })
            || matches!(change, Change::SetOffloads { device, .. } if device.name.starts_with("sosvx"));
        for _ in 0..MAX_ROUNDS {
            let mut plan = planned(&wanted, &node);
            plan.changes.retain(|change| !of_tunnel(change));
            make(&plan, &mut node);
        }
        prop_assert!(planned(&wanted, &node).changes.iter().all(of_tunnel), "only the creation of the device is repeated");
        let own = |name: &String| node.world.owns_link(name, 1);
        prop_assert!(ports_on(&wanted, &node).iter().filter(|name| name.starts_with("sosvx")).all(own));
    }

    #[test]
    fn foreign_objects_stay_unchanged(mut node in arb_node(), former in arb_config(), wanted in arb_config(), same in any::<bool>()) {
        reconcile(&former, &mut node);
        intrude(&mut node, same);
        for (from, to) in [(&former, &wanted), (&wanted, &wanted.absent())] {
            let mut before = foreign(&node);
            if sos_node::planning::desired::controllers(from).is_empty() != sos_node::planning::desired::controllers(to).is_empty() {
                before[3].clear(); // Open vSwitch itself drops all entries.
            }
            reconcile(to, &mut node);
            prop_assert_eq!(before, foreign(&node));
        }
    }

    #[test]
    fn absent_undoes_present(before in arb_node(), one in arb_config(), two in arb_config()) {
        let mut node = before.clone();
        reconcile(&one, &mut node);
        reconcile(&two, &mut node);
        reconcile(&two.absent(), &mut node);
        node.last_index = before.last_index;
        prop_assert_eq!(node, before);
    }

    #[test]
    fn no_step_of_a_change_causes_a_loop(mut node in arb_node(), former in arb_config(), wanted in arb_config()) {
        reconcile(&former, &mut node);
        // A port that already floods may continue until its own change is applied.
        let flooded: Vec<String> = sos_node::planning::desired::ports(&former).into_iter().filter(|p| p.base).map(|p| p.name).collect();
        let names: Vec<String> = sos_node::planning::desired::ports(&wanted).into_iter().map(|port| port.name).collect();
        let mut watched = labelled(&wanted);
        watched.retain(|(name, _)| !flooded.contains(name));
        watched.extend(labelled(&former).into_iter().filter(|(name, _)| !names.contains(name)));
        for _ in 0..MAX_ROUNDS {
            for change in planned(&wanted, &node).changes {
                node.apply(&change);
                prop_assert!(loop_free(&node, &watched), "after {:?}", change);
            }
        }
        prop_assert!(loop_free(&node, &labelled(&wanted)));
    }

    /// Two base uplinks that both forward may close a loop.
    #[test]
    fn base_uplinks_of_a_bond_never_forward_by_themselves(mut node in arb_node(), former in arb_config(), wanted in arb_config()) {
        reconcile(&former, &mut node);
        let base: Vec<String> = wanted.uplinks.iter().filter(|uplink| uplink.base).map(|uplink| uplink.name.to_string()).collect();
        let ours = |node: &FakeNode, name: &String| node.world.bridge_of(name) == Some("br-sos") && node.world.owns_port(name, 1);
        let alone = |node: &FakeNode| -> Vec<String> {
            base.iter().filter(|name| ours(node, name) && !node.world.ports[*name].bonded).cloned().collect()
        };
        let mut before = alone(&node);
        for _ in 0..MAX_ROUNDS {
            for change in planned(&wanted, &node).changes {
                node.apply(&change);
                let after = alone(&node);
                prop_assert!(wanted.bond.is_none() || after.iter().all(|name| before.contains(name)), "after {:?}", change);
                before = after;
            }
        }
        prop_assert!(wanted.bond.is_none() || before.is_empty(), "{before:?}");
        prop_assert_eq!(node.world.bond.is_some(), wanted.bond.is_some() && base.iter().any(|name| ours(&node, name)));
    }

    #[test]
    fn a_restarted_switch_gets_everything_back(mut node in arb_node(), wanted in arb_config()) {
        reconcile(&wanted, &mut node);
        let before = node.clone();
        // Open vSwitch keeps its database and loses all OpenFlow state.
        node.world.flows.clear();
        node.world.no_flood.values_mut().for_each(|bit| *bit = false);
        node.world.no_packet_in.values_mut().for_each(|bit| *bit = false);
        for change in planned(&wanted, &node).changes {
            node.apply(&change);
            prop_assert!(loop_free(&node, &labelled(&wanted)), "after {:?}", change);
        }
        prop_assert_eq!(node, before);
    }

    #[test]
    fn a_restoring_switch_stays_unchanged_within_a_bound(mut node in arb_node(), former in arb_config(), wanted in arb_config()) {
        reconcile(&former, &mut node);
        node.world.ovs.restore_wait = true;
        prop_assert!(planned(&wanted, &node).changes.is_empty());
        node.world.restore_overdue = true;
        reconcile(&wanted, &mut node);
        prop_assert!(!node.world.ovs.restore_wait);
        prop_assert!(planned(&wanted, &node).changes.is_empty());
    }

    #[test]
    fn lost_addresses_are_restored_and_entries_to_departed_agents_deleted(mut node in arb_node(), wanted in arb_config(), ports in prop::collection::btree_set(34_001_u16..34_004, 0..3)) {
        reconcile(&wanted, &mut node);
        node.world.stranded = ports;
        node.world.lost.addresses = vec!["10.0.0.1/24".into()];
        node.world.lost.routes = vec!["-4 10.9.0.0/16 via 10.0.0.2".into()];
        reconcile(&wanted, &mut node);
        prop_assert!(node.world.stranded.is_empty() && node.world.lost.is_empty());
        prop_assert!(planned(&wanted, &node).changes.is_empty());
    }

    #[test]
    fn an_interface_that_cut_the_node_off_is_on_no_bridge_of_ours(mut node in arb_node(), wanted in arb_config()) {
        reconcile(&wanted, &mut node);
        node.world.cut_off = interfaces(&wanted).into_iter().map(|name| (name, "10.96.0.1:443".to_owned())).collect();
        reconcile(&wanted, &mut node);
        for name in interfaces(&wanted) {
            prop_assert!(node.world.bridge_of(&name) != Some("br-sos"));
        }
        prop_assert!(planned(&wanted, &node).changes.is_empty());
    }

    #[test]
    fn manual_changes_of_the_switch_are_undone(mut node in arb_node(), wanted in arb_config(), pick in any::<prop::sample::Index>()) {
        reconcile(&wanted, &mut node);
        let before = node.clone();
        if let Some(bridge) = node.world.bridges.get_mut("br-sos") {
            bridge.row.insert("fail_mode".into(), "standalone".into());
            bridge.controllers.iter_mut().for_each(|c| c.max_backoff = "8000".into());
            let flow = pick.index(node.world.flows.len());
            node.world.flows[flow].actions = "LOCAL".into();
        }
        reconcile(&wanted, &mut node);
        let sorted = |node: &FakeNode| {
            let mut node = node.clone();
            node.world.flows.sort_by(|a, b| a.key.cmp(&b.key));
            node
        };
        prop_assert_eq!(sorted(&node), sorted(&before));
    }
}
