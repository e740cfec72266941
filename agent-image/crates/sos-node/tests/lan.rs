//! LAN interfaces as ports of the bridge, with a real Open vSwitch. Needs root.
//!
//! ```text
//!   LAN host --- lan0 [ br-sos ] --- host
//! ```

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use serde_json::{Value, json};
use support::document;
use support::hosts::{interface, machine, ping};
use support::lab::{Lab, wait_until};

/// A node-config with LAN ports and the entries of the base table that concern hosts.
fn node(generation: u64, lan: &[&str]) -> Value {
    document(|d| {
        d["generation"] = json!(generation);
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        let port = |(i, name): (usize, &&str)| json!({"name": name, "ofport": 33101 + i});
        d["lan"] = lan.iter().enumerate().map(port).collect();
        d["baseFlows"] = json!([
            {"table": 0, "priority": 20000, "match": "arp", "actions": "CONTROLLER:65535,goto_table:1"},
            {"table": 0, "priority": 0, "match": "", "actions": "goto_table:1"},
            {"table": 1, "priority": 0, "match": "", "actions": "NORMAL"},
        ]);
    })
}

/// State and number of a port in the status.
fn port(lab: &Lab, name: &str) -> Option<(String, Option<u64>)> {
    let status = lab.status();
    let row = status["ports"].as_array()?.iter().find(|port| port["name"] == name)?;
    assert_eq!(row["kind"], "Lan");
    Some((row["state"].as_str()?.to_owned(), row["ofport"].as_u64()))
}

#[test]
fn a_machine_behind_a_lan_interface_reaches_hosts_and_leaves_no_trace_on_the_interface() {
    let lab = Lab::new(false);
    let near = machine(&lab, "lan0", "10.0.0.21/24");
    let down = machine(&lab, "lan1", "10.0.0.22/24");
    lab.ns.run("ip", &["link", "set", "lan1", "down"]);
    let before = ["lan0", "lan1"].map(|name| interface(&lab, name));
    lab.configure(node(1, &["lan0", "lan1"]));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    let host = lab.host("host1", "10.0.0.11/24");
    host.run("ethtool", &["-K", "e0", "tx", "off"]);
    wait_until("both LAN ports", || {
        let up = |number| Some(("Up".to_owned(), Some(number)));
        port(&lab, "lan0") == up(33101) && port(&lab, "lan1") == up(33102)
    });
    for machine in [&near, &down] {
        machine.run("ethtool", &["-K", "e0", "tx", "off"]);
        assert!(ping(machine, "10.0.0.11"));
    }
    assert!(ping(&near, "10.0.0.22"), "machines of two LANs of a node reach each other");
    assert!(!lab.no_flood("lan0"));
    let attached = ["lan0", "lan1"].map(|name| interface(&lab, name));
    assert!(attached[0] != before[0] && attached[1] != before[1], "the comparison below sees changes");

    lab.configure(node(2, &["lan0"]));
    wait_until("the removal of lan1", || lab.vsctl(&["list-ports", "br-sos"]) == "host1\nlan0");
    wait_until("lan1 as before", || interface(&lab, "lan1") == before[1]);
    assert!(ping(&near, "10.0.0.11"), "the other interface stays attached");

    lab.vsctl(&["del-port", "host1"]);
    let mut absent = node(3, &[]);
    absent["state"] = json!("Absent");
    lab.configure(absent);
    wait_until("the removal of the bridge", || lab.vsctl(&["list-br"]).is_empty());
    wait_until("lan0 as before", || interface(&lab, "lan0") == before[0]);
}

#[test]
fn a_missing_lan_interface_is_reported_and_delays_no_other() {
    let lab = Lab::new(true);
    let near = machine(&lab, "lan1", "10.0.0.21/24");
    lab.configure(node(1, &["lan0", "lan1"]));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    let host = lab.host("host1", "10.0.0.11/24");
    assert_eq!(port(&lab, "lan0"), Some(("Waiting".to_owned(), None)));
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("port lan0 waits for its device, which does not exist"), "{message}");
    assert!(ping(&near, "10.0.0.11"));

    let late = machine(&lab, "lan0", "10.0.0.22/24");
    wait_until("the late interface", || port(&lab, "lan0") == Some(("Up".to_owned(), Some(33101))));
    assert!(ping(&late, "10.0.0.11") && ping(&host, "10.0.0.21"));

    // Another program detaches the interface: it is attached again.
    lab.vsctl(&["del-port", "br-sos", "lan1"]);
    wait_until("the interface on the bridge again", || {
        lab.vsctl(&["--bare", "--columns=ofport", "find", "Interface", "name=lan1"]) == "33102"
    });
    assert!(ping(&near, "10.0.0.11"));
}

#[test]
fn a_lan_interface_in_use_is_refused_and_delays_no_other() {
    let lab = Lab::new(true);
    let _used = machine(&lab, "lan0", "10.0.0.21/24");
    let near = machine(&lab, "lan1", "10.0.0.22/24");
    lab.ns.run("ip", &["addr", "add", "192.0.2.9/24", "dev", "lan0"]);
    lab.configure(node(1, &["lan0", "lan1"]));
    let _node = lab.start_node();
    lab.wait_for_state("Failed");
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("lan0 is refused: it carries the address 192.0.2.9"), "{message}");
    wait_until("the verdict", || port(&lab, "lan0") == Some(("Refused".to_owned(), None)));
    let _host = lab.host("host1", "10.0.0.11/24");
    assert!(ping(&near, "10.0.0.11"));
    lab.ns.run("ip", &["addr", "flush", "dev", "lan0"]);
    wait_until("the released interface", || port(&lab, "lan0") == Some(("Up".to_owned(), Some(33101))));
}

#[test]
fn a_lan_interface_that_was_down_is_set_down_after_a_restart_of_the_program_too() {
    let lab = Lab::new(true);
    let _machine = machine(&lab, "lan0", "10.0.0.21/24");
    lab.ns.run("ip", &["link", "set", "lan0", "down"]);
    lab.must_apply(node(1, &["lan0"]));
    assert!(lab.ns.run("ip", &["link", "show", "dev", "lan0"]).contains(",UP"));
    lab.must_apply(node(2, &["lan0"]));
    lab.must_apply(node(3, &[]));
    assert!(!lab.ns.run("ip", &["link", "show", "dev", "lan0"]).contains(",UP"));
}
