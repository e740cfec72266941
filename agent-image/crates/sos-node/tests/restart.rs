//! Restoration of the state that a restart of Open vSwitch loses, with the image's own start script. Needs root.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails, in its helpers too")]

mod support;

use std::fs;
use std::process::Stdio;

use serde_json::{Value, json};
use support::document;
use support::lab::{Lab, Process, wait_until};

/// A session entry, a standing entry and a group, as a controller installs them.
const GROUP: &str = "group_id=7,type=indirect,bucket=actions=drop";
const SESSION: &str = "cookie=0x534f010103000007,table=0,priority=40000,tcp,nw_src=10.0.0.1,nw_dst=10.0.0.2,tp_src=1024,tp_dst=80,\
                       actions=set_field:02:53:00:00:00:01->eth_dst,output:34001";
const STANDING: &str =
    "cookie=0x534f010106000001,table=0,priority=35000,hard_timeout=3600,tcp,nw_dst=10.0.0.9,actions=group:7";

fn site(change: impl FnOnce(&mut Value)) -> Value {
    document(|d| {
        d["bridge"]["mtu"] = json!(1500);
        d["bridge"]["datapathType"] = json!("netdev");
        d["controllers"] = json!(["tcp:127.0.0.1:6653"]);
        d["baseFlows"] = json!([
            {"table": 0, "priority": 0, "match": "", "actions": "goto_table:1"},
            {"table": 1, "priority": 0, "match": "", "actions": "NORMAL"},
        ]);
        change(d);
    })
}

/// Starts a controller that sends no messages, but logs the number of entries on the switch at each connection.
fn controller(lab: &Lab, notes: &str) -> Process {
    let program = format!(
        "import socket, subprocess\n\
         s = socket.create_server(('127.0.0.1', 6653))\n\
         held = []\n\
         while True:\n\
         \x20   held.append(s.accept())\n\
         \x20   shown = subprocess.run(['ovs-ofctl', '-O', 'OpenFlow13', 'dump-flows', 'unix:{}/br-sos.mgmt'], capture_output=True, text=True)\n\
         \x20   open('{notes}', 'a').write(str(shown.stdout.count('cookie=')) + '\\n')\n",
        lab.path("run").display(),
    );
    Process::from(lab.ns.command("python3", &["-c", &program]).stderr(Stdio::null()).spawn().unwrap())
}

/// Starts a configured switch by the start script, with a controller's entries and group; returns all entries of the switch, too.
fn ready() -> (Lab, Vec<String>) {
    let mut lab = Lab::new(true);
    lab.start_script();
    wait_until("the switch", || fs::exists(lab.path("run/ovs-vswitchd.pid")).unwrap());
    lab.must_apply(site(|_| {}));
    lab.ofctl("add-group", &[GROUP]);
    lab.ofctl("add-flow", &[SESSION]);
    lab.ofctl("add-flow", &[STANDING]);
    let flows = lab.flows();
    assert_eq!(flows.len(), 4, "{flows:?}");
    (lab, flows)
}

fn forwards(lab: &Lab) -> bool {
    lab.vsctl(&["--if-exists", "get", "Open_vSwitch", ".", "other_config:flow-restore-wait"]).is_empty()
}

fn group(lab: &Lab) -> String {
    lab.ofctl("dump-groups", &[]).lines().skip(1).map(str::trim).collect()
}

#[test]
fn a_planned_restart_restores_entries_and_groups_before_controllers_connect() {
    let (mut lab, flows) = ready();
    let groups = group(&lab);
    assert!(groups.contains("group_id=7"), "{groups}");
    lab.stop_script();
    let notes = lab.path("notes").display().to_string();
    let _controller = controller(&lab, &notes);
    lab.start_script();
    wait_until("a connection to the controller", || {
        fs::read_to_string(&notes).is_ok_and(|text| text.contains('\n'))
    });
    let seen = fs::read_to_string(&notes).unwrap();
    assert_eq!(seen.lines().next(), Some("4"), "the switch connects only after its entries are restored");
    assert!(forwards(&lab));
    assert_eq!((lab.flows(), group(&lab)), (flows, groups));
}

#[test]
fn a_killed_switch_gets_its_saved_entries_back() {
    let (mut lab, flows) = ready();
    let written = lab.path("run/flows/br-sos.flows");
    wait_until("the entries to be saved", || {
        fs::read_to_string(&written).is_ok_and(|text| text.contains("0x534f010106000001"))
    });
    lab.kill_switch_of_script();
    lab.start_script();
    wait_until("the entries", || {
        lab.path("run/br-sos.mgmt").exists() && lab.flows() == flows && forwards(&lab)
    });
}

#[test]
fn old_saved_entries_are_ignored_and_sos_node_installs_base_entries() {
    let (mut lab, _) = ready();
    lab.stop_script();
    let folder = lab.path("run/flows");
    support::lab::sh("touch", &["-d", "10 minutes ago", folder.to_str().unwrap()]);
    let _node = lab.start_node();
    lab.start_script();
    wait_until("the base entries", || lab.path("run/br-sos.mgmt").exists() && lab.flows().len() == 2);
    wait_until("forwarding", || forwards(&lab));
    lab.wait_for_state("Ready");
}

#[test]
fn a_switch_that_waits_too_long_is_made_to_forward() {
    let lab = Lab::new(true);
    lab.configure(site(|_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    lab.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", "other_config:flow-restore-wait=true"]);
    lab.wait_for_state("Progressing");
    assert!(lab.status()["message"].as_str().unwrap().contains("flow-restore-wait"));
    // Wait up to 50 s before `wait_until`, because the limit of sos-node (30 s) is as long as the timeout of `wait_until`.
    for _ in 0..2 {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(25);
        while !forwards(&lab) && std::time::Instant::now() < end {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }
    wait_until("forwarding", || forwards(&lab));
    lab.wait_for_state("Ready");
}

#[test]
fn addresses_and_routes_of_the_local_port_survive_a_restart() {
    let mut lab = Lab::new(true);
    lab.configure(site(|_| {}));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    for words in [
        "link set br-sos up",
        "addr add 10.0.0.1/24 dev br-sos",
        "addr add 10.0.0.5/24 dev br-sos",
        "route add 10.9.0.0/16 via 10.0.0.2",
    ] {
        lab.ns.run("ip", &words.split(' ').collect::<Vec<_>>());
    }
    let state = |lab: &Lab| {
        let shown = |args: &[&str]| lab.ns.command("ip", args).output().unwrap().stdout;
        let text = [
            shown(&["-br", "-4", "addr", "show", "dev", "br-sos"]),
            shown(&["-4", "route", "show", "dev", "br-sos"]),
        ]
        .concat();
        let text = String::from_utf8(text).unwrap();
        ["10.0.0.1/24", "10.0.0.5/24", "10.9.0.0/16 via 10.0.0.2"].map(|part| text.contains(part))
    };
    assert_eq!(state(&lab), [true; 3]);
    let remembered = lab.path("state/local-port.json");
    wait_until("the addresses to be remembered", || {
        fs::read_to_string(&remembered).is_ok_and(|text| text.contains("10.9.0.0"))
    });
    lab.kill_vswitchd();
    // The device disappears, as it does when the kernel's datapath is reloaded.
    lab.ns.run("ip", &["link", "del", "br-sos"]);
    lab.start_vswitchd();
    wait_until("addresses and route", || state(&lab) == [true; 3]);
    // Wait for the restoration to end: an address removed earlier would be restored again.
    wait_until("the new device to be remembered", || {
        let text = fs::read_to_string(&remembered).unwrap_or_default();
        let known: Value = serde_json::from_str(&text).unwrap_or_default();
        let links = lab.ns.command("ip", &["-j", "link", "show", "dev", "br-sos"]).output().unwrap().stdout;
        let links: Value = serde_json::from_slice(&links).unwrap_or_default();
        known["index"].is_u64() && known["index"] == links[0]["ifindex"]
    });
    lab.ns.run("ip", &["addr", "del", "10.0.0.5/24", "dev", "br-sos"]);
    wait_until("the removal to be remembered", || {
        fs::read_to_string(&remembered).is_ok_and(|text| !text.contains("10.0.0.5"))
    });
    assert_eq!(state(&lab), [true, false, true], "a removed address stays removed");
}

#[test]
fn entries_to_a_departed_agent_are_removed_without_a_controller() {
    let lab = Lab::new(true);
    lab.ns.run("ip", &["link", "add", "sosag0", "type", "veth", "peer", "name", "inner"]);
    lab.configure(site(|d| d["agentPorts"] = json!([{"name": "sosag0", "ofport": 34001}])));
    let _node = lab.start_node();
    lab.wait_for_state("Ready");
    lab.ofctl("add-flow", &[SESSION]);
    lab.ofctl("add-flow", &[&SESSION.replace("34001", "34002").replace("1024", "1025")]);
    lab.ofctl("add-flow", &["cookie=0x7,table=0,priority=9,ip,actions=output:34001"]);
    let before = lab.flows();
    lab.ns.run("ip", &["link", "del", "sosag0"]);
    let gone = std::time::Instant::now();
    wait_until("the removal of the session's entry", || lab.flows().len() == before.len() - 1);
    println!("the entry was removed {} ms after the agent's port", gone.elapsed().as_millis());
    let left = lab.flows();
    assert!(left.iter().any(|flow| flow.contains("34002")), "another agent's entries stay: {left:?}");
    assert!(left.iter().any(|flow| flow.contains("cookie=0x7,")), "foreign entries stay: {left:?}");
    lab.wait_for_state("Ready");
}

/// Run one step of the image's script on the lab's switch; true if the step succeeded.
fn step(lab: &Lab, words: &[&str]) -> bool {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ovs/flows.sh");
    lab.ns.command(script, words).env("OVS_RUNDIR", lab.path("run")).status().unwrap().success()
}

fn restoring(lab: &Lab) -> bool {
    !lab.vsctl(&["--if-exists", "get", "Open_vSwitch", ".", "external_ids:sos-restoring"]).is_empty()
}

#[test]
fn a_silent_database_does_not_damage_saved_entries() {
    let lab = Lab::new(true);
    lab.must_apply(site(|_| {}));
    let folder = lab.path("run/flows");
    assert!(step(&lab, &["save", folder.to_str().unwrap()]));
    let written = fs::read_to_string(folder.join("br-sos.flows")).unwrap();
    assert!(written.contains("cookie="), "{written}");
    fs::rename(lab.path("run/db.sock"), lab.path("run/away.sock")).unwrap();
    assert!(!step(&lab, &["save", folder.to_str().unwrap()]), "the script reports the error");
    fs::rename(lab.path("run/away.sock"), lab.path("run/db.sock")).unwrap();
    assert_eq!(fs::read_to_string(folder.join("br-sos.flows")).unwrap(), written);
}

#[test]
fn old_entries_are_not_restored_despite_an_earlier_mark() {
    let lab = Lab::new(true);
    let folder = lab.path("run/flows");
    let mark = || {
        let words = ["other_config:flow-restore-wait=true", "external_ids:sos-restoring=true"];
        lab.vsctl(&[&["--no-wait", "set", "Open_vSwitch", "."][..], &words].concat());
        assert!(restoring(&lab) && !forwards(&lab));
    };
    mark();
    assert!(step(&lab, &["hold", folder.to_str().unwrap()]));
    assert!(!restoring(&lab) && forwards(&lab), "without a folder, the mark is removed");
    fs::create_dir(&folder).unwrap();
    for time in ["10 minutes ago", "1 hour"] {
        support::lab::sh("touch", &["-d", time, folder.to_str().unwrap()]);
        mark();
        assert!(step(&lab, &["hold", folder.to_str().unwrap()]));
        assert!(!restoring(&lab) && forwards(&lab), "a folder with time {time} is not restored");
    }
    support::lab::sh("touch", &[folder.to_str().unwrap()]);
    assert!(step(&lab, &["hold", folder.to_str().unwrap()]));
    assert!(restoring(&lab) && !forwards(&lab), "a current folder is restored");
}

#[test]
fn a_refused_group_does_not_prevent_the_restoration_of_entries() {
    let lab = Lab::new(true);
    lab.must_apply(site(|_| {}));
    let folder = lab.path("run/flows");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("br-sos.groups"), "group_id=7,type=nonsense\n").unwrap();
    fs::write(folder.join("br-sos.flows"), format!("{SESSION}\n")).unwrap();
    assert!(step(&lab, &["hold", folder.to_str().unwrap()]));
    assert!(!step(&lab, &["restore", folder.to_str().unwrap()]), "the script reports the error");
    assert!(lab.flows().iter().any(|flow| flow.contains("tp_src=1024")), "{:?}", lab.flows());
    assert!(step(&lab, &["release"]));
    assert!(forwards(&lab));
}
