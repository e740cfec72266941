//! The tunnel: what the process around it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sos_relay::{Budget, Session, SessionConfig, StreamId};
use sos_wire::{
    AgentId, Body, EndReason, Frame, Open, RefuseReason, SessionNumber, SessionUuid, SiteId, Willingness,
};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};

use crate::buffers::Buffers;
use crate::config::{Labels, OpenRequest, PathStats, PeerConfig, SessionEnd, Stats, TunnelConfig};
use crate::counters::Counters;
use crate::driver::{Beginning, Driver, Progress, Side};
use crate::hooks::OpenInfo;
use crate::host::{Host, Leg};
use crate::liveness::{self, Sweeps};
use crate::lock;
use crate::mailbox::{Mail, Mailbox};
use crate::peer::Peer;
use crate::pipes::Pipes;
use crate::pool::{self, Arrived, Pending, Slots};
use crate::quic::{self, Endpoints};
use crate::spare::MostStreams;

/// Bytes of frames that may wait for a session's task beyond what it has granted.
const MAILBOX_SLACK: usize = 1 << 20;
/// How long [`Tunnel::close`] gives the peers to hear of it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// What the tasks of a tunnel share.
pub(crate) struct Shared {
    pub(crate) config: TunnelConfig,
    pub(crate) counters: Counters,
    pub(crate) buffers: Buffers,
    pub(crate) pipes: Arc<Pipes>,
    budget: Arc<Budget>,
    /// What the windows of QUIC streams may have.
    pub(crate) windows: Arc<Budget>,
    pub(crate) endpoints: Endpoints,
    pub(crate) sweeps: Arc<Sweeps>,
    peers: Mutex<BTreeMap<AgentId, Arc<Peer>>>,
    pub(crate) slots: Slots,
    pub(crate) pending: Pending,
    willing: watch::Sender<BTreeSet<AgentId>>,
    draining: AtomicBool,
    /// See [`Willingness`].
    changes: AtomicU64,
    sessions: AtomicUsize,
    next_stream: AtomicU64,
    /// Sessions opened in this life.
    opened: Arc<AtomicU64>,
    next_dialed: AtomicU32,
    pub(crate) runtime: Handle,
    /// When the tunnel began.
    pub(crate) epoch: Instant,
}

/// All streams and sessions of this agent. Cheap to clone; the last clone gone does not end it, [`Self::close`] does.
#[derive(Clone)]
pub struct Tunnel(Arc<Shared>);

impl fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tunnel").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl Tunnel {
    /// Begins without peers.
    ///
    /// # Panics
    /// Outside a Tokio runtime with I/O and time.
    pub fn start(config: TunnelConfig) -> Self {
        let sweeps = Arc::<Sweeps>::default();
        tokio::spawn(liveness::sweep(Arc::downgrade(&sweeps)));
        Self(Arc::new(Shared {
            sweeps,
            budget: Budget::new(config.limits.memory),
            windows: quic::budget(config.limits.memory),
            endpoints: Endpoints::default(),
            config,
            counters: Counters::default(),
            buffers: Buffers::default(),
            pipes: Arc::default(),
            peers: Mutex::default(),
            slots: Slots::default(),
            pending: Pending::default(),
            willing: watch::Sender::new(BTreeSet::new()),
            draining: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            next_stream: AtomicU64::new(1),
            opened: Arc::default(),
            next_dialed: AtomicU32::new(1),
            runtime: Handle::current(),
            epoch: Instant::now(),
        }))
    }

    /// Replaces the list of peers. Streams are dialed to those with a higher agent id. Sessions with peers that are not listed any more
    /// finish as they began.
    pub fn set_peers(&self, peers: Vec<PeerConfig>) {
        let shared = &self.0;
        let listed: BTreeSet<AgentId> = peers.iter().map(|peer| peer.agent).collect();
        {
            let mut known = lock(&shared.peers);
            known.values().filter(|peer| !listed.contains(&peer.agent)).for_each(|peer| peer.retire());
            known.retain(|agent, peer| {
                let kept = !peer.is_retired() || peer.session_count() > 0;
                if !kept {
                    shared.slots.abort(*agent);
                    peer.close_streams();
                }
                kept
            });
            for config in peers.into_iter().filter(|peer| peer.agent != shared.config.agent) {
                match known.get(&config.agent) {
                    Some(peer) => peer.configure(config),
                    None => {
                        known.insert(config.agent, Peer::new(shared.config.agent, config, &shared.opened));
                    }
                }
            }
            for peer in known.values().filter(|peer| peer.agent > shared.config.agent) {
                pool::keep_streams(shared, peer);
            }
        }
        shared.publish_willing();
    }

    /// Takes a connection to the stream port of `label`. The exchange runs in the background, bounded in time and number.
    pub fn accept_stream(&self, socket: TcpStream, label: u8) {
        pool::accept(&self.0, Arrived::Tcp(socket), label);
    }

    /// Opens the UDP port of `label`: QUIC streams are dialed from it and accepted at it, like [`Self::accept_stream`]'s, until
    /// [`Self::close`].
    ///
    /// # Errors
    /// Error of the kernel. Without the port streams are over TCP.
    pub fn open_datagrams(&self, socket: UdpSocket, label: u8) -> io::Result<()> {
        quic::listen(&self.0, socket, label)
    }

    /// Opens a session for a host that has connected here.
    ///
    /// # Errors
    /// Why not; the host's connection has been reset.
    pub fn open(&self, request: OpenRequest, host: TcpStream) -> Result<SessionHandle, RefuseReason> {
        self.0.open(request, host).inspect_err(|_| self.0.counters.sessions_refused.add(1))
    }

    /// Asks a peer to connect to a server for a session that may begin (frame.md section 9). False when it cannot be asked. An answer that is lost
    /// with a stream does not come.
    pub fn ask(&self, peer: AgentId, open: Open, labels: Labels) -> bool {
        self.send_ahead(peer, Body::Connect { open }, labels)
    }

    /// Answers a peer that has asked: `None` = the server has accepted.
    pub fn answer(&self, peer: AgentId, session: SessionUuid, refused: Option<RefuseReason>) {
        self.send_ahead(peer, Body::Connected { session, refused }, Labels::ALL);
    }

    /// Tells a peer that the session it was asked about will not begin.
    pub fn release(&self, peer: AgentId, session: SessionUuid) {
        self.send_ahead(peer, Body::Release { session }, Labels::ALL);
    }

    fn send_ahead(&self, peer: AgentId, body: Body, labels: Labels) -> bool {
        self.0.find_peer(peer).is_some_and(|peer| peer.send_ahead(body, labels, Instant::now()))
    }

    /// True where a peer can be asked; an earlier version cannot.
    pub fn can_ask(&self, peer: AgentId) -> bool {
        self.0.find_peer(peer).is_some_and(|peer| peer.takes_connect())
    }

    /// Whether sessions may be opened towards a peer: a stream stands and it is not leaving.
    pub fn peer_alive(&self, agent: AgentId) -> bool {
        self.0.find_peer(agent).is_some_and(|peer| peer.is_alive())
    }

    /// Whether a peer is alive and has room for new sessions.
    pub fn peer_willing(&self, agent: AgentId) -> bool {
        self.0.find_peer(agent).is_some_and(|peer| peer.is_willing())
    }

    /// The peers that are willing, now and whenever that changes.
    pub fn willing_peers(&self) -> watch::Receiver<BTreeSet<AgentId>> {
        self.0.willing.subscribe()
    }

    /// Says whether new sessions are welcome for now; the peers are told when that changes. Those that come all the same are taken.
    pub fn set_willing(&self, willing: bool) {
        let change = |n| (Willingness(n).holds() != willing).then_some(Willingness(n).changed().0);
        let changed = self.0.changes.fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        if changed.is_ok() {
            let changes = self.0.willingness();
            lock(&self.0.peers).values().for_each(|peer| peer.say_willing(changes));
        }
    }

    /// Takes no new sessions, here or from peers, and tells them so. Sessions that run go on.
    pub fn drain(&self) {
        self.0.draining.store(true, Ordering::Release);
        lock(&self.0.peers).values().for_each(|peer| peer.send_go_away());
    }

    /// Counters and gauges.
    pub fn stats(&self) -> Stats {
        self.0.counters.snapshot(self.0.budget.used())
    }

    /// What is known of each path that has a stream, by peer and label. For one asker: round trips are those since the last time.
    pub fn paths(&self) -> Vec<PathStats> {
        let (peers, now) = (lock(&self.0.peers).values().cloned().collect::<Vec<_>>(), Instant::now());
        peers.iter().flat_map(|peer| peer.paths(now)).collect()
    }

    /// Resets every session, gives the peers up to a second to hear of it, closes every stream and dials no more.
    pub async fn close(&self) {
        self.drain();
        lock(&self.0.peers).values().for_each(|peer| peer.abort_sessions(EndReason::PeerLost));
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

impl Shared {
    pub(crate) fn find_peer(&self, agent: AgentId) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&agent).cloned()
    }

    /// Whether an agent of a site is configured at an address.
    pub(crate) fn is_at(&self, site: SiteId, address: IpAddr) -> bool {
        let peers = lock(&self.peers).values().map(|peer| peer.config()).collect::<Vec<_>>();
        peers.iter().any(|peer| peer.site == site && address.to_canonical() == IpAddr::V4(peer.address))
    }

    /// A session runs, or what one has said is not known to be at its peer: a stream that is closed forgets what waits there.
    fn is_speaking(&self) -> bool {
        let peers: Vec<_> = lock(&self.peers).values().cloned().collect();
        self.sessions.load(Ordering::Acquire) > 0
            || !peers.iter().all(|peer| peer.has_heard_all(Instant::now()))
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    pub(crate) fn willingness(&self) -> Willingness {
        Willingness(self.changes.load(Ordering::Acquire))
    }

    /// A name for a stream, unique in this process.
    pub(crate) fn name_stream(&self) -> StreamId {
        StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// A number for a stream that is dialed, never used before in this boot.
    pub(crate) fn number_stream(&self) -> u32 {
        self.next_dialed.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells the watchers which peers are willing, if that has changed.
    pub(crate) fn publish_willing(&self) {
        let willing: BTreeSet<AgentId> =
            lock(&self.peers).values().filter(|peer| peer.is_willing()).map(|peer| peer.agent).collect();
        self.willing.send_if_modified(|known| {
            let changed = *known != willing;
            *known = willing;
            changed
        });
    }

    fn open(self: &Arc<Self>, request: OpenRequest, host: TcpStream) -> Result<SessionHandle, RefuseReason> {
        // From here on every way out resets the host.
        let host = self
            .host(Leg { socket: host, routers: request.routers })
            .map_err(|_| RefuseReason::SessionLimit)?;
        let peer =
            self.find_peer(request.peer).filter(|peer| peer.is_alive()).ok_or(RefuseReason::UnknownPeer)?;
        self.reserve_session()?;
        let now = Instant::now();
        let mailbox = self.mailbox(request.queue_bytes);
        let number = peer.open_session(&mailbox);
        let open = Open {
            session: request.session,
            client: request.client,
            server: request.server,
            marks: request.marks,
            block_bytes: request.block_bytes,
            queue_bytes: request.queue_bytes,
        };
        let config = self.session_config(number, &open, peer.rtt(), peer.known_rate(now));
        let Some(session) = Session::open(&config, open, &self.budget, now) else {
            peer.end_session((number, &mailbox), EndReason::InternalLimit, 0, now);
            self.release_session();
            return Err(RefuseReason::MemoryLimit);
        };
        let (told, end) = oneshot::channel();
        let progress = Arc::new(Progress::default());
        let driver = Driver::new(Beginning {
            shared: Arc::clone(self),
            peer,
            session,
            mailbox: Arc::clone(&mailbox),
            host: Some(host),
            side: Side::Ingress(Some(told)),
            labels: request.labels,
            compress: request.compress,
            most: MostStreams(request.streams),
            progress: Arc::clone(&progress),
            now,
        });
        self.runtime.spawn(driver.run());
        Ok(SessionHandle { mailbox, progress, end })
    }

    pub(crate) fn host(&self, leg: Leg) -> io::Result<Host> {
        Host::new(leg, self.config.segment_marks.as_ref(), self.epoch)
    }

    /// Begins a session that a peer opens.
    pub(crate) fn begin_egress(
        self: &Arc<Self>,
        peer: &Arc<Peer>,
        frame: &Frame,
        rtt: Duration,
    ) -> Result<Arc<Mailbox>, EndReason> {
        let Body::Open { open, .. } = frame.body else { return Err(EndReason::InternalLimit) };
        let refused = || self.counters.sessions_refused.add(1);
        self.reserve_session().map_err(|_| EndReason::InternalLimit).inspect_err(|_| refused())?;
        let now = Instant::now();
        let config = self.session_config(frame.session, &open, rtt, peer.known_rate(now));
        let Some(session) = Session::accept(&config, &self.budget, now) else {
            self.release_session();
            refused();
            return Err(EndReason::InternalLimit);
        };
        let mailbox = self.mailbox(open.queue_bytes);
        let info = OpenInfo { peer: peer.agent, open };
        // Called in the session's own task: here the peer is locked, and the handler may ask this tunnel something.
        let egress = Arc::clone(&self.config.egress);
        let connecting = Box::pin(async move { egress.connect(info).await });
        let driver = Driver::new(Beginning {
            shared: Arc::clone(self),
            peer: Arc::clone(peer),
            session,
            mailbox: Arc::clone(&mailbox),
            host: None,
            side: Side::Egress(info, Some(connecting)),
            labels: Labels::ALL,
            compress: false,
            most: MostStreams::default(),
            progress: Arc::default(),
            now,
        });
        self.runtime.spawn(driver.run());
        Ok(mailbox)
    }

    fn session_config(&self, number: SessionNumber, open: &Open, rtt: Duration, rate: f64) -> SessionConfig {
        SessionConfig {
            number,
            block: usize::try_from(open.block_bytes).unwrap_or(0),
            max_memory: self.session_memory(open.queue_bytes),
            stream_wait: self.config.timing.stream_wait,
            rtt,
            rate,
        }
    }

    /// What a session may hold in each direction: what its service asks for, 0 = this process's own bound. The budget of all sessions bounds it
    /// further.
    fn session_memory(&self, queue_bytes: u32) -> usize {
        match usize::try_from(queue_bytes) {
            Ok(0) => self.config.limits.session_memory,
            asked => asked.unwrap_or(usize::MAX).min(self.config.limits.memory),
        }
    }

    fn mailbox(&self, queue_bytes: u32) -> Arc<Mailbox> {
        Mailbox::new(self.session_memory(queue_bytes) + MAILBOX_SLACK)
    }

    fn reserve_session(&self) -> Result<(), RefuseReason> {
        if self.is_draining() {
            return Err(RefuseReason::Draining);
        }
        let limit = self.config.limits.sessions;
        let take = |n: usize| (n < limit).then_some(n + 1);
        let taken = self.sessions.fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.map(|_| ()).map_err(|_| RefuseReason::SessionLimit)
    }

    pub(crate) fn release_session(&self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A session that was opened here. A future of its end; dropping it does not end the session.
#[derive(Debug)]
pub struct SessionHandle {
    mailbox: Arc<Mailbox>,
    progress: Arc<Progress>,
    end: oneshot::Receiver<SessionEnd>,
}

impl SessionHandle {
    /// Ends the session: both hosts are reset.
    pub fn abort(&self, reason: EndReason) {
        self.mailbox.push(Mail::Abort(reason));
    }

    /// What ends the session, for somebody who does not hold the handle.
    pub fn aborter(&self) -> Aborter {
        Aborter(Arc::clone(&self.mailbox))
    }

    /// Bytes relayed so far, client to server and back.
    pub fn progress(&self) -> (u64, u64) {
        self.relayed().bytes()
    }

    /// The same for somebody who does not hold the handle.
    pub fn relayed(&self) -> Relayed {
        Relayed(Arc::clone(&self.progress))
    }
}

/// Ends a session; it does not keep it.
#[derive(Debug, Clone)]
pub struct Aborter(Arc<Mailbox>);

impl Aborter {
    /// Ends the session: both hosts are reset.
    pub fn abort(&self, reason: EndReason) {
        self.0.push(Mail::Abort(reason));
    }
}

/// What a session has relayed; it does not keep the session.
#[derive(Debug, Clone, Default)]
pub struct Relayed(Arc<Progress>);

impl Relayed {
    /// Bytes relayed so far, client to server and back.
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.up.load(Ordering::Relaxed), self.0.down.load(Ordering::Relaxed))
    }
}

impl Future for SessionHandle {
    type Output = SessionEnd;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<SessionEnd> {
        Pin::new(&mut self.end).poll(cx).map(|end| {
            // The task tells its end even if it panics, unless the runtime itself is gone.
            let (bytes_up, bytes_down) = self.progress();
            let reason = EndReason::InternalLimit;
            end.unwrap_or(SessionEnd { reason, bytes_up, bytes_down, duration: Duration::ZERO })
        })
    }
}
