//! Starts sessions, for a host that has connected here or for a peer's Open.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_relay::Session;
use sos_relay::sending::stream_reservation::StreamLimit;
use sos_wire::{Body, EndReason, Frame, Open, RefuseReason};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::callbacks::OpenInfo;
use crate::config::OpenRequest;
use crate::session::driver::{Driver, DriverParts, Side};
use crate::session::handle::{Progress, SessionHandle};
use crate::session::host::Leg;
use crate::session::mailbox::Mailbox;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::peer::Peer;
use crate::types::Labels;

/// Opens a session for a host that has connected here. Every error resets the host.
pub(crate) fn open(
    context: &Arc<TunnelContext>,
    request: OpenRequest,
    host: TcpStream,
) -> Result<SessionHandle, RefuseReason> {
    // On an error, dropping this value resets the host.
    let host = context
        .host(Leg { socket: host, routers: request.routers })
        .map_err(|_| RefuseReason::SessionLimit)?;
    let peer =
        context.find_peer(request.peer).filter(|peer| peer.is_alive()).ok_or(RefuseReason::UnknownPeer)?;
    context.reserve_session()?;
    let now = Instant::now();
    let mailbox = context.mailbox(request.queue_bytes);
    let number = peer.open_session(&mailbox);
    let open = Open {
        session: request.session,
        client: request.client,
        server: request.server,
        marks: request.marks,
        block_bytes: request.block_bytes,
        queue_bytes: request.queue_bytes,
    };
    let config = context.session_config(number, &open, peer.rtt(), peer.known_rate(now));
    let Some(session) = Session::open(&config, open, &context.budget, now) else {
        peer.end_session((number, &mailbox), EndReason::InternalLimit, 0, now);
        context.release_session();
        return Err(RefuseReason::MemoryLimit);
    };
    let (told, end) = oneshot::channel();
    let progress = Arc::new(Progress::default());
    let driver = Driver::new(DriverParts {
        context: Arc::clone(context),
        peer,
        session,
        mailbox: Arc::clone(&mailbox),
        host: Some(host),
        side: Side::Ingress(Some(told)),
        labels: request.labels,
        compress: request.compress,
        most: StreamLimit(request.streams),
        progress: Arc::clone(&progress),
        now,
    });
    context.runtime.spawn(driver.run());
    Ok(SessionHandle { mailbox, progress, end })
}

/// Starts a session that a peer opens.
pub(crate) fn begin_egress(
    context: &Arc<TunnelContext>,
    peer: &Arc<Peer>,
    frame: &Frame,
    rtt: Duration,
) -> Result<Arc<Mailbox>, EndReason> {
    let Body::Open { open, .. } = frame.body else { return Err(EndReason::InternalLimit) };
    let refused = || context.counters.sessions_refused.add(1);
    context.reserve_session().map_err(|_| EndReason::InternalLimit).inspect_err(|_| refused())?;
    let now = Instant::now();
    let config = context.session_config(frame.session, &open, rtt, peer.known_rate(now));
    let Some(session) = Session::accept(&config, &context.budget, now) else {
        context.release_session();
        refused();
        return Err(EndReason::InternalLimit);
    };
    let mailbox = context.mailbox(open.queue_bytes);
    let info = OpenInfo { peer: peer.agent, open };
    // Defer the call to the session's own task: here the peer is locked, and the handler may call this tunnel.
    let egress = Arc::clone(&context.config.egress);
    let connecting = Box::pin(async move { egress.connect(info).await });
    let driver = Driver::new(DriverParts {
        context: Arc::clone(context),
        peer: Arc::clone(peer),
        session,
        mailbox: Arc::clone(&mailbox),
        host: None,
        side: Side::Egress(info, Some(connecting)),
        labels: Labels::ALL,
        compress: false,
        most: StreamLimit::default(),
        progress: Arc::default(),
        now,
    });
    context.runtime.spawn(driver.run());
    Ok(mailbox)
}
