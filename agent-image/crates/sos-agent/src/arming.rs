//! Whether and for what the agent takes over new connections (design: the switches redirect, the agent decides;
//! spec/node-config.md clause 11).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use sos_wire::AgentId;

use crate::config::{AgentConfig, Role};
use crate::permit;
use crate::region::{Region, disjoint};

/// Most boxes in the set `armed`. Cutting boxes apart is quadratic: this many take some 20 ms, and it is done only when
/// something changes.
pub const MAX_ARMED: usize = 4_096;
/// How long a server that did not answer a SYN is left to plain TCP.
pub const UNREACHABLE_FOR: Duration = Duration::from_secs(30);
/// Most servers remembered as unreachable; beyond it the one that ends first is forgotten.
pub const MAX_UNREACHABLE: usize = 256;
/// Arming stops a little below the limits, so that the SYNs already on their way still find room.
const LIMIT_MARGIN_DIVISOR: u32 = 16;

/// What decides whether the agent is willing to take new sessions at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// SIGTERM was received.
    pub draining: bool,
    /// Sessions open.
    pub sessions: u32,
    /// Bytes held for all sessions.
    pub memory_bytes: u64,
}

/// Healthy and below its limits: what the beacon's flag `willing` says.
#[must_use]
pub fn willing(config: &AgentConfig, health: Health) -> bool {
    !health.draining && sessions_left(config, health) && memory_left(config, health)
}

/// Whether the session limit leaves room for new sessions.
#[must_use]
pub fn sessions_left(config: &AgentConfig, health: Health) -> bool {
    let limit = config.limits.sessions;
    health.sessions < limit - limit / LIMIT_MARGIN_DIVISOR
}

/// Whether the memory limit leaves room for new sessions.
#[must_use]
pub fn memory_left(config: &AgentConfig, health: Health) -> bool {
    let limit = u64::from(config.limits.memory_mib) << 20;
    health.memory_bytes < limit - limit / u64::from(LIMIT_MARGIN_DIVISOR)
}

/// Servers whose SYN stayed unanswered lately.
#[derive(Debug, Default)]
pub struct Unreachable {
    until: BTreeMap<SocketAddrV4, Instant>,
}

impl Unreachable {
    /// Remembers a server. Bounded by [`MAX_UNREACHABLE`].
    pub fn note(&mut self, server: SocketAddrV4, now: Instant) {
        self.until.insert(server, now + UNREACHABLE_FOR);
        if self.until.len() > MAX_UNREACHABLE
            && let Some(first) = self.until.iter().min_by_key(|(_, until)| **until).map(|(server, _)| *server)
        {
            self.until.remove(&first);
        }
    }

    /// Whether a server stays plain for now.
    #[must_use]
    pub fn contains(&self, server: SocketAddrV4) -> bool {
        self.until.contains_key(&server)
    }

    /// Forgets those whose time is over.
    pub fn expire(&mut self, now: Instant) {
        self.until.retain(|_, until| *until > now);
    }

    fn regions(&self) -> Vec<Region> {
        self.until.keys().map(|server| Region::of_server(*server.ip(), server.port())).collect()
    }
}

/// What nft should hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Armed {
    /// The set `armed`; empty when nothing may be taken over.
    pub regions: Vec<Region>,
    /// Boxes of services that did not fit and stay plain.
    pub left_out: usize,
}

/// Everything the agent may take over now: Ingress services whose far agent is alive, without the servers that did not
/// answer.
#[must_use]
pub fn armed(config: &AgentConfig, live: &BTreeSet<AgentId>, unreachable: &Unreachable) -> Armed {
    let mut wanted = Vec::new();
    let mut left_out = 0;
    for service in config.services.iter().filter(|service| service.role == Role::Ingress) {
        if permit::far_agent(config, service, |id| live.contains(&id)).is_none() {
            continue;
        }
        if service.from.len() * service.to.len() * service.ports.len() > MAX_ARMED {
            left_out += 1;
            continue;
        }
        for from in &service.from {
            for to in &service.to {
                wanted.extend(
                    service.ports.iter().map(|ports| Region::new(*from, *to, (ports.first, ports.last))),
                );
            }
        }
    }
    let (regions, over) = disjoint(&wanted, &unreachable.regions(), MAX_ARMED);
    Armed { regions, left_out: left_out + over }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;
    use std::net::Ipv4Addr;

    fn far() -> BTreeSet<AgentId> {
        BTreeSet::from([config().peers[0].agents[0].id])
    }

    fn health(sessions: u32) -> Health {
        Health { draining: false, sessions, memory_bytes: 0 }
    }

    #[test]
    fn a_limit_or_draining_makes_unwilling() {
        let config = config();
        assert!(willing(&config, health(0)));
        assert!(willing(&config, health(3839)));
        assert!(!willing(&config, health(3840)));
        assert!(!willing(&config, Health { draining: true, ..health(0) }));
        assert!(!willing(&config, Health { memory_bytes: 1000 << 20, ..health(0) }));
        let mut tiny = config;
        tiny.limits.sessions = 1;
        assert!(willing(&tiny, health(0)));
        assert!(!willing(&tiny, health(1)));
    }

    #[test]
    fn arms_for_live_peers_only() {
        let config = config();
        assert!(armed(&config, &BTreeSet::new(), &Unreachable::default()).regions.is_empty());
        assert!(
            armed(&config, &BTreeSet::from([AgentId([3; 16])]), &Unreachable::default()).regions.is_empty()
        );
        let regions = armed(&config, &far(), &Unreachable::default()).regions;
        assert_eq!(regions.len(), 2);
        let client = Ipv4Addr::new(10, 0, 0, 11);
        assert!(regions.iter().any(|r| r.contains(client, Ipv4Addr::new(10, 0, 0, 139), 5999)));
        assert!(!regions.iter().any(|r| r.contains(client, Ipv4Addr::new(10, 0, 0, 139), 80)));
    }

    #[test]
    fn egress_services_arm_nothing() {
        let mut config = config();
        config.services[0].role = Role::Egress;
        assert!(armed(&config, &far(), &Unreachable::default()).regions.is_empty());
    }

    #[test]
    fn a_silent_server_is_plain_for_a_while() {
        let config = config();
        let server: SocketAddrV4 = "10.0.0.139:5003".parse().unwrap();
        let now = Instant::now();
        let mut unreachable = Unreachable::default();
        unreachable.note(server, now);
        let taken = |unreachable: &Unreachable| {
            armed(&config, &far(), unreachable)
                .regions
                .iter()
                .any(|r| r.contains(Ipv4Addr::new(10, 0, 0, 11), *server.ip(), server.port()))
        };
        unreachable.expire(now + UNREACHABLE_FOR - Duration::from_millis(1));
        assert!(!taken(&unreachable));
        unreachable.expire(now + UNREACHABLE_FOR);
        assert!(taken(&unreachable));
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
