//! Pacing cap: an aggregate rate cap for a path whose short queue overflows before a queueing delay becomes measurable (ADR 0039).
//!
//! Each bbr stream probes for more bandwidth now and then and keeps the highest delivery rate it has seen as its estimate. Several such streams
//! together keep more in flight than a short queue holds, and lose the excess continuously. Their delivery rate is nevertheless the rate of the
//! path: capped to that rate, the streams lose nothing and stay as fast.
//!
//! * The cap is learned from consecutive windows in which bbr loses much although the streams have a backlog at every poll.
//! * A STARTUP with very heavy loss is limited to slightly more than the delivery rate until bbr detects the rate itself ([`crate::startup`]).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::pacing_cap_probe::{Cap, Dropped, WindowSummary};
use crate::rate_sampler::RateSampler;
use crate::sample::StreamSample;
use crate::startup::StartupLimiter;
use crate::tuning::{CongestionControl, Parameters};

/// Minimum loss ratio and minimum number of segments of a burst: the first queue overflow, while every stream doubles its rate.
const BURST: f64 = 0.1;
const BURST_SEGMENTS: f64 = 500.0;
/// Number of consecutive windows from which a cap is learned.
const EVIDENCE: usize = 4;
/// The rate is still growing if the last of these windows exceeds the first by this factor.
const GROWS: f64 = 1.05;
/// Minimum ratio of the lowest to the highest rate, ignoring the slowest window. Below `ALIKE` the windows measured different paths; from
/// `STEADY` on the rate is steady.
const ALIKE: f64 = 0.75;
const STEADY: f64 = 0.95;
/// Minimum window length, in time and in round trips, without a cap and under a cap.
const UNCAPPED: (Duration, u32) = (Duration::from_millis(250), 2);
const CAPPED: (Duration, u32) = (Duration::from_millis(500), 3);
/// No cap is learned for this long after a cap that did not reduce the loss.
const BACK_OFF: Duration = Duration::from_secs(60);
/// Streams stay with bbr for this long after a cap is dropped because the path's rate has changed, so that the next cap can be learned.
const RELEARN: Duration = Duration::from_secs(10);
/// A path that carries less than this fraction of the cap's rate is idle.
const IDLE: f64 = 0.02;
/// A cap that has not been used for this long is discarded.
const MAX_UNUSED: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Default)]
struct Window {
    rates: RateSampler,
    segments: u64,
    retransmitted: u64,
    min_rtt: Duration,
    /// Streams that had no backlog at one of the polls.
    not_backlogged: BTreeSet<u64>,
}

impl Window {
    fn add(&mut self, stream: u64, sample: StreamSample) {
        self.rates.add(stream, sample.delivery.bytes, sample.delivery.elapsed);
        self.segments += sample.loss.segments;
        self.retransmitted += sample.loss.retransmitted;
        self.min_rtt = self.min_rtt.max(sample.delivery.min_rtt);
        if sample.delivery.measures_queue() && !sample.loss.backlogged {
            self.not_backlogged.insert(stream);
        }
    }

    fn summary(&self) -> WindowSummary {
        WindowSummary {
            rate: self.rates.total(),
            segments: self.segments as f64,
            retransmitted: self.retransmitted as f64,
            backlogged: self.rates.bulk().all(|(stream, _)| !self.not_backlogged.contains(&stream)),
        }
    }

    fn shares(&self) -> Shares {
        let (bulk, rate) =
            self.rates.bulk().fold((0, 0.0), |(count, sum), (_, rate)| (count + 1, sum + rate));
        Shares { bulk, others: self.rates.total() - rate }
    }
}

/// The streams that share a cap.
#[derive(Debug, Clone, Copy, Default)]
struct Shares {
    /// Number of bulk streams.
    bulk: usize,
    /// Total rate of the streams that are not bulk, in bytes per second.
    others: f64,
}

impl Shares {
    /// Bytes per second that each bulk stream may send.
    fn stream_limit(self, limit: f64) -> f64 {
        (limit - self.others).max(limit / 2.0) / self.bulk.max(1) as f64
    }
}

fn is_burst(window: &WindowSummary) -> bool {
    window.segments >= BURST_SEGMENTS && window.loss() >= BURST
}

/// The pacing cap of one path.
#[derive(Debug, Clone)]
pub(crate) struct PacingCap {
    cap: Option<Cap>,
    startup: StartupLimiter,
    /// Last use of the cap.
    used: Instant,
    shares: Shares,
    began: Instant,
    window: Window,
    /// The previous window had very heavy loss.
    burst: bool,
    /// No cap is learned until this time, after a cap that did not reduce the loss.
    back_off_until: Instant,
    /// Streams stay with bbr until this time, after a cap has ended, to learn the next cap.
    relearn_until: Instant,
    /// The last windows without a cap.
    recent: VecDeque<WindowSummary>,
}

impl PacingCap {
    /// State of an unknown path.
    pub(crate) fn new(parameters: Parameters, now: Instant) -> Self {
        Self {
            cap: None,
            startup: StartupLimiter::new(parameters),
            used: now,
            shares: Shares::default(),
            began: now,
            window: Window::default(),
            burst: false,
            back_off_until: now,
            relearn_until: now,
            recent: VecDeque::new(),
        }
    }

    /// Bytes per second that each stream may send; `None`: limited by congestion control only. Bulk sessions do not use all streams: the cap is
    /// divided among the bulk streams, and a STARTUP limit among the streams that will carry bulk.
    pub(crate) fn stream_limit(&self, now: Instant) -> Option<f64> {
        let known = self.limit().map(|limit| self.shares.stream_limit(limit));
        known.or_else(|| self.startup.stream_limit(now))
    }

    /// True if a cap is in force; a startup limit does not count.
    pub(crate) fn is_known(&self) -> bool {
        self.cap.is_some()
    }

    /// Streams stay with bbr because a cap is in force or is being relearned.
    pub(crate) fn needs_bbr(&self, now: Instant) -> bool {
        self.cap.is_some() || now < self.relearn_until
    }

    /// The cap for all streams together, in bytes per second.
    fn limit(&self) -> Option<f64> {
        self.cap.map(|cap| cap.limit())
    }

    /// Removes a stream that has closed.
    pub(crate) fn remove(&mut self, stream: u64) {
        self.window.rates.remove(stream);
        self.startup.remove(stream);
    }

    /// Takes a sample of a stream, under the congestion control in force.
    pub(crate) fn observe(
        &mut self,
        stream: u64,
        sample: StreamSample,
        congestion: CongestionControl,
        now: Instant,
    ) {
        self.window.add(stream, sample);
        self.startup.add(stream, sample.delivery, sample.startup, now);
        let burst = self.burst || is_burst(&self.window.summary());
        if self.cap.is_none() && congestion == CongestionControl::Bbr && burst {
            self.startup.limit(self.window.min_rtt, now);
        }
        let (least, trips) = if self.cap.is_some() { CAPPED } else { UNCAPPED };
        if now.saturating_duration_since(self.began) < least.max(self.window.min_rtt * trips) {
            return;
        }
        let window = self.window.summary();
        self.burst = is_burst(&window);
        self.judge(window, congestion, now);
        (self.began, self.window) = (now, Window::default());
        self.startup.end_window(now);
    }

    fn judge(&mut self, window: WindowSummary, congestion: CongestionControl, now: Instant) {
        let idle = self.cap.is_some_and(|cap| window.rate < cap.rate * IDLE);
        if !window.backlogged || idle {
            self.cap = self.cap.map(|cap| cap.postpone(now - self.began));
        }
        if self.cap.is_some() && now.saturating_duration_since(self.used) >= MAX_UNUSED {
            self.cap = None;
        } else if !idle {
            self.used = now;
            if window.backlogged {
                self.shares = self.window.shares();
            }
            self.cap = match self.cap.map(|cap| cap.judge(window, now)) {
                Some(Ok(cap)) => Some(cap),
                Some(Err(dropped)) => {
                    match dropped {
                        Dropped::Useless => self.back_off_until = now + BACK_OFF,
                        Dropped::Changed => self.relearn_until = now + RELEARN,
                    }
                    None
                }
                None if now < self.back_off_until => None,
                None => self.learn(window, congestion, now),
            };
        }
    }

    fn learn(&mut self, window: WindowSummary, congestion: CongestionControl, now: Instant) -> Option<Cap> {
        // Cubic, a startup limit or the hosts limited the rate: the path's rate is unknown.
        if congestion != CongestionControl::Bbr || self.startup.is_limited(now) || !window.overflows() {
            self.recent.clear();
            return None;
        }
        self.recent.push_back(window);
        if self.recent.len() < EVIDENCE {
            return None;
        }
        let grows = window.rate > self.recent[0].rate * GROWS;
        let lost = self.recent.iter().map(WindowSummary::loss).sum::<f64>() / EVIDENCE as f64;
        let mut rates: Vec<_> = self.recent.iter().map(|window| window.rate).collect();
        rates.sort_by(|one, other| other.total_cmp(one));
        self.recent.pop_front();
        // bbr pauses in one of the windows, so ignore the slowest; the fastest may contain bytes delayed from the window before, so take
        // the second fastest.
        if grows || rates[2] < rates[0] * ALIKE {
            return None;
        }
        self.recent.clear();
        Some(Cap::new(rates[1], lost, rates[2] >= rates[0] * STEADY, now))
    }
}

#[cfg(test)]
mod tests;
