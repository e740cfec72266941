//! Polls a stream's transport for path control ([`sos_pathctl`]) and applies the tuning to its socket.

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sos_pathctl::{
    CongestionControl, Decision, Parameters, PathConfig, PathState, SocketTuning, StreamCounters,
};
use sos_tunnel::{PathInfo, PeerConfig, TransportHandle};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info};

use crate::context::AgentContext;
use crate::netns::sockets;
use crate::policy::stream_pool;

/// Interval at which a stream's transport is polled.
const POLL: Duration = Duration::from_millis(100);

const PARAMETERS: Parameters = Parameters {
    reserved_streams: PeerConfig::RESERVED_STREAMS,
    bbr_streams: PeerConfig::BBR_STREAMS,
    max_unsent: sockets::STREAM_NOTSENT_LOWAT,
};

/// A path: the peer's address and the label.
pub(crate) type PathKey = (Ipv4Addr, u8);

/// States of the paths to peers, bounded by the list of configured peers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paths(Arc<Mutex<BTreeMap<PathKey, PathState>>>);

impl Paths {
    fn with<T>(&self, path: PathKey, now: Instant, act: impl FnOnce(&mut PathState) -> T) -> T {
        let mut paths = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        act(paths.entry(path).or_insert_with(|| PathState::new(PARAMETERS, now)))
    }
}

/// Congestion control for a new stream of a path: configured, or chosen by path control.
pub(crate) fn congestion(context: &AgentContext, paths: &Paths, path: PathKey) -> CongestionControl {
    stream_pool::congestion(&context.config(), path.0).fixed().unwrap_or_else(|| {
        let now = Instant::now();
        paths.with(path, now, |state| state.congestion(now))
    })
}

/// One stream under path control, until the value is dropped.
#[derive(Debug)]
pub(crate) struct StreamMonitor {
    context: Arc<AgentContext>,
    paths: Paths,
    path: PathKey,
    stream: u64,
}

impl StreamMonitor {
    pub(crate) fn new(context: Arc<AgentContext>, paths: Paths, path: PathKey) -> Self {
        let now = Instant::now();
        let stream = paths.with(path, now, |state| state.add_stream(now));
        Self { context, paths, path, stream }
    }

    /// Polls and tunes the stream until it closes.
    pub(crate) async fn run(self, handle: TransportHandle) {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut in_force = None;
        let congestion = congestion(&self.context, &self.paths, self.path);
        loop {
            ticks.tick().await;
            let Ok(info) = handle.path_info() else { return };
            let tuning = self.observe(info, Instant::now());
            if apply(&handle, congestion, in_force, tuning).is_err() {
                return;
            }
            in_force = Some(tuning);
        }
    }

    fn observe(&self, info: PathInfo, now: Instant) -> SocketTuning {
        let config = self.context.config();
        let config = PathConfig {
            congestion: stream_pool::congestion(&config, self.path.0).fixed(),
            streams_named: stream_pool::names_streams(&config, self.path.0),
        };
        self.paths.with(self.path, now, |state| {
            let before = state.decision(now);
            let tuning = state.observe(self.stream, counters(info), config, now);
            log_changes(self.path, before, state.decision(now));
            tuning
        })
    }
}

impl Drop for StreamMonitor {
    fn drop(&mut self) {
        self.paths.with(self.path, Instant::now(), |state| state.remove_stream(self.stream));
    }
}

fn counters(info: PathInfo) -> StreamCounters {
    StreamCounters {
        rtt: info.rtt,
        min_rtt: info.min_rtt,
        segments: info.segments,
        retransmitted: info.retransmitted,
        delivered: info.delivered,
        mss: info.mss,
        unsent: info.unsent,
        startup: info.startup,
    }
}

fn log_changes((peer, label): PathKey, before: Decision, after: Decision) {
    if after.congestion != before.congestion {
        info!(%peer, label, choice = ?after.congestion, "congestion control of a path");
    }
    if after.stream_limit != before.stream_limit {
        debug!(%peer, label, bytes_per_second = ?after.stream_limit, "rate limit of each stream of a path");
    }
    if after.parallelism != before.parallelism {
        debug!(%peer, label, most = after.parallelism, "streams of a path that carry bulk sessions");
    }
}

/// Applies settings that differ from the tuning in force; before the first tuning only `opened_with` is in force.
fn apply(
    handle: &TransportHandle,
    opened_with: CongestionControl,
    in_force: Option<SocketTuning>,
    tuning: SocketTuning,
) -> io::Result<()> {
    if tuning.restart_model {
        // Switch to cubic first, because the kernel ignores an algorithm that is already in force.
        set_congestion(handle, CongestionControl::Cubic);
        set_congestion(handle, tuning.congestion);
    }
    if in_force.map_or(opened_with, |tuning| tuning.congestion) != tuning.congestion {
        set_congestion(handle, tuning.congestion);
    }
    let pacing = in_force.map_or(sos_pathctl::Pacing::Bursts, |tuning| tuning.pacing);
    if pacing != tuning.pacing {
        handle.set_pacing(match tuning.pacing {
            sos_pathctl::Pacing::Bursts => sos_tunnel::Pacing::Bursts,
            sos_pathctl::Pacing::Spread => sos_tunnel::Pacing::Spread,
            sos_pathctl::Pacing::AtMost(rate) => sos_tunnel::Pacing::AtMost(rate),
        })?;
    }
    if in_force.map(|tuning| tuning.unsent) != Some(tuning.unsent) {
        handle.set_unsent(tuning.unsent)?;
    }
    handle.set_parallelism(tuning.parallelism);
    Ok(())
}

fn set_congestion(handle: &TransportHandle, congestion: CongestionControl) {
    if let Err(error) = handle.set_congestion(sockets::kernel_name(congestion)) {
        debug!(?congestion, %error, "the kernel refuses this congestion control");
    }
}
