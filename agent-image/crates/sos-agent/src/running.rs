//! The sessions that run at this agent, by UUID and party: whom a controller has ordered, and which came about without an order.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use sos_wire::{AgentId, ControllerId, Prepare, ReportedFlow, Role, SessionUuid};

/// Who is at the other end of a session, which its UUID alone does not say: agents choose them, and see those of others on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Party {
    /// What this agent is in the session.
    pub role: Role,
    /// The other agent.
    pub peer: AgentId,
}

impl Party {
    pub(crate) fn of(prepare: &Prepare) -> Self {
        Self { role: prepare.role, peer: prepare.peer }
    }
}

/// A session's name here.
pub(crate) type Name = (SessionUuid, Party);

/// Sessions that run. The tunnel's session limit bounds them.
#[derive(Debug, Default)]
pub(crate) struct Running {
    ordered: BTreeMap<Name, ControllerId>,
    unordered: BTreeMap<Name, ReportedFlow>,
}

impl Running {
    /// A session that a controller has ordered begins.
    pub(crate) fn begin(&mut self, prepare: &Prepare, controller: ControllerId) {
        self.ordered.insert((prepare.session, Party::of(prepare)), controller);
    }

    /// One begins that none has ordered.
    pub(crate) fn begin_unordered(&mut self, flow: ReportedFlow) {
        self.unordered.insert((flow.session, Party { role: flow.role, peer: flow.peer }), flow);
    }

    /// One is over: the controller that had ordered it.
    pub(crate) fn end(&mut self, name: Name) -> Option<ControllerId> {
        self.unordered.remove(&name);
        self.ordered.remove(&name)
    }

    /// The controller that has ordered one.
    pub(crate) fn owner(&self, name: Name) -> Option<ControllerId> {
        self.ordered.get(&name).copied()
    }

    pub(crate) fn is_ordered(&self, name: Name) -> bool {
        self.ordered.contains_key(&name)
    }

    pub(crate) fn contains(&self, name: Name) -> bool {
        self.is_ordered(name) || self.unordered.contains_key(&name)
    }

    /// Whether a session runs near its client here that this controller has ordered.
    pub(crate) fn accepts(&self, session: SessionUuid, controller: ControllerId) -> bool {
        let first = (session, Party { role: Role::Ingress, peer: AgentId([0; 16]) });
        let named = self.ordered.range(first..).take_while(|((uuid, _), _)| *uuid == session);
        named.into_iter().any(|((_, party), owner)| party.role == Role::Ingress && *owner == controller)
    }

    /// Those that a controller has ordered.
    pub(crate) fn of(&self, controller: ControllerId) -> impl Iterator<Item = SessionUuid> {
        let owned = self.ordered.iter().filter(move |(_, owner)| **owner == controller);
        owned.map(|((session, _), _)| *session)
    }

    /// The server of one that none has ordered.
    pub(crate) fn unordered_server(&self, name: Name) -> Option<SocketAddrV4> {
        self.unordered.get(&name).map(|flow| flow.server)
    }

    /// Those that none has ordered.
    pub(crate) fn unordered(&self) -> Vec<ReportedFlow> {
        self.unordered.values().copied().collect()
    }

    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.ordered.len(), self.unordered.len())
    }
}
