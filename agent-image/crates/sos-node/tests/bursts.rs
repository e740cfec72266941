//! Capacity of an Open vSwitch port while the switch is stopped, with the image's own start script. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::fs;

use serde_json::json;
use support::document;
use support::lab::{Lab, Namespace, preloaded, wait_until};

/// Number of packets of a burst: ten times as many full-size packets as the kernel's default buffer holds, and a quarter of those that a
/// port's buffer holds.
const BURST: u64 = 1000;

fn reaches(from: &Namespace) -> bool {
    from.command("ping", &["-c", "1", "-W", "1", "10.0.0.12"]).output().unwrap().status.success()
}

/// Sends a burst while the switch is stopped; returns the number of packets that reach the other host.
fn burst(library: &str) -> u64 {
    let mut lab = Lab::new(true);
    lab.start_script_with(&[("OVS_BUFFERS", library)]);
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    lab.must_apply(document(|d| {
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["baseFlows"] = json!([{"table": 0, "priority": 0, "match": "", "actions": "NORMAL"}]);
    }));
    let (from, to) = (lab.host("host1", "10.0.0.11/24"), lab.host("host2", "10.0.0.12/24"));
    wait_until("hosts to reach each other", || reaches(&from));
    let before = to.received("e0");
    lab.signal_switch_of_script("-STOP");
    let program = format!(
        "import socket\n\
         s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
         for _ in range({BURST}): s.sendto(bytes(1400), ('10.0.0.12', 9))\n"
    );
    from.run("python3", &["-c", &program]);
    lab.signal_switch_of_script("-CONT");
    // A later packet arrives only after the whole queue has been forwarded.
    wait_until("the end of the burst", || reaches(&from));
    to.received("e0") - before
}

#[test]
fn a_stopped_switch_loses_no_packet_of_a_burst() {
    // The other host receives the whole burst and the ping after it.
    assert!(burst(&preloaded()) > BURST);
}

#[test]
fn without_the_library_the_switch_runs_but_loses_the_burst() {
    assert!(burst("/nowhere/libsos_ovs_buffers.so") < BURST / 2);
}
