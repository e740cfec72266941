//! Streams between agents: the listeners on the agent's own address, and the sockets of both directions.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sos_tunnel::{BoxFuture, Keys, Sockets};
use sos_wire::{Key, KeyId, SiteId};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tracing::{debug, warn};

use crate::pool;
use crate::shared::Shared;
use crate::socket;

/// Pause after a failed accept: out of descriptors or memory, it would fail again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Accepts streams of one path label for ever, from peers' addresses only; who the peer is proves the exchange.
pub async fn accept_streams(shared: Arc<Shared>, listener: TcpListener, label: u8) {
    loop {
        match listener.accept().await {
            Ok((stream, from)) if is_peer(&shared, from.ip()) => shared.tunnel().accept_stream(stream, label),
            Ok((_, from)) => {
                shared.metrics.strangers.inc();
                debug!(%from, "a stream from no peer's address");
            }
            Err(error) => {
                warn!(%error, "cannot accept streams");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_peer(shared: &Shared, address: IpAddr) -> bool {
    let config = shared.config();
    config.peers.iter().flat_map(|peer| &peer.agents).any(|agent| IpAddr::V4(agent.address) == address)
}

/// Stream sockets from this agent's own address, with the congestion control of the configuration.
#[derive(Debug)]
pub struct StreamSockets {
    /// The agent's tasks.
    pub shared: Arc<Shared>,
    /// The agent's own address.
    pub address: Ipv4Addr,
}

impl StreamSockets {
    fn prepare(&self, socket: &SockRef<'_>, peer: Ipv4Addr) -> io::Result<()> {
        socket::prepare_stream(socket, pool::congestion(&self.shared.config(), peer))
    }

    fn socket(&self, to: SocketAddrV4) -> io::Result<TcpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        self.prepare(&SockRef::from(&socket), *to.ip())?;
        socket.bind(&SocketAddr::from((self.address, 0)).into())?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }
}

impl Sockets for StreamSockets {
    fn dial(&self, to: SocketAddrV4, _label: u8) -> BoxFuture<io::Result<TcpStream>> {
        let socket = self.socket(to);
        Box::pin(async move { socket?.connect(to.into()).await })
    }

    fn accepted(&self, socket: &TcpStream, _label: u8) -> io::Result<()> {
        match socket.peer_addr()? {
            SocketAddr::V4(peer) => self.prepare(&SockRef::from(socket), *peer.ip()),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// The pair keys in force at each moment.
#[derive(Debug)]
pub struct PairKeys(pub Arc<Shared>);

impl Keys for PairKeys {
    fn newest(&self, site: SiteId) -> Option<(KeyId, Key)> {
        self.0.keys().pair(site).newest().map(|(id, key)| (id, key.clone()))
    }

    fn find(&self, site: SiteId, id: KeyId) -> Option<Key> {
        self.0.keys().pair(site).find(id).ok().cloned()
    }
}
