//! One run of the agent, from the command line to the exit code.

use std::future::Future;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sos_daemon::bugs;
use sos_daemon::files::document_path;
use sos_pathctl::CongestionControl;
use sos_tunnel::{Limits, PeerConfig, SegmentMarks, Timing, Tunnel, TunnelConfig};
use sos_wire::BootId;
use tokio::net::{TcpListener, UdpSocket};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::cli::{Attach, Cli};
use crate::context::{AgentContext, Controllers, boot_id};
use crate::documents::config::keys::AgentKeys;
use crate::documents::config::source::{Source, SourceError, load};
use crate::documents::config::{AgentConfig, Discovery, Intake, Rewrite, RouteOwner};
use crate::documents::enrollment::Enrollment;
use crate::documents::enrollment::key_source::{KeySource, KeySourceError};
use crate::netns;
use crate::netns::NetError;
use crate::netns::nflog::Copies;
use crate::netns::nft::{self, Forward};
use crate::netns::sockets;
use crate::netns::stream_routes::{self, StreamRoutes};
use crate::segments::half_open;
use crate::segments::syn_hold::injector::{self, Hold};
use crate::tasks;
use crate::tasks::cards::{self, Bounds};
use crate::tasks::egress::Servers;
use crate::tasks::enrollment::{EnrollmentError, Machine, follow};
use crate::tasks::held_syns;
use crate::tasks::http;
use crate::tasks::ingress;
use crate::tasks::ingress::Arrival;
use crate::tasks::pods;
use crate::tasks::streams::{PairKeys, StreamSockets, accept_streams};
use crate::virtual_address::follow::follow as follow_address;

/// Interval at which a draining agent checks whether its sessions are over.
const DRAIN_POLL: Duration = Duration::from_millis(50);
/// Time for which new sessions are still accepted after peers are notified of a drain: a long round trip plus a margin.
const DRAIN_NOTICE: Duration = Duration::from_millis(500);
/// Time for which a draining agent still accepts sessions for which it has answered Ready. After a second, a controller whose set-up is
/// incomplete forwards the SYN as plain TCP, so no later session begins.
const DRAIN_GRACE: Duration = Duration::from_secs(1);
/// Maximum number of streams of one peer over one path: the service maximum plus the reserved stream, doubled because old and new streams
/// exist together while all streams are replaced (a change of encryption or transport).
const STREAMS_PER_PATH: usize = 2 * (128 + PeerConfig::RESERVED_STREAMS);

/// Reason for the agent's exit.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No usable configuration.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// No usable keys.
    #[error(transparent)]
    Keys(#[from] KeySourceError),
    /// The machine's enrollment cannot be used.
    #[error(transparent)]
    Enrollment(#[from] EnrollmentError),
    /// The network could not be set up.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A socket could not be made.
    #[error("{what}: {error}")]
    Socket {
        /// Name.
        what: String,
        /// Error.
        error: std::io::Error,
    },
    /// A task that must run until exit has ended.
    #[error("the task {0} has ended")]
    Task(&'static str),
}

fn socket_error(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> RunError {
    let what = what.into();
    move |error| RunError::Socket { what, error }
}

/// `--check`: parses the configuration, or the enrollment, and summarises it.
///
/// # Errors
/// The error in the configuration or the enrollment.
pub fn check(cli: &Cli) -> Result<String, SourceError> {
    if let Some(file) = &cli.enrollment {
        let Enrollment { machine, agents, .. } = Enrollment::load(file)?;
        return Ok(format!("{}: ok (machine {machine}, {} agents)", file.display(), agents.len()));
    }
    let node = cli.node.clone().unwrap_or_default();
    let file = document_path(&cli.config.clone().unwrap_or_default(), &node);
    let config = load(&file, &node)?;
    let (peers, services) = (config.peers.len(), config.services.len());
    Ok(format!(
        "{}: ok (generation {}, {peers} peers, {services} services)",
        file.display(),
        config.generation
    ))
}

/// Runs until a signal. Called on the only thread of the process, so that every later thread starts inside the agent's network namespace.
///
/// # Errors
/// The reason why the agent could not start or continue.
pub fn run(cli: &Cli) -> Result<(), RunError> {
    bugs::count_panics();
    let ended = run_once(cli);
    if let (Err(error @ (RunError::Net(_) | RunError::Socket { .. })), Some(file)) = (&ended, &cli.enrollment)
    {
        error!(%error, "cannot start; waiting for another configuration");
        let mut machine = Machine::open(file, &cli.state.clone().unwrap_or_default())?;
        machine.report_failed_start(&error.to_string())?;
    }
    ended
}

fn run_once(cli: &Cli) -> Result<(), RunError> {
    let boot = boot_id();
    let (mut source, key_source, machine) = sources(cli)?;
    let config = source.start()?;
    let keys = key_source.load(&config)?;
    // Without a bridge the agent stays in this namespace.
    let mode = if config.bridge().is_some() { cli.attach } else { Attach::None };
    let metrics = netns::bind_metrics(config.metrics_address, mode)?;
    attach(&config, mode)?;
    let (owner, routes) = (config.route_owner(), StreamRoutes::open(&config));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(socket_error("cannot start the runtime"))?;
    let leaves_table = mode == Attach::None && intake_interface(&config).is_some();
    let (netns, peers) = (cli.netns.clone(), cli.peers.clone());
    let agent = Agent { config, keys, boot, source, key_source, metrics, netns, peers, machine, routes };
    let ended = runtime.block_on(agent.run());
    // Closing resets the sockets of sessions that are still open. Blocking tasks delay the exit by at most one second.
    runtime.shutdown_timeout(Duration::from_secs(1));
    if leaves_table {
        netns::detach();
    }
    if owner == RouteOwner::Machine {
        stream_routes::close();
    }
    ended
}

/// Sources of the configuration and of the keys. An enrolled machine waits here for its first configuration.
fn sources(cli: &Cli) -> Result<(Source, KeySource, Option<Machine>), RunError> {
    let state = cli.state.clone().unwrap_or_default();
    let Some(file) = &cli.enrollment else {
        let (config, node) = (cli.config.clone().unwrap_or_default(), cli.node.clone().unwrap_or_default());
        let keys = KeySource::Folder(cli.keys.clone().unwrap_or_default());
        return Ok((Source::new(&config, &node, &state), keys, None));
    };
    let mut machine = Machine::open(file, &state)?;
    machine.wait_for_config()?;
    let source = Source::new(&machine.config_path(), machine.name(), &state);
    let keys = machine.key_source();
    Ok((source, keys, Some(machine)))
}

/// Prepares the network namespace in which the data plane runs.
fn attach(config: &AgentConfig, attach: Attach) -> Result<(), NetError> {
    match (config.bridge(), &config.intake, attach) {
        (Some(bridge), _, Attach::Host) => netns::attach_host(bridge),
        (Some(bridge), _, Attach::None) => netns::attach_none(bridge),
        (None, Some(Intake::Routed { interface, .. }), _) => netns::attach_routed(interface),
        (None, Some(Intake::Pods { .. }) | None, _) => Ok(()),
    }
}

struct Agent {
    config: AgentConfig,
    keys: AgentKeys,
    boot: BootId,
    source: Source,
    key_source: KeySource,
    metrics: std::net::TcpListener,
    netns: PathBuf,
    peers: Option<PathBuf>,
    machine: Option<Machine>,
    routes: StreamRoutes,
}

/// Sockets that are bound before arming.
struct Listeners {
    clients: TcpListener,
    /// Listener for redirected clients, at a rewriting site only.
    redirected: Option<TcpListener>,
    streams: Vec<TcpListener>,
    /// UDP sockets on the ports of `streams`.
    datagrams: Vec<std::net::UdpSocket>,
    /// Sockets towards controllers; only at a site with a bridge.
    control: Option<Control>,
}

/// Sockets towards the controllers of a site.
struct Control {
    beacons: UdpSocket,
    orders: Arc<UdpSocket>,
    discovery: Discovery,
}

/// Interface on which clients' packets arrive, and the packets that the namespace forwards; `None` if the clients are pods.
fn intake_interface(config: &AgentConfig) -> Option<(String, Forward)> {
    match (&config.interface, &config.intake) {
        (Some(interface), _) => Some((interface.name.clone(), Forward::WithinInterface)),
        (None, Some(Intake::Routed { interface, .. })) => Some((interface.clone(), Forward::Any)),
        (None, Some(Intake::Pods { .. }) | None) => None,
    }
}

/// Creates the nft table that redirects clients to the listener. Then opens, in this namespace, the raw sockets that reinject held SYNs and
/// the netlink socket that receives the copies of held SYNs.
fn open_hold(config: &AgentConfig, clients: &TcpListener) -> Result<(Hold, Option<Copies>), RunError> {
    let Some((interface, forward)) = intake_interface(config) else { return Ok((Hold::for_pods(), None)) };
    let port = clients.local_addr().map_err(socket_error("transparent listener"))?.port();
    set_up_nft(&interface, port, forward)?;
    // A router reaches servers through other interfaces than clients, so it does not bind its raw sockets to an interface.
    let towards_servers = (forward == Forward::WithinInterface).then_some(interface.as_str());
    let (writers, copies) = injector::open(towards_servers).unzip();
    Ok((Hold::new(writers), copies))
}

impl Agent {
    async fn run(self) -> Result<(), RunError> {
        let segment_marks = segment_marks();
        let listeners = listen(&self.config, segment_marks.as_deref())?;
        let (hold, copies) = open_hold(&self.config, &listeners.clients)?;
        let (in_pods, in_bridge) = (self.config.is_in_pods(), self.config.bridge().is_some());
        let address = self.config.stream_address(0);
        let (node, generation, boot) = (self.config.node.clone(), self.config.generation, self.boot.0);
        info!(node, generation, boot, %address, "agent starts");
        let controllers = listeners.control.as_ref().map(|control| Controllers {
            orders: Arc::clone(&control.orders),
            address: SocketAddrV4::new(control.discovery.address, control.discovery.order_port),
        });
        let context = Arc::new(AgentContext::new(
            self.config,
            self.keys,
            self.boot,
            controllers,
            (hold, segment_marks),
        ));
        let tunnel = start_tunnel(&context);
        context.set_tunnel(tunnel.clone());
        let metrics = TcpListener::from_std(self.metrics).map_err(socket_error("metricsAddress"))?;

        let mut tasks = Tasks::default();
        tasks.serve(&context, listeners)?;
        if let Some((interface, address)) = context.config().intake.as_ref().and_then(Intake::followed) {
            tasks.add("virtual address", follow_address(Arc::clone(&context), interface.to_owned(), address));
        }
        if !in_bridge {
            tasks.add("half open", half_open::prober::probe(Arc::clone(&context)));
        }
        if let Some(copies) = copies {
            tasks.add("hold", held_syns::hold_syns(Arc::clone(&context), copies, None));
        }
        tasks.add("held", held_syns::expire_syns(Arc::clone(&context)));
        if in_pods {
            tasks.add("pods", pods::intercept(Arc::clone(&context), self.netns));
        }
        if let Some(path) = self.peers {
            tasks.add("cards", exchange_cards(Arc::clone(&context), path));
        }
        if let Some(machine) = self.machine {
            tasks.add("enrollment", follow(Arc::clone(&context), machine));
        }
        tasks.add("reload", tasks::reload(Arc::clone(&context), self.source, self.key_source, self.routes));
        tasks.add("measure", tasks::measure(Arc::clone(&context)));
        tasks.add("arm", tasks::arm(Arc::clone(&context), tunnel.willing_peers()));
        let serving = http::serve(metrics, Arc::clone(&context));
        tasks.add("http", async move {
            if let Err(error) = serving.await {
                warn!(%error, "metrics listener");
            }
        });
        let ended = tasks.run_until_signal(&context).await;
        if in_pods {
            pods::leave_all(&context).await;
        }
        ended
    }
}

/// Exchanges site cards with peer clusters, with the card keys in force at the time of each Offer.
async fn exchange_cards(context: Arc<AgentContext>, path: PathBuf) {
    let cards = Arc::clone(&context.cards);
    let keys: Arc<cards::FindKey> = Arc::new(move |pairing, id| context.keys().card(pairing, id));
    cards::exchange_cards(&path, cards, keys, Bounds::default()).await;
}

/// Tasks that never end by themselves.
#[derive(Default)]
struct Tasks(JoinSet<&'static str>);

impl Tasks {
    fn add(&mut self, name: &'static str, duty: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(async move {
            duty.await;
            name
        });
    }

    /// Adds the tasks that serve the bound sockets.
    fn serve(&mut self, context: &Arc<AgentContext>, listeners: Listeners) -> Result<(), RunError> {
        let Listeners { clients, redirected, streams, datagrams, control } = listeners;
        self.add("clients", ingress::accept_clients(Arc::clone(context), clients, Arrival::Transparent));
        if let Some(listener) = redirected {
            self.add(
                "redirected",
                ingress::accept_clients(Arc::clone(context), listener, Arrival::Rewritten),
            );
        }
        for (socket, label) in datagrams.into_iter().zip(0..) {
            context
                .tunnel()
                .open_datagrams(socket, label)
                .map_err(socket_error("stream port for datagrams"))?;
        }
        for (listener, label) in streams.into_iter().zip(0..) {
            self.add("streams", accept_streams(Arc::clone(context), listener, label));
        }
        if let Some(Control { beacons, orders, discovery }) = control {
            let to = SocketAddrV4::new(discovery.address, discovery.beacon_port);
            self.add("orders", tasks::orders(Arc::clone(context), orders));
            self.add("beacon", tasks::beacon(Arc::clone(context), beacons, to));
        }
        Ok(())
    }

    /// Waits for a signal, then drains; a second signal ends the drain. If a task ends, the process exits: a restart is better than a partly
    /// working agent.
    async fn run_until_signal(mut self, context: &AgentContext) -> Result<(), RunError> {
        let mut term = signal(SignalKind::terminate()).map_err(socket_error("signals"))?;
        let mut int = signal(SignalKind::interrupt()).map_err(socket_error("signals"))?;
        tokio::select! {
            ended = self.0.join_next() => return Err(RunError::Task(ended.and_then(Result::ok).unwrap_or("?"))),
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        drain(context, &mut term, &mut int).await;
        Ok(())
    }
}

async fn drain(context: &AgentContext, term: &mut Signal, int: &mut Signal) {
    let config = context.config();
    let sessions = || context.tunnel().stats().sessions;
    info!(sessions = sessions(), seconds = config.drain_seconds, "draining");
    context.refuse_more();
    let deadline = Instant::now() + Duration::from_secs(config.drain_seconds.into());
    // nft needs a moment to disarm, and a session that a peer opens before it learns of the drain arrives within a round trip.
    sleep(DRAIN_NOTICE).await;
    let ahead = || context.with_server_legs(|legs| legs.asked()) > 0;
    let expected = || ahead() || context.with_order_protocol(|protocol, _| protocol.counts().0) > 0;
    let told = wait_while(expected, deadline.min(Instant::now() + DRAIN_GRACE), term, int).await;
    context.tunnel().drain();
    if !told {
        wait_while(|| sessions() > 0, deadline, term, int).await;
    }
    info!(sessions = sessions(), "leaving");
    context.tunnel().close().await;
    // Let the tasks that send the last orders run once more.
    sleep(DRAIN_POLL).await;
}

/// Waits while a condition holds, until a deadline or another signal; returns true after a signal.
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

/// Loads the filters that read hosts' marks. Without these filters, sessions keep their initial marks.
fn segment_marks() -> Option<Arc<SegmentMarks>> {
    let filters = SegmentMarks::new();
    if let Err(error) = &filters {
        warn!(%error, "DSCP and TTL of hosts are read only at the start of connections (BPF or SYS_ADMIN needed, and Linux 5.5)");
    }
    filters.ok().map(Arc::new)
}

fn listen(config: &AgentConfig, segment_marks: Option<&SegmentMarks>) -> Result<Listeners, RunError> {
    let own = |port| SocketAddrV4::new(config.stream_address(0), port);
    // At most eight labels (MAX_STREAM_PORTS).
    let of_label = |label: u8| {
        SocketAddrV4::new(config.stream_address(label), config.stream_ports.first + u16::from(label))
    };
    let labels = || 0..u8::try_from(config.stream_ports.count).unwrap_or(u8::MAX);
    let tcp = |what: String, listener: std::io::Result<std::net::TcpListener>| {
        listener.and_then(TcpListener::from_std).map_err(socket_error(what))
    };
    let udp = |what: &str, port| {
        let socket = sockets::datagrams(own(port)).and_then(UdpSocket::from_std);
        socket.map_err(socket_error(format!("{what} port {}", own(port))))
    };
    let stream = |label| {
        let address = of_label(label);
        tcp(
            format!("stream port {address}"),
            sockets::stream_listener(address, CongestionControl::Cubic, config.route_owner()),
        )
    };
    let datagrams = |label| {
        let address = of_label(label);
        sockets::stream_datagrams(address)
            .map_err(socket_error(format!("stream port {address} for datagrams")))
    };
    // Connections inherit the filter from their listener, so that no segment is missed before accept.
    let watched = |listener: std::io::Result<std::net::TcpListener>| {
        let watch = |listener: &std::net::TcpListener| segment_marks.map_or(Ok(()), |f| f.watch(listener));
        listener.and_then(|listener| watch(&listener).map(|()| listener))
    };
    let rewriting = config.discovery.as_ref().filter(|_| config.site.rewrite == Rewrite::OpenFlow);
    let redirected = rewriting.map(|discovery| {
        let address = own(discovery.redirect_port);
        tcp(format!("redirect port {address}"), watched(sockets::redirect_listener(address)))
    });
    let control = config.discovery.clone().map(|discovery| -> Result<_, RunError> {
        let orders = Arc::new(udp("order", discovery.order_port)?);
        Ok(Control { beacons: udp("beacon", discovery.beacon_port)?, orders, discovery })
    });
    Ok(Listeners {
        redirected: redirected.transpose()?,
        clients: tcp(
            "transparent listener (NET_ADMIN needed)".to_owned(),
            watched(sockets::transparent_listener()),
        )?,
        streams: labels().map(stream).collect::<Result<_, _>>()?,
        datagrams: labels().map(datagrams).collect::<Result<_, _>>()?,
        control: control.transpose()?,
    })
}

fn set_up_nft(interface: &str, port: u16, forward: Forward) -> Result<(), NetError> {
    netns::nft(&nft::setup(interface, port, forward)).or_else(|error| {
        warn!(%error, "the table left by another version is replaced");
        netns::nft(&nft::setup_afresh(interface, port, forward))
    })
}

fn start_tunnel(context: &Arc<AgentContext>) -> Tunnel {
    let config = context.config();
    let mebibytes = |count: u32| usize::try_from(count).unwrap_or(usize::MAX >> 20) << 20;
    Tunnel::start(TunnelConfig {
        agent: config.agent_id,
        boot: context.boot,
        site: config.site.id,
        limits: Limits {
            sessions: usize::try_from(config.limits.sessions).unwrap_or(usize::MAX),
            memory: mebibytes(config.limits.memory_mib),
            session_memory: mebibytes(config.limits.session_memory_mib),
            streams_per_path: STREAMS_PER_PATH,
        },
        timing: Timing::default(),
        keys: Arc::new(PairKeys(Arc::clone(context))),
        sockets: Arc::new(StreamSockets::new(Arc::clone(context))),
        egress: Arc::new(Servers(Arc::clone(context))),
        segment_marks: context.segment_marks.clone(),
    })
}
