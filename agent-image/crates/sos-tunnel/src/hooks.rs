//! What the tunnel asks of the process it runs in.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::pin::Pin;

use sos_wire::{AgentId, EndReason, Key, KeyId, Open, RefuseReason, SessionUuid, SiteId};
use tokio::net::{TcpSocket, TcpStream};

use crate::config::{Labels, SessionEnd};
use crate::line::Line;

/// A future that a trait object returns.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The pair keys of this agent's site, by the other site (README.md clause 4 of the spec). Asked anew for every stream, so rotated keys
/// take effect without a restart; streams that stand keep the key they began with.
pub trait Keys: Send + Sync + 'static {
    /// The pair key to send with, out of those shared with `site`.
    fn sending(&self, site: SiteId) -> Option<(KeyId, Key)>;
    /// Exactly the pair key with this id.
    fn find(&self, site: SiteId, id: KeyId) -> Option<Key>;
}

/// How TCP sockets of streams are made: congestion control, buffers, TCP_NODELAY, TCP_NOTSENT_LOWAT, user timeout.
pub trait Sockets: Send + Sync + 'static {
    /// Connects to a peer's stream port; the tunnel bounds the time. Options that must be set before the handshake are set in here.
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<io::Result<TcpStream>>;
    /// Sets options on an accepted stream.
    ///
    /// # Errors
    /// Closes the stream.
    fn accepted(&self, socket: &TcpStream, label: u8) -> io::Result<()>;
    /// Whether datagrams from an address may begin a stream; others are dropped without an answer.
    fn admits(&self, _from: IpAddr) -> bool {
        true
    }
    /// The congestion control that a QUIC stream begins with, by the kernel's name.
    fn congestion(&self, _peer: Ipv4Addr, _label: u8) -> &'static str {
        "cubic"
    }
    /// Looks after a stream that stands, for as long as it does: the future is dropped, and with it the line, when the stream ends.
    fn tend(&self, _line: Line, _peer: Ipv4Addr, _label: u8) -> BoxFuture<()> {
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
    /// The agent near the client; its pair key has been proved.
    pub peer: AgentId,
    /// What it says about the flow. The handler checks that its own configuration permits it.
    pub open: Open,
}

/// The far leg of a session.
#[derive(Debug)]
pub struct Egress {
    /// Connected to the server.
    pub host: TcpStream,
    /// Routers between the two hosts' sites, which lower the TTL of plain packets.
    pub routers: u8,
    /// The path labels that data towards the peer may use.
    pub labels: Labels,
    /// Whether data towards the peer is compressed where that pays.
    pub compress: bool,
    /// Streams of each label that data towards the peer uses at most; `None`: as many as if no service named a number.
    pub streams: Option<usize>,
}

/// Connects to servers on behalf of peers.
pub trait EgressHandler: Send + Sync + 'static {
    /// Connects to the server as the client. It must come to an end by itself (a connect timeout); it is dropped if the session ends
    /// before. An error is passed on to the client as a reset with this reason.
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>>;
    /// A session for which `connect` was called is over; called once for each.
    fn ended(&self, info: &OpenInfo, end: SessionEnd);
    /// A peer asks whether a server accepts: to connect to it now, for a session that may begin. Answered by [`crate::Tunnel::answer`], once.
    /// Like the two below it is called in the task that reads a stream, and must not wait.
    fn connect_ahead(&self, _info: OpenInfo) {}
    /// The session that a peer has asked this for will not begin.
    fn release(&self, _peer: AgentId, _session: SessionUuid) {}
    /// A peer answers what [`crate::Tunnel::ask`] has asked: `None` = the server has accepted.
    fn connected_ahead(&self, _peer: AgentId, _session: SessionUuid, _refused: Option<RefuseReason>) {}
}
