//! State of one path: composes congestion control choice, headroom, pacing cap and parallelism into the tuning of each stream.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cc_choice::CcChooser;
use crate::headroom::Headroom;
use crate::pacing_cap::PacingCap;
use crate::parallelism::Parallelism;
use crate::sample::{StreamCounters, StreamSample};
use crate::tuning::{CongestionControl, Decision, Parameters, PathConfig, SocketTuning, pacing, unsent};

/// Age at which bbr's model of the path is restarted while a cap is in force. After ten seconds without a shorter round trip bbr stops for
/// a fifth of a second (PROBE_RTT), because its own queue might hide a shorter round trip. Under the cap there is no queue to drain, and
/// the restart avoids the pause.
const MODEL_MAX_AGE: Duration = Duration::from_secs(8);

/// One stream of the path.
#[derive(Debug)]
struct Stream {
    last: Option<(StreamCounters, Instant)>,
    /// Congestion control of the stream's last tuning, and the start of its current model of the path.
    congestion: Option<CongestionControl>,
    model_since: Instant,
}

/// State of one path, identified by the peer's address and the label.
#[derive(Debug)]
pub struct PathState {
    parameters: Parameters,
    cc: CcChooser,
    headroom: Headroom,
    pacing_cap: PacingCap,
    parallelism: Parallelism,
    streams: BTreeMap<u64, Stream>,
    next: u64,
}

impl PathState {
    /// State of an unknown path.
    #[must_use]
    pub fn new(parameters: Parameters, now: Instant) -> Self {
        Self {
            parameters,
            cc: CcChooser::new(now),
            headroom: Headroom::new(now),
            pacing_cap: PacingCap::new(parameters, now),
            parallelism: Parallelism::new(now),
            streams: BTreeMap::new(),
            next: 0,
        }
    }

    /// Adds a stream; its number is never reused.
    pub fn add_stream(&mut self, now: Instant) -> u64 {
        self.next += 1;
        self.streams.insert(self.next, Stream { last: None, congestion: None, model_since: now });
        self.next
    }

    /// Removes a stream that has closed.
    pub fn remove_stream(&mut self, stream: u64) {
        self.streams.remove(&stream);
        self.headroom.remove(stream);
        self.pacing_cap.remove(stream);
    }

    /// Takes the counters of a stream, and returns the tuning of its socket.
    pub fn observe(
        &mut self,
        stream: u64,
        counters: StreamCounters,
        config: PathConfig,
        now: Instant,
    ) -> SocketTuning {
        let last = self.streams.get_mut(&stream).and_then(|stream| stream.last.replace((counters, now)));
        let sample = last.map(|(before, at)| StreamSample::between(before, counters, now - at));
        let unsent = unsent(sample.map(|sample| sample.delivery), self.parameters.max_unsent);
        let (decision, capped) = match config.congestion {
            Some(congestion) => (Decision { congestion, stream_limit: None, parallelism: usize::MAX }, false),
            None => {
                if let Some(sample) = sample {
                    self.take(stream, sample, config.streams_named, now);
                }
                let unqueued =
                    |sample: StreamSample| sample.delivery.measures_queue() && sample.delivery.is_unqueued();
                (self.decision(now), self.pacing_cap.is_known() && sample.is_some_and(unqueued))
            }
        };
        SocketTuning {
            congestion: decision.congestion,
            restart_model: self.restarts_model(stream, decision.congestion, capped, now),
            pacing: pacing(decision.stream_limit, counters.min_rtt),
            unsent,
            parallelism: decision.parallelism,
        }
    }

    /// Congestion control of the path's streams. Streams under a cap keep bbr, with which the cap was learned, so that their share of the
    /// path stays the same when other flows arrive.
    #[must_use]
    pub fn congestion(&self, now: Instant) -> CongestionControl {
        if self.pacing_cap.needs_bbr(now) { CongestionControl::Bbr } else { self.cc.choice() }
    }

    /// Decisions for the whole path.
    #[must_use]
    pub fn decision(&self, now: Instant) -> Decision {
        Decision {
            congestion: self.congestion(now),
            stream_limit: self.stream_limit(now),
            parallelism: self.parallelism.streams(),
        }
    }

    fn take(&mut self, stream: u64, sample: StreamSample, streams_named: bool, now: Instant) {
        self.headroom.observe(stream, sample.delivery, now);
        if streams_named {
            self.parallelism = Parallelism::new(now);
        } else {
            self.parallelism.observe(stream, &sample, now);
        }
        if sample.loss.segments > 0 {
            let refused = self.cc.refuses_bbr();
            self.cc.observe(sample.loss, now);
            if !refused && self.cc.refuses_bbr() {
                // A cap learned from bbr does not apply to cubic.
                self.pacing_cap = PacingCap::new(self.parameters, now);
            }
        }
        let congestion = self.congestion(now);
        self.pacing_cap.observe(stream, sample, congestion, now);
    }

    /// Bytes per second that each stream may send.
    fn stream_limit(&self, now: Instant) -> Option<u64> {
        // Reserved streams carry no bulk, so they take no share.
        let bulk = self.streams.len().saturating_sub(self.parameters.reserved_streams);
        let bulk = bulk.min(self.parallelism.streams()).max(1);
        // Headroom applies to cubic only: bbr models the path's rate and shares the path in its own way.
        let limit = self.headroom.limit().filter(|_| self.congestion(now) == CongestionControl::Cubic);
        let share = limit.map(|limit| limit / bulk as f64);
        share
            .into_iter()
            .chain(self.pacing_cap.stream_limit(now))
            .min_by(f64::total_cmp)
            .map(|limit| limit as u64)
    }

    /// Decides whether bbr rebuilds its model: on a capped path without a queue, once the model has aged.
    fn restarts_model(
        &mut self,
        stream: u64,
        congestion: CongestionControl,
        capped: bool,
        now: Instant,
    ) -> bool {
        let Some(stream) = self.streams.get_mut(&stream) else { return false };
        let changed = stream.congestion.replace(congestion) != Some(congestion);
        let restart = !changed && capped && now - stream.model_since >= MODEL_MAX_AGE;
        if changed || restart {
            stream.model_since = now;
        }
        restart
    }
}
