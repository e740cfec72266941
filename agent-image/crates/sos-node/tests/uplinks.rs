//! Uplinks that would cut the node off are refused, and an uplink that does cut the node off is removed again. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::document;
use support::lab::{Lab, Namespace, Process, wait_until};

fn node(generation: u64, uplinks: &[&str]) -> Value {
    document(|d| {
        d["generation"] = json!(generation);
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        let uplink = |(i, name): (usize, &&str)| json!({"name": name, "ofport": 33001 + i, "base": i == 0});
        d["uplinks"] = uplinks.iter().enumerate().map(uplink).collect();
        d["baseFlows"] = json!([{"table": 0, "priority": 0, "match": "", "actions": "NORMAL"}]);
    })
}

fn ip(namespace: &Namespace, words: &str) {
    namespace.run("ip", &words.split(' ').collect::<Vec<_>>());
}

#[test]
fn devices_that_the_node_needs_are_refused() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    let names = ["wan0", "wan1", "wan2", "wan3", "wan4", "wan5"];
    for name in names {
        lab.ns.wire(name, &far, &format!("f-{name}"));
    }
    ip(&lab.ns, "addr add 192.0.2.1/32 dev lo");
    for words in [
        "route add 198.51.100.1 dev wan0",
        "route add default nexthop dev wan1 nexthop dev wan0",
        "link add vx7 type vxlan id 7 remote 192.0.2.99 dstport 4789 dev wan2",
        "addr add 192.0.2.9/24 dev vx7",
        "link set vx7 up",
        "route add 203.0.113.0/24 dev wan3 table 77",
        "addr add 192.0.2.17/28 dev wan4",
    ] {
        ip(&lab.ns, words);
    }
    lab.configure(node(1, &names));
    let _node = lab.start_node();
    lab.wait_for_state("Failed");
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    for part in [
        "wan0 is refused: it carries the node's default route",
        "wan1 is refused: it carries the node's default route",
        "wan2 is refused: vx7, which is stacked on it, carries the address 192.0.2.9/24",
        "wan3 is refused: it carries the node's route to 203.0.113.0/24",
        "wan4 is refused: it carries the address 192.0.2.17/28",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    wait_until("the unused uplink", || lab.vsctl(&["list-ports", "br-sos"]) == "wan5");
}

/// Creates the node's own network, `eth0`, with the anchor at its other end.
fn network(lab: &Lab) -> (Namespace, Process) {
    let router = Namespace::new("rt");
    lab.ns.wire("eth0", &router, "eth0");
    ip(&lab.ns, "addr add 192.0.2.2/24 dev eth0");
    ip(&router, "addr add 192.0.2.1/24 dev eth0");
    let program =
        "import socket\ns = socket.create_server(('192.0.2.1', 443))\nwhile True: s.accept()[0].close()";
    let server = router.command("python3", &["-c", program]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the anchor", || router.run("ss", &["-tln"]).contains("192.0.2.1:443"));
    (router, Process::from(server))
}

/// Imitates a switch with port security: shuts the node's own port while the uplink is on the bridge.
struct PortSecurity(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl PortSecurity {
    fn start(lab: &Lab, router: &Namespace, uplink: &'static str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (ending, router, database) = (Arc::clone(&stop), router.name.clone(), lab.path("run/db.sock"));
        let watch = move || {
            let mut open = true;
            while !ending.load(Ordering::Relaxed) {
                let database = format!("--db=unix:{}", database.display());
                let bridged = std::process::Command::new("ovs-vsctl")
                    .args(["--timeout=5", &database, "list-ifaces", "br-sos"])
                    .output();
                let bridged = bridged
                    .is_ok_and(|out| String::from_utf8_lossy(&out.stdout).lines().any(|line| line == uplink));
                if bridged == open {
                    open = !bridged;
                    let state = if open { "up" } else { "down" };
                    support::lab::sh("ip", &["-n", &router, "link", "set", "eth0", state]);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        Self(stop, Some(std::thread::spawn(watch)))
    }
}

impl Drop for PortSecurity {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        let _ = self.1.take().map(std::thread::JoinHandle::join);
    }
}

fn start(lab: &Lab) -> Process {
    let log = std::fs::File::create(lab.path("node.log")).unwrap();
    let child: Child = lab.node_command(&["--anchor", "192.0.2.1:443"]).stderr(log).spawn().unwrap();
    Process::from(child)
}

fn refused(lab: &Lab, name: &str) -> bool {
    let status = lab.status();
    let ports = status["ports"].as_array().cloned().unwrap_or_default();
    ports.iter().any(|port| port["name"] == name && port["state"] == "Refused")
}

#[test]
fn an_uplink_that_cuts_the_node_off_is_removed_again() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    lab.ns.wire("wan0", &far, "far0");
    let (router, _server) = network(&lab);
    lab.configure(node(1, &[]));
    let daemon = start(&lab);
    lab.wait_for_state("Ready");
    let security = PortSecurity::start(&lab, &router, "wan0");
    lab.configure(node(2, &["wan0"]));
    wait_until("the roll-back", || refused(&lab, "wan0"));
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), "");
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("with it on the bridge, the node no longer reached 192.0.2.1:443"), "{message}");
    assert!(message.contains("tried again every 10 minutes"), "{message}");
    wait_until("the node's own network", || {
        lab.ns.command("ping", &["-c1", "-W1", "192.0.2.1"]).output().unwrap().status.success()
    });
    drop(daemon);
    std::fs::remove_file(lab.path("status.json")).unwrap();
    let _daemon = start(&lab);
    wait_until("the restarted program", || lab.status()["state"] == "Failed");
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), "", "the restarted program does not try again");
    drop(security);
    let mut other = node(3, &["wan0"]);
    other["bridge"]["mtu"] = json!(1400);
    lab.configure(other);
    lab.wait_for_state("Ready");
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), "wan0", "a new config starts a new trial");
}

#[test]
fn a_program_killed_during_a_trial_finishes_it_after_its_restart() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    lab.ns.wire("wan0", &far, "far0");
    let (router, _server) = network(&lab);
    lab.configure(node(1, &[]));
    let daemon = start(&lab);
    lab.wait_for_state("Ready");
    let security = PortSecurity::start(&lab, &router, "wan0");
    lab.configure(node(2, &["wan0"]));
    let record = lab.path("state/uplinks.json");
    wait_until("the trial", || {
        std::fs::read_to_string(&record).is_ok_and(|text| text.contains("\"trying\":[\"wan0\"]"))
    });
    wait_until("the port", || lab.vsctl(&["list-ports", "br-sos"]) == "wan0");
    daemon.kill();
    let _daemon = start(&lab);
    wait_until("the roll-back", || refused(&lab, "wan0"));
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), "");
    drop(security);
}

#[test]
fn only_the_uplink_that_cuts_the_node_off_is_removed() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    for name in ["wan0", "wan1", "wan2"] {
        lab.ns.wire(name, &far, &format!("f-{name}"));
    }
    let (router, _server) = network(&lab);
    lab.configure(node(1, &[]));
    let _daemon = start(&lab);
    lab.wait_for_state("Ready");
    let security = PortSecurity::start(&lab, &router, "wan1");
    lab.configure(node(2, &["wan0", "wan1", "wan2"]));
    wait_until("the verdict", || refused(&lab, "wan1") && lab.status()["state"] == "Failed");
    wait_until("the others", || lab.vsctl(&["list-ports", "br-sos"]) == "wan0\nwan2");
    assert!(!refused(&lab, "wan0") && !refused(&lab, "wan2"));
    drop(security);
}

#[test]
fn uplinks_of_a_bond_pass_their_trials_by_themselves() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    for name in ["wan0", "wan1", "wan2"] {
        lab.ns.wire(name, &far, &format!("f-{name}"));
    }
    let (router, _server) = network(&lab);
    lab.configure(node(1, &[]));
    let _daemon = start(&lab);
    lab.wait_for_state("Ready");
    let security = PortSecurity::start(&lab, &router, "wan0");
    let mut bonded = node(2, &["wan0", "wan1", "wan2"]);
    for uplink in bonded["uplinks"].as_array_mut().unwrap() {
        uplink["base"] = json!(true);
    }
    bonded["bond"] = json!({"mode": "ActiveBackup", "upDelaySeconds": 1});
    lab.configure(bonded);
    wait_until("the verdict", || refused(&lab, "wan0") && lab.status()["state"] == "Failed");
    wait_until("the others", || lab.vsctl(&["list-ifaces", "br-sos"]) == "wan1\nwan2");
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), "sos-base-uplinks");
    drop(security);
}
