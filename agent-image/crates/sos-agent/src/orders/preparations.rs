//! Preparations of this agent: clients that a controller announces (spec/order.md clause 3).

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use sos_wire::{AgentId, ControllerId, Prepare, Role, SessionUuid};

use crate::policy::flow_key::FlowKey;

/// Maximum number of preparations at a time (order.md clause 10).
pub const MAX_PREPARATIONS: usize = 65_536;
/// Maximum lease, even if the order requests more: a client retransmits its SYN within seconds.
pub const MAX_LEASE: Duration = Duration::from_secs(60);

/// State of the connection to the server of a preparation at the egress agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerLeg {
    /// Opened when the session begins.
    Later,
    /// Being opened, for the order with this sequence.
    Connecting(u64),
    /// Accepted by the server.
    Connected,
}

/// One preparation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preparation {
    /// The order.
    pub prepare: Prepare,
    /// Its controller.
    pub controller: ControllerId,
    /// Name of the peer's site in the agent's configuration.
    pub peer_site: String,
    /// Expiry.
    pub expires: Instant,
    /// State of the connection to the server.
    pub server_leg: ServerLeg,
}

impl Preparation {
    /// Flow.
    #[must_use]
    pub fn flow(&self) -> FlowKey {
        FlowKey { client: self.prepare.client, server: self.prepare.server }
    }
}

/// Preparations, indexed by session, by flow (ingress only) and by expiry.
#[derive(Debug, Default)]
pub struct Preparations {
    by_session: BTreeMap<SessionUuid, Preparation>,
    by_flow: BTreeMap<FlowKey, SessionUuid>,
    by_expiry: BTreeSet<(Instant, SessionUuid)>,
    server_legs: usize,
}

impl Preparations {
    /// Number of preparations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_session.len()
    }

    /// True if there are no preparations.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    /// True if the table has capacity for another preparation.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.len() < MAX_PREPARATIONS
    }

    /// True if a preparation exists for this session.
    #[must_use]
    pub fn contains(&self, session: SessionUuid) -> bool {
        self.by_session.contains_key(&session)
    }

    /// State of the connection to the server, `None` without a preparation for this session.
    #[must_use]
    pub fn server_leg(&self, session: SessionUuid) -> Option<ServerLeg> {
        self.by_session.get(&session).map(|preparation| preparation.server_leg)
    }

    /// Notes that the server has accepted: returns the controller and the sequence of its order; `None` if no answer is due.
    pub fn server_accepted(&mut self, session: SessionUuid) -> Option<(ControllerId, u64)> {
        let preparation = self.by_session.get_mut(&session)?;
        let ServerLeg::Connecting(sequence) = preparation.server_leg else { return None };
        preparation.server_leg = ServerLeg::Connected;
        Some((preparation.controller, sequence))
    }

    /// Number of server connections that are open, or being opened, for preparations.
    #[must_use]
    pub fn server_legs(&self) -> u32 {
        u32::try_from(self.server_legs).unwrap_or(u32::MAX)
    }

    /// Sessions that a controller has prepared, sorted.
    pub fn of(&self, controller: ControllerId) -> impl Iterator<Item = SessionUuid> + '_ {
        self.by_session.iter().filter(move |(_, p)| p.controller == controller).map(|(session, _)| *session)
    }

    /// The peers of all preparations, each with the last expiry of its preparations.
    #[must_use]
    pub fn peers(&self) -> BTreeMap<AgentId, Instant> {
        let mut found = BTreeMap::new();
        for preparation in self.by_session.values() {
            let until = found.entry(preparation.prepare.peer).or_insert(preparation.expires);
            *until = preparation.expires.max(*until);
        }
        found
    }

    /// Takes a session's preparation, unless it has expired.
    pub fn take_standing(&mut self, session: SessionUuid, now: Instant) -> Option<Preparation> {
        (self.by_session.get(&session)?.expires > now).then(|| self.take(session)).flatten()
    }

    /// Adds a preparation. At the ingress agent, a new preparation for a flow replaces an earlier one, because it belongs to a newer SYN;
    /// the earlier preparation is returned.
    pub fn insert(&mut self, preparation: Preparation) -> Option<Preparation> {
        let session = preparation.prepare.session;
        let ingress = preparation.prepare.role == Role::Ingress;
        let earlier = self.by_flow.get(&preparation.flow()).copied().filter(|_| ingress);
        let earlier = earlier.and_then(|session| self.take(session));
        if ingress {
            self.by_flow.insert(preparation.flow(), session);
        }
        self.by_expiry.insert((preparation.expires, session));
        self.server_legs += usize::from(preparation.server_leg != ServerLeg::Later);
        self.by_session.insert(session, preparation);
        earlier
    }

    /// True if a valid preparation announces a flow's client.
    #[must_use]
    pub fn expects(&self, flow: FlowKey, now: Instant) -> bool {
        let standing = self.by_flow.get(&flow).and_then(|session| self.by_session.get(session));
        standing.is_some_and(|preparation| preparation.expires > now)
    }

    /// Takes the preparation of an arriving client.
    pub fn take_arriving(&mut self, flow: FlowKey, now: Instant) -> Option<Preparation> {
        let session = self.by_flow.get(&flow).copied()?;
        self.take_standing(session, now)
    }

    /// Takes the preparation of an arriving client whose server is not known. `None` if several preparations match.
    pub fn take_arriving_from(&mut self, client: SocketAddrV4, now: Instant) -> Option<Preparation> {
        let end = |ip, port| FlowKey { client, server: SocketAddrV4::new(ip, port) };
        let servers = end(Ipv4Addr::UNSPECIFIED, 0)..=end(Ipv4Addr::BROADCAST, u16::MAX);
        let mut found = self.by_flow.range(servers).map(|(flow, _)| *flow);
        match (found.next(), found.next()) {
            (Some(flow), None) => self.take_arriving(flow, now),
            _ => None,
        }
    }

    /// Removes a preparation.
    pub fn take(&mut self, session: SessionUuid) -> Option<Preparation> {
        let preparation = self.by_session.remove(&session)?;
        self.by_expiry.remove(&(preparation.expires, session));
        self.server_legs -= usize::from(preparation.server_leg != ServerLeg::Later);
        if self.by_flow.get(&preparation.flow()) == Some(&session) {
            self.by_flow.remove(&preparation.flow());
        }
        Some(preparation)
    }

    /// Removes a preparation that has expired.
    pub fn take_lapsed(&mut self, now: Instant) -> Option<Preparation> {
        let (expires, session) = self.by_expiry.first().copied()?;
        (expires <= now).then(|| self.take(session)).flatten()
    }

    /// Next expiry.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        self.by_expiry.first().map(|(expires, _)| *expires)
    }

    /// Asserts that the three indexes agree.
    #[cfg(test)]
    pub(crate) fn assert_invariants(&self) {
        assert!(self.len() <= MAX_PREPARATIONS);
        assert_eq!(self.by_expiry.len(), self.by_session.len(), "each preparation has exactly one expiry");
        for (expires, session) in &self.by_expiry {
            assert_eq!(self.by_session[session].expires, *expires);
        }
        for (flow, session) in &self.by_flow {
            assert_eq!(self.by_session[session].flow(), *flow);
        }
        let legs = self.by_session.values().filter(|p| p.server_leg != ServerLeg::Later).count();
        assert_eq!(self.server_legs, legs);
        let ingress = self.by_session.values().filter(|p| p.prepare.role == Role::Ingress).count();
        assert_eq!(self.by_flow.len(), ingress, "every ingress preparation is found by its flow");
    }
}
