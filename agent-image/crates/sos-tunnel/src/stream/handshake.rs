//! Handshake at the start of a stream (frame.md section 1).

use std::net::IpAddr;
use std::time::{Duration, Instant};

use sos_wire::stream::handshake::{CONFIRM_LEN, HELLO_LEN, WELCOME_LEN, encode_confirm, verify_confirm};
use sos_wire::{BootId, Capabilities, Hello, Key, Welcome, WelcomeStatus, WireError};
use thiserror::Error;

use crate::config::{PeerConfig, TunnelConfig};
use crate::transport::channel::Channel;
use crate::transport::quic::QuicError;
use crate::transport::tls::{PairKeyName, TlsError};

/// Reason for the failure of a handshake.
#[derive(Debug, Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] std::io::Error),
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Quic(#[from] QuicError),
    #[error("timed out")]
    Timeout,
    #[error("no pair key for the peer's site")]
    NoKey,
    #[error("not from a configured peer")]
    Stranger,
    #[error("turned away: {0:?}")]
    TurnedAway(WelcomeStatus),
    #[error("the Hello names another pair key than the encryption")]
    OtherKey,
    #[error("a stream of an earlier run of the peer")]
    OldBoot,
}

/// Result of a handshake, on both sides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Established {
    /// The peer's boot id.
    pub(crate) boot: BootId,
    /// One round trip, measured by the handshake itself.
    pub(crate) rtt: Duration,
    /// Capabilities of the peer.
    pub(crate) capabilities: Capabilities,
}

/// Capabilities of this agent, independent of its configuration.
const CAPABILITIES: Capabilities = Capabilities::COMPRESSED
    .and(Capabilities::WILLING)
    .and(Capabilities::LIVENESS)
    .and(Capabilities::MARKS)
    .and(Capabilities::CONNECT);

/// Runs the dialer's side.
pub(crate) async fn dial(
    channel: &mut Channel,
    config: &TunnelConfig,
    peer: &PeerConfig,
    label: u8,
    stream_no: u32,
) -> Result<Established, HandshakeError> {
    let (key_id, key) = config.keys.sending(peer.site).ok_or(HandshakeError::NoKey)?;
    let hello = Hello {
        key_id,
        site: config.site,
        label,
        stream_no,
        agent: config.agent,
        boot: config.boot,
        nonce: rand::random(),
        capabilities: CAPABILITIES,
    };
    let hello = hello.encode();
    let asked = Instant::now();
    channel.write_all(&hello).await?;
    let mut bytes = [0; WELCOME_LEN];
    channel.read_exact(&mut bytes).await?;
    let rtt = asked.elapsed();
    let welcome = Welcome::verify(&bytes, &key, &hello)?;
    if welcome.agent != peer.agent || welcome.site != peer.site {
        return Err(HandshakeError::Stranger);
    }
    if welcome.status != WelcomeStatus::Accepted {
        return Err(HandshakeError::TurnedAway(welcome.status));
    }
    channel.write_all(&encode_confirm(key_id, &key, &hello, &bytes)).await?;
    Ok(Established { boot: welcome.boot, rtt, capabilities: welcome.capabilities })
}

/// Runs the acceptor's side up to the dialer's Hello.
pub(crate) async fn read_hello(channel: &mut Channel) -> Result<(Hello, [u8; HELLO_LEN]), HandshakeError> {
    let mut bytes = [0; HELLO_LEN];
    channel.read_exact(&mut bytes).await?;
    Ok((Hello::decode(&bytes)?, bytes))
}

/// Checks the dialer's claim against the configuration: only listed agents get an answer.
pub(crate) fn check_claim(hello: &Hello, from: IpAddr, peer: &PeerConfig) -> Result<(), HandshakeError> {
    let fits = hello.agent == peer.agent && hello.site == peer.site && peer.has_address(from);
    if fits { Ok(()) } else { Err(HandshakeError::Stranger) }
}

/// Checks that the Hello inside an encrypted connection names the key that authenticated the connection. Without this check, a site could
/// relay the plain Hello of another site inside its own encrypted connection.
pub(crate) fn check_key(hello: &Hello, proved: PairKeyName) -> Result<(), HandshakeError> {
    if (hello.site, hello.key_id) == proved { Ok(()) } else { Err(HandshakeError::OtherKey) }
}

/// Sends the acceptor's answer, and checks the dialer's proof.
pub(crate) async fn welcome(
    channel: &mut Channel,
    config: &TunnelConfig,
    (hello, hello_bytes): (Hello, [u8; HELLO_LEN]),
    status: WelcomeStatus,
) -> Result<Established, HandshakeError> {
    let key: Option<Key> = config.keys.find(hello.site, hello.key_id);
    let status = if key.is_some() { status } else { WelcomeStatus::UnknownKey };
    let answer = Welcome {
        key_id: hello.key_id,
        site: config.site,
        status,
        stream_no: hello.stream_no,
        agent: config.agent,
        boot: config.boot,
        nonce: rand::random(),
        capabilities: CAPABILITIES,
    };
    let answer = answer.encode(key.as_ref(), &hello_bytes);
    let asked = Instant::now();
    channel.write_all(&answer).await?;
    let (Some(key), WelcomeStatus::Accepted) = (key, status) else {
        return Err(HandshakeError::TurnedAway(status));
    };
    let mut confirm = [0; CONFIRM_LEN];
    channel.read_exact(&mut confirm).await?;
    verify_confirm(&confirm, &key, &hello_bytes, &answer)?;
    Ok(Established { boot: hello.boot, rtt: asked.elapsed(), capabilities: hello.capabilities })
}
