//! Status of the program while Open vSwitch is dead or hung, and the age of that status. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::document;
use support::lab::{Lab, Process, wait_at_most, wait_until};

/// Maximum age of a status. The operator, which polls every two seconds, promises the same bound.
const PROMISED: Duration = Duration::from_secs(10);

/// Starts a configured switch, and the program with its HTTP server.
fn kept() -> (Lab, Process) {
    let lab = Lab::new(true);
    lab.configure(document(|d| {
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["baseFlows"] = json!([{"table": 0, "priority": 0, "match": "", "actions": "NORMAL"}]);
    }));
    let node = lab.serve_node();
    wait_until("a configured switch", || well(&lab));
    (lab, node)
}

/// The answer to `GET /status`.
fn status(lab: &Lab) -> Value {
    let answer = lab.http("/status");
    answer.split_once("\r\n\r\n").map_or(Value::Null, |(_, body)| serde_json::from_str(body).unwrap())
}

fn well(lab: &Lab) -> bool {
    let said = status(lab);
    said["state"] == "Ready" && said["applied"] == true && lab.http("/readyz").starts_with("HTTP/1.0 200")
}

/// Asserts that the status reports an outage, with the name of the failed component, from its start to its end.
fn is_told_and_so_is_its_end(named: &str, fault: impl FnOnce(&mut Lab), remedy: impl FnOnce(&mut Lab)) {
    let (mut lab, _node) = kept();
    fault(&mut lab);
    wait_at_most(PROMISED, "the outage in the status", || {
        let said = status(&lab);
        said["applied"] == false && said["state"] != "Ready"
    });
    let said = status(&lab);
    let message = said["message"].as_str().unwrap();
    assert!(message.contains(named), "{message}");
    assert!(lab.http("/readyz").starts_with("HTTP/1.0 503"), "the pod is not ready");
    assert!(lab.http("/healthz").starts_with("HTTP/1.0 200"), "a restart of the program would not help");
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(status(&lab)["applied"], false, "the outage is reported until it ends");
    remedy(&mut lab);
    wait_at_most(PROMISED, "the end of the outage in the status", || well(&lab));
}

#[test]
fn a_dead_switch_is_reported() {
    is_told_and_so_is_its_end("ovs-ofctl", Lab::kill_vswitchd, Lab::start_vswitchd);
}

#[test]
fn a_dead_database_is_reported() {
    is_told_and_so_is_its_end("ovs-vsctl", Lab::kill_ovsdb, Lab::start_ovsdb);
}

#[test]
fn a_dead_switch_and_database_are_reported() {
    is_told_and_so_is_its_end("ovs-vsctl", Lab::kill_ovs, Lab::start_ovs);
}

#[test]
fn a_hung_switch_is_reported() {
    is_told_and_so_is_its_end(
        "ovs-ofctl",
        |lab| lab.signal_vswitchd("-STOP"),
        |lab| lab.signal_vswitchd("-CONT"),
    );
}

#[test]
fn a_hung_database_is_reported() {
    is_told_and_so_is_its_end("ovs-vsctl", |lab| lab.signal_ovsdb("-STOP"), |lab| lab.signal_ovsdb("-CONT"));
}
