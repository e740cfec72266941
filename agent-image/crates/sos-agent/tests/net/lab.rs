//! A site-to-site network on one machine, for tests:
//!
//! ```text
//!   client 10.0.0.11 --+            +-- server 10.0.0.139
//!                      |   bridge   |
//!   near  10.0.0.126 --+            +-- far 10.0.0.254
//!                            |
//!                   ctl 198.18.255.254 (the discovery address)
//! ```
//!
//! Permanent neighbour entries in the hosts replace the switches, which would rewrite destination MACs towards the agents. The client sends
//! packets for the server to the near agent's MAC address, and the server sends packets for the client to the far agent's MAC address.
//!
//! `agent` runs the agents of a [`Lab`]; `wire` has its clients and servers.

pub(crate) mod agent;
pub(crate) mod wire;

use std::fs::File;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use sos_daemon::document;
use sos_wire::{AgentId, Key};

use self::agent::Agent;

/// Timeout of every wait. Waits normally take less than a second, but a busy machine may be slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 139);
pub(crate) const DISCOVERY: Ipv4Addr = Ipv4Addr::new(198, 18, 255, 254);
pub(crate) const SERVICE_PORT: u16 = 5003;

const MACS: [(&str, &str); 6] = [
    ("client", "02:53:00:00:00:11"),
    ("server", "02:53:00:00:00:22"),
    ("near", "02:53:00:00:01:01"),
    ("twin", "02:53:00:00:01:02"),
    ("far", "02:53:00:00:02:02"),
    ("ctl", "02:53:4f:53:00:01"),
];

pub(crate) fn mac(host: &str) -> &'static str {
    MACS.iter().find(|(name, _)| *name == host).unwrap().1
}

/// Runs a command; panics with its output if the command fails.
pub(crate) fn sh(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().unwrap();
    let words =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command}: {words}(these tests need root, iproute2 and nftables)");
    words
}

fn sh_all<const COUNT: usize>(commands: [String; COUNT]) {
    for command in commands {
        sh(&command);
    }
}

/// One side of the network: its site and its agent, as configured.
#[derive(Clone, Copy)]
pub(crate) struct Side {
    pub(crate) host: &'static str,
    pub(crate) site: &'static str,
    pub(crate) site_id: u16,
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: &'static str,
}

pub(crate) const NEAR: Side = Side {
    host: "near",
    site: "west",
    site_id: 1,
    address: Ipv4Addr::new(10, 0, 0, 126),
    prefix: "10.0.0.0/25",
};
pub(crate) const FAR: Side = Side {
    host: "far",
    site: "east",
    site_id: 2,
    address: Ipv4Addr::new(10, 0, 0, 254),
    prefix: "10.0.0.128/25",
};

impl Side {
    pub(crate) fn agent(&self) -> AgentId {
        AgentId::derive(self.site, "default", self.host)
    }

    pub(crate) fn peer(&self) -> Self {
        if self.host == "far" { NEAR } else { FAR }
    }

    /// Host of this side, and its address.
    pub(crate) fn pod(&self) -> (&'static str, Ipv4Addr) {
        if self.host == "far" { ("server", SERVER) } else { ("client", CLIENT) }
    }

    fn site_secret(&self) -> [u8; 32] {
        [u8::try_from(self.site_id).unwrap(); 32]
    }

    pub(crate) fn site_key(&self) -> Key {
        Key::new(self.site_secret())
    }
}

/// The key that the two sites share.
const PAIR_SECRET: [u8; 32] = [9; 32];

/// Connection between hosts and agents.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// A bridge redirects packets between the hosts to the agents.
    Bridge,
    /// The agents' machines are the hosts' routers.
    Routes,
    /// The hosts act as pods on the agents' machines.
    Pods,
}

/// The agents' own addresses on each of the two WAN links: near, then far.
pub(crate) const WAN: [[Ipv4Addr; 2]; 2] = [
    [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)],
    [Ipv4Addr::new(192, 0, 2, 5), Ipv4Addr::new(192, 0, 2, 6)],
];

/// The network. Its namespaces and files are deleted when the value is dropped.
pub(crate) struct Lab {
    id: String,
    network: Network,
    /// Configurations, keys and state of the agents.
    pub(crate) dir: tempfile::TempDir,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Lab {
    pub(crate) fn new() -> Self {
        Self::on(Network::Bridge)
    }

    /// A network of the given kind, without agents.
    pub(crate) fn on(network: Network) -> Self {
        let lab = Self::unconnected(network);
        match network {
            Network::Bridge => lab.plug_into_a_bridge(),
            Network::Routes | Network::Pods => lab.route(),
        }
        lab
    }

    /// A lab without any namespace.
    pub(crate) fn unconnected(network: Network) -> Self {
        let id = format!("sa{:x}{:x}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        Self { id, network, dir: tempfile::tempdir().unwrap() }
    }

    fn route(&self) {
        let (near, far) = (self.ns("near"), self.ns("far"));
        for host in ["client", "near", "far", "server"] {
            sh(&format!("ip netns add {0} && ip -n {0} link set lo up", self.ns(host)));
        }
        for (host, router, address, gateway) in
            [("client", &near, "10.0.0.11", "10.0.0.126"), ("server", &far, "10.0.0.139", "10.0.0.254")]
        {
            let ns = self.ns(host);
            sh(&format!(
                "ip -n {router} link add net0 type veth peer name eth0 netns {ns} && \
                 ip -n {router} address add {gateway}/25 dev net0 && ip -n {router} link set net0 up && \
                 ip -n {ns} address add {address}/25 dev eth0 && ip -n {ns} link set eth0 up && \
                 ip -n {ns} route add default via {gateway} && ip netns exec {router} sysctl -qw net.ipv4.ip_forward=1"
            ));
        }
        for (number, [ours, theirs]) in WAN.into_iter().enumerate() {
            sh(&format!(
                "ip -n {near} link add wan{number} type veth peer name wan{number} netns {far} && \
                 ip -n {near} address add {ours}/30 dev wan{number} && ip -n {near} link set wan{number} up && \
                 ip -n {far} address add {theirs}/30 dev wan{number} && ip -n {far} link set wan{number} up"
            ));
        }
        self.ip("near", &format!("route add 10.0.0.128/25 via {}", WAN[0][1]));
        self.ip("far", &format!("route add 10.0.0.0/25 via {}", WAN[0][0]));
    }

    fn plug_into_a_bridge(&self) {
        let lab = self;
        sh(&format!(
            "ip netns add {0} && ip -n {0} link add br0 type bridge && ip -n {0} link set br0 up",
            lab.ns("sw")
        ));
        for (host, address, device) in [
            ("client", "10.0.0.11/24", "eth0"),
            ("server", "10.0.0.139/24", "eth0"),
            ("near", "", "net0"),
            ("far", "", "net0"),
            ("ctl", "198.18.255.254/32", "eth0"),
        ] {
            lab.plug(host, address, device);
        }
        lab.redirect();
        lab.ip("ctl", "route add 10.0.0.0/24 dev eth0");
    }

    /// Directs packets between the hosts to the agents. Call this again after a link was down, because the kernel then removes neighbour
    /// entries.
    pub(crate) fn redirect(&self) {
        if self.network != Network::Bridge {
            // The kernel removes the routes of a link that goes down.
            return sh_all([
                format!("ip -n {} route replace default via 10.0.0.126", self.ns("client")),
                format!("ip -n {} route replace default via 10.0.0.254", self.ns("server")),
            ]);
        }
        self.ip("client", &format!("neigh replace {SERVER} lladdr {} dev eth0 nud permanent", mac("near")));
        self.ip("server", &format!("neigh replace {CLIENT} lladdr {} dev eth0 nud permanent", mac("far")));
    }

    /// Full name of a namespace of this lab.
    pub(crate) fn ns(&self, host: &str) -> String {
        format!("{}-{host}", self.id)
    }

    fn plug(&self, host: &str, address: &str, device: &str) {
        let (ns, sw) = (self.ns(host), self.ns("sw"));
        sh(&format!(
            "ip netns add {ns} && ip -n {ns} link set lo up && \
             ip -n {sw} link add p-{host} type veth peer name {device} address {} netns {ns} && \
             ip -n {sw} link set p-{host} master br0 up && ip -n {ns} link set {device} up",
            mac(host)
        ));
        if !address.is_empty() {
            self.ip(host, &format!("address add {address} dev {device}"));
        }
    }

    /// `ip` in a host's namespace.
    pub(crate) fn ip(&self, host: &str, arguments: &str) -> String {
        sh(&format!("ip -n {} {arguments}", self.ns(host)))
    }

    /// Runs a function in a host's namespace, on a thread of its own.
    pub(crate) fn at<T: Send + 'static>(&self, host: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(host, act).join().unwrap()
    }

    /// Starts a function as [`Self::at`] does, but does not wait for it.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        host: &str,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let ns = File::open(format!("/run/netns/{}", self.ns(host))).unwrap();
        std::thread::spawn(move || {
            setns(ns, CloneFlags::CLONE_NEWNET).unwrap();
            act()
        })
    }

    /// Writes a side's configuration and keys; returns the configuration's path.
    pub(crate) fn configure(&self, side: Side, generation: u64) -> PathBuf {
        self.configure_as(side, self.document(side, generation))
    }

    /// Configures a side as [`Self::configure`] does, after a change of the document.
    pub(crate) fn configure_with(
        &self,
        side: Side,
        generation: u64,
        change: impl FnOnce(&mut serde_json::Value),
    ) {
        let mut document = self.document(side, generation);
        change(&mut document);
        self.configure_as(side, document);
    }

    /// Configures a side as [`Self::configure`] does, with another session limit.
    pub(crate) fn configure_small(&self, side: Side, sessions: u32) {
        let mut small = self.document(side, 1);
        small["limits"]["sessions"] = sessions.into();
        self.configure_as(side, small);
    }

    /// Starts both agents with this `accept` of the service, and waits until the near agent is armed.
    pub(crate) fn agents_that_accept(&self, accept: &str) -> (Agent, Agent) {
        self.agents_with(|_, document| document["services"][0]["accept"] = accept.into())
    }

    /// Starts both agents after a change of their documents, and waits until the near agent is armed.
    pub(crate) fn agents_with(&self, change: impl Fn(Side, &mut serde_json::Value)) -> (Agent, Agent) {
        let pods = [NEAR, FAR].map(|side| {
            let mut document = self.document(side, 1);
            change(side, &mut document);
            let pods = document["pods"].as_array().map_or(0, |pods| pods.len() as u64);
            self.configure_as(side, document);
            pods
        });
        let agents = (self.agent_in(NEAR, "near", "none"), self.agent_in(FAR, "far", "none"));
        self.wait_armed(&agents, pods);
        agents
    }

    fn document(&self, side: Side, generation: u64) -> serde_json::Value {
        let mut document = document(side, generation);
        if self.network != Network::Bridge {
            let at = |side: Side| WAN.map(|link| link[usize::from(side.host == "far")].to_string());
            let fields = document.as_object_mut().unwrap();
            fields.remove("interface");
            fields.remove("discovery");
            document["wan"] = serde_json::json!(at(side));
            document["intake"] = serde_json::json!({"type": "Routed", "interface": "net0"});
            if self.network == Network::Pods {
                document["intake"] = serde_json::json!({"type": "Pods", "networkPolicies": "Respect"});
                document["pods"] = serde_json::json!([{"name": format!("default/{}", side.pod().0), "address": side.pod().1}]);
            }
            document["streamPorts"]["count"] = 2.into();
            document["services"][0]["labels"] = 2.into();
            let peer = &mut document["peers"][0]["agents"][0];
            peer["addresses"] = serde_json::json!(at(side.peer()));
            peer["address"] = peer["addresses"][0].clone();
            if self.network == Network::Pods {
                peer["prefixes"] = serde_json::json!([side.peer().prefix]);
            }
        }
        document
    }

    pub(crate) fn configure_as(&self, side: Side, document: serde_json::Value) -> PathBuf {
        let dir = self.dir.path().join(side.host);
        let keys = dir.join("keys");
        std::fs::create_dir_all(&keys).unwrap();
        write_key(&keys.join("site-1"), side.site_secret());
        write_key(&keys.join(format!("pair-{}-1", side.peer().site_id)), PAIR_SECRET);
        let path = dir.join(format!("{}.json", side.host));
        std::fs::write(&path, sealed(document)).unwrap();
        path
    }

    /// Starts a side's agent in its namespace, as a testbed does.
    pub(crate) fn agent(&self, side: Side) -> Agent {
        self.configure(side, 1);
        self.agent_in(side, side.host, "none")
    }

    /// Starts a side's agent from a given namespace.
    pub(crate) fn agent_in(&self, side: Side, host: &str, attach: &str) -> Agent {
        let dir = self.dir.path().join(side.host);
        let log = dir.join("log");
        let log_file = File::options().create(true).append(true).open(&log).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_sos-agent"));
        command
            .arg("--config")
            .arg(&dir)
            .args(["--node", side.host, "--attach", attach])
            .arg("--keys")
            .arg(dir.join("keys"))
            .arg("--state")
            .arg(dir.join("state"))
            .arg("--netns")
            .arg(self.namespaces(side))
            .arg("--peers")
            .arg(dir.join("peers.json"))
            .env("RUST_LOG", "sos=debug,sos_agent=debug,sos_tunnel=debug")
            .stdin(Stdio::null())
            .stderr(log_file);
        let child = self.at(host, move || command.spawn().unwrap());
        Agent { child, log, metrics_ns: PathBuf::from(format!("/run/netns/{}", self.ns(host))) }
    }

    /// Folder of network namespaces for a side's agent (`--netns`), with a link to the namespace of the side's host.
    pub(crate) fn namespaces(&self, side: Side) -> PathBuf {
        let folder = self.dir.path().join(format!("{}-netns", side.host));
        std::fs::create_dir_all(&folder).unwrap();
        let pod = folder.join(side.pod().0);
        if !pod.exists() {
            std::os::unix::fs::symlink(format!("/run/netns/{}", self.ns(side.pod().0)), pod).unwrap();
        }
        folder
    }

    /// Starts a side's agent, and waits until it reports its configuration on the metrics page.
    pub(crate) fn agent_until_ready(&self, side: Side) -> Agent {
        let agent = self.agent(side);
        agent.wait_metric("sos_agent_config_generation", |generation| generation == 1);
        agent
    }

    /// Starts both agents, and waits until the near agent is armed.
    pub(crate) fn agents(&self) -> (Agent, Agent) {
        let agents = (self.agent(NEAR), self.agent(FAR));
        self.wait_armed(&agents, [1, 1]);
        agents
    }

    /// Waits until new connections of the clients are intercepted. `pods` are the numbers of the two nodes' pods, in a network of pods.
    fn wait_armed(&self, agents: &(Agent, Agent), pods: [u64; 2]) {
        agents.0.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
        if self.network == Network::Pods {
            for (agent, expected) in [&agents.0, &agents.1].into_iter().zip(pods) {
                agent.wait_metric("sos_agent_intercepted_pods", |pods| pods == expected);
            }
            let table = format!("ip netns exec {} nft list table inet sos", self.ns("client"));
            eventually("the client's pod is armed", || {
                let listed = Command::new("sh").args(["-c", &table]).output().unwrap();
                let text = String::from_utf8_lossy(&listed.stdout).into_owned();
                text.contains("meta mark set ip saddr map @armed_clients")
                    && text.contains("elements = { tcp expires")
            });
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for host in ["client", "server", "near", "far", "ctl", "sw", "twin", "wan"] {
            let _ = Command::new("ip").args(["netns", "delete", &self.ns(host)]).status();
        }
    }
}

pub(crate) fn write_key(path: &std::path::Path, secret: [u8; 32]) {
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    std::fs::write(path, hex).unwrap();
}

pub(crate) fn document(side: Side, generation: u64) -> serde_json::Value {
    let peer = side.peer();
    let role = if side.host == "near" { "Ingress" } else { "Egress" };
    serde_json::json!({
        "version": "v1alpha1", "generation": generation, "hash": "",
        "node": side.host, "pool": "default", "agentId": side.agent().to_string(),
        "site": {"name": side.site, "id": side.site_id, "prefixes": [side.prefix], "rewrite": "Transparent"},
        "interface": {"name": "net0", "address": format!("{}/24", side.address), "mac": mac(side.host), "mtu": 1500,
                      "gateway": null, "hostName": "sosag0", "hostPort": 201},
        "discovery": {"address": DISCOVERY, "mac": mac("ctl"), "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
        "streamPorts": {"first": 10000, "count": 8},
        "peers": [{"site": peer.site, "siteID": peer.site_id, "prefixes": [peer.prefix],
                   "agents": [{"id": peer.agent().to_string(), "node": peer.host, "address": peer.address,
                               "firstStreamPort": 10000}]}],
        "services": [{"id": "default/bulk", "role": role, "peer": peer.site, "setup": "Proactive",
                      "from": [NEAR.prefix], "to": [FAR.prefix], "ports": [{"first": 5000, "last": 5999}],
                      "transport": {"streams": 0, "blockBytes": 0, "queueBytes": 0, "congestionControl": "Auto"}, "labels": 1}],
        "limits": {"sessions": 4096, "memoryMiB": 1024, "sessionMemoryMiB": 32},
        "metricsAddress": "127.0.0.1:9465", "drainSeconds": 20
    })
}

fn sealed(mut document: serde_json::Value) -> Vec<u8> {
    document["hash"] = document::document_hash(document.to_string().as_bytes()).unwrap().into();
    document.to_string().into_bytes()
}

/// Waits until a condition holds, for [`PATIENCE`] at most.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
