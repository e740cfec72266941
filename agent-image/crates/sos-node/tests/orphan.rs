//! SIGTERM with and without an operator: the bridge stays, or is removed with everything else. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::fs;

use serde_json::{Value, json};
use support::document;
use support::hosts::interface;
use support::lab::{Lab, Namespace, Process, wait_until};

const OPERATOR: &str = "sos-operator/0.1.0";
/// The operator counts as gone immediately after a poll.
const AT_ONCE: &str = "0";
/// The operator counts as present for the whole test.
const HOURS: &str = "36000";

/// A site with an uplink and a tunnel.
fn site() -> Value {
    document(|d| {
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["uplinks"] = json!([{"name": "up0", "ofport": 33001, "base": true}]);
        d["tunnels"] = json!([{
            "name": "sosvx3", "ofport": 35003, "remote": "192.0.2.4", "vni": 5459, "udpPort": 14789, "base": true,
        }]);
        d["baseFlows"] = json!([{"table": 0, "priority": 0, "match": "", "actions": "NORMAL"}]);
    })
}

/// A node before SOS, and the far end of its uplink.
fn node() -> (Lab, Namespace) {
    let lab = Lab::new(true);
    let far = Namespace::new("far");
    lab.ns.wire("up0", &far, "e0");
    lab.configure(site());
    (lab, far)
}

/// Starts the program with its HTTP server, and waits for the bridge.
fn started(lab: &Lab, orphaned_after: &str) -> Process {
    let _ = fs::remove_file(lab.path("status.json"));
    let process = lab.start_node_with(&["--listen", "127.0.0.1:9466", "--orphaned-after", orphaned_after]);
    lab.wait_for_state("Ready");
    assert_eq!(lab.vsctl(&["list-br"]), "br-sos");
    wait_until("the HTTP server", || lab.http("/healthz").contains("200 OK"));
    process
}

fn polled(lab: &Lab) {
    assert!(lab.http_from(OPERATOR, "/status").contains("200 OK"));
}

fn holds(lab: &Lab) -> bool {
    fs::exists(lab.path("run/sos-node.hold")).unwrap()
}

/// Sends SIGTERM, and returns true if the bridge is left.
fn leaves_the_bridge(lab: &Lab, process: Process) -> bool {
    assert!(process.terminate(), "{}", fs::read_to_string(lab.path("node.log")).unwrap());
    assert!(!holds(lab), "Open vSwitch need not wait any more");
    lab.vsctl(&["list-br"]) == "br-sos"
}

#[test]
fn without_an_operator_sigterm_removes_everything() {
    let (lab, _far) = node();
    let before = interface(&lab, "up0");
    let process = started(&lab, AT_ONCE);
    assert!(lab.has_device("sosvx3"));
    assert_ne!(interface(&lab, "up0"), before);
    polled(&lab);
    wait_until("the file for the start script", || holds(&lab));
    assert!(!leaves_the_bridge(&lab, process));
    assert!(!lab.has_device("sosvx3"));
    assert_eq!(interface(&lab, "up0"), before, "the uplink has its former state");
    assert!(
        !fs::exists(lab.path("state/node-config.json")).unwrap(),
        "a later config is accepted, whatever its generation"
    );
}

#[test]
fn an_operator_that_polls_is_no_reason_to_remove_the_bridge() {
    let (lab, _far) = node();
    let process = started(&lab, HOURS);
    polled(&lab);
    assert!(leaves_the_bridge(&lab, process));
}

#[test]
fn clients_other_than_the_operator_are_no_operator() {
    let (lab, _far) = node();
    let process = started(&lab, AT_ONCE);
    for (agent, path) in
        [("Prometheus/3", "/metrics"), ("curl/8 sos-operator", "/status"), (OPERATOR, "/metrics")]
    {
        assert!(lab.http_from(agent, path).contains("200 OK"));
    }
    assert!(leaves_the_bridge(&lab, process), "a node that no operator has polled keeps its bridge");
}

#[test]
fn a_restarted_process_remembers_that_there_was_an_operator() {
    let (lab, _far) = node();
    let process = started(&lab, HOURS);
    polled(&lab);
    wait_until("the record", || fs::exists(lab.path("state/operator.json")).unwrap());
    process.kill();
    let process = started(&lab, AT_ONCE);
    wait_until("the file for the start script", || holds(&lab));
    assert!(!leaves_the_bridge(&lab, process));
}

#[test]
fn a_bridge_with_addresses_of_the_node_stays() {
    let (lab, _far) = node();
    let process = started(&lab, AT_ONCE);
    lab.ns.run("ip", &["link", "set", "br-sos", "up"]);
    lab.ns.run("ip", &["addr", "add", "10.0.0.1/24", "dev", "br-sos"]);
    let remembered = lab.path("state/local-port.json");
    wait_until("the address to be seen", || {
        fs::read_to_string(&remembered).is_ok_and(|text| text.contains("10.0.0.1/24"))
    });
    polled(&lab);
    wait_until("the file for the start script", || holds(&lab));
    assert!(leaves_the_bridge(&lab, process));
}

#[test]
fn both_containers_of_a_deleted_pod_remove_the_bridge_together() {
    let (mut lab, _far) = node();
    lab.start_script();
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    let process = started(&lab, AT_ONCE);
    polled(&lab);
    wait_until("the file for the start script", || holds(&lab));
    lab.terminate_script();
    assert!(process.terminate(), "{}", fs::read_to_string(lab.path("node.log")).unwrap());
    lab.await_script();
    lab.start_script();
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    assert_eq!(lab.vsctl(&["list-br"]), "", "the start script waited for the removal");
}

#[test]
fn a_start_script_without_the_file_ends_at_once() {
    let (mut lab, _far) = node();
    lab.start_script();
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    let process = started(&lab, HOURS);
    polled(&lab);
    assert!(!holds(&lab));
    lab.stop_script();
    assert!(process.terminate());
}
