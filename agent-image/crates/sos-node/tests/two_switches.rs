//! A node that runs another Open vSwitch: the other Open vSwitch keeps its datapath, independent of the site's setting. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sos_node::config::NodeConfig;
use sos_node::observation::observed::{Bridge, OWNER_KEY, Observed, Row};
use sos_node::planning::change::Change;
use sos_node::planning::plan::{Plan, plan};
use sos_node::planning::problem::Problem;
use support::lab::{Lab, OtherSwitch};
use support::{base_flows, config, document};

fn bare(datapath: &str) -> Value {
    document(|d| {
        d["bridge"]["datapathType"] = json!(datapath);
        d["uplinks"] = json!([]);
        d["tunnels"] = json!([]);
        d["agentPorts"] = json!([]);
        d["baseFlows"] = json!([]);
    })
}

fn planned(datapath: &str, observed: &Observed) -> Plan {
    let config: NodeConfig = config(bare(datapath));
    plan(&config, &base_flows(&config), observed)
}

/// The datapath on which a plan creates a bridge; none if it does not create a bridge.
fn put_on(plan: &Plan) -> Option<&str> {
    let row = plan.changes.iter().find_map(|change| match change {
        Change::AddBridge { row, .. } => Some(row),
        _ => None,
    });
    row.map(|row| row["datapath_type"].as_str())
}

fn refused(plan: &Plan) -> bool {
    plan.problems.iter().any(|problem| matches!(problem, Problem::DatapathTaken { .. }))
}

fn kernel(ports: &[&str]) -> Observed {
    let kernel_ports = ports.iter().map(|port| (*port).to_owned()).collect();
    Observed { kernel_datapath: true, kernel_ports, ..Observed::default() }
}

fn with_bridge(mut observed: Observed, name: &str, kind: &str, owner: Option<&str>) -> Observed {
    let mut row: Row = BTreeMap::from([("datapath_type".to_owned(), kind.to_owned())]);
    row.extend(owner.map(|owner| (OWNER_KEY.to_owned(), owner.to_owned())));
    observed
        .bridges
        .insert(name.into(), Bridge { row, ports: [name.to_owned()].into(), controllers: vec![] });
    observed
}

#[test]
fn datapath_type_auto_uses_a_free_datapath() {
    assert_eq!(put_on(&planned("Auto", &kernel(&[]))), Some("system"));
    assert_eq!(put_on(&planned("Auto", &kernel(&["br-int", "eth1"]))), Some("netdev"));
    assert_eq!(put_on(&planned("Auto", &Observed::default())), Some("netdev"));
}

#[test]
fn a_kernel_datapath_of_another_open_vswitch_is_refused_without_changes() {
    let plan = planned("system", &kernel(&["br-int", "eth1"]));
    assert!(refused(&plan));
    assert_eq!(plan.changes, []);
    let said = plan.problems[0].to_string();
    assert!(said.contains("another Open vSwitch") && said.contains("spec.datapath.type"), "{said}");
}

#[test]
fn the_datapath_of_our_own_switch_is_ours() {
    assert_eq!(put_on(&planned("system", &kernel(&[]))), Some("system"));
    // The port of our bridge is still in the datapath: the process was killed and its database is lost.
    assert_eq!(put_on(&planned("system", &kernel(&["br-sos", "wan0"]))), Some("system"));
    // A foreign bridge in our own Open vSwitch does not make the datapath foreign.
    let shared = with_bridge(kernel(&["br-other"]), "br-other", "system", None);
    assert_eq!(put_on(&planned("Auto", &shared)), Some("system"));
    assert_eq!(put_on(&planned("system", &shared)), Some("system"));
}

#[test]
fn an_existing_bridge_keeps_its_datapath() {
    let site = config(bare("system")).site_id.to_string();
    let observed = with_bridge(kernel(&["br-int"]), "br-sos", "netdev", Some(&site));
    let plan = planned("system", &observed);
    assert!(refused(&plan));
    let moved = |change: &Change| matches!(change, Change::SetBridge { row, .. } if row.contains_key("datapath_type"));
    assert!(!plan.changes.iter().any(moved), "{:?}", plan.changes);
    assert!(!refused(&planned("netdev", &observed)) && !refused(&planned("Auto", &observed)));
    assert!(
        planned("system", &with_bridge(kernel(&[]), "br-sos", "netdev", Some(&site)))
            .changes
            .iter()
            .any(moved)
    );
}

/// Checks the claims of docs/adr/0025 about two switches in user space.
#[test]
fn the_second_switch_in_user_space_fails_and_the_first_continues() {
    let lab = Lab::new(true);
    let other = OtherSwitch::start(&lab.ns, "br-int");
    lab.vsctl(&["add-br", "br-sos", "--", "set", "Bridge", "br-sos", "datapath_type=netdev"]);
    assert!(!lab.path("run/br-sos.mgmt").exists(), "Open vSwitch created a second bridge in user space");
    assert!(other.forwards(), "the other Open vSwitch still has its bridge");
}
