//! Streams between agents: listeners on the agent's own address, and sockets of both directions.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sos_daemon::bugs;
use sos_tunnel::{BoxFuture, Keys, Sockets, TransportHandle};
use sos_wire::{Key, KeyId, SiteId};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::{debug, warn};

use crate::context::AgentContext;
use crate::documents::config::{Dial, PeerAgent, RouteOwner};
use crate::netns::sockets;
use crate::tasks::stream_monitor::{PathKey, Paths, StreamMonitor, congestion};

/// Pause after a failed accept: without descriptors or memory, the next accept would fail immediately.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts streams of one path label forever, from peers' addresses only; the handshake authenticates the peer.
pub async fn accept_streams(context: Arc<AgentContext>, listener: TcpListener, label: u8) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                _ = bugs::fence(|| {
                    if admits(&context, from.ip()) {
                        context.tunnel().accept_stream(stream, label);
                    }
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept streams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns true if an address belongs to a peer; counts any other address.
fn admits(context: &AgentContext, address: IpAddr) -> bool {
    let config = context.config();
    let address = address.to_canonical();
    let at = |agent: &PeerAgent| matches!(address, IpAddr::V4(address) if agent.has_address(address));
    // The addresses of a peer behind NAT are unknown; the handshake authenticates the peer.
    let known = config.peers.iter().any(|peer| peer.dial == Dial::Never || peer.agents.iter().any(at));
    if !known {
        context.metrics.strangers.inc();
        debug!(%address, "a stream from an address that belongs to no peer");
    }
    known
}

/// Stream sockets from this agent's own addresses, with congestion control from the configuration or from path control.
#[derive(Debug)]
pub struct StreamSockets {
    context: Arc<AgentContext>,
    paths: Paths,
}

impl StreamSockets {
    /// Sockets of one agent's streams.
    #[must_use]
    pub fn new(context: Arc<AgentContext>) -> Self {
        Self { context, paths: Paths::default() }
    }

    fn routes(&self) -> RouteOwner {
        self.context.config().route_owner()
    }

    fn prepare(&self, socket: &SockRef<'_>, path: PathKey) -> io::Result<()> {
        sockets::prepare_stream(socket, congestion(&self.context, &self.paths, path))?;
        // On a bridge, the agent has set the buffers of its own network namespace.
        if self.routes() == RouteOwner::Machine {
            sockets::enlarge_send_buffer(socket);
        }
        Ok(())
    }

    fn socket(&self, to: SocketAddrV4, label: u8) -> io::Result<TcpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        sockets::set_first_window(&socket);
        self.prepare(&SockRef::from(&socket), (*to.ip(), label))?;
        sockets::opening(&SockRef::from(&socket), self.routes());
        // At a site that rewrites, connections to servers use the clients' ports at the agent's own address, possibly also this stream's
        // port.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((self.context.config().stream_address(label), 0)).into())?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }
}

impl Sockets for StreamSockets {
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<io::Result<TcpStream>> {
        let (socket, routes) = (self.socket(to, label), self.routes());
        Box::pin(async move {
            let stream = socket?.connect(to.into()).await?;
            sockets::opened(&SockRef::from(&stream), routes);
            Ok(stream)
        })
    }

    fn accepted(&self, socket: &TcpStream, label: u8) -> io::Result<()> {
        match socket.peer_addr()? {
            SocketAddr::V4(peer) => {
                sockets::opened(&SockRef::from(socket), self.routes());
                self.prepare(&SockRef::from(socket), (*peer.ip(), label))
            }
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn admits(&self, from: IpAddr) -> bool {
        admits(&self.context, from)
    }

    fn congestion(&self, peer: Ipv4Addr, label: u8) -> &'static str {
        sockets::kernel_name(congestion(&self.context, &self.paths, (peer, label)))
    }

    fn tend(&self, handle: TransportHandle, peer: Ipv4Addr, label: u8) -> BoxFuture<()> {
        let monitor = StreamMonitor::new(Arc::clone(&self.context), self.paths.clone(), (peer, label));
        Box::pin(monitor.run(handle))
    }
}

/// The pair keys currently in force.
#[derive(Debug)]
pub struct PairKeys(pub Arc<AgentContext>);

impl Keys for PairKeys {
    fn sending(&self, site: SiteId) -> Option<(KeyId, Key)> {
        self.0.keys().pair(site).sending().map(|(id, key)| (id, key.clone()))
    }

    fn find(&self, site: SiteId, id: KeyId) -> Option<Key> {
        self.0.keys().pair(site).find(id).ok().cloned()
    }
}
