//! Callbacks of the tunnel into the process that runs it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::pin::Pin;

use sos_wire::{AgentId, EndReason, Key, KeyId, Open, RefuseReason, SessionUuid, SiteId};
use tokio::net::{TcpSocket, TcpStream};

use crate::transport::handle::TransportHandle;
use crate::types::{Labels, SessionEnd};

/// Future returned by a trait object.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Pair keys of this agent's site, by the other site (README.md clause 4 of the spec). Looked up for every stream, so that rotated keys take
/// effect without a restart; established streams keep their key.
pub trait Keys: Send + Sync + 'static {
    /// The pair key to send with to `site`.
    fn sending(&self, site: SiteId) -> Option<(KeyId, Key)>;
    /// The pair key with exactly this id.
    fn find(&self, site: SiteId, id: KeyId) -> Option<Key>;
}

/// Makes TCP sockets of streams: congestion control, buffers, TCP_NODELAY, TCP_NOTSENT_LOWAT, user timeout.
pub trait Sockets: Send + Sync + 'static {
    /// Connects to a peer's stream port; the tunnel bounds the time. Implementations set options that must precede the TCP handshake.
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<io::Result<TcpStream>>;
    /// Sets options on an accepted stream.
    ///
    /// # Errors
    /// An error closes the stream.
    fn accepted(&self, socket: &TcpStream, label: u8) -> io::Result<()>;
    /// Returns true if datagrams from an address may start a stream; all other datagrams are dropped without an answer.
    fn admits(&self, _from: IpAddr) -> bool {
        true
    }
    /// Initial congestion control of a QUIC stream, by the kernel's name.
    fn congestion(&self, _peer: Ipv4Addr, _label: u8) -> &'static str {
        "cubic"
    }
    /// Controls an established stream. When the stream ends, the future is dropped, and the handle with it.
    fn tend(&self, _line: TransportHandle, _peer: Ipv4Addr, _label: u8) -> BoxFuture<()> {
        Box::pin(std::future::ready(()))
    }
}

/// Streams with the kernel's defaults and without Nagle's delay.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainSockets;

impl Sockets for PlainSockets {
    fn dial(&self, to: SocketAddrV4, _label: u8) -> BoxFuture<io::Result<TcpStream>> {
        Box::pin(async move {
            let socket = TcpSocket::new_v4()?;
            socket.set_nodelay(true)?;
            socket.connect(to.into()).await
        })
    }

    fn accepted(&self, socket: &TcpStream, _label: u8) -> io::Result<()> {
        socket.set_nodelay(true)
    }
}

/// A session that a peer opens through this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenInfo {
    /// The ingress agent, authenticated by its pair key.
    pub peer: AgentId,
    /// The flow as described by the peer. The handler checks that its own configuration permits the flow.
    pub open: Open,
}

/// The egress leg of a session.
#[derive(Debug)]
pub struct Egress {
    /// Connected to the server.
    pub host: TcpStream,
    /// Number of routers between the two hosts' sites, by which the TTL of plain packets decreases.
    pub routers: u8,
    /// Path labels that data towards the peer may use.
    pub labels: Labels,
    /// Compress data towards the peer if that makes the session faster.
    pub compress: bool,
    /// Maximum number of streams per label for data towards the peer; `None`: the service sets no number, so the default applies.
    pub streams: Option<usize>,
}

/// Connects to servers on behalf of peers.
pub trait EgressHandler: Send + Sync + 'static {
    /// Connects to the server from the client's address and port. The future must end by itself (a connect timeout); it is dropped if the
    /// session ends first. An error resets the client with this reason.
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>>;
    /// Ends a session for which `connect` was called; called once for each.
    fn ended(&self, info: &OpenInfo, end: SessionEnd);
    /// Handles a peer's request to connect to a server ahead of a session; answered once by [`crate::Tunnel::answer`]. Like `release` and
    /// `connected_ahead`, this is called in the task that reads a stream, and must not block.
    fn connect_ahead(&self, _info: OpenInfo) {}
    /// Releases a connection made ahead of a session that will not start.
    fn release(&self, _peer: AgentId, _session: SessionUuid) {}
    /// Handles the peer's answer to [`crate::Tunnel::ask`]; `None`: the server has accepted.
    fn connected_ahead(&self, _peer: AgentId, _session: SessionUuid, _refused: Option<RefuseReason>) {}
}
