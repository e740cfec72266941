//! Arming: the agent's willingness to accept new sessions, and the flows that it intercepts (design: the switches redirect, the agent
//! decides; spec/node-config.md clause 11).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::AgentId;

use crate::documents::config::{AgentConfig, Role, Service, Setup};
use crate::policy::classifier::{self, Classifier, Rule};
use crate::policy::flow_policy;

/// Maximum number of elements in nft's sets for all services: the kernel loads this many in about 0.25 s of CPU time, and only after a change
/// (docs/adr/0050). A service needs one element per prefix and port range, and more if it overlaps with other services.
pub const MAX_ARMED: usize = 16_384;
/// Time for which a server that did not answer a SYN is left to plain TCP.
pub const UNREACHABLE_FOR: Duration = Duration::from_secs(30);
/// Maximum number of servers remembered as unreachable; above that the server that expires first is removed.
pub const MAX_UNREACHABLE: usize = 256;
/// Divisor of the session limit and of the memory limit: the agent is unwilling from 15/16 of a limit on, which leaves capacity for SYNs
/// already in flight.
const LIMIT_MARGIN_DIVISOR: u32 = 16;

/// Inputs of the agent's willingness to accept new sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// SIGTERM was received.
    pub draining: bool,
    /// Another node may have the site's virtual address.
    pub backup: bool,
    /// Open sessions.
    pub sessions: u32,
    /// Bytes reserved for all sessions.
    pub memory_bytes: u64,
}

/// True if the agent is healthy, below its limits and not a backup: the beacon's flag `willing`.
#[must_use]
pub fn willing(config: &AgentConfig, health: Health) -> bool {
    !health.draining && !health.backup && sessions_left(config, health) && memory_left(config, health)
}

/// True if the session limit allows new sessions.
#[must_use]
pub fn sessions_left(config: &AgentConfig, health: Health) -> bool {
    let limit = config.limits.sessions;
    health.sessions < limit - limit / LIMIT_MARGIN_DIVISOR
}

/// True if the memory limit allows new sessions.
#[must_use]
pub fn memory_left(config: &AgentConfig, health: Health) -> bool {
    let limit = u64::from(config.limits.memory_mib) << 20;
    health.memory_bytes < limit - limit / u64::from(LIMIT_MARGIN_DIVISOR)
}

/// Servers that recently left a SYN unanswered.
#[derive(Debug, Default)]
pub struct Unreachable {
    until: BTreeMap<SocketAddrV4, Instant>,
}

impl Unreachable {
    /// Adds a server. Bounded by [`MAX_UNREACHABLE`].
    pub fn note(&mut self, server: SocketAddrV4, now: Instant) {
        self.until.insert(server, now + UNREACHABLE_FOR);
        if self.until.len() > MAX_UNREACHABLE
            && let Some(first) = self.until.iter().min_by_key(|(_, until)| **until).map(|(server, _)| *server)
        {
            self.until.remove(&first);
        }
    }

    /// True if a server is temporarily left to plain TCP.
    #[must_use]
    pub fn contains(&self, server: SocketAddrV4) -> bool {
        self.until.contains_key(&server)
    }

    /// Removes expired servers.
    pub fn expire(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
    }

    fn servers(&self) -> Vec<SocketAddrV4> {
        self.until.keys().copied().collect()
    }
}

/// Content of nft's sets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Armed {
    /// Flows that may be accelerated.
    pub covered: Arc<Classifier>,
    /// Servers temporarily left to plain TCP, even if a service covers them.
    pub unreachable: Vec<SocketAddrV4>,
    /// Ids of services that did not fit and stay plain.
    pub left_out: Vec<String>,
}

/// Flows to arm: Ingress services that have a live egress agent, without unreachable servers. The classifier is kept until the
/// configuration or the set of live agents changes.
#[derive(Debug, Default)]
pub struct Coverage {
    of: Option<(Arc<AgentConfig>, BTreeSet<AgentId>)>,
    can_hold: bool,
    covered: Arc<Classifier>,
    left_out: Vec<String>,
}

impl Coverage {
    /// An empty coverage. If this agent cannot hold SYNs, services whose SYNs are held are left out.
    #[must_use]
    pub fn new(can_hold: bool) -> Self {
        Self { can_hold, ..Self::default() }
    }

    /// Flows that may be accelerated.
    pub fn armed(
        &mut self,
        config: &Arc<AgentConfig>,
        live: &BTreeSet<AgentId>,
        unreachable: &Unreachable,
    ) -> Armed {
        let same = |(known, agents): &(Arc<AgentConfig>, _)| Arc::ptr_eq(known, config) && agents == live;
        if !self.of.as_ref().is_some_and(same) {
            let (covered, left_out) = covered(config, live, self.can_hold);
            (self.covered, self.left_out) = (Arc::new(covered), left_out);
            self.of = Some((Arc::clone(config), live.clone()));
        }
        Armed {
            covered: Arc::clone(&self.covered),
            unreachable: unreachable.servers(),
            left_out: self.left_out.clone(),
        }
    }
}

fn covered(config: &AgentConfig, live: &BTreeSet<AgentId>, can_hold: bool) -> (Classifier, Vec<String>) {
    let services: Vec<&Service> = config
        .services
        .iter()
        .filter(|service| service.role == Role::Ingress && (can_hold || !needs_hold(config, service)))
        .filter(|service| flow_policy::far_agent(config, service, None, |id| live.contains(&id)).is_some())
        .collect();
    let rule = |service: &&Service| {
        let ports = service.ports.iter().map(|ports| (ports.first, ports.last));
        Rule { held: can_hold && held(config, service), ..Rule::new(&service.from, &service.to, ports) }
    };
    let (covered, over) = classifier::fitting(&services.iter().map(rule).collect::<Vec<_>>(), MAX_ARMED);
    (covered, over.into_iter().map(|index| services[index].id.clone()).collect())
}

/// True if the SYNs of a service pass this agent: it must decide about them, or must find clients that do not complete their handshakes.
/// For a reactive service, the controller does the latter.
fn held(config: &AgentConfig, service: &Service) -> bool {
    service.setup == Setup::Proactive || needs_hold(config, service)
}

/// True if the SYNs of a service must be held: until its servers accept, until the plain path has been checked, or until a session of its
/// namespace's share is reserved.
fn needs_hold(config: &AgentConfig, service: &Service) -> bool {
    service.holds() || config.checks_paths() || config.share(service.namespace()).is_some()
}

impl Armed {
    /// The flows of one client.
    #[must_use]
    pub fn of_client(&self, client: Ipv4Addr) -> Self {
        Self { covered: Arc::new(self.covered.of_client(client)), ..self.clone() }
    }

    /// True if a new connection may be accelerated.
    #[must_use]
    pub fn takes(&self, client: Ipv4Addr, server: SocketAddrV4) -> bool {
        !self.unreachable.contains(&server) && self.covered.contains(client, *server.ip(), server.port())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    fn armed(config: &AgentConfig, live: &BTreeSet<AgentId>, unreachable: &Unreachable) -> Armed {
        Coverage::new(true).armed(&Arc::new(config.clone()), live, unreachable)
    }

    #[test]
    fn coverage_follows_configuration_and_peers() {
        let (first, mut second) = (Arc::new(config()), config());
        second.services[0].ports.truncate(1);
        let (second, none) = (Arc::new(second), Unreachable::default());
        let mut coverage = Coverage::default();
        let before = coverage.armed(&first, &far(), &none);
        assert!(Arc::ptr_eq(&before.covered, &coverage.armed(&first, &far(), &none).covered));
        assert_ne!(before, coverage.armed(&second, &far(), &none));
        assert!(coverage.armed(&second, &BTreeSet::new(), &none).covered.is_empty());
    }

    fn far() -> BTreeSet<AgentId> {
        BTreeSet::from([config().peers[0].agents[0].id])
    }

    fn health(sessions: u32) -> Health {
        Health { draining: false, backup: false, sessions, memory_bytes: 0 }
    }

    #[test]
    fn limits_draining_and_the_lack_of_the_virtual_address_make_the_agent_unwilling() {
        let config = config();
        assert!(willing(&config, health(0)));
        assert!(willing(&config, health(3839)));
        assert!(!willing(&config, health(3840)));
        assert!(!willing(&config, Health { draining: true, ..health(0) }));
        assert!(!willing(&config, Health { backup: true, ..health(0) }));
        assert!(!willing(&config, Health { memory_bytes: 1000 << 20, ..health(0) }));
        let mut tiny = config;
        tiny.limits.sessions = 1;
        assert!(willing(&tiny, health(0)));
        assert!(!willing(&tiny, health(1)));
    }

    #[test]
    fn arms_for_live_peers_only() {
        let config = config();
        let none = BTreeSet::new();
        assert!(armed(&config, &none, &Unreachable::default()).covered.is_empty());
        let stranger = BTreeSet::from([AgentId([3; 16])]);
        assert!(armed(&config, &stranger, &Unreachable::default()).covered.is_empty());
        let armed = armed(&config, &far(), &Unreachable::default());
        let client = Ipv4Addr::new(10, 0, 0, 11);
        assert!(armed.takes(client, "10.0.0.139:5999".parse().unwrap()));
        assert!(!armed.takes(client, "10.0.0.139:80".parse().unwrap()));
    }

    #[test]
    fn egress_services_arm_nothing() {
        let mut config = config();
        config.services[0].role = Role::Egress;
        assert!(armed(&config, &far(), &Unreachable::default()).covered.is_empty());
    }

    #[test]
    fn a_silent_server_is_plain_for_a_while() {
        let config = config();
        let server: SocketAddrV4 = "10.0.0.139:5003".parse().unwrap();
        let now = Instant::now();
        let mut unreachable = Unreachable::default();
        unreachable.note(server, now);
        let taken = |unreachable: &Unreachable| {
            armed(&config, &far(), unreachable).takes(Ipv4Addr::new(10, 0, 0, 11), server)
        };
        unreachable.expire(now + UNREACHABLE_FOR - Duration::from_millis(1));
        assert!(!taken(&unreachable));
        unreachable.expire(now + UNREACHABLE_FOR);
        assert!(taken(&unreachable));
    }

    #[test]
    fn a_service_that_does_not_fit_is_named() {
        let mut config = config();
        let template = config.services[0].clone();
        // Each service has its own client class and its own servers: the worst case, the product of services and servers.
        config.services = (0..256u32)
            .map(|i| Service {
                id: format!("default/s{i}"),
                from: vec![format!("10.{}.0.0/16", i).parse().unwrap()],
                to: (0..64u32).map(|j| format!("172.16.{j}.{i}/32").parse().unwrap()).collect(),
                ..template.clone()
            })
            .collect();
        let armed = armed(&config, &far(), &Unreachable::default());
        assert!(armed.covered.len() <= MAX_ARMED);
        assert_eq!(armed.left_out.last().map(String::as_str), Some("default/s255"));
    }

    #[test]
    fn remembers_a_bounded_number_of_servers() {
        let now = Instant::now();
        let mut unreachable = Unreachable::default();
        for i in 0..1_000u32 {
            let server = SocketAddrV4::new(Ipv4Addr::from(i), 80);
            unreachable.note(server, now + Duration::from_millis(i.into()));
        }
        assert_eq!(unreachable.until.len(), MAX_UNREACHABLE);
        assert!(unreachable.until.contains_key(&SocketAddrV4::new(Ipv4Addr::from(999), 80)));
    }
}
