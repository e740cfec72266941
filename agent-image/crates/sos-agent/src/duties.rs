//! What the agent does over and over: arm, announce itself, serve orders, look for changed files.

use std::collections::BTreeSet;
use std::net::SocketAddrV4;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::order::MAX_LEN;
use sos_wire::{AgentId, Beacon};
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use crate::arming::{self, Armed, Coverage};
use crate::bugs::fence;
use crate::keys::AgentKeys;
use crate::load::{self, Load, Sample};
use crate::metrics::Reason;
use crate::netns;
use crate::nft;
use crate::orders::{OrderDesk, confirms};
use crate::server_legs;
use crate::shared::{Shared, unix_ms};
use crate::source::{Source, Verdict, judge};

/// How often the heartbeat is put back: twice may fail before [`nft::HEARTBEAT_SECONDS`] are over.
const ARM_INTERVAL: Duration = Duration::from_secs(1);
/// Between two PathReports (order.md clause 13).
const MEASURE_INTERVAL: Duration = Duration::from_secs(2);
/// How often files are looked at (node-config.md, introduction).
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Ticks a second in `/proc/self/stat`: USER_HZ is 100 on every Linux of today's architectures.
const TICKS_PER_SECOND: u32 = 100;
/// The service type of this relay (beacon.md clause 2).
const SERVICE_TYPE: &str = "tcp-parallel";

/// Keeps nft's armed set and heartbeat, and what the peers know, in line with health, limits and willing peers, for ever.
pub async fn arm(shared: Arc<Shared>, mut peers: watch::Receiver<BTreeSet<AgentId>>) {
    let mut ticks = interval(ARM_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut in_force, mut willing) = (None, false);
    let mut coverage = Coverage::new(shared.hold().is_able());
    loop {
        let ticked = tokio::select! {
            _ = ticks.tick() => true,
            () = shared.rearm.notified() => false,
            Ok(()) = peers.changed() => false,
        };
        // It stops at once and begins again with a tick, or a crowd at the limits would have it change with each of them.
        willing = arming::willing(&shared.config(), shared.health()) && (willing || ticked);
        shared.tunnel().set_willing(willing);
        let agents = if willing { shared.willing_agents() } else { BTreeSet::new() };
        let Some(wanted) = fence(|| willing.then(|| wanted(&shared, &agents, &mut coverage))) else {
            // As when nft fails: without a heartbeat clients are plain until the next tick succeeds.
            (in_force, coverage) = (None, Coverage::new(shared.hold().is_able()));
            continue;
        };
        shared.armed.send_modify(|armed| armed.extend(&agents));
        let script = match &wanted {
            Some(_) if in_force.as_ref() == Some(&wanted) => nft::heartbeat(),
            Some(armed) => nft::arm(armed, in_force.as_ref().and_then(Option::as_ref)),
            None if in_force == Some(None) => continue,
            None => nft::disarm(),
        };
        if let Err(error) = apply(script).await {
            // The heartbeat runs out by itself; everything is put in place with the next tick.
            in_force = None;
            shared.metrics.nft_failures.inc();
            error!(%error, "nft failed");
            continue;
        }
        shared.armed.send_replace(agents);
        if in_force.as_ref() != Some(&wanted) {
            show(&shared, wanted.as_ref());
            in_force = Some(wanted);
        }
    }
}

/// What is armed while the agent is willing, towards those who are.
fn wanted(shared: &Shared, agents: &BTreeSet<AgentId>, coverage: &mut Coverage) -> Armed {
    shared.with_unreachable(|unreachable| coverage.armed(&shared.config(), agents, unreachable))
}

/// Says what is in force now.
fn show(shared: &Shared, armed: Option<&Armed>) {
    let (regions, left_out) = armed.map_or((0, 0), |armed| (armed.covered.len(), armed.left_out.len()));
    info!(willing = armed.is_some(), regions, left_out, "armed");
    let metrics = &shared.metrics;
    let unreachable = armed.map_or(0, |armed| armed.unreachable.len());
    metrics.unreachable.set(i64::try_from(unreachable).unwrap_or(i64::MAX));
    metrics.armed.set(i64::try_from(regions).unwrap_or(i64::MAX));
    metrics.left_out.set(i64::try_from(left_out).unwrap_or(i64::MAX));
    metrics.willing.set(i64::from(armed.is_some()));
    metrics.draining.set(i64::from(shared.draining()));
}

async fn apply(script: String) -> Result<(), String> {
    let done = tokio::task::spawn_blocking(move || netns::nft(&script)).await;
    done.map_err(|e| e.to_string())?.map_err(|e| e.to_string())
}

/// Sends beacons for ever (spec/beacon.md clause 1).
pub async fn beacon(shared: Arc<Shared>, socket: UdpSocket) {
    let config = shared.config();
    let to = SocketAddrV4::new(config.discovery.address, config.discovery.beacon_port);
    let mut earlier = sample(&shared);
    for sequence in 1.. {
        let later = sample(&shared);
        let load = load::between(earlier, later);
        // A beacon out of turn measures over too short a time; the figures of a whole interval are kept.
        if later.at - earlier.at > Duration::from_millis(500) {
            earlier = later;
        }
        match fence(|| compose(&shared, sequence, load)).flatten() {
            Some(datagram) => match socket.send_to(&datagram, to).await {
                Ok(_) => _ = shared.metrics.beacons.inc(),
                Err(error) => debug!(%error, "a beacon was not sent"),
            },
            None => warn!("no site key to sign beacons with"),
        }
        let pause = Duration::from_millis(rand::random_range(900..=1_100));
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.beacon_now.notified() => {}
        }
    }
}

fn sample(shared: &Shared) -> Sample {
    let stats = shared.tunnel().stats();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    Sample {
        at: Instant::now(),
        bytes: stats.bytes_sent_total + stats.bytes_received_total,
        cpu: load::parse_cpu(&stat, TICKS_PER_SECOND).unwrap_or_default(),
    }
}

fn compose(shared: &Shared, sequence: u64, load: Load) -> Option<Vec<u8>> {
    let (config, health) = (shared.config(), shared.health());
    let (key_id, key) = shared.keys().beacon(config.agent_id)?;
    let beacon = Beacon {
        key_id,
        site: config.site.id,
        draining: health.draining,
        willing: arming::willing(&config, health),
        agent: config.agent_id,
        boot: shared.boot,
        sequence,
        time_ms: unix_ms(),
        sessions: health.sessions,
        session_limit: config.limits.sessions,
        bytes_per_second: load.bytes_per_second,
        cpu_permille: load.cpu_permille,
        streams: u16::try_from(shared.tunnel().stats().streams).unwrap_or(u16::MAX),
        order_port: config.discovery.order_port,
        first_stream_port: config.stream_ports.first,
        stream_ports: config.stream_ports.count,
        address: config.interface.address.addr(),
        mac: config.interface.mac,
        capacity_bps: 0,
        name: config.node.clone(),
        service_types: vec![SERVICE_TYPE.to_owned()],
    };
    Some(beacon.encode(&key).expect("the configuration bounds the name, and the rest is fixed"))
}

/// Serves orders for ever (spec/order.md).
pub async fn orders(shared: Arc<Shared>) {
    // One byte more than the longest order, so that a longer one is seen to be too long.
    let mut buffer = [0; MAX_LEN + 1];
    loop {
        let next = fence(|| shared.at_desk(|desk, _| desk.next_timeout())).flatten();
        let next = next.unwrap_or_else(|| Instant::now() + ARM_INTERVAL);
        tokio::select! {
            received = shared.orders().recv_from(&mut buffer) => match received {
                Ok((length, _)) => _ = fence(|| take(&shared, &buffer[..length])),
                // An ICMP error about an earlier datagram; nothing was received.
                Err(error) => debug!(%error, "receiving orders"),
            },
            () = sleep_until(next.into()) => {
                fence(|| {
                    let due = shared.at_desk(OrderDesk::poll);
                    shared.send_orders(&due);
                    shared.close_server_legs();
                });
            }
            () = shared.desk_changed.notified() => {}
        }
    }
}

/// Tells watching controllers what has passed, for ever.
pub async fn measure(shared: Arc<Shared>) {
    let mut ticks = interval(MEASURE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        fence(|| shared.report_paths());
        match tokio::task::spawn_blocking(netns::nft_plain_seen).await {
            Ok(Ok(listed)) => _ = fence(|| shared.note_plain(listed)),
            Ok(Err(error)) => debug!(%error, "what went plain was not read"),
            Err(error) => debug!(%error, "what went plain was not read"),
        }
        fence(|| shared.report_plain());
    }
}

fn take(shared: &Arc<Shared>, datagram: &[u8]) {
    match shared.at_desk(|desk, env| desk.handle(datagram, env)) {
        Ok(handled) => {
            shared.metrics.orders.inc();
            shared.send_orders(&handled.answers);
            if let Some(session) = handled.aborted {
                shared.abort(session);
            }
            if let Some(prepare) = handled.prepared {
                shared.note_labels(&prepare);
                if confirms(&prepare) {
                    server_legs::connect(shared, &prepare);
                }
            }
        }
        Err(error) => {
            shared.metrics.orders_dropped.get_or_create(&Reason { reason: error.label() }).inc();
            debug!(%error, "an order was dropped");
        }
    }
}

/// Looks for a changed configuration and changed keys, for ever.
pub async fn reload(shared: Arc<Shared>, mut source: Source, mut keys: PathBuf) {
    let mut ticks = interval(RELOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let looked = tokio::task::spawn_blocking(move || {
            let polled = fence(|| source.poll());
            (polled, fence(|| AgentKeys::load(&keys)), source, keys)
        });
        let Ok((polled, loaded, same_source, same_keys)) = looked.await else { return };
        (source, keys) = (same_source, same_keys);
        shared.let_go();
        match polled {
            Some(Some(polled)) => _ = fence(|| take_config(&shared, &source, polled)),
            Some(None) => {}
            None => _ = shared.metrics.config_refused.inc(),
        }
        let Some(loaded) = loaded else { continue };
        match loaded {
            Ok(loaded) if loaded != *shared.keys() => shared.set_keys(loaded),
            Ok(_) => {}
            // A mounted folder is swapped in a moment; the keys in force stay.
            Err(error) => warn!(%error, "keys not read"),
        }
    }
}

fn take_config(
    shared: &Shared,
    source: &Source,
    polled: Result<crate::config::AgentConfig, crate::source::SourceError>,
) {
    let refuse = |why: String| {
        shared.metrics.config_refused.inc();
        error!(why, "the configuration in force stays");
    };
    let next = match polled {
        Ok(next) => next,
        Err(error) => return refuse(error.to_string()),
    };
    match judge(&shared.config(), &next) {
        Verdict::Same => {}
        Verdict::Stale => refuse(format!("generation {} is not newer", next.generation)),
        Verdict::NeedsRestart(field) => refuse(format!("{field} has changed: restart the agent to apply it")),
        Verdict::Take => {
            if let Err(error) = tokio::task::block_in_place(|| netns::update_routes(&next)) {
                error!(%error, "routes");
            }
            source.keep_seen();
            shared.set_config(next);
        }
    }
}
