//! Streams between agents: the listeners on the agent's own address, and the sockets of both directions.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use sos_tunnel::{BoxFuture, Keys, PathInfo, Sockets, path_info};
use sos_wire::{Key, KeyId, SiteId};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};

use crate::config::CongestionControl;
use crate::congestion::{Choice, Chooser, Sample};
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

/// How often a stream's path is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// A path: the peer's address and the label.
type PathKey = (Ipv4Addr, u8);

/// What is known of the paths to peers. Only configured peers get here, so it is bounded like their list.
type Choosers = Arc<Mutex<BTreeMap<PathKey, Chooser>>>;

/// Stream sockets from this agent's own address, with the congestion control of the configuration, or the one that fits.
#[derive(Debug)]
pub struct StreamSockets {
    shared: Arc<Shared>,
    address: Ipv4Addr,
    choosers: Choosers,
}

/// The congestion control for a path: the configuration's, or what `observe` makes of the chooser.
fn wished(shared: &Shared, choosers: &Choosers, path: PathKey, sample: Option<Sample>) -> CongestionControl {
    let configured = pool::congestion(&shared.config(), path.0);
    if configured != CongestionControl::Auto {
        return configured;
    }
    let now = Instant::now();
    let mut choosers = choosers.lock().unwrap_or_else(PoisonError::into_inner);
    let chooser = choosers.entry(path).or_insert_with(|| Chooser::new(now));
    let before = chooser.choice();
    if let Some(sample) = sample {
        chooser.observe(sample, now);
    }
    let choice = chooser.choice();
    if choice != before {
        info!(peer = %path.0, label = path.1, ?choice, "congestion control of a path");
    }
    match choice {
        Choice::Cubic => CongestionControl::Cubic,
        Choice::Bbr => CongestionControl::Bbr,
    }
}

/// What happened between two looks at a stream.
fn difference(before: PathInfo, after: PathInfo) -> Sample {
    // Where the queue ran over meanwhile it is gone now: it was there before.
    let rtt = before.rtt.max(after.rtt);
    let percent = rtt.as_micros() * 100 / after.min_rtt.as_micros().max(1);
    Sample {
        segments: after.segments.wrapping_sub(before.segments).into(),
        resent: after.resent.wrapping_sub(before.resent).into(),
        rtt,
        rtt_percent: u64::try_from(percent).unwrap_or(u64::MAX),
    }
}

/// Keeps a stream's congestion control as it should be, for as long as the stream stands.
async fn tend(shared: Arc<Shared>, choosers: Choosers, socket: OwnedFd, path: PathKey) {
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before: Option<PathInfo> = None;
    let mut in_force = wished(&shared, &choosers, path, None);
    loop {
        ticks.tick().await;
        let Ok(info) = path_info(&socket) else { return };
        let sample = before.map(|before| difference(before, info)).filter(|sample| sample.segments > 0);
        let congestion = wished(&shared, &choosers, path, sample);
        if congestion != in_force {
            socket::set_congestion(&SockRef::from(&socket), congestion);
        }
        (before, in_force) = (Some(info), congestion);
    }
}

impl StreamSockets {
    /// Sockets from `address`, the agent's own.
    #[must_use]
    pub fn new(shared: Arc<Shared>, address: Ipv4Addr) -> Self {
        Self { shared, address, choosers: Choosers::default() }
    }

    fn prepare(&self, socket: &SockRef<'_>, path: PathKey) -> io::Result<()> {
        socket::prepare_stream(socket, wished(&self.shared, &self.choosers, path, None))
    }

    fn socket(&self, to: SocketAddrV4, label: u8) -> io::Result<TcpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        self.prepare(&SockRef::from(&socket), (*to.ip(), label))?;
        // Where the site rewrites, sessions leave by their clients' ports, of which this may be one.
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((self.address, 0)).into())?;
        Ok(TcpSocket::from_std_stream(socket.into()))
    }
}

impl Sockets for StreamSockets {
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<io::Result<TcpStream>> {
        let socket = self.socket(to, label);
        Box::pin(async move { socket?.connect(to.into()).await })
    }

    fn accepted(&self, socket: &TcpStream, label: u8) -> io::Result<()> {
        match socket.peer_addr()? {
            SocketAddr::V4(peer) => self.prepare(&SockRef::from(socket), (*peer.ip(), label)),
            SocketAddr::V6(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn tend(&self, socket: OwnedFd, peer: Ipv4Addr, label: u8) -> BoxFuture<()> {
        Box::pin(tend(Arc::clone(&self.shared), Arc::clone(&self.choosers), socket, (peer, label)))
    }
}

/// The pair keys in force at each moment.
#[derive(Debug)]
pub struct PairKeys(pub Arc<Shared>);

impl Keys for PairKeys {
    fn sending(&self, site: SiteId) -> Option<(KeyId, Key)> {
        self.0.keys().pair(site).sending().map(|(id, key)| (id, key.clone()))
    }

    fn find(&self, site: SiteId, id: KeyId) -> Option<Key> {
        self.0.keys().pair(site).find(id).ok().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_ran_over_between_two_looks_was_there() {
        let ms = Duration::from_millis;
        let before = PathInfo {
            rtt: ms(36),
            min_rtt: ms(20),
            segments: u32::MAX - 9,
            resent: 3,
            ..PathInfo::default()
        };
        let after =
            PathInfo { rtt: ms(22), min_rtt: ms(20), segments: 90, resent: 10, ..PathInfo::default() };
        let sample = Sample { segments: 100, resent: 7, rtt: ms(36), rtt_percent: 180 };
        assert_eq!(difference(before, after), sample);
    }
}
