//! One life of the agent, from the command line to the exit code.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sos_pathctl::CongestionControl;
use sos_tunnel::{Limits, PeerConfig, SegmentMarks, Timing, Tunnel, TunnelConfig};
use sos_wire::BootId;
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::bugs;
use crate::cli::{Attach, Cli};
use crate::config::{AgentConfig, Rewrite};
use crate::egress::Servers;
use crate::hold::{self, Hold};
use crate::ingress::Arrival;
use crate::keys::{AgentKeys, KeysError};
use crate::netns::NetError;
use crate::shared::{Shared, boot_id};
use crate::source::{Source, SourceError, document_path, load};
use crate::streams::{PairKeys, StreamSockets, accept_streams};
use crate::{duties, http, ingress, netns, nft, socket};

/// How often a draining agent looks whether its sessions are over.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// How long new sessions are still taken after the peers have been told: a long round trip and a moment.
const DRAIN_NOTICE: Duration = Duration::from_millis(500);
/// How long a draining agent still takes the sessions it has said Ready to: a controller gives up after a second.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// Most streams one peer may have open here over one path: the most that a service may ask for and one for those who say little, and as many
/// that take their place when they are to be of another kind.
const STREAMS_PER_PATH: usize = 2 * (128 + PeerConfig::LIGHT_STREAMS);

/// Why the agent does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No usable configuration.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No usable keys.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The network could not be set up.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A socket could not be made.
    #[error("{what}: {error}")]
    Socket {
        /// Which.
        what: String,
        /// Why.
        error: std::io::Error,
    },
    /// A task that never ends has ended.
    #[error("the task {0} has ended")]
    Task(&'static str),
}

fn socket_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RunError {
    let what = what.into();
    move |error| RunError::Socket { what, error }
}

/// `--check`: parses the configuration and says what it is.
///
/// # Errors
/// What is wrong with it.
pub fn check(path: &Path, node: &str) -> Result<String, SourceError> {
    let file = document_path(path, node);
    let config = load(&file, node)?;
    let (peers, services) = (config.peers.len(), config.services.len());
    Ok(format!(
        "{}: ok (generation {}, {peers} peers, {services} services)",
        file.display(),
        config.generation
    ))
}

/// Runs until a signal. Called on the only thread of the process, so that every later one is started inside the agent's
/// network namespace.
///
/// # Errors
/// Why it could not start or go on.
pub fn run(cli: &Cli) -> Result<(), RunError> {
    let (keys_folder, state) = (cli.keys.clone().unwrap_or_default(), cli.state.clone().unwrap_or_default());
    bugs::count_panics();
    let boot = boot_id();
    let mut source = Source::new(&cli.config, &cli.node, &state);
    let config = source.start()?;
    let keys = AgentKeys::load(&keys_folder)?;
    let metrics = netns::bind_metrics(config.metrics_address, cli.attach)?;
    match cli.attach {
        Attach::Host => netns::attach_host(&config)?,
        Attach::None => netns::attach_none(&config)?,
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(socket_error("cannot start the runtime"))?;
    let agent = Agent { config, keys, boot, source, keys_folder, metrics };
    let ended = runtime.block_on(agent.run());
    // Sockets of sessions still open are reset by being closed; tasks that block are not waited for.
    runtime.shutdown_timeout(Duration::from_secs(1));
    if cli.attach == Attach::None {
        netns::detach();
    }
    ended
}

struct Agent {
    config: AgentConfig,
    keys: AgentKeys,
    boot: BootId,
    source: Source,
    keys_folder: PathBuf,
    metrics: std::net::TcpListener,
}

/// Sockets that are bound before anything is armed.
struct Listeners {
    clients: TcpListener,
    /// Where the site rewrites.
    redirected: Option<TcpListener>,
    streams: Vec<TcpListener>,
    /// The same ports of UDP.
    datagrams: Vec<std::net::UdpSocket>,
    beacons: UdpSocket,
    orders: UdpSocket,
}

impl Agent {
    async fn run(self) -> Result<(), RunError> {
        let segment_marks = segment_marks();
        let Listeners { clients, redirected, streams, datagrams, beacons, orders } =
            listen(&self.config, segment_marks.as_deref())?;
        let port = clients.local_addr().map_err(socket_error("transparent listener"))?.port();
        set_up_nft(&self.config.interface.name, port)?;
        let address = self.config.interface.address.addr();
        let (node, generation, boot) = (self.config.node.clone(), self.config.generation, self.boot.0);
        info!(node, generation, boot, %address, "agent starts");
        let (writers, copies) = hold::open(&self.config.interface.name).unzip();
        let hold = Hold::new(writers);
        let shared = Arc::new(Shared::new(self.config, self.keys, self.boot, orders, (hold, segment_marks)));
        let tunnel = start_tunnel(&shared, address);
        shared.set_tunnel(tunnel.clone());
        let metrics = TcpListener::from_std(self.metrics).map_err(socket_error("metricsAddress"))?;

        let mut duties = Duties::default();
        duties.add("clients", ingress::accept_clients(Arc::clone(&shared), clients, Arrival::Transparent));
        if let Some(listener) = redirected {
            duties.add(
                "redirected",
                ingress::accept_clients(Arc::clone(&shared), listener, Arrival::Rewritten),
            );
        }
        for (socket, label) in datagrams.into_iter().zip(0..) {
            tunnel.open_datagrams(socket, label).map_err(socket_error("stream port for datagrams"))?;
        }
        for (listener, label) in streams.into_iter().zip(0..) {
            duties.add("streams", accept_streams(Arc::clone(&shared), listener, label));
        }
        duties.add("orders", duties::orders(Arc::clone(&shared)));
        if let Some(copies) = copies {
            duties.add("hold", hold::hold_syns(Arc::clone(&shared), copies));
        }
        duties.add("beacon", duties::beacon(Arc::clone(&shared), beacons));
        duties.add("reload", duties::reload(Arc::clone(&shared), self.source, self.keys_folder));
        duties.add("measure", duties::measure(Arc::clone(&shared)));
        duties.add("arm", duties::arm(Arc::clone(&shared), tunnel.willing_peers()));
        let serving = http::serve(metrics, Arc::clone(&shared));
        duties.add("http", async move {
            if let Err(error) = serving.await {
                warn!(%error, "metrics listener");
            }
        });
        duties.until_told_to_stop(&shared).await
    }
}

/// Tasks that never end by themselves.
#[derive(Default)]
struct Duties(JoinSet<&'static str>);

impl Duties {
    fn add(&mut self, name: &'static str, duty: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            duty.await;
            name
        });
    }

    /// Waits for a signal, then drains; a second signal ends the draining. A task that ends, ends the process: it is better
    /// started anew than limping.
    async fn until_told_to_stop(mut self, shared: &Shared) -> Result<(), RunError> {
        let mut term = signal(SignalKind::terminate()).map_err(socket_error("signals"))?;
        let mut int = signal(SignalKind::interrupt()).map_err(socket_error("signals"))?;
        tokio::select! {
            ended = self.0.join_next() => return Err(RunError::Task(ended.and_then(Result::ok).unwrap_or("?"))),
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        drain(shared, &mut term, &mut int).await;
        Ok(())
    }
}

async fn drain(shared: &Shared, term: &mut Signal, int: &mut Signal) {
    let config = shared.config();
    let sessions = || shared.tunnel().stats().sessions;
    info!(sessions = sessions(), seconds = config.drain_seconds, "draining");
    shared.refuse_more();
    let deadline = Instant::now() + Duration::from_secs(config.drain_seconds.into());
    // Nft needs a moment to be told, peers a round trip: what has begun meanwhile still comes.
    sleep(DRAIN_NOTICE).await;
    let ahead = || shared.with_server_legs(|legs| legs.asked()) > 0;
    let expected = || ahead() || shared.at_desk(|desk, _| desk.counts().0) > 0;
    let told = wait_while(expected, deadline.min(Instant::now() + DRAIN_GRACE), term, int).await;
    shared.tunnel().drain();
    if !told {
        wait_while(|| sessions() > 0, deadline, term, int).await;
    }
    info!(sessions = sessions(), "leaving");
    shared.tunnel().close().await;
    // The last orders leave from tasks that have to run once more.
    sleep(DRAIN_POLL).await;
}

/// Waits while something is so, until a deadline or another signal; true after a signal.
async fn wait_while(busy: impl Fn() -> bool, deadline: Instant, term: &mut Signal, int: &mut Signal) -> bool {
    while busy() && Instant::now() < deadline {
        tokio::select! {
            () = sleep(DRAIN_POLL) => {}
            _ = term.recv() => return true,
            _ = int.recv() => return true,
        }
    }
    false
}

/// Without them the agent works: sessions keep the marks that they begin with.
fn segment_marks() -> Option<Arc<SegmentMarks>> {
    let filters = SegmentMarks::new();
    if let Err(error) = &filters {
        warn!(%error, "DSCP and TTL of hosts are seen at the beginning of connections only (BPF or SYS_ADMIN needed, and Linux 5.5)");
    }
    filters.ok().map(Arc::new)
}

fn listen(config: &AgentConfig, segment_marks: Option<&SegmentMarks>) -> Result<Listeners, RunError> {
    let own = |port| SocketAddrV4::new(config.interface.address.addr(), port);
    let tcp = |what: String, listener: std::io::Result<std::net::TcpListener>| {
        listener.and_then(TcpListener::from_std).map_err(socket_error(what))
    };
    let udp = |what: &str, port| {
        let socket = socket::datagrams(own(port)).and_then(UdpSocket::from_std);
        socket.map_err(socket_error(format!("{what} port {}", own(port))))
    };
    let stream = |label| {
        let address = own(config.stream_ports.first + label);
        tcp(format!("stream port {address}"), socket::stream_listener(address, CongestionControl::Cubic))
    };
    let datagrams = |label| {
        let address = own(config.stream_ports.first + label);
        socket::stream_datagrams(address)
            .map_err(socket_error(format!("stream port {address} for datagrams")))
    };
    // Connections have it from their listener, so that no segment is missed before they are accepted.
    let watched = |listener: std::io::Result<std::net::TcpListener>| {
        let watch = |listener: &std::net::TcpListener| segment_marks.map_or(Ok(()), |f| f.watch(listener));
        listener.and_then(|listener| watch(&listener).map(|()| listener))
    };
    let redirected = (config.site.rewrite == Rewrite::OpenFlow).then(|| {
        let address = own(config.discovery.redirect_port);
        tcp(format!("redirect port {address}"), watched(socket::redirect_listener(address)))
    });
    Ok(Listeners {
        redirected: redirected.transpose()?,
        clients: tcp(
            "transparent listener (NET_ADMIN needed)".to_owned(),
            watched(socket::transparent_listener()),
        )?,
        streams: (0..config.stream_ports.count).map(stream).collect::<Result<_, _>>()?,
        datagrams: (0..config.stream_ports.count).map(datagrams).collect::<Result<_, _>>()?,
        beacons: udp("beacon", config.discovery.beacon_port)?,
        orders: udp("order", config.discovery.order_port)?,
    })
}

fn set_up_nft(interface: &str, port: u16) -> Result<(), NetError> {
    netns::nft(&nft::setup(interface, port)).or_else(|error| {
        warn!(%error, "the table left by another version is replaced");
        netns::nft(&nft::setup_afresh(interface, port))
    })
}

fn start_tunnel(shared: &Arc<Shared>, address: Ipv4Addr) -> Tunnel {
    let config = shared.config();
    let mebibytes = |count: u32| usize::try_from(count).unwrap_or(usize::MAX >> 20) << 20;
    Tunnel::start(TunnelConfig {
        agent: config.agent_id,
        boot: shared.boot,
        site: config.site.id,
        limits: Limits {
            sessions: usize::try_from(config.limits.sessions).unwrap_or(usize::MAX),
            memory: mebibytes(config.limits.memory_mib),
            session_memory: mebibytes(config.limits.session_memory_mib),
            streams_per_path: STREAMS_PER_PATH,
        },
        timing: Timing::default(),
        keys: Arc::new(PairKeys(Arc::clone(shared))),
        sockets: Arc::new(StreamSockets::new(Arc::clone(shared), address)),
        egress: Arc::new(Servers(Arc::clone(shared))),
        segment_marks: shared.segment_marks.clone(),
    })
}
