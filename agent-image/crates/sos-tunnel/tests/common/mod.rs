//! Two agents on loopback, hosts on both sides, and streams that can be cut.
#![allow(dead_code, clippy::unwrap_used, missing_docs)]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use socket2::SockRef;
use sos_tunnel::*;
use sos_wire::{AgentId, BootId, EndReason, Key, KeyId, RefuseReason, SessionUuid, SiteId};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const NEAR: AgentId = AgentId([1; 16]);
pub(crate) const FAR: AgentId = AgentId([2; 16]);
/// Maximum wait of any test; never the quantity that a test measures.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("completes in time")
}

/// Key 2, the same at both agents.
pub(crate) const KEY_2: [u8; 32] = [9; 32];

/// Key 1, and the id of the key to send with.
pub(crate) struct TestKeys(pub(crate) [u8; 32], pub(crate) u16);

impl TestKeys {
    fn key(&self, id: KeyId) -> Option<Key> {
        match id.as_u16() {
            1 => Some(Key::new(self.0)),
            2 => Some(Key::new(KEY_2)),
            _ => None,
        }
    }
}

impl Keys for TestKeys {
    fn sending(&self, _: SiteId) -> Option<(KeyId, Key)> {
        let id = KeyId::new(self.1).unwrap();
        Some((id, self.key(id).unwrap_or_else(|| Key::new(self.0))))
    }

    fn find(&self, _: SiteId, id: KeyId) -> Option<Key> {
        self.key(id)
    }
}

/// Handles of the streams, for cutting them, and switches that make streams fail.
#[derive(Default)]
pub(crate) struct Cuttable {
    handles: Mutex<Vec<TransportHandle>>,
    /// Streams at the far agent.
    far_lines: Mutex<Vec<TransportHandle>>,
    pub(crate) refuses: AtomicBool,
    /// Drops datagrams that would start a stream.
    pub(crate) deaf: AtomicBool,
    /// Number of established streams that panic.
    pub(crate) panics: AtomicUsize,
}

impl Cuttable {
    /// Cuts the first `n` established streams.
    pub(crate) fn cut(&self, n: usize) {
        let mut handles = self.handles.lock().unwrap();
        let n = n.min(handles.len());
        for handle in handles.drain(..n) {
            handle.cut();
        }
    }

    /// Share of all bytes from the near agent on each stream, largest first.
    pub(crate) fn parts(&self) -> Vec<f64> {
        Self::parts_of(&self.handles)
    }

    /// Share of all bytes from the far agent on each stream, largest first.
    pub(crate) fn parts_received(&self) -> Vec<f64> {
        Self::parts_of(&self.far_lines)
    }

    fn parts_of(handles: &Mutex<Vec<TransportHandle>>) -> Vec<f64> {
        let handles = handles.lock().unwrap();
        let told = handles.iter().flat_map(TransportHandle::path_info);
        let mut parts: Vec<_> = told.map(|info| info.acknowledged as f64).collect();
        let all: f64 = parts.iter().sum();
        parts.iter_mut().for_each(|part| *part /= all);
        parts.sort_by(|one, other| other.total_cmp(one));
        parts
    }
}

/// Limits the send buffer of a paced stream. With large buffers, the kernel would immediately accept bytes that it then sends slowly.
fn slow_down(socket: &TcpStream, pacing: Option<u64>) -> std::io::Result<()> {
    pacing.map_or(Ok(()), |_| SockRef::from(socket).set_send_buffer_size(64 << 10))
}

/// Factory of streams with a limited rate in bytes per second; dialed streams can be cut.
pub(crate) struct Dial {
    cuttable: Arc<Cuttable>,
    dials: bool,
    pacing: Option<u64>,
    parallelism: usize,
}

impl Sockets for Dial {
    fn dial(&self, to: SocketAddrV4, label: u8) -> BoxFuture<std::io::Result<TcpStream>> {
        let cuttable = Arc::clone(&self.cuttable);
        let (dialing, pacing) = (PlainSockets.dial(to, label), self.pacing);
        Box::pin(async move {
            if cuttable.refuses.load(Ordering::SeqCst) {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
            let socket = dialing.await?;
            slow_down(&socket, pacing)?;
            Ok(socket)
        })
    }

    fn accepted(&self, socket: &TcpStream, label: u8) -> std::io::Result<()> {
        slow_down(socket, self.pacing)?;
        PlainSockets.accepted(socket, label)
    }

    fn admits(&self, _: IpAddr) -> bool {
        !self.cuttable.refuses.load(Ordering::SeqCst) && !self.cuttable.deaf.load(Ordering::SeqCst)
    }

    fn tend(&self, handle: TransportHandle, _: Ipv4Addr, _: u8) -> BoxFuture<()> {
        handle.set_pacing(self.pacing.map_or(Pacing::Bursts, Pacing::AtMost)).unwrap();
        handle.set_parallelism(self.parallelism);
        provoke(&self.cuttable.panics);
        let handles = if self.dials { &self.cuttable.handles } else { &self.cuttable.far_lines };
        handles.lock().unwrap().push(handle);
        Box::pin(std::future::ready(()))
    }
}

#[derive(Default)]
pub(crate) struct Servers {
    pub(crate) ended: Mutex<Vec<(OpenInfo, SessionEnd)>>,
    pub(crate) compress: AtomicBool,
    /// Maximum number of streams per path for data of the far agent; 0: not set.
    pub(crate) most: AtomicUsize,
    /// Number of sessions that panic when they connect to their server.
    pub(crate) panics: AtomicUsize,
}

/// Panics the given number of times, as a bug would.
fn provoke(times: &AtomicUsize) {
    let left = times.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
    assert!(left.is_err(), "a bug that the test asks for");
}

pub(crate) struct Connect(pub(crate) Arc<Servers>);

impl EgressHandler for Connect {
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>> {
        let servers = Arc::clone(&self.0);
        Box::pin(async move {
            provoke(&servers.panics);
            let host = TcpStream::connect(info.open.server).await.map_err(|_| EndReason::ServerRefused)?;
            let most = Some(servers.most.load(Ordering::SeqCst)).filter(|most| *most > 0);
            let compress = servers.compress.load(Ordering::SeqCst);
            Ok(Egress { host, routers: 0, labels: Labels::ALL, compress, streams: most })
        })
    }

    fn ended(&self, info: &OpenInfo, end: SessionEnd) {
        self.0.ended.lock().unwrap().push((*info, end));
    }
}

#[derive(Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) streams: usize,
    pub(crate) limits: Limits,
    pub(crate) timing: Timing,
    pub(crate) near_key: [u8; 32],
    /// Id of the key that the dialer sends with.
    pub(crate) key_id: u16,
    /// Encryption at the near and the far agent.
    pub(crate) encrypted: (bool, bool),
    /// Compression at the near and the far agent.
    pub(crate) compress: (bool, bool),
    /// Maximum rate of a stream in bytes per second.
    pub(crate) pacing: Option<u64>,
    /// Parallelism.
    pub(crate) parallelism: usize,
    /// Maximum number of streams per path for data of the near and the far agent.
    pub(crate) most: (Option<usize>, Option<usize>),
    pub(crate) protocol: Protocol,
}

impl Default for Setup {
    fn default() -> Self {
        let timing = Timing { backoff_max: Duration::from_millis(500), ..Timing::default() };
        Self {
            streams: 4,
            limits: Limits::default(),
            timing,
            near_key: [7; 32],
            key_id: 1,
            encrypted: (false, false),
            compress: (false, false),
            pacing: None,
            parallelism: usize::MAX,
            most: (None, None),
            protocol: Protocol::Tcp,
        }
    }
}

pub(crate) struct Net {
    pub(crate) near: Tunnel,
    pub(crate) far: Tunnel,
    pub(crate) cuttable: Arc<Cuttable>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) stream_address: SocketAddr,
    sessions: AtomicU64,
    compress: bool,
    most: Option<usize>,
}

pub(crate) fn tunnel(
    setup: &Setup,
    agent: AgentId,
    boot: u64,
    cuttable: &Arc<Cuttable>,
    servers: &Arc<Servers>,
) -> Tunnel {
    let key = if agent == NEAR { setup.near_key } else { [7; 32] };
    Tunnel::start(TunnelConfig {
        agent,
        boot: BootId(boot),
        site: SiteId(u16::from(agent.0[0])),
        limits: setup.limits,
        timing: setup.timing,
        keys: Arc::new(TestKeys(key, setup.key_id)),
        sockets: Arc::new(Dial {
            cuttable: Arc::clone(cuttable),
            dials: agent == NEAR,
            pacing: setup.pacing,
            parallelism: setup.parallelism,
        }),
        egress: Arc::new(Connect(Arc::clone(servers))),
        // The near agent has its gates in eBPF, if the kernel permits, and the far agent in classic BPF.
        segment_marks: SegmentMarks::new().ok().filter(|_| agent == NEAR).map(Arc::new),
    })
}

pub(crate) fn peer(agent: AgentId, port: u16, streams: usize) -> PeerConfig {
    PeerConfig {
        agent,
        site: SiteId(u16::from(agent.0[0])),
        addresses: vec![Ipv4Addr::LOCALHOST],
        first_stream_port: port,
        streams: BTreeMap::from([(0, streams)]),
        encrypted: false,
        encrypted_only: false,
        protocol: Protocol::Tcp,
        dial: sos_tunnel::Dial::ById,
    }
}

/// Accepts streams over both transports at a port that is free for both; returns it.
pub(crate) async fn listen(tunnel: &Tunnel) -> SocketAddr {
    loop {
        match listen_at(tunnel, 0, 0).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            address => return address.unwrap(),
        }
    }
}

/// Accepts streams of a label over both transports at a port; returns it.
pub(crate) async fn listen_at(tunnel: &Tunnel, port: u16, label: u8) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    let address = listener.local_addr()?;
    tunnel.open_datagrams(UdpSocket::bind(address)?, label)?;
    let acceptor = tunnel.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            acceptor.accept_stream(socket, label);
        }
    });
    Ok(address)
}

impl Net {
    /// Two agents; does not wait for their streams.
    pub(crate) async fn unconnected(setup: Setup) -> Self {
        let (cuttable, servers) = (Arc::<Cuttable>::default(), Arc::<Servers>::default());
        let near = tunnel(&setup, NEAR, 1, &cuttable, &servers);
        let far = tunnel(&setup, FAR, 1, &cuttable, &servers);
        let stream_address = listen(&far).await;
        near.open_datagrams(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), 0).unwrap();
        let (near_says, far_says) = setup.encrypted;
        far.set_peers(vec![PeerConfig { encrypted: far_says, ..peer(NEAR, 1, setup.streams) }]);
        let there = peer(FAR, stream_address.port(), setup.streams);
        near.set_peers(vec![PeerConfig { encrypted: near_says, protocol: setup.protocol, ..there }]);
        servers.compress.store(setup.compress.1, Ordering::SeqCst);
        servers.most.store(setup.most.1.unwrap_or(0), Ordering::SeqCst);
        let (sessions, compress, most) = (AtomicU64::new(0), setup.compress.0, setup.most.0);
        Self { near, far, cuttable, servers, stream_address, sessions, compress, most }
    }

    pub(crate) async fn new(setup: Setup) -> Self {
        let net = Self::unconnected(setup).await;
        net.wait_for_streams(setup.streams as u64).await;
        // The windows of QUIC streams must fit the memory limit, too.
        if setup.limits.memory >= Limits::default().memory {
            let quic = if setup.protocol == Protocol::Quic { setup.streams as u64 } else { 0 };
            assert_eq!((net.near.stats().streams_quic, net.far.stats().streams_quic), (quic, quic));
        }
        net
    }

    pub(crate) async fn wait_for_streams(&self, n: u64) {
        until(|| self.near.stats().streams >= n && self.far.stats().streams >= n).await;
    }

    /// A client whose connection is relayed to `server`.
    pub(crate) async fn connect(
        &self,
        server: SocketAddr,
    ) -> (TcpStream, Result<SessionHandle, RefuseReason>) {
        let (client, host) = client().await;
        let session = self.open(host, server);
        (client, session)
    }

    /// Accepts a client's connection to `server`.
    pub(crate) fn open(&self, host: TcpStream, server: SocketAddr) -> Result<SessionHandle, RefuseReason> {
        let request = self.request(&host, server);
        self.near.open(request, host)
    }

    /// Request for a session of a client's connection to `server`.
    pub(crate) fn request(&self, host: &TcpStream, server: SocketAddr) -> OpenRequest {
        let from = host.peer_addr().unwrap();
        let (SocketAddr::V4(from), SocketAddr::V4(server)) = (from, server) else { panic!("IPv4 only") };
        let number = self.sessions.fetch_add(1, Ordering::SeqCst);
        OpenRequest {
            session: SessionUuid(u128::from(number).to_be_bytes()),
            peer: FAR,
            client: from,
            server,
            marks: sos_wire::Marks::default(),
            routers: 0,
            block_bytes: 0,
            queue_bytes: 0,
            labels: Labels::ALL,
            compress: self.compress,
            streams: self.most,
        }
    }

    /// A connection through both agents: the sockets of both hosts, and the session.
    pub(crate) async fn pair(&self) -> (TcpStream, TcpStream, SessionHandle) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let (client, session) = self.connect(listener.local_addr().unwrap()).await;
        let (server, _) = soon(listener.accept()).await.unwrap();
        (client, server, session.unwrap())
    }

    pub(crate) async fn nothing_left(&self) {
        until(|| {
            let (near, far) = (self.near.stats(), self.far.stats());
            near.sessions == 0 && far.sessions == 0 && near.memory_reserved == 0 && far.memory_reserved == 0
        })
        .await;
    }
}

/// A client, and the near agent's socket of the client's connection.
pub(crate) async fn client() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (host, _) = listener.accept().await.unwrap();
    (client, host)
}

/// Waits for a condition that other tasks fulfill.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// Bytes that encode their position.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ (i >> 8).wrapping_mul(7) ^ (i >> 16)) as u8).collect()
}

#[allow(unused_macros)]
/// Declares the same tests over both transports: `over_both! { one_thread: [...], two_threads: [...] }` with functions of a [`Setup`].
macro_rules! over_both {
    (one_thread: [$($one:ident),* $(,)?], two_threads: [$($two:ident),* $(,)?]) => {
        mod tcp {
            $crate::common::over_both!(@all tcp_setup, [$($one)*], [$($two)*]);
        }
        mod quic {
            $crate::common::over_both!(@all quic_setup, [$($one)*], [$($two)*]);
        }
    };
    (@all $setup:ident, [$($one:ident)*], [$($two:ident)*]) => {
        $(#[tokio::test]
        async fn $one() {
            super::$one(crate::common::$setup()).await;
        })*
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $two() {
            super::$two(crate::common::$setup()).await;
        })*
    };
}

#[allow(unused_imports, unused_macros)]
pub(crate) use over_both;

pub(crate) fn tcp_setup() -> Setup {
    Setup::default()
}

pub(crate) fn quic_setup() -> Setup {
    Setup { protocol: Protocol::Quic, ..Setup::default() }
}
