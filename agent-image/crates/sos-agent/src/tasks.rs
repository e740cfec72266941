//! Recurring tasks of the agent: arming, beacons, orders, reports, reloading files.

pub mod cards;
pub(crate) mod connect_ahead;
pub mod egress;
pub mod enrollment;
pub mod held_syns;
pub mod http;
pub mod ingress;
pub mod pods;
pub(crate) mod server_dial;
pub mod server_legs;
pub mod status;
pub(crate) mod stream_monitor;
pub mod streams;

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_daemon::bugs::fence;
use sos_wire::order::MAX_LEN;
use sos_wire::{AgentId, Beacon};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use crate::context::{AgentContext, unix_ms};
use crate::documents::config::source::{Source, Verdict, judge};
use crate::documents::enrollment::key_source::KeySource;
use crate::metrics::Reason;
use crate::netns;
use crate::netns::nft;
use crate::netns::stream_routes::StreamRoutes;
use crate::netns::tables::Tables;
use crate::orders::{OrderProtocol, confirms};
use crate::policy::arming::{self, Armed, Coverage};
use crate::policy::load::{self, Load, Sample};

/// Interval of the heartbeat: two updates may fail before [`nft::HEARTBEAT_SECONDS`] have passed.
const ARM_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of the heartbeat in pods' tables ([`nft::POD_HEARTBEAT_MS`]).
const POD_ARM_INTERVAL: Duration = Duration::from_millis(nft::POD_HEARTBEAT_MS / 3);
/// Interval of PathReports (order.md clause 13).
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// Interval at which files are checked (node-config.md, introduction).
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Ticks per second in `/proc/self/stat`: USER_HZ is 100 on every architecture of Linux today.
const TICKS_PER_SECOND: u32 = 100;
/// Service type of this relay (beacon.md clause 2).
const SERVICE_TYPE: &str = "tcp-parallel";

/// Keeps nft's armed sets and heartbeat, and the willingness reported to peers, in line with health, limits and willing peers. Never
/// returns.
pub async fn arm(context: Arc<AgentContext>, mut peers: watch::Receiver<BTreeSet<AgentId>>) {
    let in_pods = context.config().is_in_pods();
    let mut ticks = interval(if in_pods { POD_ARM_INTERVAL } else { ARM_INTERVAL });
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut tables, mut in_force, mut willing) = (Tables::new(in_pods), None, false);
    let mut coverage = Coverage::new(context.hold().is_able());
    loop {
        let ticked = tokio::select! {
            _ = ticks.tick() => true,
            () = context.rearm.notified() => false,
            () = context.virtual_address.gained.notified() => true,
            Ok(()) = peers.changed() => false,
        };
        context.note_willing(&peers.borrow_and_update());
        // Disarm immediately, but rearm only at a tick: near the limits, every client would otherwise toggle the state.
        willing = arming::willing(&context.config(), context.health())
            && (willing || ticked)
            && context.pods().is_ready(in_pods);
        context.tunnel().set_willing(willing);
        let agents = if willing { context.willing_agents() } else { BTreeSet::new() };
        let Some(wanted) = fence(|| willing.then(|| wanted(&context, &agents, &mut coverage))) else {
            // Handle a panic like an nft failure: without a heartbeat, clients are plain until the next tick succeeds.
            (in_force, coverage) = (None, Coverage::new(context.hold().is_able()));
            tables.forget();
            continue;
        };
        let wanted = wanted.map(Arc::new);
        context.armed.send_modify(|armed| armed.extend(&agents));
        let (applied, pods) = (wanted.clone(), context.pods().all());
        let done = tokio::task::spawn_blocking(move || {
            let done = tables.apply(applied, pods);
            (tables, done)
        });
        let (same, done) = done.await.unwrap_or_else(|error| (Tables::new(in_pods), Err(error.to_string())));
        tables = same;
        match done {
            Ok(true) => {}
            // Some pods' tables still have their former content; the next tick continues.
            Ok(false) => continue,
            Err(error) => {
                // The heartbeat expires by itself; the next tick sets everything again.
                context.metrics.nft_failures.inc();
                error!(%error, "nft failed");
                continue;
            }
        }
        context.armed.send_replace(agents);
        if in_force.as_ref() != Some(&wanted) {
            show(&context, wanted.as_deref());
            in_force = Some(wanted);
        }
    }
}

/// Flows to arm while the agent is willing, towards willing agents.
fn wanted(context: &AgentContext, agents: &BTreeSet<AgentId>, coverage: &mut Coverage) -> Armed {
    context.with_unreachable(|unreachable| coverage.armed(&context.config(), agents, unreachable))
}

/// Logs the armed flows in force and updates their metrics.
fn show(context: &AgentContext, armed: Option<&Armed>) {
    let (regions, left_out) = armed.map_or((0, 0), |armed| (armed.covered.len(), armed.left_out.len()));
    info!(willing = armed.is_some(), regions, left_out, "armed");
    let metrics = &context.metrics;
    let unreachable = armed.map_or(0, |armed| armed.unreachable.len());
    metrics.unreachable.set(i64::try_from(unreachable).unwrap_or(i64::MAX));
    metrics.armed.set(i64::try_from(regions).unwrap_or(i64::MAX));
    metrics.left_out.set(i64::try_from(left_out).unwrap_or(i64::MAX));
    metrics.willing.set(i64::from(armed.is_some()));
    metrics.draining.set(i64::from(context.draining()));
}

/// Sends beacons forever (spec/beacon.md clause 1).
pub async fn beacon(context: Arc<AgentContext>, socket: UdpSocket, to: SocketAddrV4) {
    let mut earlier = sample(&context);
    for sequence in 1.. {
        let later = sample(&context);
        let load = load::between(earlier, later);
        // The interval before an extra beacon is too short to measure over: continue from the sample of the last whole interval.
        if later.at - earlier.at > Duration::from_millis(500) {
            earlier = later;
        }
        match fence(|| compose(&context, sequence, load)) {
            Some(Some(datagram)) => match socket.send_to(&datagram, to).await {
                Ok(_) => _ = context.metrics.beacons.inc(),
                Err(error) => debug!(%error, "a beacon was not sent"),
            },
            Some(None) => warn!("beacon not sent: no site key to sign it with"),
            None => {} // The panic has been logged.
        }
        let pause = Duration::from_millis(rand::random_range(900..=1_100));
        tokio::select! {
            () = sleep(pause) => {}
            () = context.beacon_now.notified() => {}
        }
    }
}

fn sample(context: &AgentContext) -> Sample {
    let stats = context.tunnel().stats();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Sample {
        at: Instant::now(),
        bytes: stats.bytes_sent_total + stats.bytes_received_total,
        cpu: load::parse_cpu(&stat, TICKS_PER_SECOND).unwrap_or_default(),
    }
}

fn compose(context: &AgentContext, sequence: u64, load: Load) -> Option<Vec<u8>> {
    let (config, health) = (context.config(), context.health());
    let (key_id, key) = context.keys().beacon(config.agent_id)?;
    let bridge = config.bridge()?;
    let beacon = Beacon {
        key_id,
        site: config.site.id,
        draining: health.draining,
        willing: arming::willing(&config, health),
        agent: config.agent_id,
        boot: context.boot,
        sequence,
        time_ms: unix_ms(),
        sessions: health.sessions,
        session_limit: config.limits.sessions,
        bytes_per_second: load.bytes_per_second,
        cpu_permille: load.cpu_permille,
        streams: u16::try_from(context.tunnel().stats().streams).unwrap_or(u16::MAX),
        order_port: bridge.discovery.order_port,
        first_stream_port: config.stream_ports.first,
        stream_ports: config.stream_ports.count,
        address: bridge.interface.address.addr(),
        mac: bridge.interface.mac,
        capacity_bps: 0,
        name: config.node.clone(),
        service_types: vec![SERVICE_TYPE.to_owned()],
    };
    Some(beacon.encode(&key).expect("the configuration bounds the name, and the rest is fixed"))
}

/// Handles orders forever (spec/order.md).
pub async fn orders(context: Arc<AgentContext>, socket: Arc<UdpSocket>) {
    // One byte more than the longest order, so that a longer order is recognised.
    let mut buffer = [0; MAX_LEN + 1];
    loop {
        let next = fence(|| context.with_order_protocol(|protocol, _| protocol.next_timeout())).flatten();
        let next = next.unwrap_or_else(|| Instant::now() + ARM_INTERVAL);
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((length, _)) => _ = fence(|| take(&context, &buffer[..length])),
                // This is an ICMP error about an earlier datagram, not an order.
                Err(error) => debug!(%error, "receiving orders"),
            },
            () = sleep_until(next.into()) => {
                fence(|| {
                    let due = context.with_order_protocol(OrderProtocol::poll);
                    context.send_orders(&due);
                    context.close_server_legs();
                });
            }
            () = context.orders_changed.notified() => {}
        }
    }
}

/// Reports to watching controllers, forever.
pub async fn measure(context: Arc<AgentContext>) {
    let mut ticks = interval(MEASURE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        fence(|| context.report_paths());
        if context.config().is_in_pods() {
            continue; // Pods have tables of their own: see AgentContext::note_left.
        }
        match tokio::task::spawn_blocking(netns::nft_plain_seen).await {
            Ok(Ok(listed)) => _ = fence(|| context.note_plain(listed)),
            Ok(Err(error)) => debug!(%error, "plain connections not read"),
            Err(error) => debug!(%error, "plain connections not read"),
        }
        fence(|| context.report_plain());
    }
}

fn take(context: &Arc<AgentContext>, datagram: &[u8]) {
    match context.with_order_protocol(|protocol, env| protocol.handle(datagram, env)) {
        Ok(handled) => {
            context.metrics.orders.inc();
            context.send_orders(&handled.answers);
            if let Some(session) = handled.aborted {
                context.abort(session);
            }
            if let Some(prepare) = handled.prepared {
                context.note_labels(&prepare);
                if confirms(&prepare) {
                    connect_ahead::connect(context, &prepare);
                }
            }
        }
        Err(error) => {
            context.metrics.orders_dropped.get_or_create(&Reason { reason: error.label() }).inc();
            debug!(%error, "an order was dropped");
        }
    }
}

/// Reloads a changed configuration and changed keys, forever.
pub async fn reload(
    context: Arc<AgentContext>,
    mut source: Source,
    keys: KeySource,
    mut routes: StreamRoutes,
) {
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looked = tokio::task::spawn_blocking(move || (fence(|| source.poll()), source));
        let Ok((polled, same_source)) = looked.await else { return };
        source = same_source;
        context.let_go();
        match polled {
            Some(Some(polled)) => _ = fence(|| take_config(&context, &source, polled, &mut routes)),
            Some(None) => {}
            None => _ = context.metrics.config_refused.inc(),
        }
        tokio::task::block_in_place(|| routes.refresh(&context.config(), Instant::now()));
        let (keys, config) = (keys.clone(), context.config());
        let loaded = tokio::task::spawn_blocking(move || fence(|| keys.load(&config)));
        let Ok(loaded) = loaded.await else { return };
        let Some(loaded) = loaded else { continue };
        match loaded {
            Ok(loaded) if loaded != *context.keys() => context.set_keys(loaded),
            Ok(_) => {}
            // A mounted folder may be read during an update; the keys in force stay.
            Err(error) => warn!(%error, "keys not read"),
        }
    }
}

fn take_config(
    context: &AgentContext,
    source: &Source,
    polled: Result<crate::documents::config::AgentConfig, crate::documents::config::source::SourceError>,
    routes: &mut StreamRoutes,
) {
    let refuse = |why: String| {
        context.metrics.config_refused.inc();
        error!(why, "the configuration in force stays");
        context.set_config_problem(why);
    };
    let next = match polled {
        Ok(next) => next,
        Err(error) => return refuse(error.to_string()),
    };
    match judge(&context.config(), &next) {
        Verdict::Same => context.set_config_problem(String::new()),
        Verdict::Stale => refuse(format!("generation {} is not newer", next.generation)),
        Verdict::NeedsRestart(field) => refuse(format!("{field} has changed: restart the agent to apply it")),
        Verdict::Take => {
            tokio::task::block_in_place(|| {
                if let Err(error) = netns::update_routes(&next) {
                    error!(%error, "routes not updated");
                }
                routes.update(&next, Instant::now());
            });
            source.keep_seen();
            context.set_config(next);
        }
    }
}
