//! Active sessions of this agent, by UUID and party: sessions ordered by a controller, and unordered sessions.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use sos_wire::{AgentId, ControllerId, Prepare, ReportedFlow, Role, SessionUuid};

/// This agent's role and the peer. A UUID alone does not identify a session: agents choose UUIDs, and can read other agents' UUIDs in
/// transit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// This agent's role in the session.
    pub role: Role,
    /// The other agent.
    pub peer: AgentId,
}

impl Party {
    pub(crate) fn of(prepare: &Prepare) -> Self {
        Self { role: prepare.role, peer: prepare.peer }
    }
}

/// Key of a session at this agent.
pub(crate) type Name = (SessionUuid, Party);

/// Active sessions. Bounded by the tunnel's session limit.
#[derive(Debug, Default)]
pub(crate) struct ActiveSessions {
    ordered: BTreeMap<Name, ControllerId>,
    unordered: BTreeMap<Name, ReportedFlow>,
}

impl ActiveSessions {
    /// Adds an ordered session.
    pub(crate) fn begin(&mut self, prepare: &Prepare, controller: ControllerId) {
        self.ordered.insert((prepare.session, Party::of(prepare)), controller);
    }

    /// Adds an unordered session.
    pub(crate) fn begin_unordered(&mut self, flow: ReportedFlow) {
        self.unordered.insert((flow.session, Party { role: flow.role, peer: flow.peer }), flow);
    }

    /// Removes a session; returns the controller that had ordered it.
    pub(crate) fn end(&mut self, name: Name) -> Option<ControllerId> {
        self.unordered.remove(&name);
        self.ordered.remove(&name)
    }

    /// Controller that has ordered a session.
    pub(crate) fn owner(&self, name: Name) -> Option<ControllerId> {
        self.ordered.get(&name).copied()
    }

    pub(crate) fn is_ordered(&self, name: Name) -> bool {
        self.ordered.contains_key(&name)
    }

    pub(crate) fn contains(&self, name: Name) -> bool {
        self.is_ordered(name) || self.unordered.contains_key(&name)
    }

    /// True if this agent is the ingress agent of an active session that this controller has ordered.
    pub(crate) fn accepts(&self, session: SessionUuid, controller: ControllerId) -> bool {
        let first = (session, Party { role: Role::Ingress, peer: AgentId([0; 16]) });
        let named = self.ordered.range(first..).take_while(|((uuid, _), _)| *uuid == session);
        named.into_iter().any(|((_, party), owner)| party.role == Role::Ingress && *owner == controller)
    }

    /// Sessions that a controller has ordered.
    pub(crate) fn of(&self, controller: ControllerId) -> impl Iterator<Item = SessionUuid> {
        let owned = self.ordered.iter().filter(move |(_, owner)| **owner == controller);
        owned.map(|((session, _), _)| *session)
    }

    /// Server of an unordered session.
    pub(crate) fn unordered_server(&self, name: Name) -> Option<SocketAddrV4> {
        self.unordered.get(&name).map(|flow| flow.server)
    }

    /// Unordered sessions.
    pub(crate) fn unordered(&self) -> Vec<ReportedFlow> {
        self.unordered.values().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.ordered.len(), self.unordered.len())
    }
}
