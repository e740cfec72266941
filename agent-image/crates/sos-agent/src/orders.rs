//! Order protocol between controllers and this agent (spec/order.md), without a socket or a clock.
//!
//! [`OrderProtocol::handle`] takes a datagram and returns the datagrams to send. [`OrderProtocol::poll`] handles deadlines: preparations
//! expire, end reports are retransmitted until acknowledged, sessions are reported.

pub mod active_sessions;
pub mod expired_sessions;
pub mod pending_end_reports;
pub mod preparations;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use sos_wire::{
    AgentId, BootId, ControllerId, EndReason, Ended, Order, OrderBody, OrderHeader, Prepare, RefuseReason,
    ReplayGuard, ReportedFlow, Role, SessionUuid, UnverifiedOrder, WireError,
};

use crate::documents::config::AgentConfig;
use crate::documents::config::keys::AgentKeys;
use crate::orders::active_sessions::{ActiveSessions, Party};
use crate::orders::expired_sessions::ExpiredSessions;
use crate::orders::pending_end_reports::PendingEnds;
use crate::orders::preparations::{Preparation, Preparations};
use crate::policy::arming::{self, Health, Unreachable};
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;

/// Maximum number of controllers remembered (order.md clause 10).
pub const MAX_CONTROLLERS: usize = 16;
/// Interval of session reports (order.md clause 7).
pub const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Time after a Watch for which sessions without an order are reported (order.md clause 11).
pub const WATCHED_FOR: Duration = Duration::from_secs(20);
/// Reason for dropping an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// Malformed, wrongly signed or replayed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The order is for another agent.
    #[error("for another agent")]
    NotForUs,
    /// The message is of a type that only agents send.
    #[error("not an order to an agent")]
    WrongDirection,
    /// Sixteen controllers are known, and all of them have sessions or preparations here.
    #[error("too many controllers")]
    TooManyControllers,
}

impl OrderError {
    /// Label for the metrics.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Wire(WireError::Tag) => "tag",
            Self::Wire(WireError::UnknownKey(_)) => "key",
            Self::Wire(WireError::Replayed(_)) => "replay",
            Self::Wire(_) => "malformed",
            Self::NotForUs => "agent",
            Self::WrongDirection => "direction",
            Self::TooManyControllers => "controllers",
        }
    }
}

/// Environment of the protocol at one moment.
#[derive(Debug, Clone, Copy)]
pub struct Env<'a> {
    /// Configuration in force.
    pub config: &'a AgentConfig,
    /// Keys in force.
    pub keys: &'a AgentKeys,
    /// Inputs of the agent's willingness.
    pub health: Health,
    /// Agents with an established stream that are willing.
    pub live: &'a BTreeSet<AgentId>,
    /// Servers temporarily left to plain TCP.
    pub unreachable: &'a Unreachable,
    /// True if a connection can be opened from the client's address and port (from the given own address, if the site rewrites).
    pub can_bind: fn(SocketAddrV4, Option<Ipv4Addr>) -> bool,
    /// Monotonic time.
    pub now: Instant,
    /// Milliseconds since 1970.
    pub unix_ms: u64,
}

/// Result of an order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Handled {
    /// Datagrams for the controller.
    pub answers: Vec<Vec<u8>>,
    /// The preparation just accepted. If it requires [`Accept::Confirmed`], the caller connects to the server, and the answer is sent after
    /// the server has accepted.
    pub prepared: Option<Prepare>,
    /// An ingress session to reset.
    pub aborted: Option<SessionUuid>,
}

/// Result of a session, for its controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Reason.
    pub reason: EndReason,
    /// Bytes from client to server.
    pub bytes_up: u64,
    /// Bytes from server to client.
    pub bytes_down: u64,
    /// Duration.
    pub duration: Duration,
}

#[derive(Debug)]
struct Controller {
    replay: ReplayGuard,
    last_heard: Instant,
    next_report: Instant,
    /// Time until which the controller watches sessions without an order.
    watches_until: Option<Instant>,
}

impl Controller {
    fn watched(&self, now: Instant) -> bool {
        self.watches_until.is_some_and(|until| now < until)
    }
}

/// The agent's side of the order protocol.
#[derive(Debug)]
pub struct OrderProtocol {
    agent: AgentId,
    boot: BootId,
    sequence: u64,
    reports: u32,
    controllers: BTreeMap<ControllerId, Controller>,
    preparations: Preparations,
    expired: ExpiredSessions,
    running: ActiveSessions,
    ends: PendingEnds,
}

impl OrderProtocol {
    /// Initial state of one run of an agent.
    #[must_use]
    pub fn new(agent: AgentId, boot: BootId) -> Self {
        Self {
            agent,
            boot,
            sequence: 0,
            reports: 0,
            controllers: BTreeMap::new(),
            preparations: Preparations::default(),
            expired: ExpiredSessions::default(),
            running: ActiveSessions::default(),
            ends: PendingEnds::default(),
        }
    }

    /// Handles a datagram.
    ///
    /// # Errors
    /// The reason for dropping the datagram; then nothing has changed except the replay window.
    pub fn handle(&mut self, datagram: &[u8], env: &Env<'_>) -> Result<Handled, OrderError> {
        let unverified = UnverifiedOrder::parse(datagram)?;
        if unverified.agent != self.agent {
            return Err(OrderError::NotForUs);
        }
        if !unverified.is_to_agent() {
            return Err(OrderError::WrongDirection);
        }
        let key = env.keys.order_to_agent(self.agent, unverified.key_id)?;
        let Order { header, body } = unverified.verify(&key)?;
        self.admit(&header, env)?;
        match body {
            OrderBody::Prepare(prepare) => return Ok(self.prepare(&header, prepare, env)),
            OrderBody::Release(session) => self.release(header.controller, session),
            OrderBody::EndedAck(session) => self.ends.acknowledge(header.controller, session),
            OrderBody::Watch => {
                return Ok(Handled { answers: self.watch(header.controller, env), ..Handled::default() });
            }
            OrderBody::Abort(session) => {
                let ours = self.running.accepts(session, header.controller);
                return Ok(Handled { aborted: ours.then_some(session), ..Handled::default() });
            }
            // `is_to_agent` has passed only the five types above.
            _ => return Err(OrderError::WrongDirection),
        }
        Ok(Handled::default())
    }

    /// Takes the preparation for a client that has just been accepted; its session is running from now on.
    pub fn begin_arriving(&mut self, flow: FlowKey, now: Instant) -> Option<Preparation> {
        let preparation = self.preparations.take_arriving(flow, now)?;
        self.running.begin(&preparation.prepare, preparation.controller);
        Some(preparation)
    }

    /// Does the same as [`Self::begin_arriving`] for a client that the switch has redirected to the agent's own address, so that only the
    /// client's address and port are known.
    pub fn begin_rewritten(&mut self, client: SocketAddrV4, now: Instant) -> Option<Preparation> {
        let preparation = self.preparations.take_arriving_from(client, now)?;
        self.running.begin(&preparation.prepare, preparation.controller);
        Some(preparation)
    }

    /// Takes the preparation for a session that a peer has opened here, if there is one for exactly this flow and peer; the session is running
    /// from now on.
    ///
    /// # Errors
    /// The session must not continue: the preparation is for another flow or peer, a session of that UUID is already running, or the
    /// preparation has expired. After expiry, the entries that redirect the server's answers to this agent no longer exist, so the server
    /// would answer the client itself.
    pub fn begin_opened(
        &mut self,
        session: SessionUuid,
        peer: AgentId,
        flow: FlowKey,
        now: Instant,
    ) -> Result<Option<Preparation>, OpenRefusal> {
        if self.running.contains((session, Party { role: Role::Egress, peer })) {
            return Err(OpenRefusal::Mismatch);
        }
        let Some(preparation) = self.preparations.take_standing(session, now) else {
            let expired = self.expired.contains(session) || self.preparations.contains(session);
            return if expired { Err(OpenRefusal::Expired) } else { Ok(None) };
        };
        let prepared = (preparation.prepare.role, preparation.prepare.peer, preparation.flow());
        if prepared != (Role::Egress, peer, flow) {
            self.preparations.insert(preparation);
            return Err(OpenRefusal::Mismatch);
        }
        self.running.begin(&preparation.prepare, preparation.controller);
        Ok(Some(preparation))
    }

    /// Peers with prepared sessions, and the time until which those sessions may begin.
    #[must_use]
    pub fn prepared_peers(&self) -> BTreeMap<AgentId, Instant> {
        self.preparations.peers()
    }

    /// Registers a session that no controller has ordered.
    pub fn begin_unordered(&mut self, flow: ReportedFlow) {
        self.running.begin_unordered(flow);
    }

    /// Ends a session with this party, and reports the end to the session's controller, if there is one. A session of the same UUID with
    /// another party continues.
    pub fn finish(
        &mut self,
        (session, party): (SessionUuid, Party),
        outcome: Outcome,
        env: &Env<'_>,
    ) -> Vec<Vec<u8>> {
        let owner = self.running.end((session, party));
        owner.and_then(|owner| self.tell_end(owner, session, outcome, env)).into_iter().collect()
    }

    /// Handles deadlines.
    pub fn poll(&mut self, env: &Env<'_>) -> Vec<Vec<u8>> {
        let mut out = Vec::new();
        while let Some(lapsed) = self.preparations.take_lapsed(env.now) {
            if lapsed.prepare.role == Role::Egress {
                self.expired.insert(lapsed.prepare.session, env.now);
            }
            out.extend(self.tell_lapsed(&lapsed, env));
        }
        self.expired.forget_old(env.now);
        for (controller, ended) in self.ends.due(env.now) {
            out.extend(self.sign(controller, 0, OrderBody::Ended(ended), env));
        }
        let due = |c: &Controller| c.next_report <= env.now;
        let controllers: Vec<_> =
            self.controllers.iter().filter(|(_, c)| due(c)).map(|(id, _)| *id).collect();
        for controller in controllers {
            out.extend(self.report(controller, env));
            if self.controllers.get(&controller).is_some_and(|known| known.watched(env.now)) {
                out.extend(self.report_flows(controller, env));
            }
        }
        out
    }

    /// True if a controller watches sessions beyond its own orders.
    #[must_use]
    pub fn is_watched(&self, now: Instant) -> bool {
        self.controllers.values().any(|known| known.watched(now))
    }

    /// Next deadline of [`Self::poll`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let reports = self.controllers.values().map(|controller| controller.next_report);
        reports.chain(self.ends.next()).chain(self.preparations.next_expiry()).min()
    }

    /// Number of preparations in force, and number of known controllers.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.preparations.len(), self.controllers.len())
    }

    fn admit(&mut self, header: &OrderHeader, env: &Env<'_>) -> Result<(), OrderError> {
        let admit = |replay: &mut ReplayGuard| {
            replay.admit(header.boot, header.sequence, header.time_ms, env.unix_ms).map_err(WireError::from)
        };
        if let Some(known) = self.controllers.get_mut(&header.controller) {
            admit(&mut known.replay)?;
            known.last_heard = env.now;
            return Ok(());
        }
        let mut replay = ReplayGuard::default();
        admit(&mut replay)?;
        if self.controllers.len() >= MAX_CONTROLLERS && !self.forget_idle_controller() {
            return Err(OrderError::TooManyControllers);
        }
        let next_report = env.now + REPORT_INTERVAL;
        let controller = Controller { replay, last_heard: env.now, next_report, watches_until: None };
        self.controllers.insert(header.controller, controller);
        Ok(())
    }

    /// Of the controllers without a session or preparation here, removes the one whose last order is the oldest. Returns false if there is
    /// none.
    fn forget_idle_controller(&mut self) -> bool {
        let idle = |id: &ControllerId| {
            self.running.of(*id).next().is_none() && self.preparations.of(*id).next().is_none()
        };
        let oldest = self.controllers.iter().filter(|(id, _)| idle(id)).min_by_key(|(_, c)| c.last_heard);
        let Some(oldest) = oldest.map(|(id, _)| *id) else { return false };
        self.ends.forget_controller(oldest);
        self.controllers.remove(&oldest).is_some()
    }

    /// Name of the peer's site, or the reason for refusing the session (order.md clauses 4 and 9).
    fn judge(&self, prepare: &Prepare, env: &Env<'_>) -> Result<String, RefuseReason> {
        let config = env.config;
        let peer = config.peers.iter().find(|peer| {
            peer.agents.iter().any(|agent| {
                agent.id == prepare.peer
                    && agent.address == prepare.peer_address
                    && agent.first_stream_port == prepare.peer_stream_port
            })
        });
        let peer = peer.ok_or(RefuseReason::UnknownPeer)?;
        let flow = FlowKey { client: prepare.client, server: prepare.server };
        let permitted = match prepare.role {
            Role::Ingress => flow_policy::ingress_service_towards(config, flow, &peer.site).is_some(),
            Role::Egress => flow_policy::egress_service(config, flow, &peer.site).is_some(),
        };
        if !permitted {
            return Err(RefuseReason::NotPermitted);
        }
        let can_bind =
            prepare.role == Role::Ingress || (env.can_bind)(prepare.client, flow_policy::own_address(config));
        if !flow_policy::can_have_port(config, prepare) || !can_bind {
            return Err(RefuseReason::PortTaken);
        }
        // Without a willing peer, this agent is not armed for the client: the SYN would bypass this agent and leave a session without a
        // client, or the agent would have to reset the client. An egress agent does not check its peer, since it learns of a new stream a
        // moment later than the ingress agent.
        if prepare.role == Role::Ingress && !env.live.contains(&prepare.peer) {
            return Err(RefuseReason::UnknownPeer);
        }
        // This agent is not armed for an unreachable server: the SYN would bypass this agent and leave a session without a client.
        if prepare.role == Role::Ingress && env.unreachable.contains(prepare.server) {
            return Err(RefuseReason::ServerUnreachable);
        }
        if env.health.draining {
            return Err(RefuseReason::Draining);
        }
        if !arming::memory_left(config, env.health) {
            return Err(RefuseReason::MemoryLimit);
        }
        // Each server connection that waits for its session will become a session.
        let sessions = env.health.sessions.saturating_add(self.preparations.server_legs());
        if !arming::sessions_left(config, Health { sessions, ..env.health }) || !self.preparations.has_room()
        {
            return Err(RefuseReason::SessionLimit);
        }
        Ok(peer.site.clone())
    }

    fn release(&mut self, controller: ControllerId, session: SessionUuid) {
        if self.preparations.of(controller).any(|standing| standing == session) {
            self.preparations.take(session);
        }
    }

    fn tell_lapsed(&mut self, lapsed: &Preparation, env: &Env<'_>) -> Option<Vec<u8>> {
        let outcome = Outcome {
            reason: EndReason::PreparationExpired,
            bytes_up: 0,
            bytes_down: 0,
            duration: Duration::ZERO,
        };
        self.tell_end(lapsed.controller, lapsed.prepare.session, outcome, env)
    }

    fn tell_end(
        &mut self,
        controller: ControllerId,
        session: SessionUuid,
        outcome: Outcome,
        env: &Env<'_>,
    ) -> Option<Vec<u8>> {
        let ended = Ended {
            session,
            reason: outcome.reason,
            bytes_up: outcome.bytes_up,
            bytes_down: outcome.bytes_down,
            duration_ms: u64::try_from(outcome.duration.as_millis()).unwrap_or(u64::MAX),
        };
        self.ends.insert(controller, ended, env.now);
        self.sign(controller, 0, OrderBody::Ended(ended), env)
    }

    /// Signs an order; `None` without a site key, as no controller could verify the order.
    fn sign(&mut self, to: ControllerId, reply_to: u64, body: OrderBody, env: &Env<'_>) -> Option<Vec<u8>> {
        let (key_id, key) = env.keys.order_to_controller(self.agent)?;
        self.sequence += 1;
        let header = OrderHeader {
            key_id,
            controller: to,
            agent: self.agent,
            boot: self.boot,
            sequence: self.sequence,
            time_ms: env.unix_ms,
            reply_to,
        };
        Some(
            Order { header, body }
                .encode(&key)
                .expect("reports are cut into chunks that fit, the rest is fixed in size"),
        )
    }

    #[cfg(test)]
    fn assert_invariants(&self) {
        self.preparations.assert_invariants();
        self.expired.assert_invariants();
        assert!(self.controllers.len() <= MAX_CONTROLLERS);
        assert!(self.ends.len() <= crate::orders::pending_end_reports::MAX_PENDING_ENDS);
    }
}

/// Reason for refusing a session that a peer opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpenRefusal {
    /// Flow or peer of the session differ from the preparation with its UUID, or the UUID belongs to a running session.
    #[error("flow and peer are not those prepared for this session, or its UUID is taken")]
    Mismatch,
    /// The preparation has expired.
    #[error("the preparation has expired")]
    Expired,
}

mod prepare;
pub use prepare::confirms;
mod reports;

#[cfg(test)]
mod tests;
