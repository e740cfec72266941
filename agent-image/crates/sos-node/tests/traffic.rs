//! Traffic of hosts on two switches that are joined by two cables, which form a loop, or by a tunnel. Needs root.
//!
//! ```text
//!   host a --- [ west ] === wan0 (base) ====== wan0 (base) === [ east ] --- host b
//!              [      ] --- wan1 (labelled) -- wan1 (labelled) [      ]
//!   host c --- [      ]
//! ```

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::document;
use support::lab::{Lab, Namespace, wait_until};

const DISCOVERY: &str = "198.18.255.254";
const DISCOVERY_MAC: &str = "02:53:4f:53:00:01";

/// The base table of spec/node-config.md section 2.
fn switch(dpid: &str, ports: &[(u16, bool)], change: impl FnOnce(&mut Value)) -> Value {
    document(|d| {
        d["bridge"]["datapathId"] = json!(dpid);
        d["bridge"]["datapathType"] = json!("netdev");
        d["bridge"]["mtu"] = json!(1500);
        let entry = |table: u8, priority: u16, matches: &str, actions: &str| json!({"table": table, "priority": priority, "match": matches, "actions": actions});
        let udp = |port: u16| format!("udp,nw_dst={DISCOVERY},tp_dst={port}");
        let mut flows = vec![
            entry(0, 65000, "dl_type=0x88cc", "CONTROLLER:65535"),
            entry(0, 65000, &udp(9875), "CONTROLLER:65535"),
            entry(0, 65000, &udp(9876), "CONTROLLER:65535"),
            entry(0, 20000, "arp", "CONTROLLER:65535,goto_table:1"),
            entry(0, 0, "", "goto_table:1"),
            entry(1, 0, "", "NORMAL"),
        ];
        for (port, base) in ports {
            flows.push(entry(0, 45000, &format!("in_port={port}"), "goto_table:1"));
            if !base {
                flows.push(entry(1, 1000, &format!("in_port={port}"), "drop"));
            }
        }
        d["baseFlows"] = flows.into();
        change(d);
    })
}

fn with_uplinks(dpid: &str) -> Value {
    switch(dpid, &[(33001, true), (33002, false)], |d| {
        d["uplinks"] = json!([{"name": "wan0", "ofport": 33001, "base": true}, {"name": "wan1", "ofport": 33002, "base": false}]);
    })
}

fn two_switches() -> (Lab, Lab) {
    let (west, east) = (Lab::new(true), Lab::new(true));
    west.ns.wire("wan0", &east.ns, "wan0");
    west.ns.wire("wan1", &east.ns, "wan1");
    west.must_apply(with_uplinks("0001000000000001"));
    east.must_apply(with_uplinks("0002000000000002"));
    (west, east)
}

fn ping(from: &Namespace, to: &str) -> bool {
    from.command("ping", &["-c", "3", "-i", "0.2", "-W", "2", to]).output().unwrap().status.success()
}

fn shout(from: &Namespace) {
    // Hosts do not answer broadcast pings; the test counts the packets received.
    let _ =
        from.command("ping", &["-b", "-c", "10", "-i", "0.02", "-W", "1", "10.0.0.255"]).output().unwrap();
}

#[test]
fn hosts_reach_each_other_and_no_packet_loops() {
    let (west, east) = two_switches();
    let (a, c) = (west.host("host1", "10.0.0.11/24"), west.host("host3", "10.0.0.13/24"));
    let b = east.host("host2", "10.0.0.139/24");
    assert!(ping(&a, "10.0.0.139") && ping(&b, "10.0.0.13") && ping(&c, "10.0.0.11"));
    let before = [&b, &c].map(|host| host.received("e0"));
    let idle = east.ns.received("wan1");
    shout(&a);
    let heard = [&b, &c].map(|host| host.received("e0"));
    for (before, heard) in before.into_iter().zip(heard) {
        assert_eq!(heard - before, 10, "each broadcast is received once");
    }
    assert_eq!(east.ns.received("wan1"), idle, "an uplink for labelled traffic carries no other packets");
    storm_without_the_base_table(&west, &east, &a, &b);
}

/// Show that the cables form a loop: without the installed entries, the same broadcasts circulate forever.
fn storm_without_the_base_table(west: &Lab, east: &Lab, a: &Namespace, b: &Namespace) {
    for lab in [west, east] {
        lab.ofctl("mod-port", &["wan1", "flood"]);
        lab.ofctl("del-flows", &[]);
        lab.ofctl("add-flow", &["actions=NORMAL"]);
    }
    let before = b.received("e0");
    shout(a);
    wait_until("the storm", || b.received("e0") - before > 1_000);
    for lab in [west, east] {
        lab.ns.run("ip", &["link", "set", "wan1", "down"]);
    }
}

#[test]
fn probes_and_beacons_reach_no_host() {
    let (west, east) = two_switches();
    let (a, c) = (west.host("host1", "10.0.0.11/24"), west.host("host3", "10.0.0.13/24"));
    let b = east.host("host2", "10.0.0.139/24");
    a.run("ip", &["route", "add", "198.18.0.0/15", "dev", "e0"]);
    a.run("ip", &["neigh", "add", DISCOVERY, "lladdr", DISCOVERY_MAC, "nud", "permanent", "dev", "e0"]);
    let say = |port: u16| a.run("bash", &["-c", &format!("echo beacon > /dev/udp/{DISCOVERY}/{port}")]);
    let before = [&b, &c].map(|host| host.received("e0"));
    let sent = west.ns.received("host1");
    for port in [9875, 9876] {
        say(port);
    }
    // An LLDP frame from host a's port: multicast, so that NORMAL would flood it.
    let lldp = "0180c200000e0200000000aa88cc0207040200000000aa040403686f7374060200780000";
    let number = west.vsctl(&["get", "Interface", "host1", "ofport"]);
    west.ofctl("packet-out", &[&format!("in_port={number} packet={lldp} actions=TABLE")]);
    wait_until("the beacons to arrive at the switch", || west.ns.received("host1") >= sent + 2);
    // A later datagram to another port is flooded. By the time it arrives, any earlier packet would also have arrived.
    say(9999);
    for host in [&b, &c] {
        wait_until("an ordinary datagram", || host.received("e0") > before[0].min(before[1]));
    }
    std::thread::sleep(Duration::from_millis(300));
    let heard = [&b, &c].map(|host| host.received("e0"));
    assert_eq!([heard[0] - before[0], heard[1] - before[1]], [1, 1], "only the ordinary datagram");
}

#[test]
fn hosts_reach_each_other_through_a_tunnel() {
    let (west, east) = (Lab::new(true), Lab::new(true));
    west.ns.wire("under", &east.ns, "under");
    for (lab, address, dpid, remote) in [
        (&west, "192.0.2.1", "0001000000000001", "192.0.2.2"),
        (&east, "192.0.2.2", "0002000000000002", "192.0.2.1"),
    ] {
        lab.ns.run("ip", &["addr", "add", &format!("{address}/24"), "dev", "under"]);
        lab.must_apply(switch(dpid, &[(35001, true)], |d| {
            d["bridge"]["mtu"] = json!(1450);
            d["tunnels"] = json!([{"name": "sosvx1", "ofport": 35001, "remote": remote, "vni": 5459, "udpPort": 14789, "base": true}]);
        }));
    }
    let a = west.host("host1", "10.0.0.11/24");
    let b = east.host("host2", "10.0.0.139/24");
    assert!(ping(&a, "10.0.0.139"));
    // Recreate only the device, like a pass that is interrupted right after this step.
    let vxlan = "link add sosvx1 mtu 1450 type vxlan id 5459 remote 192.0.2.2 dstport 14789 nolearning";
    for words in ["link delete sosvx1", vxlan, "link set dev sosvx1 alias sos-node:1 up"] {
        west.ns.run("ip", &words.split(' ').collect::<Vec<_>>());
    }
    assert!(west.once().status.success());
    assert!(ping(&a, "10.0.0.139"), "the port uses the new device");
    for host in [&a, &b] {
        host.run("ip", &["link", "set", "e0", "mtu", "1450"]);
    }
    let mut server = b.command("iperf3", &["-s", "-1"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_until("the server", || b.run("ss", &["-tln"]).contains(":5201"));
    let result = a.run("iperf3", &["-c", "10.0.0.139", "-n", "100M", "-J"]);
    server.wait().unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    let received = result["end"]["sum_received"]["bytes"].as_u64().unwrap();
    assert!(received > 90 << 20, "{received} bytes came through with segmentation offload on");
    println!("through the tunnel: {}", result["end"]["sum_received"]["bits_per_second"]);
}

/// The OpenFlow state of a tunnel's port is the answer of BFD, which is what controllers see (spec/node-config.md clause 44).
#[test]
fn a_tunnel_is_live_while_its_far_end_answers() {
    let (west, east) = (Lab::new(true), Lab::new(true));
    west.ns.wire("under", &east.ns, "under");
    let apply = |lab: &Lab, address: &str, dpid: &str, remote: &str| {
        lab.ns.run("ip", &["addr", "add", &format!("{address}/24"), "dev", "under"]);
        lab.must_apply(switch(dpid, &[(35001, true)], |d| {
            d["bridge"]["mtu"] = json!(1450);
            d["tunnels"] = json!([{"name": "sosvx1", "ofport": 35001, "remote": remote, "vni": 5459, "udpPort": 14789, "base": true}]);
        }));
    };
    let port = |lab: &Lab| {
        let printed = lab.ofctl("dump-ports-desc", &[]);
        let mut lines = printed.lines().skip_while(|line| !line.contains("(sosvx1)")).skip(1).take(2);
        let config = lines.next().unwrap_or_default().contains("NO_PACKET_IN");
        (config, lines.next().unwrap_or_default().contains("LIVE"))
    };
    let (watched_and_live, watched) = ((true, true), (true, false));
    apply(&west, "192.0.2.1", "0001000000000001", "192.0.2.2");
    assert_eq!(port(&west), watched, "the far end does not exist yet");
    apply(&east, "192.0.2.2", "0002000000000002", "192.0.2.1");
    let host = east.host("host2", "10.0.0.139/24");
    wait_until("BFD", || port(&west) == watched_and_live && port(&east) == watched_and_live);
    // One direction is lost: both ends report the loss, although all devices are up.
    let rules = "add table ip lose; add chain ip lose in { type filter hook input priority 0; }; add rule ip lose in udp dport 14789 drop";
    west.ns.run("nft", &[rules]);
    wait_until("the loss to be detected", || port(&west) == watched && port(&east) == watched);
    west.ns.run("nft", &["delete table ip lose"]);
    wait_until("the far end", || port(&west) == watched_and_live && port(&east) == watched_and_live);
    // A bridge without BFD, as that of an earlier version, drops the packets of the other end instead of flooding them to its hosts.
    east.vsctl(&["clear", "Interface", "sosvx1", "bfd"]);
    wait_until("the far end's answers to stop", || port(&west) == watched);
    let before = host.received("e0");
    let arrived = east.ns.received("sosvx1");
    wait_until("three packets of BFD", || east.ns.received("sosvx1") >= arrived + 3);
    assert_eq!(host.received("e0"), before, "no host receives packets of BFD");
}

/// Adds a new agent, which has an address, to the node `lab`.
fn agent(lab: &Lab) -> Namespace {
    let agent = Namespace::new("ag");
    lab.ns.wire("sosag0", &agent, "net0");
    agent.run("ip", &["address", "add", "10.0.0.126/24", "dev", "net0"]);
    agent.run("ethtool", &["-K", "net0", "tx", "off"]);
    agent
}

/// After a device is replaced, the user-space datapath of Open vSwitch keeps reading from the old device, without an error.
#[test]
fn a_replaced_agent_is_reachable_again() {
    let lab = Lab::new(true);
    let mut agents = vec![agent(&lab)];
    lab.must_apply(switch("0001000000000001", &[(34001, true)], |d| {
        d["agentPorts"] = json!([{"name": "sosag0", "ofport": 34001}]);
    }));
    let a = lab.host("host1", "10.0.0.11/24");
    wait_until("the agent", || ping(&a, "10.0.0.126"));
    let running = lab.start_node();
    lab.wait_for_state("Ready");
    for pause in [Duration::from_millis(2500), Duration::ZERO] {
        // The device disappears, as it does with the agent's namespace.
        lab.ns.run("ip", &["link", "delete", "sosag0"]);
        std::thread::sleep(pause);
        agents.push(agent(&lab));
        a.run("ip", &["neigh", "flush", "all"]);
        wait_until("the next agent", || ping(&a, "10.0.0.126"));
        assert_eq!(lab.vsctl(&["get", "Interface", "sosag0", "ofport"]), "34001");
    }
    assert!(running.terminate());
    // Remove the stored device, as after an upgrade from a version that did not store it.
    lab.ns.run("ip", &["link", "delete", "sosag0"]);
    agents.push(agent(&lab));
    lab.vsctl(&["remove", "Port", "sosag0", "external_ids", "sos-device"]);
    assert!(lab.once().status.success());
    a.run("ip", &["neigh", "flush", "all"]);
    assert!(ping(&a, "10.0.0.126"), "an agent's port without a stored device is added again");
    lab.changes();
    assert!(lab.once().status.success());
    assert_eq!(lab.changes(), Vec::<String>::new(), "the port is added again only once");
}

/// Open a connection and return the outcome.
fn connect(from: &Namespace, to: &str, port: u16) -> String {
    let program = format!(
        "import socket\ntry:\n socket.create_connection(('{to}', {port}), 5)\n print('connected')\nexcept OSError as error:\n print(type(error).__name__)"
    );
    let printed = from.command("python3", &["-c", &program]).output().unwrap().stdout;
    String::from_utf8(printed).unwrap().trim().to_owned()
}

/// The kernel resets connections that must not be plain, and no switch learns the server's address at the reject port.
#[test]
fn connections_that_must_not_be_plain_are_reset() {
    let lab = Lab::new(true);
    lab.must_apply(switch("0001000000000001", &[], |d| {
        d["rejectPort"] = json!({"name": "sosrej0", "peer": "sosrej1", "ofport": 33900});
        let flows = d["baseFlows"].as_array_mut().unwrap();
        let entry = |priority: u16, matches: &str, actions: &str| json!({"table": 0, "priority": priority, "match": matches, "actions": actions});
        flows.push(entry(65050, "in_port=33900,tcp,tcp_flags=+rst", "mod_dl_src:02:53:4f:53:00:03,NORMAL"));
        flows.push(entry(65049, "in_port=33900", "drop"));
        flows.push(entry(
            29970,
            "vlan_tci=0x0000/0x1fff,tcp,tcp_flags=+syn-ack-rst-fin,nw_src=10.0.0.0/25,nw_dst=10.0.0.128/25,tp_dst=5000/0xfff8",
            "output:33900",
        ));
    }));
    let (client, server) = (lab.host("host1", "10.0.0.11/24"), lab.host("host2", "10.0.0.139/24"));
    let serve = "import socket, time\nends = [socket.create_server(('', port)) for port in (5000, 6000)]\ntime.sleep(60)";
    let mut serving = server.command("python3", &["-c", serve]).spawn().unwrap();
    wait_until("a server", || connect(&client, "10.0.0.139", 6000) == "connected");
    for _ in 0..3 {
        assert_eq!(connect(&client, "10.0.0.139", 5000), "ConnectionRefusedError");
        assert_eq!(connect(&client, "10.0.0.139", 6000), "connected");
    }
    assert!(ping(&client, "10.0.0.139"), "the switch has not learned the server at the reject port");
    serving.kill().unwrap();
    serving.wait().unwrap();
}
