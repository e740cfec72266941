//! State that all tasks of a tunnel share.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_relay::{Budget, SessionConfig, StreamId};
use sos_wire::{AgentId, Open, RefuseReason, SessionNumber, SiteId, Willingness};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::config::TunnelConfig;
use crate::counters::Counters;
use crate::lock;
use crate::session::host::{Host, Leg};
use crate::session::host_liveness::{self, Sweeps};
use crate::session::mailbox::Mailbox;
use crate::transport::buffers::Buffers;
use crate::transport::quic::{self, Endpoints};
use crate::transport::splice::PipePool;
use crate::tunnel::peer::Peer;
use crate::tunnel::slots::{PendingHandshakes, StreamSlots};

/// Bytes of frames that may wait for a session's task beyond the credit that the session has granted.
const MAILBOX_SLACK: usize = 1 << 20;
/// State that all tasks of a tunnel share.
pub(crate) struct TunnelContext {
    pub(crate) config: TunnelConfig,
    pub(crate) counters: Counters,
    pub(crate) buffers: Buffers,
    pub(crate) pipes: Arc<PipePool>,
    pub(crate) budget: Arc<Budget>,
    /// Budget of the QUIC streams' windows.
    pub(crate) windows: Arc<Budget>,
    pub(crate) endpoints: Endpoints,
    pub(crate) sweeps: Arc<Sweeps>,
    pub(crate) peers: Mutex<BTreeMap<AgentId, Arc<Peer>>>,
    pub(crate) slots: StreamSlots,
    pub(crate) pending: PendingHandshakes,
    pub(crate) willing: watch::Sender<BTreeSet<AgentId>>,
    pub(crate) draining: AtomicBool,
    /// Number of changes of this agent's willingness, see [`Willingness`].
    pub(crate) changes: AtomicU64,
    pub(crate) sessions: AtomicUsize,
    next_stream: AtomicU64,
    /// Sessions opened in this boot.
    pub(super) opened: Arc<AtomicU64>,
    next_dialed: AtomicU32,
    pub(crate) runtime: Handle,
    /// Start of the tunnel.
    pub(crate) epoch: Instant,
}

impl TunnelContext {
    pub(crate) fn new(config: TunnelConfig) -> Arc<Self> {
        let sweeps = Arc::<Sweeps>::default();
        tokio::spawn(host_liveness::sweep(Arc::downgrade(&sweeps)));
        Arc::new(Self {
            sweeps,
            budget: Budget::new(config.limits.memory),
            windows: quic::budget(config.limits.memory),
            endpoints: Endpoints::default(),
            config,
            counters: Counters::default(),
            buffers: Buffers::default(),
            pipes: Arc::default(),
            peers: Mutex::default(),
            slots: StreamSlots::default(),
            pending: PendingHandshakes::default(),
            willing: watch::Sender::new(BTreeSet::new()),
            draining: AtomicBool::new(false),
            changes: AtomicU64::new(0),
            sessions: AtomicUsize::new(0),
            next_stream: AtomicU64::new(1),
            opened: Arc::default(),
            next_dialed: AtomicU32::new(1),
            runtime: Handle::current(),
            epoch: Instant::now(),
        })
    }

    pub(crate) fn find_peer(&self, agent: AgentId) -> Option<Arc<Peer>> {
        lock(&self.peers).get(&agent).cloned()
    }

    /// True if an agent of a site is configured at an address.
    pub(crate) fn is_at(&self, site: SiteId, address: IpAddr) -> bool {
        let peers = lock(&self.peers).values().map(|peer| peer.config()).collect::<Vec<_>>();
        peers.iter().any(|peer| peer.site == site && peer.has_address(address))
    }

    /// True while a session runs, or while a frame may not have reached its peer. `Tunnel::close` waits until this is false, because a
    /// closed stream drops its queue.
    pub(crate) fn is_speaking(&self) -> bool {
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

    /// Returns a stream id that is unique in this process.
    pub(crate) fn name_stream(&self) -> StreamId {
        StreamId(self.next_stream.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns a number for a dialed stream, never reused in this boot.
    pub(crate) fn number_stream(&self) -> u32 {
        self.next_dialed.fetch_add(1, Ordering::Relaxed)
    }

    /// Publishes the set of willing peers if it has changed.
    pub(crate) fn publish_willing(&self) {
        let willing: BTreeSet<AgentId> =
            lock(&self.peers).values().filter(|peer| peer.is_willing()).map(|peer| peer.agent).collect();
        self.willing.send_if_modified(|known| {
            let changed = *known != willing;
            *known = willing;
            changed
        });
    }

    pub(crate) fn host(&self, leg: Leg) -> io::Result<Host> {
        Host::new(leg, self.config.segment_marks.as_ref(), self.epoch)
    }

    pub(crate) fn session_config(
        &self,
        number: SessionNumber,
        open: &Open,
        rtt: Duration,
        rate: f64,
    ) -> SessionConfig {
        SessionConfig {
            number,
            block: usize::try_from(open.block_bytes).unwrap_or(0),
            max_memory: self.session_memory(open.queue_bytes),
            stream_wait: self.config.timing.stream_wait,
            rtt,
            rate,
        }
    }

    /// Returns the number of bytes that a session may hold in each direction: `queue_bytes` as requested by its service, or the limit of
    /// this process if `queue_bytes` is 0. The budget of all sessions is a further bound.
    fn session_memory(&self, queue_bytes: u32) -> usize {
        match usize::try_from(queue_bytes) {
            Ok(0) => self.config.limits.session_memory,
            asked => asked.unwrap_or(usize::MAX).min(self.config.limits.memory),
        }
    }

    pub(crate) fn mailbox(&self, queue_bytes: u32) -> Arc<Mailbox> {
        Mailbox::new(self.session_memory(queue_bytes) + MAILBOX_SLACK)
    }

    pub(crate) fn reserve_session(&self) -> Result<(), RefuseReason> {
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
