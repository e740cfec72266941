//! The near side: clients that nft hands over, accepted with the server's address, or that a switch has brought to the agent's own.

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::{Duration, Instant};

use socket2::SockRef;
use sos_tunnel::{Labels, OpenRequest};
use sos_wire::{AgentId, RefuseReason, Role, SessionUuid};
use tokio::net::{TcpListener, TcpStream};
use tracing::{debug, warn};

use crate::bugs;
use crate::config::{self, AgentConfig, Service};
use crate::metrics::Reason;
use crate::orders::OrderDesk;
use crate::permit::{self, FlowKey};
use crate::preparations::Preparation;
use crate::running::Party;
use crate::shared::Shared;
use crate::socket;

/// Pause after a failed accept: out of descriptors or memory, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How clients come to a listener.
#[derive(Debug, Clone, Copy)]
pub enum Arrival {
    /// With the server's address as the local one.
    Transparent,
    /// To the agent's own address: an order says where they wanted to go.
    Rewritten,
}

/// Accepts clients for ever. An error about one client ends that client only.
pub async fn accept_clients(shared: Arc<Shared>, listener: TcpListener, arrival: Arrival) {
    loop {
        shared.armed_as_willing().await;
        match listener.accept().await {
            Ok((client, from)) => _ = bugs::fence(|| admit(&shared, client, from, arrival)),
            Err(error) => {
                warn!(%error, "cannot accept clients");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Dropping the client's socket resets it: it lingers for zero seconds from the start.
fn admit(shared: &Arc<Shared>, client: TcpStream, from: SocketAddr, arrival: Arrival) {
    shared.metrics.accepted.inc();
    let reject = |reason| shared.metrics.rejected.get_or_create(&Reason { reason }).inc();
    let Some(arrived) = flow(&client, from) else {
        reject("socket");
        return;
    };
    let route = match arrival {
        Arrival::Transparent => route(shared, arrived),
        Arrival::Rewritten => {
            ordered_route(shared, |desk| desk.begin_rewritten(arrived.client, Instant::now()))
        }
    };
    let Some(Route { flow, session, peer, labels, block_bytes, queue_bytes, ordered }) = route else {
        debug!(flow = %arrived, "neither an order nor the configuration covers this client");
        reject("not_permitted");
        return;
    };
    let transport = permit::session_transport(&shared.config(), flow, peer, config::Role::Ingress);
    let request = OpenRequest {
        session,
        peer,
        client: flow.client,
        server: flow.server,
        marks: sos_tunnel::first_marks(&client),
        routers: permit::routers(&shared.config(), *flow.server.ip()),
        block_bytes,
        queue_bytes,
        labels,
        compress: transport.compress,
        streams: transport.streams,
    };
    match shared.tunnel().open(request, client) {
        Ok(handle) => {
            debug!(%session, %flow, %peer, ordered, "session begins");
            if !ordered {
                shared.begin_unordered(session, Role::Ingress, flow, peer);
            }
            shared.meter(session, flow, handle.relayed());
            shared.keep_aborter(session, handle.aborter());
            let shared = Arc::clone(shared);
            let party = Party { role: Role::Ingress, peer };
            tokio::spawn(async move { shared.finished(session, party, flow, &handle.await) });
        }
        Err(reason) => {
            debug!(%session, %flow, ?reason, "session refused");
            reject(refusal(reason));
            shared.refused(session, peer);
            shared.rearm.notify_one();
        }
    }
}

fn flow(client: &TcpStream, from: SocketAddr) -> Option<FlowKey> {
    let v4 = |address: SocketAddr| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    };
    let server: SocketAddrV4 = v4(client.local_addr().ok()?)?;
    socket::prepare_host_leg(&SockRef::from(client)).ok()?;
    Some(FlowKey { client: v4(from)?, server })
}

/// Where a client's bytes go.
struct Route {
    flow: FlowKey,
    session: SessionUuid,
    peer: AgentId,
    labels: Labels,
    block_bytes: u32,
    queue_bytes: u32,
    ordered: bool,
}

/// From a standing preparation, else from the agent's own services: with the connection that the far agent has made ahead, or a new one.
fn route(shared: &Shared, flow: FlowKey) -> Option<Route> {
    if let Some(ordered) = ordered_route(shared, |desk| desk.begin_arriving(flow, Instant::now())) {
        return Some(ordered);
    }
    let config = shared.config();
    let service = permit::ingress_service(&config, flow)?;
    let ahead = shared.hold().with(|syns| syns.claim(flow));
    let (session, peer) = match ahead.filter(|(_, peer)| shared.tunnel().peer_alive(*peer)) {
        Some(connected) => connected,
        None => (SessionUuid(rand::random()), far_agent(shared, &config, service)?),
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

/// One that takes more, or else one that has kept room for those who came before nft was told that it does not.
pub(crate) fn far_agent(shared: &Shared, config: &AgentConfig, service: &Service) -> Option<AgentId> {
    let tunnel = shared.tunnel();
    permit::far_agent(config, service, |id| tunnel.peer_willing(id))
        .or_else(|| permit::far_agent(config, service, |id| tunnel.peer_alive(id)))
}

/// As an order says, once its preparation has been taken.
fn ordered_route(shared: &Shared, take: impl FnOnce(&mut OrderDesk) -> Option<Preparation>) -> Option<Route> {
    let preparation = shared.at_desk(|desk, _| take(desk))?;
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
