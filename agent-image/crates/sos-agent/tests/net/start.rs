//! Start-up, and errors that prevent it.

use std::process::Command;

use crate::lab::wire::{assert_works, content, serve};
use crate::lab::{FAR, Lab, NEAR, sh};

#[test]
fn attach_host_creates_its_own_namespace_and_removes_it_on_exit() {
    let lab = Lab::new();
    // The switch's namespace acts as the node's namespace, in which the agent places the outer end of its veth pair.
    lab.ip("sw", "link set lo up");
    lab.ip("sw", "link set p-near nomaster");
    lab.configure(NEAR, 1);
    // A foreign device with the name of the outer end is not changed; the veth of a killed agent is removed.
    lab.ip("sw", "link add sosag0 type bridge");
    assert_eq!(lab.agent_in(NEAR, "sw", "host").wait(), Some(1));
    lab.ip("sw", "link delete sosag0 type bridge");
    lab.ip("sw", "link add sosag0 type veth peer name old");
    let mut near = lab.agent_in(NEAR, "sw", "host");
    near.wait_metric("sos_agent_config_generation", |generation| generation == 1);
    lab.ip("sw", "link set sosag0 master br0");
    let far = lab.agent(FAR);
    near.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    let reply = content(2, 1 << 20);
    let seen = serve(&lab, reply.clone());
    assert_works(&lab, &seen, &reply);
    assert_eq!(far.metric("sos_agent_sessions_begun_total"), Some(1));
    let tables = |lab: &Lab| sh(&format!("ip netns exec {} nft list tables", lab.ns("sw")));
    assert_eq!(tables(&lab), "", "the node's own nft is not touched");
    near.kill();
    crate::lab::eventually("the veth pair is gone with the namespace", || {
        !lab.ip("sw", "-brief link show").contains("sosag0")
    });
}

#[test]
fn names_the_missing_file_and_exits_1() {
    let lab = Lab::new();
    let path = lab.configure(NEAR, 1);
    let run = |attach: &'static str, config: std::path::PathBuf, keys: std::path::PathBuf| {
        let state = config.with_file_name("state-of-nothing");
        let output = lab.at("client", move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_sos-agent"));
            command.arg("--config").arg(config).arg("--keys").arg(keys).arg("--state").arg(state);
            command.args(["--node", "near", "--attach", attach]).output().unwrap()
        });
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let keys = path.with_file_name("keys");
    let (code, words) = run("none", path.clone(), keys.clone());
    assert_eq!(code, Some(1));
    assert!(words.contains("interface net0 does not exist"), "{words}");

    let (code, words) = run("none", path.clone(), path.with_file_name("nowhere"));
    assert_eq!(code, Some(1));
    assert!(words.contains("nowhere"), "{words}");

    std::fs::write(
        &path,
        std::fs::read_to_string(&path).unwrap().replace("\"streams\":0", "\"streams\":\"x\""),
    )
    .unwrap();
    let (code, words) = run("none", path, keys);
    assert_eq!(code, Some(1));
    assert!(words.contains("near.json: services[0].transport.streams"), "{words}");
}

#[test]
fn a_new_configuration_is_reloaded_while_running() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    lab.configure(NEAR, 2);
    near.wait_metric("sos_agent_config_generation", |generation| generation == 2);
    lab.configure(NEAR, 1);
    near.wait_metric("sos_agent_config_refused_total", |refused| refused == 1);
    assert_eq!(near.metric("sos_agent_config_generation"), Some(2));
}
