//! Ingress: accepts clients that nft redirects without changing the server's address, and clients that a switch has redirected to the
//! agent's own address.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use sos_daemon::bugs;
use sos_tunnel::{Labels, OpenRequest};
use sos_wire::{AgentId, RefuseReason, Role, SessionUuid};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::context::AgentContext;
use crate::documents::config::{self, AgentConfig, Service, Setup};
use crate::metrics::Reason;
use crate::netns::sockets;
use crate::orders::OrderProtocol;
use crate::orders::active_sessions::Party;
use crate::orders::preparations::Preparation;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;

/// Pause after a failed accept: without descriptors or memory, the next accept would fail immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Destination address of a listener's clients.
#[derive(Debug, Clone, Copy)]
pub enum Arrival {
    /// The server's address, as the socket's local address.
    Transparent,
    /// As Transparent, in the network namespace of the pod with this address: only the pod's own connections are admitted.
    Pod(Ipv4Addr),
    /// The agent's own address; an order names the server's address.
    Rewritten,
}

/// Accepts clients forever. An error of one client ends that client only.
pub async fn accept_clients(context: Arc<AgentContext>, listener: TcpListener, arrival: Arrival) {
    loop {
        context.armed_as_willing().await;
        match listener.accept().await {
            Ok((client, from)) => _ = bugs::fence(|| admit(&context, client, from, arrival)),
            Err(error) => {
                warn!(%error, "cannot accept clients");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Admits a client. Dropping the client's socket resets the connection, because the socket's linger time is zero from the start.
fn admit(context: &Arc<AgentContext>, client: TcpStream, from: SocketAddr, arrival: Arrival) {
    context.metrics.accepted.inc();
    let reject = |reason| context.metrics.rejected.get_or_create(&Reason { reason }).inc();
    let Some(arrived) = flow(&client, from) else {
        reject("socket");
        return;
    };
    if context.virtual_address.is_backup() {
        reject("backup");
        return;
    }
    let route = match arrival {
        Arrival::Transparent => route(context, arrived),
        Arrival::Pod(address) if address != *arrived.client.ip() => {
            // A program in the pod has used a source address that is not the pod's.
            reject("socket");
            return;
        }
        Arrival::Pod(_) => route(context, arrived),
        Arrival::Rewritten => {
            ordered_route(context, |protocol| protocol.begin_rewritten(arrived.client, Instant::now()))
        }
    };
    let Some(Route { flow, session, peer, labels, block_bytes, queue_bytes, ordered }) = route else {
        debug!(flow = %arrived, "neither an order nor the configuration covers this client");
        reject("not_permitted");
        return;
    };
    let transport = flow_policy::session_transport(&context.config(), flow, peer, config::Role::Ingress);
    let request = OpenRequest {
        session,
        peer,
        client: flow.client,
        server: flow.server,
        marks: sos_tunnel::first_marks(&client),
        routers: flow_policy::routers(&context.config(), *flow.server.ip()),
        block_bytes,
        queue_bytes,
        labels,
        compress: transport.compress,
        streams: transport.streams,
    };
    match context.tunnel().open(request, client) {
        Ok(handle) => {
            debug!(%session, %flow, %peer, ordered, "session begins");
            if !ordered {
                context.begin_unordered(session, Role::Ingress, flow, peer);
            }
            context.meter(session, flow, handle.relayed());
            context.keep_aborter(session, handle.aborter());
            let context = Arc::clone(context);
            let party = Party { role: Role::Ingress, peer };
            tokio::spawn(async move { context.finished(session, party, flow, &handle.await) });
        }
        Err(reason) => {
            debug!(%session, %flow, ?reason, "session refused");
            reject(refusal(reason));
            context.refused(session, peer);
            context.rearm.notify_one();
        }
    }
}

fn flow(client: &TcpStream, from: SocketAddr) -> Option<FlowKey> {
    let v4 = |address: SocketAddr| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    };
    let server: SocketAddrV4 = v4(client.local_addr().ok()?)?;
    sockets::prepare_host_leg(&SockRef::from(client)).ok()?;
    Some(FlowKey { client: v4(from)?, server })
}

/// Route of a client's bytes.
struct Route {
    flow: FlowKey,
    session: SessionUuid,
    peer: AgentId,
    labels: Labels,
    block_bytes: u32,
    queue_bytes: u32,
    ordered: bool,
}

/// Route by a preparation, or else by the agent's own services. The session uses the server connection that the egress agent has opened
/// ahead, if there is one.
fn route(context: &AgentContext, flow: FlowKey) -> Option<Route> {
    context.hold().with(|syns| syns.completed(flow));
    if let Some(ordered) = ordered_route(context, |protocol| protocol.begin_arriving(flow, Instant::now())) {
        return Some(ordered);
    }
    let config = context.config();
    let service = flow_policy::ingress_service(&config, flow)?;
    let ahead = context.hold().with(|syns| syns.claim(flow));
    let (session, peer) = match ahead.filter(|(_, peer)| context.tunnel().peer_alive(*peer)) {
        Some(connected) => connected,
        None => (SessionUuid(rand::random()), far_agent(context, &config, service, flow)?),
    };
    Some(Route {
        flow,
        session,
        peer,
        labels: Labels(service.label_mask()),
        block_bytes: service.transport.block_bytes,
        queue_bytes: service.transport.queue_bytes,
        ordered: false,
    })
}

/// Egress agent for a flow: a willing agent, or else a live agent, which below its limits has capacity for clients that arrived before
/// nft was disarmed.
///
/// On a bridge, a proactive service uses an agent that has just been added only after its switch has learned of it. While no agent is
/// settled, the first configured agent comes first, since agents are added after it.
///
/// Without a bridge, the agent that became willing last comes first: if a site's virtual address has moved away from a node that failed, the
/// failed node's agent counts as willing until its streams have been silent for seconds.
pub(crate) fn far_agent(
    context: &AgentContext,
    config: &AgentConfig,
    service: &Service,
    flow: FlowKey,
) -> Option<AgentId> {
    let tunnel = context.tunnel();
    let latest = config.bridge().is_none().then(|| context.latest_willing()).into_iter().flatten();
    let is_latest = |latest| flow_policy::far_agent(config, service, Some(flow), |id| id == latest);
    let spread = config.bridge().is_some() && service.setup == Setup::Proactive;
    let settled = if spread { context.settled_peers() } else { BTreeSet::new() };
    let first = config.peer(&service.peer).and_then(|site| site.agents.first()).filter(|_| spread);
    let is_first = |id: AgentId| first.is_some_and(|agent| agent.id == id);
    let willing = |known: &dyn Fn(AgentId) -> bool| {
        flow_policy::far_agent(config, service, Some(flow), |id| known(id) && tunnel.peer_willing(id))
    };
    latest
        .filter(|id| tunnel.peer_willing(*id))
        .find_map(is_latest)
        .or_else(|| willing(&|id: AgentId| settled.contains(&id)))
        .or_else(|| willing(&is_first))
        .or_else(|| willing(&|_: AgentId| true))
        .or_else(|| flow_policy::far_agent(config, service, Some(flow), |id| tunnel.peer_alive(id)))
}

/// Route by an order, whose preparation `take` removes.
fn ordered_route(
    context: &AgentContext,
    take: impl FnOnce(&mut OrderProtocol) -> Option<Preparation>,
) -> Option<Route> {
    let preparation = context.with_order_protocol(|protocol, _| take(protocol))?;
    let flow = preparation.flow();
    let prepare = preparation.prepare;
    Some(Route {
        flow,
        session: prepare.session,
        peer: prepare.peer,
        labels: Labels(prepare.labels),
        block_bytes: prepare.block_bytes,
        queue_bytes: prepare.queue_bytes,
        ordered: true,
    })
}

fn refusal(reason: RefuseReason) -> &'static str {
    match reason {
        RefuseReason::Draining => "draining",
        RefuseReason::SessionLimit => "session_limit",
        RefuseReason::MemoryLimit => "memory_limit",
        RefuseReason::UnknownPeer => "unknown_peer",
        RefuseReason::NotPermitted => "not_permitted",
        RefuseReason::UnsupportedTransport => "transport",
        RefuseReason::ServerUnreachable => "server_unreachable",
        RefuseReason::ServerRefused => "server_refused",
        RefuseReason::ServerRejected => "server_rejected",
        RefuseReason::ServerSilent => "server_silent",
        RefuseReason::PortTaken => "port_taken",
    }
}
