//! Routes of streams during their handshakes, on a machine whose routes the agent does not manage.
//!
//! A TCP connection takes its initial congestion window from its route (`initcwnd`, ip-route(8)) and no socket option sets this window. On a
//! bridge, the agent's own routes give streams the window that lets the first session start at once. On a machine whose routes the agent
//! does not manage, a stream's SYN has the mark [`OPENING`](crate::netns::nft::OPENING). A rule looks up packets with this mark in
//! [`STREAM_TABLE`], which contains copies of the machine's routes to the peers' agents, with the window added. An established stream loses
//! the mark and follows the machine's routes, so that a stale copy delays new streams only.
//!
//! Pure, except [`StreamRoutes`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tracing::debug;

use crate::documents::config::{AgentConfig, PeerAgent, RouteOwner};
use crate::netns::plan::{self, STREAM_START, STREAM_TABLE};
use crate::netns::{self, NetError, batch};

/// Interval at which the machine's routes are copied again. After a change of a route to a peer, new streams to this peer fail until the
/// next copy, and are then dialed again.
const REFRESH: Duration = Duration::from_secs(10);

/// Next hop of a machine's route.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct NextHop {
    /// Router; absent if the peer is on the link.
    gateway: Option<Ipv4Addr>,
    /// Interface.
    dev: String,
}

/// One answer of `ip -json route get`.
#[derive(Debug, Deserialize)]
struct Answer {
    dst: Ipv4Addr,
    #[serde(rename = "type")]
    kind: Option<String>,
    /// A next hop of another address family.
    via: Option<serde_json::Value>,
    /// Labels or tunnels of the route (ip-route(8)).
    encap: Option<serde_json::Value>,
    #[serde(flatten)]
    next_hop: NextHop,
}

impl Answer {
    /// True if a copy that has only the route's gateway and interface forwards as the route does.
    fn is_copied_whole(&self) -> bool {
        self.kind.as_deref().is_none_or(|kind| kind == "unicast")
            && self.via.is_none()
            && self.encap.is_none()
    }
}

/// Pairs of addresses between which streams are dialed: for each path label, the peer's address and the agent's own address.
fn pairs(config: &AgentConfig) -> BTreeSet<(Ipv4Addr, Ipv4Addr)> {
    let agents = config.peers.iter().flat_map(|peer| &peer.agents);
    let of_agent = |agent: &PeerAgent| {
        let to = |label: usize| agent.addresses.get(label).copied().unwrap_or(agent.address);
        config.wan.iter().enumerate().map(|(label, from)| (to(label), *from)).collect::<Vec<_>>()
    };
    agents.flat_map(of_agent).collect()
}

/// Input of `ip -batch -` that looks up the machine's routes.
fn lookups(pairs: &BTreeSet<(Ipv4Addr, Ipv4Addr)>) -> String {
    pairs.iter().fold(String::new(), |mut script, (to, from)| {
        let _ = writeln!(script, "route get {to} from {from}");
        script
    })
}

/// Reads the answers. A peer has no copy if its routes differ by source address, lead to this machine itself, or need more than a gateway
/// and an interface.
fn parse(json: &[u8]) -> BTreeMap<Ipv4Addr, NextHop> {
    let answers = serde_json::Deserializer::from_slice(json).into_iter::<Vec<serde_json::Value>>();
    let mut found: BTreeMap<Ipv4Addr, Option<NextHop>> = BTreeMap::new();
    for answer in answers.map_while(Result::ok).flatten() {
        let Ok(answer) = serde_json::from_value::<Answer>(answer) else { continue };
        let next_hop = answer.is_copied_whole().then_some(answer.next_hop);
        found
            .entry(answer.dst)
            .and_modify(|known| *known = known.take().filter(|k| Some(k) == next_hop.as_ref()))
            .or_insert(next_hop);
    }
    found.into_iter().filter_map(|(to, next_hop)| Some((to, next_hop?))).collect()
}

/// Input of `ip -batch -` that turns the copies in force into the wanted copies.
fn changes(in_force: &BTreeMap<Ipv4Addr, NextHop>, wanted: &BTreeMap<Ipv4Addr, NextHop>) -> String {
    let mut script = String::new();
    for to in in_force.keys().filter(|to| !wanted.contains_key(to)) {
        let _ = writeln!(script, "route delete {to}/32 table {STREAM_TABLE}");
    }
    for (to, NextHop { gateway, dev }) in wanted {
        // onlink: some clouds' gateways are outside the interface's subnet.
        let via = gateway.map_or_else(|| "scope link".to_owned(), |gateway| format!("via {gateway} onlink"));
        let _ = writeln!(
            script,
            "route replace {to}/32 {via} dev {dev} initcwnd {STREAM_START} initrwnd {STREAM_START} table {STREAM_TABLE}"
        );
    }
    script
}

/// The copies in force.
#[derive(Debug, Default)]
pub struct StreamRoutes {
    in_force: BTreeMap<Ipv4Addr, NextHop>,
    refreshed: Option<Instant>,
}

impl StreamRoutes {
    /// Adds the rule, and the copies of a configuration. Without the rule, streams start with the kernel's window.
    #[must_use]
    pub fn open(config: &AgentConfig) -> Self {
        let mut routes = Self::default();
        if config.route_owner() == RouteOwner::Machine {
            apply(&plan::stream_rule());
            routes.update(config, Instant::now());
        }
        routes
    }

    /// Refreshes the copies of the machine's routes every [`REFRESH`]. Blocks while ip runs.
    pub fn refresh(&mut self, config: &AgentConfig, now: Instant) {
        if self.refreshed.is_some_and(|refreshed| now.duration_since(refreshed) >= REFRESH) {
            self.update(config, now);
        }
    }

    /// Copies the machine's routes to the peers of a configuration. Blocks while ip runs. Does nothing on a bridge.
    pub fn update(&mut self, config: &AgentConfig, now: Instant) {
        if config.route_owner() == RouteOwner::Agent {
            return;
        }
        self.refreshed = Some(now);
        let pairs = pairs(config);
        let copied =
            copied(&pairs).and_then(|wanted| batch(&changes(&self.in_force, &wanted)).map(|_| wanted));
        match copied {
            Ok(wanted) => self.in_force = wanted,
            Err(error) => debug!(%error, "routes of streams' handshakes"),
        }
    }
}

/// Removes the rule and the copies, on a clean exit.
pub fn close() {
    apply(&plan::stream_rule_undone());
}

fn apply(commands: &[plan::Ip]) {
    if let Err(error) = commands.iter().try_for_each(netns::run) {
        debug!(%error, "the rule of streams' handshakes");
    }
}

fn copied(pairs: &BTreeSet<(Ipv4Addr, Ipv4Addr)>) -> Result<BTreeMap<Ipv4Addr, NextHop>, NetError> {
    if pairs.is_empty() {
        return Ok(BTreeMap::new());
    }
    batch(&lookups(pairs)).map(|json| parse(&json))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    fn address(text: &str) -> Ipv4Addr {
        text.parse().unwrap()
    }

    fn hop(gateway: Option<&str>, dev: &str) -> NextHop {
        NextHop { gateway: gateway.map(address), dev: dev.to_owned() }
    }

    #[test]
    fn each_path_is_looked_up_from_its_own_address() {
        let mut config = config();
        config.wan = vec![address("192.0.2.1"), address("198.51.100.1")];
        let agent = &mut config.peers[0].agents[0];
        agent.address = address("203.0.113.1");
        assert_eq!(
            lookups(&pairs(&config)),
            "route get 203.0.113.1 from 192.0.2.1\nroute get 203.0.113.1 from 198.51.100.1\n"
        );
        let agent = &mut config.peers[0].agents[0];
        agent.addresses = vec![address("203.0.113.1"), address("203.0.113.129")];
        assert_eq!(
            lookups(&pairs(&config)),
            "route get 203.0.113.1 from 192.0.2.1\nroute get 203.0.113.129 from 198.51.100.1\n"
        );
    }

    #[test]
    fn a_copy_has_the_next_hop_of_the_machines_route() {
        let json =
            br#"[{"dst":"10.9.9.9","from":"192.0.2.2","gateway":"192.0.2.1","dev":"eth0","uid":0,"cache":[]}]
[{"dst":"192.0.2.7","from":"192.0.2.2","dev":"eth0","flags":[],"uid":0,"cache":[]}]
"#;
        let wanted = parse(json);
        assert_eq!(wanted[&address("10.9.9.9")], hop(Some("192.0.2.1"), "eth0"));
        assert_eq!(
            changes(&BTreeMap::from([(address("10.1.1.1"), hop(None, "eth1"))]), &wanted),
            "route delete 10.1.1.1/32 table 5346\n\
             route replace 10.9.9.9/32 via 192.0.2.1 onlink dev eth0 initcwnd 100 initrwnd 100 table 5346\n\
             route replace 192.0.2.7/32 scope link dev eth0 initcwnd 100 initrwnd 100 table 5346\n"
        );
    }

    #[test]
    fn routes_that_a_next_hop_does_not_describe_are_not_copied() {
        let json = br#"[{"type":"local","dst":"10.0.0.1","dev":"lo"}]
[{"dst":"10.0.0.2","via":{"family":"inet6","host":"fe80::1"},"dev":"eth0"}]
[{"dst":"10.0.0.3","encap":"mpls","gateway":"192.0.2.1","dev":"eth0"}]
[{"dst":"10.0.0.4","gateway":"192.0.2.1","dev":"eth0"}]
[{"dst":"10.0.0.4","gateway":"198.51.100.1","dev":"eth1"}]
[{"dst":"10.0.0.5","gateway":"192.0.2.1","dev":"eth0"}]
[{"dst":"10.0.0.5","gateway":"192.0.2.1","dev":"eth0"}]
[]"#;
        assert_eq!(parse(json), BTreeMap::from([(address("10.0.0.5"), hop(Some("192.0.2.1"), "eth0"))]));
        assert_eq!(parse(b"RTNETLINK answers: Network is unreachable"), BTreeMap::new());
    }
}
