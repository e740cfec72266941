//! Plans of single configs: faults, cut-off uplinks, ports that end, reset rules.

use crate::passes::{link, planned, reconcile};
use crate::support::fake::FakeNode;
use crate::support::{config, document};
use serde_json::{Value, json};
use sos_node::observation::observed::Link;
use sos_node::planning::change::Change;

#[test]
fn faults_are_reported_and_do_not_delay_other_changes() {
    let mut node = FakeNode::default();
    node.world.links.insert("wan0".into(), Link { addresses: vec!["192.0.2.9".into()], ..link() });
    node.world.links.insert("wan1".into(), link());
    let wanted = config(document(|d| {
        d["uplinks"] = json!([{"name": "wan0", "ofport": 1, "base": true}, {"name": "wan1", "ofport": 2, "base": true},
                              {"name": "wan2", "ofport": 3, "base": true}]);
    }));
    let plan = reconcile(&wanted, &mut node);
    let told: Vec<String> =
        plan.problems.iter().filter(|p| p.port().is_some()).map(ToString::to_string).collect();
    let refused = "port wan0 is refused: it carries the address 192.0.2.9";
    assert_eq!(told, [refused, "port wan2 waits for its device, which does not exist"]);
    assert_eq!(node.world.bridge_of("wan1"), Some("br-sos"));
    assert_eq!(node.world.bridge_of("wan0"), None);
}

#[test]
fn the_status_tells_when_a_cut_off_uplink_is_tried_again() {
    let mut node = FakeNode::default();
    node.world.links.insert("wan0".into(), link());
    node.world.cut_off = [("wan0".to_owned(), "10.96.0.1:443".to_owned())].into();
    let wanted = config(document(|d| d["uplinks"] = json!([{"name": "wan0", "ofport": 1, "base": true}])));
    let told: Vec<String> = reconcile(&wanted, &mut node).problems.iter().map(ToString::to_string).collect();
    assert!(
        told[0].starts_with(
            "port wan0 is refused: with it on the bridge, the node no longer reached 10.96.0.1:443"
        ),
        "{told:?}"
    );
    assert!(
        told[0].ends_with("it is tried again every 10 minutes while the site has this interface"),
        "{told:?}"
    );
}

#[test]
fn an_undeclared_agents_port_is_removed_with_its_device() {
    let mut node = FakeNode::default();
    let with = |names: &[&str]| {
        let ports = names.iter().zip(34_001..).map(|(name, number)| json!({"name": name, "ofport": number}));
        let ports: Vec<Value> = ports.collect();
        config(document(|d| d["agentPorts"] = json!(ports)))
    };
    for name in ["sosag0", "sosag1"] {
        node.world.links.insert(name.into(), link());
    }
    reconcile(&with(&["sosag0", "sosag1"]), &mut node);
    reconcile(&with(&["sosag0"]), &mut node);
    assert_eq!(
        node.world.bridge_of("sosag1"),
        Some("br-sos"),
        "the agent finishes its sessions through its port"
    );
    node.world.links.remove("sosag1");
    reconcile(&with(&["sosag0"]), &mut node);
    assert_eq!(node.world.bridge_of("sosag1"), None);
    assert_eq!(node.world.bridge_of("sosag0"), Some("br-sos"));
}

#[test]
fn an_uplink_that_gets_an_address_is_removed_from_the_bridge() {
    let mut node = FakeNode::default();
    node.world.links.insert("wan0".into(), link());
    let wanted = config(document(|d| d["uplinks"] = json!([{"name": "wan0", "ofport": 1, "base": true}])));
    reconcile(&wanted, &mut node);
    assert_eq!(node.world.bridge_of("wan0"), Some("br-sos"));
    node.world.links.get_mut("wan0").unwrap().addresses.push("192.0.2.9".into());
    reconcile(&wanted, &mut node);
    assert_eq!(node.world.bridge_of("wan0"), None);
}

#[test]
fn missing_reset_rules_are_created_again() {
    let wanted = config(document(|d| {
        d["rejectPort"] = json!({"name": "sosrej0", "peer": "sosrej1", "ofport": 33_900});
    }));
    let mut node = FakeNode::default();
    reconcile(&wanted, &mut node);
    assert_eq!(node.world.bridge_of("sosrej0"), Some("br-sos"));
    assert!(node.world.no_flood["sosrej0"]);
    node.world.rejected = None;
    let plan = planned(&wanted, &node);
    assert_eq!(plan.changes, [Change::SetRejectRules { peer: "sosrej1".into() }]);
    reconcile(&wanted.absent(), &mut node);
    assert!(node.world.links.is_empty());
}
