//! Super-frames across user-space Open vSwitch with segmentation offload on both sides of the emulator, as in the
//! testbed: host - bridge - emulator - bridge - host. Needs root and openvswitch-switch; the switches are private to
//! the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod world;

use std::fs;
use std::path::PathBuf;
use world::{CLIENT, Emulator, Namespace, SERVER, echo, run};

/// A namespace with ovsdb-server, ovs-vswitchd and the bridge `br0` with ports `host` and `wan0`.
struct Switch {
    namespace: Namespace,
    folder: PathBuf,
}

impl Switch {
    /// Starts a switch between a host and the emulator. `host_options` are ovs-vsctl settings of the host's port.
    fn start(
        host: &Namespace,
        address: &str,
        wan: &Namespace,
        inner: &str,
        host_options: &str,
    ) -> Switch {
        let namespace = Namespace::new("o");
        let folder = std::env::temp_dir().join(&namespace.0);
        fs::create_dir_all(&folder).unwrap();
        let switch = Switch { namespace, folder };
        let (name, host, wan) = (&switch.namespace.0, &host.0, &wan.0);
        run(&format!(
            "ip link add eth0 netns {host} type veth peer name host netns {name} && \
             ip link add wan0 netns {name} type veth peer name {inner} netns {wan} && \
             ip -n {host} addr add {address}/24 dev eth0 && ip -n {host} link set eth0 up && \
             ip -n {name} link set host up && ip -n {name} link set wan0 up && ip -n {wan} link set {inner} up"
        ));
        switch.daemons();
        switch.vsctl(&format!(
            "add-br br0 -- set bridge br0 datapath_type=netdev -- add-port br0 host {host_options} -- add-port br0 wan0"
        ));
        switch
    }

    fn daemons(&self) {
        let d = self.folder.display();
        let schema = "/usr/share/openvswitch/vswitch.ovsschema";
        let quiet = "--detach -vconsole:off";
        run(&format!("ovsdb-tool create {d}/conf.db {schema}"));
        let start = |line: &str| {
            self.namespace
                .run(&format!("env OVS_RUNDIR={d} {line} {quiet}"))
        };
        start(&format!(
            "ovsdb-server {d}/conf.db --remote=punix:{d}/db.sock --pidfile={d}/db.pid --log-file={d}/db.log"
        ));
        self.vsctl("--no-wait init -- set Open_vSwitch . other_config:userspace-tso-enable=true");
        start(&format!(
            "ovs-vswitchd unix:{d}/db.sock --pidfile={d}/switch.pid --log-file={d}/switch.log"
        ));
    }

    fn vsctl(&self, arguments: &str) {
        run(&format!(
            "ovs-vsctl --timeout=20 --db=unix:{}/db.sock {arguments}",
            self.folder.display()
        ));
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for file in ["switch.pid", "db.pid"] {
            let path = self.folder.join(file);
            let Ok(pid) = fs::read_to_string(path) else {
                continue;
            };
            let _ = std::process::Command::new("kill").arg(pid.trim()).status();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Transfers bytes through both switches; returns the packets per frame that the emulator received and delivered from A
/// to B.
fn transfer(host_options: &str) -> (f64, f64) {
    let (client, server) = (Namespace::new("c"), Namespace::new("s"));
    let wan = Namespace::new("w");
    let _west = Switch::start(&client, CLIENT, &wan, "wa", host_options);
    let _east = Switch::start(&server, SERVER, &wan, "wb", host_options);
    // Losses cut super-frames into pieces of many sizes, including single packets.
    let emulator = Emulator::start(&wan, "--link A=wa,B=wb,rate=500mbit,delay=5ms,loss=1%");
    echo(&client, &server, SERVER, 40_000_000);
    for host in [&client, &server] {
        assert_eq!(host.counter("TcpInCsumErrors"), 0);
    }
    let stats = emulator.stats("a2b");
    assert_eq!(
        stats["dropped"]["send"], 0,
        "the outgoing interface has refused pieces"
    );
    let per_frame = |kind: &str| {
        let count = |what: &str| stats[kind][what].as_f64().unwrap();
        count("packets") / count("frames")
    };
    (per_frame("received"), per_frame("delivered"))
}

#[test]
fn super_frames_cross_two_switches_with_offload() {
    let (received, delivered) = transfer("");
    assert!(received > 4.0, "{received} packets per frame came in");
    assert!(delivered > 4.0, "{delivered} packets per frame went out");
}

#[test]
fn tagged_super_frames_cross_two_switches_with_offload() {
    let (received, delivered) = transfer("tag=5");
    assert!(received > 4.0, "{received} packets per frame came in");
    assert!(delivered > 4.0, "{delivered} packets per frame went out");
}
