//! Accepts connections to the stream ports: handshake, checks, and start of the stream's task.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sos_wire::WelcomeStatus;
use tokio::net::TcpStream;
use tracing::{debug, info};

use crate::stream::handshake::{self, HandshakeError};
use crate::transport::channel::Channel;
use crate::transport::quic;
use crate::transport::tls::{self, FindKey, PairKeyName};
use crate::tunnel::context::TunnelContext;
use crate::tunnel::dial::{Ready, within};
use crate::tunnel::peer::Peer;
use crate::tunnel::registration::register;
use crate::tunnel::stream_task::run;

/// A connection that may become a stream.
pub(crate) enum Arrived {
    Tcp(TcpStream),
    Quic(Box<quinn::Incoming>),
}

/// Handles a connection to a stream port.
pub(crate) fn accept(context: &Arc<TunnelContext>, arrived: Arrived, label: u8) {
    let id = context.pending.next.fetch_add(1, Ordering::Relaxed);
    let (entered, wait) = tokio::sync::oneshot::channel::<()>();
    let task = context.runtime.spawn({
        let context = Arc::clone(context);
        async move {
            // Wait until the task is in the list, because the task removes itself from the list when it ends.
            let _ = wait.await;
            accepted(context, arrived, label, id).await;
        }
    });
    context.pending.insert(id, task.abort_handle());
    let _ = entered.send(());
}

async fn accepted(context: Arc<TunnelContext>, arrived: Arrived, label: u8, id: u64) {
    let limit = context.config.timing.handshake;
    let result = within(limit, accept_handshake(&context, arrived, label)).await.and_then(|result| result);
    if !context.pending.remove(id) {
        return;
    }
    match result.and_then(|(peer, ready)| register(&context, &peer, ready, label)) {
        Ok(stream) => {
            let agent = stream.registration.peer.agent;
            let (end, _) = run(stream, None).await;
            debug!(peer = %agent, label, %end, "stream ended");
        }
        Err(error) => {
            context.counters.handshakes_failed.add(1);
            debug!(label, %error, "connection turned away");
        }
    }
}

async fn accept_handshake(
    context: &Arc<TunnelContext>,
    arrived: Arrived,
    label: u8,
) -> Result<(Arc<Peer>, Ready), HandshakeError> {
    let (mut channel, proved) = match arrived {
        Arrived::Tcp(socket) => accept_tcp(context, socket, label).await?,
        Arrived::Quic(incoming) => accept_quic(context, *incoming, label).await?,
    };
    let from = channel.peer()?;
    let hello = handshake::read_hello(&mut channel).await?;
    let peer =
        context.find_peer(hello.0.agent).filter(|peer| !peer.is_over()).ok_or(HandshakeError::Stranger)?;
    handshake::check_claim(&hello.0, from, &peer.config())?;
    if let Some(proved) = proved {
        handshake::check_key(&hello.0, proved)?;
    }
    let status = if peer.config().encrypted && !channel.kind().is_encrypted() {
        context.counters.plain_refused.add(1);
        let refused = context.counters.plain_refused.value();
        // The dialer is not authenticated yet: repeated attempts must not fill the log.
        if refused.is_power_of_two() {
            info!(peer = %peer.agent, label, refused, "a plain stream is refused: this pair of sites is encrypted");
        }
        WelcomeStatus::EncryptedOnly
    } else if hello.0.label != label || (context.is_draining() && peer.session_count() == 0) {
        WelcomeStatus::Draining
    } else if peer.stream_count(label) >= context.config.limits.streams_per_path {
        WelcomeStatus::TooManyStreams
    } else {
        WelcomeStatus::Accepted
    };
    let established = handshake::welcome(&mut channel, &context.config, hello, status).await?;
    Ok((peer, (channel, established)))
}

/// Accepts TCP or TLS, depending on the first byte. The second part of the result is the name of the pair key that the dialer has proved
/// over TLS.
async fn accept_tcp(
    context: &Arc<TunnelContext>,
    socket: TcpStream,
    label: u8,
) -> Result<(Channel, Option<PairKeyName>), HandshakeError> {
    context.config.sockets.accepted(&socket, label)?;
    let (from, mut first) = (socket.peer_addr()?.ip(), [0]);
    if socket.peek(&mut first).await? == 0 {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    if first != [tls::FIRST_BYTE] {
        return Ok((Channel::plain(socket), None));
    }
    let (channel, proved) = Channel::accept(socket, keys_of(context, from)).await?;
    Ok((channel, Some(proved)))
}

async fn accept_quic(
    context: &Arc<TunnelContext>,
    incoming: quinn::Incoming,
    label: u8,
) -> Result<(Channel, Option<PairKeyName>), HandshakeError> {
    let IpAddr::V4(from) = incoming.remote_address().ip().to_canonical() else {
        return Err(HandshakeError::Stranger);
    };
    let congestion = context.config.sockets.congestion(from, label);
    let keys = keys_of(context, from.into());
    let (connected, proved) = quic::accept(incoming, keys, congestion, &context.windows).await?;
    Ok((Channel::quic(connected), Some(proved)))
}

/// Pair keys that a dialer at address `from` may name.
fn keys_of(context: &Arc<TunnelContext>, from: IpAddr) -> FindKey {
    let context = Arc::clone(context);
    Box::new(move |(site, id)| {
        let listed = context.is_at(site, from);
        listed.then(|| context.config.keys.find(site, id)).flatten()
    })
}
