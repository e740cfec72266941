//! State that the agent's tasks share: configuration and keys in force, order protocol, tunnel, counters.

mod intercepted_pods;
mod wall_clock;
mod willingness;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use sos_tunnel::{Aborter, Relayed, SegmentMarks, SessionEnd, Tunnel};
use sos_wire::{AgentId, BootId, EndReason, PlainReason, ReportedFlow, Role, ServiceMark, SessionUuid};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, watch};
use tracing::{debug, info};

use crate::documents::cards::Cards;
use crate::documents::config::keys::AgentKeys;
use crate::documents::config::{AgentConfig, Intake, Service};
use crate::metrics::{self, End, Metrics};
use crate::netns::sockets;
use crate::orders::active_sessions::Party;
use crate::orders::{Env, OrderProtocol, Outcome};
use crate::policy::arming::Unreachable;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;
use crate::policy::latest_willing::LatestWilling;
use crate::policy::plain_traffic::{self, PlainTraffic, Seen};
use crate::policy::service_meters::{self, ServiceBytes, ServiceMeters};
use crate::policy::session_shares::SessionShares;
use crate::policy::stream_pool::{self, DepartingPeers, OrderedLabels};
use crate::segments::half_open::{self, Probes};
use crate::segments::syn_hold::injector::Hold;
use crate::tasks::server_legs::ServerLegs;
use crate::virtual_address::VirtualAddress;
use intercepted_pods::InterceptedPods;
pub use wall_clock::{boot_id, unix_ms};

/// The controllers of the agent's site.
#[derive(Debug)]
pub struct Controllers {
    /// Socket on the agent's order port.
    pub orders: Arc<UdpSocket>,
    /// Destination of orders: the discovery address.
    pub address: SocketAddrV4,
}

/// State that all tasks of one agent share.
#[derive(Debug)]
pub struct AgentContext {
    config: Mutex<Arc<AgentConfig>>,
    config_problem: Mutex<String>,
    keys: Mutex<Arc<AgentKeys>>,
    protocol: Mutex<OrderProtocol>,
    tunnel: OnceLock<Tunnel>,
    unreachable: Mutex<Unreachable>,
    server_legs: Mutex<ServerLegs>,
    hold: Hold,
    ordered_labels: Mutex<OrderedLabels>,
    leaving: Mutex<DepartingPeers>,
    meters: Mutex<ServiceMeters>,
    plain: Mutex<PlainTraffic>,
    aborters: Mutex<BTreeMap<SessionUuid, Aborter>>,
    shares: Mutex<SessionShares>,
    latest_willing: Mutex<LatestWilling>,
    begun: Instant,
    draining: AtomicBool,
    controllers: Option<Controllers>,
    pods: InterceptedPods,
    /// Filters that read DSCP and TTL of the hosts' segments, if the kernel accepts them.
    pub segment_marks: Option<Arc<SegmentMarks>>,
    /// Boot id of this process.
    pub boot: BootId,
    /// Site cards that peer clusters have offered.
    pub cards: Arc<Cards>,
    /// The site's virtual address.
    pub virtual_address: VirtualAddress,
    probes: Mutex<Probes>,
    /// Wakes the task that probes half-open connections.
    pub probes_changed: Notify,
    /// Counters.
    pub metrics: Metrics,
    /// Wakes the arming task.
    pub rearm: Notify,
    /// Agents towards which nft may redirect clients.
    pub armed: watch::Sender<BTreeSet<AgentId>>,
    /// Wakes the beacon task.
    pub beacon_now: Notify,
    /// Wakes the order task when its next timeout may have changed.
    pub orders_changed: Notify,
    /// Wakes the SYN hold task when its next timeout may have changed.
    pub hold_changed: Notify,
}

/// Locks a mutex, poisoned or not. A poisoned lock means that a task panicked while holding it. Every critical section keeps its table usable at
/// each step, so other sessions continue.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AgentContext {
    /// State of one run of an agent.
    #[must_use]
    pub fn new(
        config: AgentConfig,
        keys: AgentKeys,
        boot: BootId,
        controllers: Option<Controllers>,
        (hold, segment_marks): (Hold, Option<Arc<SegmentMarks>>),
    ) -> Self {
        let metrics = Metrics::default();
        metrics.generation.set(i64::try_from(config.generation).unwrap_or(i64::MAX));
        let follows = config.intake.as_ref().and_then(Intake::followed).is_some();
        Self {
            virtual_address: VirtualAddress::new(follows),
            probes: Mutex::default(),
            probes_changed: Notify::new(),
            protocol: Mutex::new(OrderProtocol::new(config.agent_id, boot)),
            config: Mutex::new(Arc::new(config)),
            config_problem: Mutex::default(),
            keys: Mutex::new(Arc::new(keys)),
            tunnel: OnceLock::new(),
            unreachable: Mutex::default(),
            server_legs: Mutex::default(),
            hold,
            ordered_labels: Mutex::default(),
            leaving: Mutex::default(),
            meters: Mutex::default(),
            plain: Mutex::default(),
            aborters: Mutex::default(),
            shares: Mutex::default(),
            latest_willing: Mutex::default(),
            begun: Instant::now(),
            draining: AtomicBool::new(false),
            controllers,
            pods: InterceptedPods::default(),
            segment_marks,
            boot,
            cards: Arc::default(),
            metrics,
            rearm: Notify::new(),
            armed: watch::Sender::new(BTreeSet::new()),
            beacon_now: Notify::new(),
            orders_changed: Notify::new(),
            hold_changed: Notify::new(),
        }
    }

    /// Sets the tunnel. Called once, before any task is started.
    pub fn set_tunnel(&self, tunnel: Tunnel) {
        let first = self.tunnel.set(tunnel).is_ok();
        debug_assert!(first, "the tunnel is set once");
        self.set_peers();
    }

    /// The tunnel.
    ///
    /// # Panics
    /// Before [`Self::set_tunnel`].
    pub fn tunnel(&self) -> &Tunnel {
        self.tunnel.get().expect("the tunnel is set before any task is started")
    }

    /// The configuration in force.
    pub fn config(&self) -> Arc<AgentConfig> {
        Arc::clone(&lock(&self.config))
    }

    /// Puts a new configuration in force.
    pub fn set_config(&self, config: AgentConfig) {
        info!(generation = config.generation, "configuration in force");
        self.metrics.generation.set(i64::try_from(config.generation).unwrap_or(i64::MAX));
        let before = stream_pool::peers(&self.config(), &lock(&self.ordered_labels));
        let now = stream_pool::peers(&config, &lock(&self.ordered_labels));
        let prepared = {
            // Code that locks the order protocol after this uses the new configuration.
            let protocol = lock(&self.protocol);
            *lock(&self.config) = Arc::new(config);
            lock(&self.config_problem).clear();
            protocol.prepared_peers()
        };
        lock(&self.leaving).note(before, &now, &prepared);
        self.set_peers();
        self.rearm.notify_one();
        self.pods.note_change();
    }

    /// Reason why the last document was refused; "" if the last document is in force.
    pub fn config_problem(&self) -> String {
        lock(&self.config_problem).clone()
    }

    /// Records why a document was refused.
    pub fn set_config_problem(&self, problem: String) {
        *lock(&self.config_problem) = problem;
    }

    /// The keys in force.
    pub fn keys(&self) -> Arc<AgentKeys> {
        Arc::clone(&lock(&self.keys))
    }

    /// Puts new keys in force, for future messages and streams.
    pub fn set_keys(&self, keys: AgentKeys) {
        info!("keys read again");
        *lock(&self.keys) = Arc::new(keys);
    }

    /// Sets the tunnel's list of peers and streams.
    fn set_peers(&self) {
        let configured = stream_pool::peers(&self.config(), &lock(&self.ordered_labels));
        let peers = lock(&self.leaving).with(configured);
        self.tunnel().set_peers(peers);
    }

    /// Drops peers that are no longer configured, as soon as no session prepared with them can begin.
    pub fn let_go(&self) {
        if lock(&self.leaving).expire(Instant::now()) {
            self.set_peers();
        }
    }

    /// Records the path labels of an order, so that streams with these labels are opened.
    pub fn note_labels(&self, prepare: &sos_wire::Prepare) {
        let new = lock(&self.ordered_labels).note(prepare);
        if new {
            self.set_peers();
        }
    }

    /// Calls `act` with the servers that recently did not answer, after removing expired ones.
    pub fn with_unreachable<T>(&self, act: impl FnOnce(&mut Unreachable) -> T) -> T {
        let mut unreachable = lock(&self.unreachable);
        unreachable.expire(Instant::now());
        act(&mut unreachable)
    }

    /// Calls `act` with the server connections opened ahead of their sessions. Lock order: `act` may lock the order protocol, but code that
    /// holds the order protocol must not call this.
    pub fn with_server_legs<T>(&self, act: impl FnOnce(&mut ServerLegs) -> T) -> T {
        act(&mut lock(&self.server_legs))
    }

    /// Intercepted pods of the node.
    pub fn pods(&self) -> &InterceptedPods {
        &self.pods
    }

    /// Counts a held SYN of a pod that goes plain and is reinjected towards its server: the agent does not read the set `plain_seen` of
    /// pods' tables. In the agent's own namespace, this set lists the connection for [`Self::note_plain`].
    pub fn note_left(&self, reason: PlainReason) {
        if self.config().is_in_pods() {
            self.metrics.plain.get_or_create(&metrics::Reason { reason: plain_traffic::label(reason) }).inc();
        }
    }

    /// Calls `act` with the probes of half-open connections.
    pub fn with_probes<T>(&self, act: impl FnOnce(&mut Probes) -> T) -> T {
        act(&mut lock(&self.probes))
    }

    /// Held SYNs, and the sockets that reinject them.
    pub fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Closes server connections opened ahead whose preparations have been released or have expired.
    pub fn close_server_legs(&self) {
        self.with_server_legs(|legs| legs.keep(|session| lock(&self.protocol).stands(session)));
    }

    /// Calls `act` with the order protocol; the caller sends the datagrams that `act` returns.
    pub fn with_order_protocol<T>(&self, act: impl FnOnce(&mut OrderProtocol, &Env<'_>) -> T) -> T {
        let (keys, health) = (self.keys(), self.health());
        let live = self.tunnel().willing_peers();
        let live = live.borrow();
        let (now, unix_ms) = (Instant::now(), unix_ms());
        let mut protocol = lock(&self.protocol);
        let config = self.config();
        let result = self.with_unreachable(|unreachable| {
            let env = Env {
                config: &config,
                keys: &keys,
                health,
                live: &live,
                unreachable,
                can_bind: sockets::can_bind,
                now,
                unix_ms,
            };
            act(&mut protocol, &env)
        });
        let (preparations, controllers) = protocol.counts();
        self.metrics.preparations.set(i64::try_from(preparations).unwrap_or(i64::MAX));
        self.metrics.controllers.set(i64::try_from(controllers).unwrap_or(i64::MAX));
        result
    }

    /// Sends datagrams of the order protocol to the controllers.
    pub fn send_orders(&self, datagrams: &[Vec<u8>]) {
        let Some(controllers) = &self.controllers else { return };
        for datagram in datagrams {
            if let Err(error) = controllers.orders.try_send_to(datagram, controllers.address.into()) {
                debug!(%error, "an order was not sent");
            }
        }
    }

    /// Registers a session that no controller has ordered.
    pub fn begin_unordered(&self, session: SessionUuid, role: Role, flow: FlowKey, peer: AgentId) {
        let flow = ReportedFlow { session, role, client: flow.client, server: flow.server, peer };
        self.with_order_protocol(|protocol, _| protocol.begin_unordered(flow));
        if self.config().is_in_pods() {
            let host = if role == Role::Ingress { flow.client } else { flow.server };
            self.pods.begin(session, *host.ip());
        }
        let covered = FlowKey { client: flow.client, server: flow.server };
        let config = self.config();
        let Some(service) = flow_policy::service_of(&config, role, covered, peer) else { return };
        lock(&self.shares).begin(session, service, covered);
        if role == Role::Ingress {
            lock(&self.plain).count(ServiceMark::of(&service.id), PlainReason::ACCELERATED);
        }
    }

    /// Reserves a session of a service for a connection. False if the service's namespace has used up its share.
    pub fn reserve_share(&self, service: &Service, flow: FlowKey) -> bool {
        lock(&self.shares).reserve(&self.config(), service, flow, Instant::now())
    }

    /// Removes the reservation of a connection that does not become a session.
    pub fn release_share(&self, flow: FlowKey) {
        lock(&self.shares).release(flow);
    }

    /// Counts connections that went plain since the last listing of nft's set, for the services that cover them.
    pub fn note_plain(&self, listed: BTreeSet<Seen>) {
        let (config, health, live) = (self.config(), self.health(), self.willing_agents());
        let mut traffic = lock(&self.plain);
        for seen in traffic.new_ones(listed) {
            if let Some((service, reason)) = plain_traffic::attribute(&config, health, &live, seen) {
                traffic.note(seen.flow, service, reason);
                self.metrics
                    .plain
                    .get_or_create(&metrics::Reason { reason: plain_traffic::label(reason) })
                    .inc();
            }
        }
    }

    /// Reports plain connections to watching controllers.
    pub fn report_plain(&self) {
        if !self.with_order_protocol(|protocol, env| protocol.is_watched(env.now)) {
            return;
        }
        let reports = lock(&self.plain).reports();
        let told = self.with_order_protocol(|protocol, env| protocol.tell_plain(&reports, env));
        self.send_orders(&told);
    }

    /// Meters a session for its service: the first service of this agent that covers the flow.
    pub fn meter(&self, session: SessionUuid, flow: FlowKey, relayed: Relayed) {
        if let Some(service) = flow_policy::ingress_service(&self.config(), flow) {
            lock(&self.meters).begin(session, &service.id, relayed);
        }
    }

    /// Bytes of this agent's ingress sessions, by service.
    pub fn service_bytes(&self) -> Vec<ServiceBytes> {
        lock(&self.meters).bytes()
    }

    /// Keeps the aborter of an ingress session until the session is over.
    pub fn keep_aborter(&self, session: SessionUuid, aborter: Aborter) {
        lock(&self.aborters).insert(session, aborter);
    }

    /// Resets a session at both hosts on its controller's order (order.md clause 15).
    pub fn abort(&self, session: SessionUuid) {
        if let Some(aborter) = lock(&self.aborters).get(&session) {
            debug!(%session, "reset by order");
            aborter.abort(EndReason::InternalLimit);
        }
    }

    /// Reports paths and services to watching controllers.
    pub fn report_paths(&self) {
        if !self.with_order_protocol(|protocol, env| protocol.is_watched(env.now)) {
            return;
        }
        let (paths, services) = (self.tunnel().paths(), lock(&self.meters).rows());
        let reports = service_meters::reports(self.begun.elapsed(), &paths, &services);
        let told = self.with_order_protocol(|protocol, env| protocol.tell_paths(&reports, env));
        self.send_orders(&told);
    }

    /// Reports that a prepared session could not begin.
    pub fn refused(&self, session: SessionUuid, peer: AgentId) {
        let outcome = Outcome {
            reason: EndReason::InternalLimit,
            bytes_up: 0,
            bytes_down: 0,
            duration: std::time::Duration::ZERO,
        };
        let party = Party { role: Role::Ingress, peer };
        let told = self.with_order_protocol(|protocol, env| protocol.finish((session, party), outcome, env));
        self.send_orders(&told);
    }

    /// Updates the known servers at the end of a session: adds a server that has sent bytes, and removes a server that has refused the
    /// connection or left SYNs unanswered.
    fn learn(&self, server: SocketAddrV4, end: &SessionEnd) {
        let refused = matches!(end.reason, EndReason::ServerRefused | EndReason::ServerUnreachable);
        self.hold.with(|syns| {
            if refused {
                syns.known.forget(server);
            } else if end.bytes_down > 0 {
                syns.known.note(server, Instant::now());
            }
        });
    }

    /// Counts an ended session, and reports the end to its controller.
    pub fn finished(&self, session: SessionUuid, party: Party, flow: FlowKey, end: &SessionEnd) {
        self.pods.finish(session);
        lock(&self.shares).finish(session);
        let is_ingress = party.role == Role::Ingress;
        let (role, reason) = (if is_ingress { "ingress" } else { "egress" }, metrics::reason(end.reason));
        self.metrics.ended.get_or_create(&End { role, reason }).inc();
        debug!(%session, role, %flow, reason, up = end.bytes_up, down = end.bytes_down, "session over");
        if is_ingress {
            lock(&self.meters).finish(session);
            lock(&self.aborters).remove(&session);
            self.learn(flow.server, end);
        }
        if is_ingress && end.reason == EndReason::ServerUnreachable {
            self.with_unreachable(|unreachable| unreachable.note(flow.server, Instant::now()));
            self.rearm.notify_one();
        }
        if self.config().bridge().is_none()
            && let Some(ends) = half_open::probed(flow, party.role, end.reason)
            && self.with_probes(|probes| probes.begin(ends, Instant::now()))
        {
            self.metrics.half_open_probed.inc();
            self.probes_changed.notify_one();
        }
        let outcome = Outcome {
            reason: end.reason,
            bytes_up: end.bytes_up,
            bytes_down: end.bytes_down,
            duration: end.duration,
        };
        let told = self.with_order_protocol(|protocol, env| protocol.finish((session, party), outcome, env));
        self.send_orders(&told);
        self.orders_changed.notify_one();
    }
}
