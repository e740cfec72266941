//! The tunnel: the handle of the process, and the tasks that keep streams open and start sessions.

pub(crate) mod accept;
pub(crate) mod context;
pub(crate) mod datagrams;
pub(crate) mod dial;
pub(crate) mod migration;
pub(crate) mod open_session;
pub(crate) mod peer;
pub(crate) mod pool;
pub(crate) mod registration;
pub(crate) mod slots;
pub(crate) mod stream_task;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sos_wire::{AgentId, Body, EndReason, Open, RefuseReason, SessionUuid, Willingness};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::config::{OpenRequest, PathStats, PathStreams, PeerConfig, Stats, TunnelConfig};
use crate::lock;
use crate::session::handle::SessionHandle;
use crate::types::Labels;

use self::accept::Arrived;
use self::context::TunnelContext;
use self::peer::Peer;

/// Maximum time for which [`Tunnel::close`] waits for the peers to be notified.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// All streams and sessions of this agent. Cheap to clone; ended by [`Self::close`], not by dropping the last clone.
#[derive(Clone)]
pub struct Tunnel(Arc<TunnelContext>);

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Starts without peers.
    ///
    /// # Panics
    /// Outside a Tokio runtime with I/O and time.
    pub fn start(config: TunnelConfig) -> Self {
        Self(TunnelContext::new(config))
    }

    /// Replaces the list of peers. This agent dials as [`PeerConfig::dial`] says. Sessions with peers that are no longer listed run to their
    /// end.
    pub fn set_peers(&self, peers: Vec<PeerConfig>) {
        let context = &self.0;
        let listed: BTreeSet<AgentId> = peers.iter().map(|peer| peer.agent).collect();
        {
            let mut known = lock(&context.peers);
            known.values().filter(|peer| !listed.contains(&peer.agent)).for_each(|peer| peer.retire());
            known.retain(|agent, peer| {
                let kept = !peer.is_retired() || peer.session_count() > 0;
                if !kept {
                    context.slots.abort(*agent);
                    peer.close_streams();
                }
                kept
            });
            for config in peers.into_iter().filter(|peer| peer.agent != context.config.agent) {
                match known.get(&config.agent) {
                    Some(peer) => peer.configure(config),
                    None => {
                        known.insert(config.agent, Peer::new(context.config.agent, config, &context.opened));
                    }
                }
            }
            for peer in known.values().filter(|peer| peer.config().is_dialed_by(context.config.agent)) {
                pool::keep_streams(context, peer);
            }
        }
        context.publish_willing();
    }

    /// Accepts a connection to the stream port of `label`. The handshake runs in the background, with a timeout; the number of handshakes is
    /// bounded.
    pub fn accept_stream(&self, socket: TcpStream, label: u8) {
        accept::accept(&self.0, Arrived::Tcp(socket), label);
    }

    /// Opens the UDP port of `label`. Until [`Self::close`], QUIC streams are dialed from this port and accepted at it, as TCP streams are
    /// by [`Self::accept_stream`].
    ///
    /// # Errors
    /// Error of the kernel. Without the port, streams use TCP.
    pub fn open_datagrams(&self, socket: UdpSocket, label: u8) -> io::Result<()> {
        datagrams::listen(&self.0, socket, label)
    }

    /// Opens a session for a host that has connected here.
    ///
    /// # Errors
    /// The reason of the refusal; the host's connection has been reset.
    pub fn open(&self, request: OpenRequest, host: TcpStream) -> Result<SessionHandle, RefuseReason> {
        open_session::open(&self.0, request, host).inspect_err(|_| self.0.counters.sessions_refused.add(1))
    }

    /// Requests that a peer connect to a server ahead of a session (frame.md section 9). Returns false if the request cannot be sent. If
    /// the answer is lost with its stream, no answer arrives.
    pub fn ask(&self, peer: AgentId, open: Open, labels: Labels) -> bool {
        self.send_ahead(peer, Body::Connect { open }, labels)
    }

    /// Answers a peer's request; `None`: the server has accepted.
    pub fn answer(&self, peer: AgentId, session: SessionUuid, refused: Option<RefuseReason>) {
        self.send_ahead(peer, Body::Connected { session, refused }, Labels::ALL);
    }

    /// Notifies a peer that a session for which a connection was requested ahead will not start.
    pub fn release(&self, peer: AgentId, session: SessionUuid) {
        self.send_ahead(peer, Body::Release { session }, Labels::ALL);
    }

    fn send_ahead(&self, peer: AgentId, body: Body, labels: Labels) -> bool {
        self.0.find_peer(peer).is_some_and(|peer| peer.send_ahead(body, labels, Instant::now()))
    }

    /// True if the peer supports connecting ahead of a session; earlier versions do not.
    pub fn can_ask(&self, peer: AgentId) -> bool {
        self.0.find_peer(peer).is_some_and(|peer| peer.takes_connect())
    }

    /// True if sessions may be opened towards a peer: a stream is established and the peer is not leaving.
    pub fn peer_alive(&self, agent: AgentId) -> bool {
        self.0.find_peer(agent).is_some_and(|peer| peer.is_alive())
    }

    /// True if a peer is alive and accepts new sessions.
    pub fn peer_willing(&self, agent: AgentId) -> bool {
        self.0.find_peer(agent).is_some_and(|peer| peer.is_willing())
    }

    /// Streams of each path label of a peer, by label; none for an unknown peer.
    pub fn path_streams(&self, agent: AgentId) -> Vec<PathStreams> {
        self.0.find_peer(agent).map(|peer| peer.path_streams()).unwrap_or_default()
    }

    /// Watch channel with the set of willing peers.
    pub fn willing_peers(&self) -> watch::Receiver<BTreeSet<AgentId>> {
        self.0.willing.subscribe()
    }

    /// Sets whether this agent is willing to accept new sessions, and notifies the peers of a change. Sessions that arrive while it is unwilling
    /// are still accepted.
    pub fn set_willing(&self, willing: bool) {
        let change = |n| (Willingness(n).holds() != willing).then_some(Willingness(n).changed().0);
        let changed = self.0.changes.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        if changed.is_ok() {
            let changes = self.0.willingness();
            lock(&self.0.peers).values().for_each(|peer| peer.say_willing(changes));
        }
    }

    /// Refuses new sessions, from this agent and from peers, and notifies the peers. Running sessions continue.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        lock(&self.0.peers).values().for_each(|peer| peer.send_go_away());
    }

    /// Resets the hosts of every session, and notifies the peers. New sessions are accepted as before.
    pub fn reset_sessions(&self) {
        lock(&self.0.peers).values().for_each(|peer| peer.abort_sessions(EndReason::PeerLost));
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot(self.0.budget.used())
    }

    /// Statistics of each path that has a stream, by peer and label. Supports one caller: round trips are those since the last call.
    pub fn paths(&self) -> Vec<PathStats> {
        let (peers, now) = (lock(&self.0.peers).values().cloned().collect::<Vec<_>>(), Instant::now());
        peers.iter().flat_map(|peer| peer.paths(now)).collect()
    }

    /// Resets every session, gives the peers up to a second to be notified, closes every stream and stops dialing.
    pub async fn close(&self) {
        self.drain();
        self.reset_sessions();
        let deadline = Instant::now() + CLOSE_PATIENCE;
        while self.0.is_speaking() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.0.slots.abort_all();
        self.0.endpoints.close();
        let peers = std::mem::take(&mut *lock(&self.0.peers));
        for peer in peers.values() {
            peer.retire();
            peer.close_streams();
        }
        self.0.publish_willing();
    }
}
