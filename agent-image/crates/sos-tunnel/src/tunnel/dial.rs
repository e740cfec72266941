//! Dials a stream: over QUIC or TCP, encrypted or plain, according to the peer's configuration.

use std::future::Future;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use sos_wire::{Key, WelcomeStatus};
use tokio::time::timeout;
use tracing::info;

use crate::config::{PeerConfig, Protocol};
use crate::stream::handshake::{self, Established, HandshakeError};
use crate::transport::channel::{Channel, Kind};
use crate::transport::quic;
use crate::transport::tls::PairKeyName;
use crate::tunnel::context::TunnelContext;
use crate::tunnel::peer::Peer;

/// Configured kind of a stream towards a peer, unless QUIC has just failed.
pub(crate) fn configured(peer: &PeerConfig) -> Kind {
    match peer.protocol {
        Protocol::Quic => Kind::Quic,
        Protocol::Tcp => over_tcp(peer),
    }
}

/// Kind of a stream over TCP.
pub(crate) fn over_tcp(peer: &PeerConfig) -> Kind {
    if peer.encrypted { Kind::Encrypted } else { Kind::Plain }
}

/// A connection whose handshake has succeeded.
pub(crate) type Ready = (Channel, Established);

/// Dials as configured. Falls back to TCP if QUIC fails, and from plain to encrypted TCP if the peer refuses plain streams: the peer's
/// configuration may be newer than this agent's.
pub(crate) async fn dial(context: &TunnelContext, peer: &Peer, label: u8) -> Result<Ready, HandshakeError> {
    let config = peer.config();
    if configured(&config) == Kind::Quic && peer.may_try_quic(label, Instant::now()) {
        match dial_as(context, &config, label, Kind::Quic).await {
            // QUIC works: the peer itself has refused the stream.
            Err(HandshakeError::TurnedAway(status)) => return Err(HandshakeError::TurnedAway(status)),
            Err(error) => give_up_quic(context, peer, label, &error),
            ready => return ready,
        }
    }
    match dial_as(context, &config, label, over_tcp(&config)).await {
        Err(HandshakeError::TurnedAway(WelcomeStatus::EncryptedOnly)) => {
            dial_as(context, &config, label, Kind::Encrypted).await
        }
        result => result,
    }
}

pub(crate) async fn dial_as(
    context: &TunnelContext,
    peer: &PeerConfig,
    label: u8,
    kind: Kind,
) -> Result<Ready, HandshakeError> {
    let (config, timing) = (&context.config, &context.config.timing);
    let to = SocketAddrV4::new(peer.address(label), peer.first_stream_port + u16::from(label));
    let limit = if kind == Kind::Quic { timing.quic } else { timing.handshake };
    let socket = match kind {
        Kind::Quic => None,
        _ => Some(within(limit, config.sockets.dial(to, label)).await??),
    };
    let number = context.number_stream();
    let attempt = async {
        let (id, key) = config.keys.sending(peer.site).ok_or(HandshakeError::NoKey)?;
        let named = (&key, (config.site, id));
        let mut channel = match (socket, kind) {
            (None, _) => Channel::quic(dial_quic(context, to, label, named).await?),
            (Some(socket), Kind::Encrypted) => Channel::dial(socket, named.0, named.1).await?,
            (Some(socket), _) => Channel::plain(socket),
        };
        let established = handshake::dial(&mut channel, config, peer, label, number).await?;
        Ok((channel, established))
    };
    within(limit, attempt).await?
}

async fn dial_quic(
    context: &TunnelContext,
    to: SocketAddrV4,
    label: u8,
    named: (&Key, PairKeyName),
) -> Result<quic::Connected, HandshakeError> {
    let (endpoint, congestion) =
        (context.endpoints.of(label), context.config.sockets.congestion(*to.ip(), label));
    Ok(quic::dial(endpoint, to, named, congestion, &context.windows).await?)
}

pub(crate) async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> Result<T, HandshakeError> {
    timeout(limit, future).await.map_err(|_| HandshakeError::Timeout)
}

/// Falls back to TCP for a while, after QUIC has failed on a label.
pub(crate) fn give_up_quic(context: &TunnelContext, peer: &Peer, label: u8, error: &HandshakeError) {
    let timing = &context.config.timing;
    if let Some(pause) = peer.give_up_quic(label, Instant::now(), (timing.quic, timing.switch)) {
        context.counters.quic_fallbacks.add(1);
        info!(peer = %peer.agent, label, %error, ?pause, "QUIC failed: streams use TCP for now");
    }
}
