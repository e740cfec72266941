//! A site with two gateways that share an address, and a far site with one:
//!
//! ```text
//!                                  +-- near 10.0.0.126, 192.0.2.1 --+
//!   client 10.0.0.11 --+-- LAN ----+                                +--- WAN --+-- far 192.0.2.3, 10.0.0.254 -- server 10.0.0.139
//!                                  +-- twin 10.0.0.125, 192.0.2.2 --+
//! ```
//!
//! The gateways share 10.0.0.1 towards the hosts and 192.0.2.100 towards the far site. A test moves both addresses, as keepalived would.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use crate::lab::agent::Agent;
use crate::lab::{CLIENT, FAR, Lab, NEAR, Network, SERVER, Side, document, eventually, sh};

pub(super) const TWIN: Side = Side {
    host: "twin",
    site: "west",
    site_id: 1,
    address: Ipv4Addr::new(10, 0, 0, 125),
    prefix: NEAR.prefix,
};

/// Shared addresses, with their devices.
const SHARED: [(&str, &str); 2] = [("10.0.0.1", "net0"), ("192.0.2.100", "wan0")];

/// Direction of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opened {
    /// By the host behind the pair.
    Here,
    /// By the host of the far site.
    There,
}

impl Opened {
    /// Client, server, and the server's address.
    pub(super) fn ends(self) -> (&'static str, &'static str, Ipv4Addr) {
        match self {
            Self::Here => ("client", "server", SERVER),
            Self::There => ("server", "client", CLIENT),
        }
    }
}

/// The network, and its agents.
pub(super) struct Pair {
    pub(super) lab: Lab,
    pub(super) near: Agent,
    pub(super) twin: Agent,
    pub(super) far: Agent,
}

impl Pair {
    /// Starts all agents; `near` has the shared addresses.
    pub(super) fn start() -> Self {
        Self::start_with("Routed")
    }

    /// Starts all agents as [`Self::start`] does, with this intake of the far site.
    pub(super) fn start_with(far_intake: &str) -> Self {
        let lab = Lab::unconnected(Network::Routes);
        connect(&lab);
        assign(&lab, "near");
        for side in [NEAR, TWIN, FAR] {
            lab.configure_as(side, configuration(side, far_intake));
        }
        let agent = |side: Side| lab.agent_in(side, side.host, "none");
        let (near, twin, far) = (agent(NEAR), agent(TWIN), agent(FAR));
        let pair = Self { near, twin, far, lab };
        pair.wait_served_by(&pair.near, &pair.twin);
        if far_intake == "Pods" {
            pair.far.wait_metric("sos_agent_intercepted_pods", |pods| pods == 1);
        }
        pair
    }

    /// Waits until one gateway serves the hosts, and the other does not.
    pub(super) fn wait_served_by(&self, active: &Agent, backup: &Agent) {
        active.wait_metric("sos_agent_backup", |backup| backup == 0);
        active.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
        backup.wait_metric("sos_agent_backup", |backup| backup == 1);
        backup.wait_metric("sos_agent_willing", |willing| willing == 0);
        eventually("the far agent sees one willing gateway", || {
            let status: Value =
                serde_json::from_str(&self.far.get("/status").unwrap_or_default()).unwrap_or_default();
            let peers = status["peers"].as_array().cloned().unwrap_or_default();
            let willing =
                |host: &str| peers.iter().any(|peer| peer["node"] == host && peer["willing"] == true);
            let alive = peers.iter().filter(|peer| peer["alive"] == true).count();
            alive == 2 && willing("near") != willing("twin")
        });
        self.far.wait_metric("sos_agent_armed_regions", |armed| armed >= 1);
    }

    /// Moves the shared addresses between two running nodes.
    pub(super) fn move_shared(&self, from: &str, to: &str) {
        for (address, device) in SHARED {
            self.lab.ip(from, &format!("address del {address}/32 dev {device}"));
        }
        assign(&self.lab, to);
    }

    /// Kills `near`'s node: nothing leaves it any longer, not even a reset. Then `twin` receives the shared addresses.
    pub(super) fn fail_over(&mut self) {
        for (_, device) in SHARED {
            self.lab.ip("near", &format!("link set {device} down"));
        }
        self.near.kill();
        assign(&self.lab, "twin");
    }
}

/// Assigns the shared addresses to a node, which announces them by gratuitous ARP.
fn assign(lab: &Lab, node: &str) {
    let ns = lab.ns(node);
    for (address, device) in SHARED {
        lab.ip(node, &format!("address add {address}/32 dev {device}"));
        // With arp_notify, the kernel announces the addresses of a device whose MAC address is set, even to the same value.
        sh(&format!(
            "ip -n {ns} link set {device} address $(ip netns exec {ns} cat /sys/class/net/{device}/address)"
        ));
    }
}

fn connect(lab: &Lab) {
    for host in ["client", "near", "twin", "far", "server", "sw", "wan"] {
        sh(&format!("ip netns add {0} && ip -n {0} link set lo up", lab.ns(host)));
    }
    for segment in ["sw", "wan"] {
        sh(&format!("ip -n {0} link add br0 type bridge && ip -n {0} link set br0 up", lab.ns(segment)));
    }
    for (host, device, segment, address) in [
        ("client", "eth0", "sw", "10.0.0.11/25"),
        ("near", "net0", "sw", "10.0.0.126/25"),
        ("twin", "net0", "sw", "10.0.0.125/25"),
        ("near", "wan0", "wan", "192.0.2.1/24"),
        ("twin", "wan0", "wan", "192.0.2.2/24"),
        ("far", "wan0", "wan", "192.0.2.3/24"),
    ] {
        let (ns, of_segment) = (lab.ns(host), lab.ns(segment));
        sh(&format!(
            "ip -n {of_segment} link add p-{host} type veth peer name {device} netns {ns} && \
             ip -n {of_segment} link set p-{host} master br0 up && ip -n {ns} address add {address} dev {device} && \
             ip -n {ns} link set {device} up"
        ));
    }
    let (far, server) = (lab.ns("far"), lab.ns("server"));
    sh(&format!(
        "ip -n {far} link add net0 type veth peer name eth0 netns {server} && ip -n {far} address add 10.0.0.254/25 dev net0 && \
         ip -n {far} link set net0 up && ip -n {server} address add 10.0.0.139/25 dev eth0 && ip -n {server} link set eth0 up"
    ));
    lab.ip("client", "route add default via 10.0.0.1");
    lab.ip("server", "route add default via 10.0.0.254");
    lab.ip("far", "route add 10.0.0.0/25 via 192.0.2.100");
    for node in ["near", "twin"] {
        lab.ip(node, "route add 10.0.0.128/25 via 192.0.2.3");
    }
    for node in ["near", "twin", "far"] {
        sh(&format!(
            "ip netns exec {} sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.arp_notify=1 net.ipv4.conf.all.rp_filter=0 \
             net.ipv4.conf.default.rp_filter=0",
            lab.ns(node)
        ));
    }
}

fn wan(side: Side) -> &'static str {
    match side.host {
        "near" => "192.0.2.1",
        "twin" => "192.0.2.2",
        _ => "192.0.2.3",
    }
}

/// Configuration of a side's agent, with a service in each direction.
fn configuration(side: Side, far_intake: &str) -> Value {
    let mut document = document(side, 1);
    let fields = document.as_object_mut().unwrap();
    fields.remove("interface");
    fields.remove("discovery");
    document["wan"] = json!([wan(side)]);
    document["streamPorts"]["count"] = 1.into();
    document["intake"] = json!({"type": "Routed", "interface": "net0"});
    if (side.host, far_intake) == ("far", "Pods") {
        document["intake"] = json!({"type": "Pods"});
        document["pods"] = json!([{"name": "default/server", "address": SERVER}]);
    }
    let others = if side.host == "far" { vec![NEAR, TWIN] } else { vec![FAR] };
    if side.host != "far" {
        document["intake"]["virtualAddress"] = SHARED[0].0.into();
    }
    let agent = |other: &Side| json!({"id": other.agent().to_string(), "node": other.host, "address": wan(*other), "firstStreamPort": 10000});
    document["peers"][0]["agents"] = others.iter().map(agent).collect();
    if (side.site, far_intake) == ("west", "Pods") {
        document["peers"][0]["agents"][0]["prefixes"] = json!([FAR.prefix]);
    }
    let template = document["services"][0].clone();
    let service = |id: &str, from: Side, to: Side| {
        let mut service = template.clone();
        let role = if side.site == from.site { "Ingress" } else { "Egress" };
        let changed = json!({"id": id, "role": role, "from": [from.prefix], "to": [to.prefix], "accept": "Learned", "labels": 1});
        service.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
        service
    };
    document["services"] = json!([service("default/out", NEAR, FAR), service("default/in", FAR, NEAR)]);
    document
}
