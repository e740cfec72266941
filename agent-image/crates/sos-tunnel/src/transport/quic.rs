//! Streams over QUIC (RFC 9000): each stream is one connection with one bidirectional QUIC stream, authenticated by the same keys as TLS over
//! TCP (frame.md section 5).
//!
//! quinn implements QUIC; the bytes inside are the same as over TCP. Each connection has its own congestion control, which the process controls
//! like a socket's ([`steering`]). Unused features of QUIC are off: no second stream, no datagrams, no early data, no resumption, no connection
//! migration.

mod endpoint;
mod halves;
mod steering;
mod unanswered;

use std::io;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{
    ConnectError, Connection, ConnectionError, ConnectionStats, Incoming, RecvStream, SendStream,
    ServerConfig, TransportConfig, VarInt,
};
use sos_relay::{Budget, Reservation};
use sos_wire::Key;
use thiserror::Error;

pub(crate) use endpoint::{Endpoints, endpoint};
pub(crate) use halves::{Receiver, Sender};
use steering::{Steer, Steering};
use unanswered::Unanswered;

use crate::lock;
use crate::transport::path_info::PathInfo;
use crate::transport::tls::{self, Expected, FindKey, PairKeyName};

/// Maximum bytes received behind a gap, per stream: 67 ms at 1 Gbit/s.
const WINDOW: u32 = 8 << 20;
/// The receive windows of all QUIC streams together may take this fraction (1 / `MEMORY_PART`) of the sessions' memory limit, in addition
/// to that limit. Bytes to be sent count towards the sessions' memory.
pub(crate) const MEMORY_PART: usize = 2;
/// Idle timeout of the connection, if the stream's own pings have not detected the failure earlier.
const IDLE: Duration = Duration::from_secs(10);
/// Maximum number of connections, and of their bytes, that wait to be accepted.
const MAX_INCOMING: usize = 64;
const MAX_INCOMING_BYTES: u64 = 1 << 20;
/// Maximum unsent bytes of a new stream.
const UNSENT: u32 = 128 << 10;

/// Reason for the failure of a QUIC stream.
#[derive(Debug, Error)]
pub(crate) enum QuicError {
    #[error("quic: no UDP port for this path label")]
    NoPort,
    #[error("quic: no memory for another window")]
    NoMemory,
    #[error("quic: {0}")]
    Connect(#[from] ConnectError),
    #[error("quic: {0}")]
    Connection(#[from] ConnectionError),
    #[error("quic: {0}")]
    Tls(#[from] rustls::Error),
    #[error("quic: {0}")]
    Suite(#[from] NoInitialCipherSuite),
    #[error("quic: no key was proved")]
    NoKey,
}

/// Memory budget of the streams' windows.
pub(crate) fn budget(memory: usize) -> Arc<Budget> {
    Budget::new(memory / MEMORY_PART)
}

/// A connection with its stream.
pub(crate) struct Connected {
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    pub(crate) gauge: Gauge,
    from: std::net::IpAddr,
    window: Reservation,
}

impl Connected {
    fn new(
        connection: Connection,
        (send, receive): (SendStream, RecvStream),
        steering: Arc<Steering>,
        window: Reservation,
    ) -> Self {
        let from = connection.remote_address().ip();
        let sender = Sender::new(send, connection.clone(), Arc::clone(&steering));
        Self { receiver: Receiver(receive), sender, gauge: Gauge::new(connection, steering), from, window }
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> std::net::IpAddr {
        self.from
    }

    /// Splits the directions; the reading half keeps the reservation of the window.
    pub(crate) fn into_split(self) -> ((Receiver, Reservation), Sender) {
        ((self.receiver, self.window), self.sender)
    }
}

/// Connects to a peer and opens the stream. `name` is the acceptor's name for the pair key; it contains this agent's site.
pub(crate) async fn dial(
    endpoint: Option<quinn::Endpoint>,
    to: SocketAddrV4,
    (key, name): (&Key, PairKeyName),
    congestion: &str,
    budget: &Arc<Budget>,
) -> Result<Connected, QuicError> {
    let endpoint = endpoint.ok_or(QuicError::NoPort)?;
    let window = reserve(budget)?;
    let steering = Steering::new(congestion, UNSENT);
    let crypto = QuicClientConfig::try_from(tls::quic_client(key)?)?;
    let mut config = quinn::ClientConfig::new(Arc::new(crypto));
    config.transport_config(Arc::new(transport(&steering)));
    let connection = endpoint.connect_with(config, to.into(), &tls::server_name(name))?.await?;
    let streams = connection.open_bi().await?;
    Ok(Connected::new(connection, streams, steering, window))
}

/// Accepts a connection and its stream. `find` looks up the pair key that the dialer names. The second part of the result is the name of
/// the key that the dialer has proved.
pub(crate) async fn accept(
    incoming: Incoming,
    find: FindKey,
    congestion: &str,
    budget: &Arc<Budget>,
) -> Result<(Connected, PairKeyName), QuicError> {
    let expected = Expected::new(find);
    let steering = Steering::new(congestion, UNSENT);
    let mut config = server(&expected)?;
    config.transport_config(Arc::new(transport(&steering)));
    let connection = incoming.accept_with(Arc::new(config))?.await?;
    let name = *expected.named().ok_or(QuicError::NoKey)?;
    let window = reserve(budget)?;
    let streams = connection.accept_bi().await?;
    Ok((Connected::new(connection, streams, steering, window), name))
}

fn reserve(budget: &Arc<Budget>) -> Result<Reservation, QuicError> {
    budget.reserve(WINDOW as usize).ok_or(QuicError::NoMemory)
}

fn server(expected: &Arc<Expected>) -> Result<ServerConfig, QuicError> {
    let crypto = QuicServerConfig::try_from(tls::quic_server(expected)?)?;
    Ok(ServerConfig::with_crypto(Arc::new(crypto)))
}

/// Initial configuration of an endpoint. It has no keys and would accept no dialer: `accept` gives each connection its own configuration.
fn server_defaults() -> Result<ServerConfig, QuicError> {
    let mut config = server(&Expected::new(Box::new(|_| None)))?;
    config.max_incoming(MAX_INCOMING);
    config.incoming_buffer_size(MAX_INCOMING_BYTES / MAX_INCOMING as u64);
    config.incoming_buffer_size_total(MAX_INCOMING_BYTES);
    config.migration(false);
    Ok(config)
}

fn transport(steering: &Arc<Steering>) -> TransportConfig {
    let mut config = TransportConfig::default();
    config.max_concurrent_bidi_streams(VarInt::from_u32(1));
    config.max_concurrent_uni_streams(VarInt::from_u32(0));
    config.datagram_receive_buffer_size(None);
    config.stream_receive_window(VarInt::from_u32(WINDOW));
    config.receive_window(VarInt::from_u32(WINDOW));
    config.max_idle_timeout(IDLE.try_into().ok());
    config.congestion_controller_factory(Arc::new(Steer(Arc::clone(steering))));
    config
}

/// Control and statistics of a stream's connection.
#[derive(Debug, Clone)]
pub(crate) struct Gauge {
    connection: Connection,
    steering: Arc<Steering>,
    unanswered: Arc<Mutex<Unanswered>>,
}

impl Gauge {
    fn new(connection: Connection, steering: Arc<Steering>) -> Self {
        Self { connection, steering, unanswered: Arc::default() }
    }

    /// Path statistics in TCP_INFO's terms; `NotConnected` once the connection has ended.
    pub(crate) fn path_info(&self) -> io::Result<PathInfo> {
        if self.connection.close_reason().is_some() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let ConnectionStats { path, frame_tx: sent, .. } = self.connection.stats();
        let steering = &self.steering;
        // If there is nothing else to send, quinn elicits an acknowledgement by one of the last two frame types.
        let asking = sent.stream + sent.max_data + sent.max_stream_data + sent.ping + sent.immediate_ack;
        let segment = u64::from(path.current_mtu.max(1));
        let acknowledged = steering.acknowledged();
        let waits = lock(&self.unanswered).look(acknowledged, asking);
        let waiting = if waits { steering.in_flight().div_ceil(segment).max(1) } else { 0 };
        Ok(PathInfo {
            rtt: path.rtt,
            min_rtt: path.min_rtt,
            segments: path.sent_packets as u32,
            retransmitted: path.lost_packets as u32,
            window: path.cwnd,
            slow_start: steering.slow_start(),
            startup: false,
            unsent: u32::try_from(steering.unsent(segment)).unwrap_or(u32::MAX),
            outstanding: u32::try_from(waiting).unwrap_or(u32::MAX),
            in_flight: steering.in_flight(),
            acknowledged,
            delivered: acknowledged as u32,
            // `delivered` counts bytes, not segments.
            mss: 1,
        })
    }

    pub(crate) fn uses_bbr(&self) -> bool {
        self.steering.uses_bbr()
    }

    pub(crate) fn set_congestion(&self, name: &str) {
        self.steering.set_control(name);
    }

    pub(crate) fn set_pacing(&self, bytes_per_second: Option<u64>) {
        self.steering.set_limit(bytes_per_second);
    }

    pub(crate) fn set_unsent(&self, bytes: u32) {
        self.steering.set_unsent(bytes);
    }

    pub(crate) fn cut(&self) {
        self.connection.close(VarInt::from_u32(0), b"");
    }
}
