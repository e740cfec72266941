//! The program with a real Open vSwitch and the user-space datapath. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::document;
use support::lab::{Lab, Namespace, holds_only, wait_until};

/// A node-config like the example in the spec, with one base uplink, one uplink for labelled traffic, and a base table like the real one.
fn edge(generation: u64, change: impl FnOnce(&mut Value)) -> Value {
    document(|d| {
        d["generation"] = json!(generation);
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["uplinks"] = json!([{"name": "wan0", "ofport": 33001, "base": true}, {"name": "wan1", "ofport": 33002, "base": false}]);
        d["controllers"] = json!(["tcp:127.0.0.1:6653"]);
        d["baseFlows"] = base_table(&[33001, 33002], &[33002]);
        change(d);
    })
}

fn base_table(links: &[u16], labelled: &[u16]) -> Value {
    let entry = |table: u8, priority: u16, matches: String, actions: &str| json!({"table": table, "priority": priority, "match": matches, "actions": actions});
    let mut table = vec![
        entry(0, 65000, "vlan_tci=0x0000/0x1fff,dl_type=0x88cc".into(), "CONTROLLER:65535"),
        entry(
            0,
            65000,
            "dl_type=0x0800,nw_proto=17,nw_dst=198.18.255.254,tp_dst=9875".into(),
            "CONTROLLER:65535",
        ),
        entry(0, 20000, "arp,vlan_tci=0x0000/0x1fff".into(), "CONTROLLER:65535,goto_table:1"),
        entry(0, 0, String::new(), "goto_table:1"),
        entry(1, 0, String::new(), "NORMAL"),
    ];
    table.extend(links.iter().map(|port| entry(0, 45000, format!("in_port={port}"), "goto_table:1")));
    table.extend(labelled.iter().map(|port| entry(1, 1000, format!("in_port={port}"), "drop")));
    table.into()
}

/// A switch with the devices of both uplinks, and a namespace with the other ends of their cables.
fn lab() -> (Lab, Namespace) {
    let lab = Lab::new(true);
    let far = Namespace::new("far");
    lab.ns.wire("wan0", &far, "far0");
    lab.ns.wire("wan1", &far, "far1");
    (lab, far)
}

fn ports(lab: &Lab) -> Vec<(String, u64, String)> {
    let status = lab.status();
    let port = |p: &Value| {
        (
            p["name"].as_str().unwrap().to_owned(),
            p["ofport"].as_u64().unwrap_or(0),
            p["state"].as_str().unwrap().to_owned(),
        )
    };
    status["ports"].as_array().unwrap().iter().map(port).collect()
}

fn port(name: &str, number: u64, state: &str) -> (String, u64, String) {
    (name.to_owned(), number, state.to_owned())
}

#[test]
fn a_second_run_changes_nothing() {
    let (lab, _far) = lab();
    lab.must_apply(edge(1, |_| {}));
    assert!(!lab.changes().is_empty());
    let status = lab.status();
    assert_eq!(
        (&status["state"], &status["applied"], &status["bridge"]),
        (&json!("Ready"), &json!(true), &json!("br-sos"))
    );
    assert_eq!(ports(&lab), [port("wan0", 33001, "Up"), port("wan1", 33002, "Up")]);
    assert_eq!(
        lab.vsctl(&["get", "Bridge", "br-sos", "datapath_id", "fail_mode", "datapath_type"]),
        "\"00013c2a51b7d0e4\"\nsecure\nnetdev"
    );
    assert_eq!(lab.vsctl(&["get", "Bridge", "br-sos", "other_config:hwaddr"]), "\"06:2a:51:b7:d0:e4\"");
    assert_eq!(
        lab.vsctl(&["--bare", "--columns=target,connection_mode", "list", "Controller"]),
        "tcp:127.0.0.1:6653\nout-of-band"
    );
    assert!(lab.no_flood("wan1") && !lab.no_flood("wan0"));
    assert_eq!(lab.flows().len(), 8);
    assert!(lab.once().status.success());
    assert_eq!(lab.changes(), Vec::<String>::new());
}

#[test]
fn a_new_config_replaces_the_base_entries_and_nothing_else() {
    let (lab, _far) = lab();
    lab.must_apply(edge(1, |_| {}));
    lab.ofctl(
        "add-flow",
        &["cookie=0x534f010103000007,table=0,priority=40000,ip,nw_dst=10.0.0.1,actions=drop"],
    );
    lab.ns.run("ip", &["link", "add", "pod7", "type", "veth", "peer", "name", "pod7p"]);
    lab.vsctl(&["add-port", "br-sos", "pod7"]);
    let before = lab.flows();
    lab.must_apply(edge(2, |d| d["baseFlows"] = base_table(&[33001], &[])));
    let after = lab.flows();
    let count = |flows: &[String], text: &str| flows.iter().filter(|flow| flow.contains(text)).count();
    assert_eq!((count(&before, "cookie=0x534f0001"), count(&after, "cookie=0x534f0001")), (8, 6));
    assert!(
        !before.iter().any(|flow| flow.contains("0x534f0001") && after.contains(flow)),
        "entries carry the new hash"
    );
    assert_eq!(count(&after, "cookie=0x534f010103000007"), 1);
    assert!(lab.vsctl(&["list-ports", "br-sos"]).contains("pod7"));
}

/// Soon after a port is moved to another VLAN, its traffic bypasses all entries of controllers.
#[test]
fn traffic_of_ports_in_other_vlans_is_forwarded_as_plain() {
    let (lab, _far) = lab();
    lab.configure(edge(1, |_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    lab.ns.run("ip", &["link", "add", "pod7", "type", "veth", "peer", "name", "pod7p"]);
    lab.vsctl(&["add-port", "br-sos", "pod7"]);
    let number = lab.vsctl(&["get", "Interface", "pod7", "ofport"]);
    let past = format!("priority=65100,in_port={number} actions=NORMAL");
    let holds = || lab.flows().iter().any(|flow| flow.contains(&past));
    for columns in [
        &["tag=100"][..],
        &["tag=7", "vlan_mode=native-untagged"],
        &["trunks=7,8"],
        &["vlan_mode=dot1q-tunnel", "tag=9"],
    ] {
        assert!(!holds());
        lab.vsctl(&[&["set", "port", "pod7"][..], columns].concat());
        wait_until("an entry for the port", &holds);
        for column in ["vlan_mode", "tag", "trunks"] {
            lab.vsctl(&["clear", "port", "pod7", column]);
        }
        wait_until("no entry for the port", || !holds());
    }
}

#[test]
fn manual_changes_of_the_switch_are_undone_within_seconds() {
    let (lab, _far) = lab();
    lab.configure(edge(1, |_| {}));
    let node = lab.start_node();
    lab.wait_for_state("Ready");
    let flows = lab.flows();
    lab.ofctl("add-flow", &["cookie=0x7,table=0,priority=3,ip,actions=drop"]);
    lab.ofctl("del-flows", &["cookie=0x534f000100000000/0xffffffff00000000"]);
    lab.ofctl("mod-port", &["wan1", "flood"]);
    lab.vsctl(&[
        "del-port",
        "wan0",
        "--",
        "remove",
        "Bridge",
        "br-sos",
        "other_config",
        "hwaddr",
        "--",
        "set-controller",
        "br-sos",
        "tcp:127.0.0.2:6653",
    ]);
    wait_until("the repair", || {
        let ours: Vec<String> =
            lab.flows().into_iter().filter(|flow| !flow.contains("cookie=0x7,")).collect();
        ours == flows
            && lab.no_flood("wan1")
            && lab.vsctl(&["get", "Bridge", "br-sos", "other_config"]).contains("hwaddr")
    });
    assert_eq!(lab.vsctl(&["get", "Interface", "wan0", "ofport"]), "33001");
    assert_eq!(lab.vsctl(&["get-controller", "br-sos"]), "tcp:127.0.0.1:6653");
    assert!(lab.flows().iter().any(|flow| flow.contains("cookie=0x7,")), "foreign entries stay");
    assert!(node.terminate());
    assert_eq!(lab.vsctl(&["list-br"]), "br-sos");
}

#[test]
fn an_uplink_in_use_is_refused_and_a_missing_device_added_later() {
    let (lab, _far) = lab();
    lab.ns.run("ip", &["addr", "add", "192.0.2.9/24", "dev", "wan0"]);
    lab.configure(edge(1, |d| d["agentPorts"] = json!([{"name": "sosag0", "ofport": 34001}])));
    let _node = lab.start_node();
    lab.wait_for_state("Failed");
    let expected = [port("wan0", 0, "Refused"), port("wan1", 33002, "Up"), port("sosag0", 0, "Waiting")];
    wait_until("the ports", || ports(&lab) == expected);
    let message = lab.status()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("wan0 is refused: it carries the address 192.0.2.9"), "{message}");
    lab.ns.run("ip", &["addr", "flush", "dev", "wan0"]);
    lab.ns.run("ip", &["link", "add", "sosag0", "type", "veth", "peer", "name", "inner"]);
    lab.ns.run("ip", &["link", "set", "inner", "up"]);
    let expected = [port("wan0", 33001, "Up"), port("wan1", 33002, "Up"), port("sosag0", 34001, "Up")];
    wait_until("both ports", || ports(&lab) == expected);
    lab.wait_for_state("Ready");
}

#[test]
fn an_undeclared_agents_port_is_removed_with_its_device() {
    let (lab, _far) = lab();
    lab.ns.run("ip", &["link", "add", "sosag0", "type", "veth", "peer", "name", "inner"]);
    lab.must_apply(edge(1, |d| d["agentPorts"] = json!([{"name": "sosag0", "ofport": 34001}])));
    lab.must_apply(edge(2, |_| {}));
    assert!(
        lab.vsctl(&["list-ports", "br-sos"]).contains("sosag0"),
        "the agent finishes its sessions through its port"
    );
    lab.ns.run("ip", &["link", "del", "sosag0"]);
    lab.must_apply(edge(2, |_| {}));
    assert!(!lab.vsctl(&["list-ports", "br-sos"]).contains("sosag0"));
}

#[test]
fn a_restarted_open_vswitch_gets_everything_back() {
    let (mut lab, _far) = lab();
    lab.configure(edge(1, |_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    let flows = lab.flows();
    lab.kill_vswitchd();
    lab.start_vswitchd();
    wait_until("entries and no-flood after a restart of ovs-vswitchd", || {
        lab.flows() == flows && lab.no_flood("wan1")
    });
    lab.kill_ovs();
    wait_until("the outage in the status", || lab.status()["applied"] == false);
    lab.start_ovs();
    wait_until("entries and no-flood after a restart of both", || {
        lab.flows() == flows && lab.no_flood("wan1")
    });
    lab.wait_for_state("Ready");
    assert_eq!(ports(&lab), [port("wan0", 33001, "Up"), port("wan1", 33002, "Up")]);
}

#[test]
fn state_absent_removes_everything() {
    let (lab, _far) = lab();
    lab.vsctl(&["add-br", "br-other", "--", "set", "Bridge", "br-other", "datapath_type=netdev"]);
    let tunnel = json!([{"name": "sosvx3", "ofport": 35003, "remote": "192.0.2.4", "vni": 5459, "udpPort": 14789, "base": true}]);
    let output = lab.apply(edge(1, |d| d["tunnels"] = tunnel));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert_eq!(
        log.matches("changed the node").count(),
        1,
        "one pass creates a device and adds its port: {log}"
    );
    assert!(lab.has_device("sosvx3"));
    assert_eq!(lab.vsctl(&["get", "Port", "sosvx3", "protected"]), "true");
    assert!(!holds_only(&lab.path("state"), &[]));
    lab.must_apply(edge(2, |d| d["state"] = json!("Absent")));
    assert_eq!(lab.vsctl(&["list-br"]), "br-other");
    assert!(!lab.has_device("sosvx3") && !lab.has_device("br-sos"));
    assert!(lab.has_device("wan0"));
    assert!(holds_only(&lab.path("state"), &[]), "a later config of a lower generation is accepted");
    lab.must_apply(edge(1, |_| {}));
}

#[test]
fn a_tunnel_whose_device_cannot_be_created_does_not_flap() {
    let lab = Lab::new(true);
    let twin = "link add twin type vxlan id 5459 remote 192.0.2.9 dstport 14789 nolearning";
    lab.ns.run("ip", &twin.split(' ').collect::<Vec<_>>());
    lab.configure(edge(1, |d| {
        d["uplinks"] = json!([]);
        d["tunnels"] = json!([{"name": "sosvx3", "ofport": 35003, "remote": "192.0.2.4", "vni": 5459, "udpPort": 14789, "base": true}]);
    }));
    let node = lab.start_node();
    wait_until("the bridge", || lab.status()["bridge"] == "br-sos");
    lab.changes();
    let mut tried = vec![];
    wait_until("three more tries", || {
        tried.extend(lab.changes());
        tried.iter().filter(|line| line.starts_with("ip link add sosvx3 ")).count() >= 3
    });
    assert!(!tried.iter().any(|line| line.contains("-port")), "{tried:?}");
    assert!(lab.status()["message"].as_str().unwrap().contains("exists"), "{}", lab.status());
    assert_eq!(ports(&lab), [port("sosvx3", 0, "Waiting")]);
    lab.ns.run("ip", &["link", "delete", "twin"]);
    lab.wait_for_state("Ready");
    assert_eq!(ports(&lab), [port("sosvx3", 35003, "Up")]);
    assert!(node.terminate());
}

#[test]
fn a_replaced_uplink_gets_its_own_offloads_back() {
    let lab = Lab::new(false);
    let far = Namespace::new("far");
    lab.ns.wire("wan0", &far, "far0");
    let one = |generation, state: &str| {
        edge(generation, |d| {
            d["state"] = json!(state);
            d["uplinks"] = json!([{"name": "wan0", "ofport": 33001, "base": true}]);
        })
    };
    let checksums = || lab.ns.run("ethtool", &["-k", "wan0"]).contains("tx-checksumming: on");
    lab.must_apply(one(1, "Present"));
    assert!(!checksums());
    lab.ns.run("ip", &["link", "delete", "wan0"]);
    lab.ns.wire("wan0", &far, "far0");
    assert!(checksums());
    lab.must_apply(one(1, "Present"));
    assert!(!checksums());
    lab.must_apply(one(2, "Absent"));
    assert!(checksums());
}

#[test]
fn a_bridge_with_foreign_ports_is_removed_after_these_ports() {
    let (lab, _far) = lab();
    lab.must_apply(edge(1, |_| {}));
    let pod = lab.host("pod7", "10.0.0.7/24");
    lab.configure(edge(2, |d| d["state"] = json!("Absent")));
    let _node = lab.start_node();
    wait_until("the status to name the foreign port", || {
        lab.status()["message"].as_str().is_some_and(|m| m.contains("pod7"))
    });
    wait_until("the removal of our entries and ports", || {
        lab.flows().is_empty() && lab.vsctl(&["list-ports", "br-sos"]) == "pod7"
    });
    drop(pod);
    lab.vsctl(&["del-port", "br-sos", "pod7"]);
    wait_until("the removal of the bridge", || lab.vsctl(&["list-br"]).is_empty());
    lab.wait_for_state("Ready");
}

#[test]
fn a_node_that_moves_to_another_site_removes_the_former_bridge() {
    let (lab, _far) = lab();
    lab.must_apply(edge(1, |d| d["bridge"]["name"] = json!("br-west")));
    lab.must_apply(edge(2, |d| {
        d["siteID"] = json!(2);
        d["site"] = json!("east");
    }));
    assert_eq!(lab.vsctl(&["list-br"]), "br-sos");
    assert_eq!(lab.vsctl(&["get", "Bridge", "br-sos", "external_ids:sos-owner"]), "\"2\"");
    assert_eq!(lab.status()["site"], "east");
}

#[test]
fn a_foreign_bridge_with_the_same_name_is_not_changed() {
    let (lab, _far) = lab();
    lab.vsctl(&["add-br", "br-sos", "--", "set", "Bridge", "br-sos", "datapath_type=netdev"]);
    let output = lab.apply(edge(1, |_| {}));
    assert!(!output.status.success());
    assert_eq!(lab.status()["state"], "Failed");
    assert_eq!(lab.changes(), Vec::<String>::new());
}

#[test]
fn a_bad_document_is_one_line_of_log_and_does_not_replace_a_good_one() {
    let (lab, _far) = lab();
    let complaint = |output: std::process::Output| {
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let unknown_action = |d: &mut Value| d["baseFlows"][1]["actions"] = json!("teleport");
    let message = complaint(lab.apply(edge(1, unknown_action)));
    assert!(message.contains("config.json: baseFlows[1]: ") && message.contains("teleport"), "{message}");
    let message = complaint(lab.apply(edge(1, |d| d["baseFlows"][3]["match"] = json!("priority=9,ip"))));
    assert!(message.contains("config.json: baseFlows[3].match: "), "{message}");
    lab.configure(edge(5, |_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    lab.configure(edge(4, |_| {}));
    lab.wait_for_state("Failed");
    let status = lab.status();
    assert_eq!((&status["generation"], &status["applied"]), (&json!(5), &json!(true)));
    assert!(status["message"].as_str().unwrap().contains("generation: 4 is lower than 5"), "{status}");
    lab.configure(edge(6, |_| {}));
    lab.wait_for_state("Ready");
    assert_eq!(lab.status()["generation"], 6);
    let usage = lab.node_command(&["--no-such-flag"]).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
}

#[test]
fn pods_send_complete_checksums_if_the_switch_needs_them() {
    let lab = Lab::new(false);
    lab.must_apply(edge(1, |d| {
        d["uplinks"] = json!([]);
        d["baseFlows"] = base_table(&[], &[]);
        d["bridge"]["userspaceTso"] = json!(false);
    }));
    let pods = [lab.host("pod1", "10.0.0.1/24"), lab.host("pod2", "10.0.0.2/24")];
    for (pod, port) in pods.iter().zip(["pod1", "pod2"]) {
        let netns = format!("external_ids:contNetns=/run/netns/{}", pod.name);
        lab.vsctl(&["set", "Port", port, &netns, "external_ids:contIface=e0"]);
    }
    assert!(lab.once().status.success());
    for pod in &pods {
        assert!(pod.run("ethtool", &["-k", "e0"]).contains("tx-checksumming: off"));
    }
    let mut server =
        pods[1].command("iperf3", &["-s", "-1", "-J"]).stdout(std::process::Stdio::null()).spawn().unwrap();
    wait_until("the server", || pods[1].run("ss", &["-tln"]).contains(":5201"));
    let result = pods[0].run("iperf3", &["-c", "10.0.0.2", "-n", "4M", "-J"]);
    server.wait().unwrap();
    let result: Value = serde_json::from_str(&result).unwrap();
    assert!(result["end"]["sum_received"]["bytes"].as_u64().unwrap() >= 1 << 20, "{result}");
}

#[test]
fn status_and_readiness_are_served_over_http() {
    let (lab, _far) = lab();
    let _node = lab.serve_node();
    let get = |path: &str| lab.http(path);
    wait_until("the server", || get("/healthz").starts_with("HTTP/1.0 200"));
    assert!(get("/readyz").starts_with("HTTP/1.0 503"), "there is no config yet");
    lab.configure(edge(1, |_| {}));
    wait_until("readiness", || get("/readyz").starts_with("HTTP/1.0 200"));
    let metrics = get("/metrics");
    assert!(
        metrics.contains("sos_node_applied 1") && metrics.contains("sos_node_ports{state=\"Up\"} 2"),
        "{metrics}"
    );
    assert!(get("/status").contains("\"generation\":1"));
}

#[test]
fn an_unchanged_node_is_not_changed() {
    let (lab, _far) = lab();
    lab.configure(edge(1, |_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    lab.changes();
    std::thread::sleep(Duration::from_secs(12));
    assert_eq!(lab.changes(), Vec::<String>::new(), "passes without a difference change nothing");
}
