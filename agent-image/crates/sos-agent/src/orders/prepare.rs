//! Prepare orders and their answers, which wait for the server if the order requires it (spec/order.md clauses 3 and 4).

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use sos_wire::{Accept, AgentId, OrderBody, OrderHeader, Prepare, RefuseReason, Role, SessionUuid};

use super::{Env, Handled, OrderProtocol};
use crate::orders::active_sessions::Party;
use crate::orders::preparations::{MAX_LEASE, Preparation, ServerLeg};
use crate::policy::flow_key::FlowKey;

impl OrderProtocol {
    /// Handles a Prepare.
    pub(super) fn prepare(&mut self, header: &OrderHeader, prepare: Prepare, env: &Env<'_>) -> Handled {
        let session = prepare.session;
        let mut handled = Handled::default();
        let runs = self.running.is_ordered((session, Party::of(&prepare)));
        let known = runs || self.preparations.contains(session);
        let judged = if known { Ok(None) } else { self.judge(&prepare, env).map(Some) };
        let refused = judged.as_ref().err().copied();
        if let Ok(Some(peer_site)) = judged {
            let lease = Duration::from_millis(prepare.lease_ms.into()).min(MAX_LEASE);
            let (controller, expires) = (header.controller, env.now + lease);
            let server_leg =
                if confirms(&prepare) { ServerLeg::Connecting(header.sequence) } else { ServerLeg::Later };
            handled.prepared = Some(prepare.clone());
            let preparation = Preparation { prepare, controller, peer_site, expires, server_leg };
            let replaced = self.preparations.insert(preparation);
            handled.answers.extend(replaced.and_then(|replaced| self.tell_lapsed(&replaced, env)));
        }
        let answer = match (refused, self.preparations.server_leg(session)) {
            (Some(reason), _) => OrderBody::Refused(session, reason),
            (None, Some(ServerLeg::Connecting(_))) => return handled,
            (None, Some(ServerLeg::Connected)) => OrderBody::Accepted(session),
            (None, Some(ServerLeg::Later) | None) => OrderBody::Ready(session),
        };
        handled.answers.extend(self.sign(header.controller, header.sequence, answer, env));
        handled
    }

    /// Reports to a preparation's controller that the server has accepted.
    pub fn server_accepted(&mut self, session: SessionUuid, env: &Env<'_>) -> Option<Vec<u8>> {
        let (controller, sequence) = self.preparations.server_accepted(session)?;
        self.sign(controller, sequence, OrderBody::Accepted(session), env)
    }

    /// Reports to a preparation's controller that the server has not accepted; drops the preparation.
    pub fn server_refused(
        &mut self,
        session: SessionUuid,
        reason: RefuseReason,
        env: &Env<'_>,
    ) -> Option<Vec<u8>> {
        let ServerLeg::Connecting(sequence) = self.preparations.server_leg(session)? else { return None };
        let controller = self.preparations.take(session)?.controller;
        self.sign(controller, sequence, OrderBody::Refused(session, reason), env)
    }

    /// Reports that the server of a running session leaves this agent's SYN unanswered, so that the controller treats the server as not
    /// accepting.
    pub fn server_silent(
        &mut self,
        (session, party): (SessionUuid, Party),
        env: &Env<'_>,
    ) -> Option<Vec<u8>> {
        let controller = self.running.owner((session, party))?;
        self.sign(controller, 0, OrderBody::Refused(session, RefuseReason::ServerSilent), env)
    }

    /// True if an order has announced the client.
    #[must_use]
    pub fn expects(&self, flow: FlowKey, now: Instant) -> bool {
        self.preparations.expects(flow, now)
    }

    /// Server of an unordered session of this ingress agent.
    #[must_use]
    pub fn unordered_server(&self, session: SessionUuid, peer: AgentId) -> Option<SocketAddrV4> {
        self.running.unordered_server((session, Party { role: Role::Ingress, peer }))
    }

    /// True if a preparation exists for a session.
    #[must_use]
    pub fn stands(&self, session: SessionUuid) -> bool {
        self.preparations.contains(session)
    }
}

/// True if the agent connects to the server before it answers the order.
#[must_use]
pub fn confirms(prepare: &Prepare) -> bool {
    prepare.role == Role::Egress && prepare.accept == Accept::Confirmed
}
