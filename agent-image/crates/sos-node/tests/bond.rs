//! Two switches whose base uplinks form a bond, joined by two cables that would otherwise form a loop. Needs root.
//!
//! ```text
//!   host a --- [ west ] === wan0 === cable === wan0 === [ east ] --- host b
//!              [      ] === wan1 === cable === wan1 === [      ]
//! ```

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::document;
use support::hosts::{interface, messages, ping};
use support::lab::{Lab, Namespace, sh, wait_at_most, wait_until};

const BOND: &str = "sos-base-uplinks";
const UP_DELAY: Duration = Duration::from_secs(2);
/// Longest takeover: the kernel reports a lost carrier at once, and a takeover takes milliseconds unless the machine is busy.
const TAKEOVER: Duration = Duration::from_secs(2);

/// A node-config with two base uplinks.
fn node(generation: u64, change: impl FnOnce(&mut Value)) -> Value {
    document(|d| {
        d["generation"] = json!(generation);
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["uplinks"] = json!([{"name": "wan0", "ofport": 33001, "base": true}, {"name": "wan1", "ofport": 33002, "base": true}]);
        d["bond"] = json!({"mode": "ActiveBackup", "upDelaySeconds": UP_DELAY.as_secs()});
        let entry = |table: u8, priority: u16, matches: &str, actions: &str| json!({"table": table, "priority": priority, "match": matches, "actions": actions});
        d["baseFlows"] = json!([
            entry(0, 45000, "in_port=33001", "goto_table:1"),
            entry(0, 45000, "in_port=33002", "goto_table:1"),
            entry(0, 0, "", "goto_table:1"),
            entry(1, 0, "", "NORMAL"),
        ]);
        change(d);
    })
}

fn unbonded(d: &mut Value) {
    d.as_object_mut().unwrap().remove("bond");
}

/// Both switches, and a namespace with the cables between them: a bridge of the kernel for each pair of uplinks.
struct Network {
    west: Lab,
    east: Lab,
    cables: Namespace,
}

impl Network {
    fn new() -> Self {
        let (west, east, cables) = (Lab::new(true), Lab::new(true), Namespace::new("cables"));
        for name in ["wan0", "wan1"] {
            cables.run("ip", &["link", "add", name, "type", "bridge"]);
            // Forward LACP, which the kernel's bridge otherwise drops.
            cables.run(
                "ip",
                &["link", "set", name, "type", "bridge", "group_fwd_mask", "0", "mcast_snooping", "0"],
            );
            cables.run("ip", &["link", "set", name, "up"]);
            for (lab, side) in [(&west, "w"), (&east, "e")] {
                let end = format!("{name}{side}");
                lab.ns.wire(name, &cables, &end);
                cables.run("ip", &["link", "set", &end, "master", name]);
            }
        }
        Self { west, east, cables }
    }

    fn labs(&self) -> [&Lab; 2] {
        [&self.west, &self.east]
    }

    fn apply(&self, generation: u64, change: impl Fn(&mut Value)) {
        for (lab, dpid) in self.labs().into_iter().zip(["0001000000000001", "0002000000000002"]) {
            lab.must_apply(node(generation, |d| {
                d["bridge"]["datapathId"] = json!(dpid);
                change(d);
            }));
        }
    }

    /// Cut or restore a cable: both ends lose or get their carrier.
    fn cable(&self, name: &str, state: &str) {
        for side in ["w", "e"] {
            self.cables.run("ip", &["link", "set", &format!("{name}{side}"), state]);
        }
    }

    /// Hosts a and b.
    fn hosts(&self) -> [Namespace; 2] {
        [self.west.host("host1", "10.0.0.11/24"), self.east.host("host2", "10.0.0.139/24")]
    }
}

/// Uplink that carries base traffic.
fn active(lab: &Lab) -> String {
    let mac = lab.vsctl(&["--if-exists", "get", "Port", BOND, "bond_active_slave"]);
    let found = format!("mac_in_use={mac}");
    lab.vsctl(&["--bare", "--columns=name", "find", "Interface", &found])
}

/// Broadcasts of a host that never answers; `count` of them, fifty a second.
fn shouting(from: &Namespace, count: u32) -> Child {
    let count = count.to_string();
    let mut ping = from.command("ping", &["-q", "-b", "-c", &count, "-i", "0.02", "-W", "1", "10.0.0.255"]);
    ping.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap()
}

fn shout(from: &Namespace, count: u32) {
    shouting(from, count).wait().unwrap();
}

#[test]
fn the_second_uplink_takes_over_and_no_broadcast_is_duplicated() {
    let network = Network::new();
    network.apply(1, |_| {});
    let _nodes = network.labs().map(Lab::start_node);
    let [a, b] = network.hosts();
    assert!(ping(&a, "10.0.0.139"));
    assert_eq!(network.labs().map(active), ["wan0", "wan0"]);

    let (before, idle) = (messages(&b), network.east.ns.received("wan1"));
    shout(&a, 10);
    assert_eq!(messages(&b) - before, 10, "each broadcast is received once");
    assert_eq!(network.east.ns.received("wan1"), idle, "the standby uplink carries no base traffic");

    // 200 broadcasts in four seconds, during which the cable of the active uplink is cut and restored.
    let before = messages(&b);
    let mut shouts = shouting(&a, 200);
    std::thread::sleep(Duration::from_millis(500));
    network.cable("wan0", "down");
    wait_at_most(TAKEOVER, "the takeover", || network.labs().map(active) == ["wan1", "wan1"]);
    assert!(ping(&a, "10.0.0.139"));
    network.cable("wan0", "up");
    shouts.wait().unwrap();
    let heard = messages(&b) - before;
    // The pings above are three messages to each host.
    let (most, lost) = (200 + 3, 50 * TAKEOVER.as_secs());
    assert!((most - lost..=most).contains(&heard), "{heard} of {most}");
    assert!(network.labs().iter().all(|lab| lab.status()["state"] == "Ready"));
}

#[test]
fn the_first_uplink_returns_after_the_delay() {
    let network = Network::new();
    network.apply(1, |_| {});
    let [a, _b] = network.hosts();
    network.cable("wan0", "down");
    wait_at_most(TAKEOVER, "the takeover", || network.labs().map(active) == ["wan1", "wan1"]);
    let restored = Instant::now();
    network.cable("wan0", "up");
    wait_until("the return", || network.labs().map(active) == ["wan0", "wan0"]);
    check_delay(restored);
    assert!(ping(&a, "10.0.0.139"));
}

#[test]
fn a_labelled_path_uses_the_standby_uplink() {
    const PATH_MAC: &str = "02:53:00:00:01:01";
    let network = Network::new();
    network.apply(1, |_| {});
    let [a, b] = network.hosts();
    let mac = |host: &Namespace| host.run("cat", &["/sys/class/net/e0/address"]).trim().to_owned();
    network.west.ofctl("add-flow", &[&format!("priority=50000,dl_dst={PATH_MAC},actions=output:33002")]);
    let onward =
        format!("priority=50000,in_port=33002,dl_dst={PATH_MAC},actions=mod_dl_dst:{},NORMAL", mac(&b));
    let number = network.east.vsctl(&["get", "Interface", "host2", "ofport"]);
    network.east.ofctl("add-flow", &[&onward.replace("NORMAL", &format!("output:{number}"))]);
    assert!(ping(&a, "10.0.0.139"));
    a.run("ip", &["neigh", "replace", "10.0.0.139", "lladdr", PATH_MAC, "nud", "permanent", "dev", "e0"]);
    let before = network.east.ns.received("wan1");
    assert!(ping(&a, "10.0.0.139"));
    assert!(network.east.ns.received("wan1") >= before + 3);
    assert_eq!(network.labs().map(active), ["wan0", "wan0"]);
}

#[test]
fn without_the_bond_the_cables_form_a_loop() {
    let network = Network::new();
    network.apply(1, |_| {});
    let [a, b] = network.hosts();
    network.cable("wan1", "down");
    network.apply(2, unbonded);
    assert_eq!(network.west.vsctl(&["list-ports", "br-sos"]), "host1\nwan0\nwan1");
    assert!(ping(&a, "10.0.0.139"));
    network.cable("wan1", "up");
    let before = messages(&b);
    shout(&a, 3);
    wait_until("the storm", || messages(&b) - before > 1_000);
    network.cable("wan1", "down");
    network.apply(3, |_| {});
    network.cable("wan1", "up");
    assert!(ping(&a, "10.0.0.139"));
    let before = messages(&b);
    shout(&a, 10);
    assert_eq!(messages(&b) - before, 10, "the bond ends the loop");
}

#[test]
fn a_missing_uplink_joins_the_bond_later_and_interfaces_are_returned_as_they_were() {
    let (lab, far) = (Lab::new(false), Namespace::new("far"));
    lab.ns.wire("wan1", &far, "far1");
    lab.ns.run("ip", &["link", "set", "wan1", "down"]);
    let before = interface(&lab, "wan1");
    lab.must_apply(node(1, |_| {}));
    assert_eq!(lab.vsctl(&["list-ports", "br-sos"]), BOND);
    assert_eq!(lab.vsctl(&["list-ifaces", "br-sos"]), "wan1");
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("port wan0 waits for its device, which does not exist"), "{message}");

    lab.ns.wire("wan0", &far, "far0");
    let late = interface(&lab, "wan0");
    lab.changes();
    assert!(lab.once().status.success());
    assert_eq!(lab.vsctl(&["list-ifaces", "br-sos"]), "wan0\nwan1");
    let numbers = ["wan0", "wan1"].map(|name| lab.vsctl(&["get", "Interface", name, "ofport"]));
    assert_eq!(numbers, ["33001", "33002"]);
    assert!(!lab.changes().iter().any(|line| line.contains("wan1")), "the other uplink is not interrupted");
    assert!(lab.once().status.success());
    assert_eq!(lab.changes(), Vec::<String>::new(), "a further run changes nothing");
    assert!(
        interface(&lab, "wan0") != late && interface(&lab, "wan1") != before,
        "the comparison below sees changes"
    );

    lab.must_apply(node(2, |d| {
        unbonded(d);
        d["uplinks"].as_array_mut().unwrap().pop();
    }));
    assert_eq!(
        lab.vsctl(&["list-ports", "br-sos"]),
        "wan0",
        "an uplink without a bond has a port of its own"
    );
    assert_eq!(interface(&lab, "wan1"), before);
    lab.must_apply(node(3, |_| {}));
    assert_eq!(lab.vsctl(&["list-ifaces", "br-sos"]), "wan0\nwan1");
    lab.must_apply(node(4, |d| d["state"] = json!("Absent")));
    assert_eq!(lab.vsctl(&["list-br"]), "");
    assert_eq!((interface(&lab, "wan0"), interface(&lab, "wan1")), (late, before));
}

/// Print the state of the bond.
fn show(lab: &Lab, command: &str) -> String {
    let control = lab.path("run/ovs-vswitchd.ctl").display().to_string();
    sh("ovs-appctl", &["-t", &control, command, BOND])
}

/// The first uplink returns only when it has had a carrier for the delay.
fn check_delay(restored: Instant) {
    let (took, tolerance) = (restored.elapsed(), Duration::from_millis(200));
    assert!(took + tolerance >= UP_DELAY && took <= UP_DELAY + Duration::from_secs(5), "{took:?}");
}

fn balanced(d: &mut Value) {
    d["bond"]["mode"] = json!("BalanceTCP");
}

#[test]
fn with_lacp_both_uplinks_carry_base_traffic() {
    let (west, east) = (Lab::new(true), Lab::new(true));
    for name in ["wan0", "wan1"] {
        west.ns.wire(name, &east.ns, name);
    }
    for (lab, dpid) in [(&west, "0001000000000001"), (&east, "0002000000000002")] {
        lab.must_apply(node(1, |d| {
            balanced(d);
            d["bridge"]["datapathId"] = json!(dpid);
        }));
    }
    let (a, b) = (west.host("host1", "10.0.0.11/24"), east.host("host2", "10.0.0.139/24"));
    let negotiated = |lab: &Lab| {
        let shown = show(lab, "lacp/show");
        shown.contains("status: active negotiated") && shown.matches("collecting distributing").count() >= 4
    };
    wait_until("LACP", || negotiated(&west) && negotiated(&east));
    assert!(ping(&a, "10.0.0.139"));
    let received = || ["wan0", "wan1"].map(|name| east.ns.received(name));
    let before = received();
    a.run("bash", &["-c", "for port in {5000..5063}; do echo x > /dev/udp/10.0.0.139/$port; done"]);
    // A binomial distribution gives an uplink fewer than 16 of 64 ports in one of 50,000 runs.
    wait_until("both uplinks", || received().iter().zip(before).all(|(after, before)| after - before >= 16));
    let before = messages(&b);
    shout(&a, 10);
    assert_eq!(messages(&b) - before, 10, "each broadcast is received once");

    let enabled = || show(&west, "bond/show").contains("member wan0: enabled");
    east.ns.run("ip", &["link", "set", "wan0", "down"]);
    wait_at_most(TAKEOVER, "the takeover", || !enabled());
    assert!(ping(&a, "10.0.0.139"));
    let restored = Instant::now();
    east.ns.run("ip", &["link", "set", "wan0", "up"]);
    wait_until("the return", enabled);
    check_delay(restored);
}

#[test]
fn the_network_hears_of_hosts_after_a_takeover() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    for name in ["wan0", "wan1"] {
        lab.ns.wire(name, &far, name);
    }
    lab.must_apply(node(1, |_| {}));
    let a = lab.host("host1", "10.0.0.11/24");
    shout(&a, 1);
    assert_eq!(active(&lab), "wan0");
    let before = far.received("wan1");
    far.run("ip", &["link", "set", "wan0", "down"]);
    wait_at_most(TAKEOVER, "a frame from the silent host", || far.received("wan1") > before);
}

#[test]
fn without_an_answer_of_lacp_one_uplink_carries_base_traffic() {
    let (lab, far) = (Lab::new(true), Namespace::new("far"));
    far.run("ip", &["link", "add", "br0", "type", "bridge"]);
    for name in ["wan0", "wan1"] {
        lab.ns.wire(name, &far, name);
        far.run("ip", &["link", "set", name, "master", "br0"]);
    }
    far.run("ip", &["link", "set", "br0", "up"]);
    far.run("ip", &["addr", "add", "10.0.0.139/24", "dev", "br0"]);
    lab.must_apply(node(1, balanced));
    let a = lab.host("host1", "10.0.0.11/24");
    wait_until("base traffic", || ping(&a, "10.0.0.139"));
    let before = messages(&far);
    shout(&a, 10);
    assert_eq!(messages(&far) - before, 10, "each broadcast is received once");
}
