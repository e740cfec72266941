//! Pacing cap: an aggregate rate cap for a path whose short queue overflows before a queueing delay becomes measurable (ADR 0039).
//!
//! Each bbr stream finds the path's rate by sending more now and then, and believes the largest rate that it has seen. Several of them together
//! keep more in flight than a short queue holds, and go on losing the excess. But the rate delivered then is the rate of the path: capped to
//! that rate, the streams lose nothing and give nothing else up.
//!
//! * Some windows in a row in which bbr loses much, although the streams had a backlog at every poll, reveal the rate.
//! * A STARTUP with very heavy loss is limited to a little more than the rate delivered, until bbr finds it out by itself
//!   ([`crate::startup`]).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::pacing_cap_probe::{Cap, Dropped, WindowSummary};
use crate::rate_sampler::RateSampler;
use crate::sample::StreamSample;
use crate::startup::StartupLimiter;
use crate::tuning::{CongestionControl, Parameters};

/// Part of the segments lost where a queue first overflows while every stream doubles its rate, and the fewest segments to say so.
const BURST: f64 = 0.1;
const BURST_SEGMENTS: f64 = 500.0;
/// Windows in a row from which a cap is learned.
const EVIDENCE: usize = 4;
/// The rate still grows when it exceeds that of the first of these windows by this factor.
const GROWS: f64 = 1.05;
/// Rates of all windows but one that differ by more are of different paths; within the second bound they are steady.
const ALIKE: f64 = 0.75;
const STEADY: f64 = 0.95;
/// Shortest window, in time and in round trips, without a cap and under one.
const UNCAPPED: (Duration, u32) = (Duration::from_millis(250), 2);
const CAPPED: (Duration, u32) = (Duration::from_millis(500), 3);
/// Time without a cap after a useless one.
const BACK_OFF: Duration = Duration::from_secs(60);
/// Time that bbr stays in force after a cap, so that the next one can be learned.
const RELEARN: Duration = Duration::from_secs(10);
/// A path that carries less than this part of its rate is idle.
const IDLE: f64 = 0.02;
/// A cap that has not been used for this long is forgotten.
const MAX_UNUSED: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Default)]
struct Window {
    rates: RateSampler,
    segments: u64,
    retransmitted: u64,
    min_rtt: Duration,
    /// Streams without a backlog at some poll.
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
    /// Rate of all others, bytes a second.
    others: f64,
}

impl Shares {
    /// Bytes a second that each bulk stream may send.
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
    /// Very heavy loss in the window before.
    burst: bool,
    /// After a useless cap: no cap until then.
    back_off_until: Instant,
    /// After a cap has ended: the next one is learned until then.
    relearn_until: Instant,
    /// The last windows without a cap.
    recent: VecDeque<WindowSummary>,
}

impl PacingCap {
    /// A path of which nothing is known yet.
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

    /// Bytes a second that each stream may send; `None`: no limit but congestion control. Bulk sessions do not use all streams: the bulk streams
    /// share the cap, or in a STARTUP the streams that will carry bulk.
    pub(crate) fn stream_limit(&self, now: Instant) -> Option<f64> {
        let known = self.limit().map(|limit| self.shares.stream_limit(limit));
        known.or_else(|| self.startup.stream_limit(now))
    }

    /// A cap is in force, beyond a startup limit.
    pub(crate) fn is_known(&self) -> bool {
        self.cap.is_some()
    }

    /// Streams stay with bbr: a cap is in force, or is learned again.
    pub(crate) fn needs_bbr(&self, now: Instant) -> bool {
        self.cap.is_some() || now < self.relearn_until
    }

    /// The cap in bytes a second, for all streams together.
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
        // A rate that something else limited is not the path's.
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
        // bbr pauses in some window, and the best one may contain bytes that were held up before.
        if grows || rates[2] < rates[0] * ALIKE {
            return None;
        }
        self.recent.clear();
        Some(Cap::new(rates[1], lost, rates[2] >= rates[0] * STEADY, now))
    }
}

#[cfg(test)]
mod tests;
