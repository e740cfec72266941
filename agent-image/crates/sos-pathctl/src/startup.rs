//! Startup limiter: bounds a bbr STARTUP that does not end.
//!
//! In STARTUP each stream sends at almost three times its delivery rate for three round trips, until it concludes that the rate no longer
//! grows (ADR 0039). A round trip in which the stream runs out of data does not count. This happens repeatedly on a long path whose whole
//! window is in flight: the stream stays in STARTUP, and a third of all data is lost.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sample::DeliverySample;
use crate::tuning::Parameters;

/// Minimum lifetime of the limit, in time and in round trips; and the limit in multiples of the highest delivery rate.
const LASTS: (Duration, u32) = (Duration::from_secs(1), 4);
const LIMIT: f64 = 1.02;
/// Extension while a bulk stream is still in STARTUP: at least a round trip, and longer than the poll interval.
const EXTENSION: Duration = Duration::from_millis(250);
/// Maximum lifetime, in round trips.
const LASTS_MAX_RTTS: u32 = 20;
/// A stream with at least this fraction of the total rate carries bulk.
const BULK: f64 = 0.1;
/// Minimum time between limits, unless a bulk stream is still in STARTUP: if the wire itself causes the loss, a limit gains nothing.
const PAUSE: Duration = Duration::from_secs(60);

/// The last sample of a stream.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// Bytes per second.
    rate: f64,
    startup: bool,
}

/// Lifetime of a limit.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until: Instant,
    /// Maximum of `until` after all extensions.
    latest: Instant,
}

/// The startup limit of one path.
#[derive(Debug, Clone)]
pub(crate) struct StartupLimiter {
    parameters: Parameters,
    streams: BTreeMap<u64, Stream>,
    /// Highest total rate of this window; and of the previous window or, under a limit, of all windows since the limit began.
    most: (f64, f64),
    /// The current or the last limit.
    hold: Option<Hold>,
}

impl StartupLimiter {
    pub(crate) fn new(parameters: Parameters) -> Self {
        Self { parameters, streams: BTreeMap::new(), most: (0.0, 0.0), hold: None }
    }

    /// Takes a sample of a stream.
    pub(crate) fn add(&mut self, stream: u64, sample: DeliverySample, startup: bool, now: Instant) {
        self.streams.insert(stream, Stream { rate: sample.rate(), startup });
        self.most.0 = self.most.0.max(self.rate());
        let startup = self.in_startup();
        if let Some(hold) = self.hold.as_mut().filter(|hold| startup && now < hold.until) {
            hold.until = hold.until.max(now + sample.min_rtt.max(EXTENSION)).min(hold.latest);
        }
    }

    /// Bytes per second of all streams.
    fn rate(&self) -> f64 {
        self.streams.values().map(|stream| stream.rate).sum()
    }

    /// Some bulk stream is in STARTUP.
    fn in_startup(&self) -> bool {
        let least = self.rate() * BULK;
        self.streams.values().any(|stream| stream.startup && stream.rate > 0.0 && stream.rate >= least)
    }

    /// Ends a window.
    pub(crate) fn end_window(&mut self, now: Instant) {
        let kept = if self.is_limited(now) { self.most.1 } else { 0.0 };
        self.most = (0.0, self.most.0.max(kept));
    }

    /// Starts a limit when bbr makes the queue overflow.
    pub(crate) fn limit(&mut self, min_rtt: Duration, now: Instant) {
        let pause = if self.in_startup() { Duration::ZERO } else { PAUSE };
        if self.hold.is_none_or(|hold| now >= hold.until + pause) {
            let until = now + LASTS.0.max(min_rtt * LASTS.1);
            self.hold = Some(Hold { until, latest: until.max(now + min_rtt * LASTS_MAX_RTTS) });
        }
    }

    pub(crate) fn is_limited(&self, now: Instant) -> bool {
        self.hold.is_some_and(|hold| now < hold.until)
    }

    /// Bytes per second that each stream may send: the limit is divided among the streams that carry bulk, and rises with the delivery rate.
    pub(crate) fn stream_limit(&self, now: Instant) -> Option<f64> {
        let bulk = self.streams.len().saturating_sub(self.parameters.reserved_streams);
        let streams = bulk.clamp(1, self.parameters.bbr_streams) as f64;
        self.is_limited(now).then(|| self.most.0.max(self.most.1) * LIMIT / streams)
    }

    pub(crate) fn remove(&mut self, stream: u64) {
        self.streams.remove(&stream);
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }
}
