//! Headroom: the share of a path that streams leave to competing traffic.
//!
//! Congestion control divides a path fairly among flows of about the same size. A new flow stays small for many seconds if streams that
//! already know the path's rate keep the path's queue full: cubic recovers from a loss in seconds, not in round trips. So the streams leave
//! a fifth of the path free, the share of one more flow beside four streams, in two cases:
//!
//! * At the start of a transfer on a path whose rate is known. A flow that starts simultaneously can then find its own rate, and the queue
//!   that this flow builds reveals the flow.
//! * While there is a queue although the streams get less than the path's known rate: competing traffic uses the rest.
//!
//! Headroom ends once there has been no queue for some seconds. The rate is learned while the streams have at least [`QUEUE_BYTES`] in the
//! queue, so a path whose queue is always shorter gets no headroom. All streams of one label to a peer count together, since they share the
//! path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rate_sampler::RateSampler;
use crate::sample::DeliverySample;

/// Fraction of the path's rate that the streams use while they leave headroom.
const USED: f64 = 0.8;
/// If the streams get less than this fraction of the known rate of a full path, competing traffic shares the path. Without competing
/// traffic, rates vary by about 1 %.
const FULL_RATE: f64 = 0.98;
/// Number of consecutive windows that must show competing traffic.
const EVIDENCE: u32 = 3;
/// Minimum window for measuring rates, in time and in round trips.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOW_RTTS: u32 = 3;
/// Minimum bytes that the streams must have in the queue for a rate to count as the rate of the path. A few delayed segments prove nothing,
/// and too low a rate would limit all streams.
const QUEUE_BYTES: f64 = 131_072.0;
/// Length of a start, in round trips and in time: competing flows have found their rate after eight round trips of slow start.
const START_RTTS: u32 = 8;
const START_MIN: Duration = Duration::from_millis(700);
/// Number of consecutive samples of one stream that must show a queue during a start.
const START_SAMPLES: u32 = 2;
/// A path that carries less than this fraction of its rate is idle.
const IDLE: f64 = 0.02;
/// Time without a queue after which headroom ends.
const HOLD: Duration = Duration::from_secs(5);
/// Maximum duration of headroom; then the whole path is probed, since it may carry more than is known.
const YIELD_MAX: Duration = Duration::from_secs(30);
/// Age at which the rate of an idle path is discarded.
const RATE_MAX_AGE: Duration = Duration::from_secs(600);
/// Time for which evidence of competing traffic is ignored after headroom has ended: doubled for each consecutive false alarm (headroom
/// after whose start no second queue formed), up to the maximum; otherwise the minimum.
const IGNORE_MIN: Duration = Duration::from_secs(10);
const IGNORE_MAX: Duration = Duration::from_secs(160);

/// Measurements of all streams in one window.
#[derive(Debug, Clone, Default)]
struct Window {
    rates: RateSampler,
    rtt: Duration,
    /// The shortest queueing delay.
    queue: Duration,
    /// `measured`: a sample measured the queue; `all_queued`: all such samples saw a queue; `some_queued`: at least one such sample did.
    measured: bool,
    all_queued: bool,
    some_queued: bool,
}

impl Window {
    fn new() -> Self {
        Self { all_queued: true, queue: Duration::MAX, ..Self::default() }
    }

    fn add(&mut self, stream: u64, sample: DeliverySample) {
        self.rates.add(stream, sample.bytes, sample.elapsed);
        self.rtt = self.rtt.max(sample.min_rtt);
        if !sample.measures_queue() {
            return;
        }
        self.measured = true;
        self.queue = self.queue.min(sample.queueing_delay());
        self.all_queued &= sample.is_queued();
        self.some_queued |= sample.is_queued();
    }

    /// The streams kept the path full: their bytes in the queue are their rate times the queueing delay.
    fn is_full(&self) -> bool {
        self.measured && self.all_queued && self.rates.total() * self.queue.as_secs_f64() >= QUEUE_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Little is sent.
    Idle,
    /// A transfer has started; headroom until this time.
    Starting { until: Instant },
    /// No headroom; `evidence`: consecutive windows that show competing traffic.
    Full { evidence: u32 },
    /// Headroom for competing traffic. `drained`: the first queue has emptied; `proved`: another queue formed after that.
    Yielding { began: Instant, queue_at: Instant, drained: bool, proved: bool },
}

/// Headroom of one path.
#[derive(Debug, Clone)]
pub(crate) struct Headroom {
    state: State,
    /// Known rate of the path in bytes per second, and the last time the streams reached it.
    rate: Option<(f64, Instant)>,
    began: Instant,
    window: Window,
    /// Rate of the previous window, if the path was full.
    full_before: Option<f64>,
    /// Number of consecutive samples with a queue, by stream.
    queued_samples: BTreeMap<u64, u32>,
    ignore: Duration,
    ignore_until: Instant,
}

impl Headroom {
    /// State of an unknown path.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            state: State::Idle,
            rate: None,
            began: now,
            window: Window::new(),
            full_before: None,
            queued_samples: BTreeMap::new(),
            ignore: IGNORE_MIN,
            ignore_until: now,
        }
    }

    /// Bytes per second that all streams together may send; `None`: limited by congestion control only.
    pub(crate) fn limit(&self) -> Option<f64> {
        let (rate, _) = self.rate?;
        (!matches!(self.state, State::Full { .. })).then_some(rate * USED)
    }

    /// Removes a stream that has closed.
    pub(crate) fn remove(&mut self, stream: u64) {
        self.queued_samples.remove(&stream);
        self.window.rates.remove(stream);
    }

    /// Takes a sample of a stream.
    pub(crate) fn observe(&mut self, stream: u64, sample: DeliverySample, now: Instant) {
        let run = self.queued_samples.entry(stream).or_default();
        *run = if sample.is_queued() { *run + 1 } else { 0 };
        let queued = *run >= START_SAMPLES;
        self.window.add(stream, sample);
        match self.state {
            State::Idle if sample.rate() >= self.idle_rate() => {
                let length = (sample.min_rtt * START_RTTS).max(START_MIN);
                self.enter(State::Starting { until: now + length }, now);
            }
            State::Starting { .. } if queued && self.rate.is_some() => self.start_yielding(now),
            State::Starting { until } if now >= until => self.enter(State::Full { evidence: 0 }, now),
            _ => {}
        }
        if now.saturating_duration_since(self.began) >= WINDOW.max(self.window.rtt * WINDOW_RTTS) {
            self.end_window(now);
            (self.began, self.window) = (now, Window::new());
        }
    }

    /// Rate below which the path is idle, in bytes per second.
    fn idle_rate(&self) -> f64 {
        self.rate.map_or(1.0, |(rate, _)| rate * IDLE)
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        (self.began, self.window, self.full_before) = (now, Window::new(), None);
        self.queued_samples.values_mut().for_each(|run| *run = 0);
    }

    fn start_yielding(&mut self, now: Instant) {
        self.enter(State::Yielding { began: now, queue_at: now, drained: false, proved: false }, now);
    }

    fn end_window(&mut self, now: Instant) {
        let rate = self.window.rates.total();
        if rate < self.idle_rate() {
            self.become_idle(now);
            return;
        }
        self.learn(rate, now);
        match self.state {
            State::Idle | State::Starting { .. } => {}
            State::Full { evidence } => self.detect_competition(evidence, rate, now),
            State::Yielding { began, .. } if now.saturating_duration_since(began) >= YIELD_MAX => {
                self.enter(State::Full { evidence: 0 }, now);
            }
            State::Yielding { began, queue_at, drained, proved } => {
                self.keep_yielding((began, queue_at, drained, proved), now);
            }
        }
    }

    /// Learns the lower rate of two consecutive full windows: bytes that a busy machine delays in one window arrive in the next.
    fn learn(&mut self, rate: f64, now: Instant) {
        let full = self.window.is_full().then_some(rate);
        let both = self.full_before.zip(full).map(|(before, rate)| before.min(rate));
        self.full_before = full;
        if let Some(rate) = both.filter(|rate| self.rate.is_none_or(|(known, _)| *rate >= known * FULL_RATE))
        {
            self.rate = Some((self.rate.map_or(rate, |(known, _)| known.max(rate)), now));
        }
    }

    fn become_idle(&mut self, now: Instant) {
        if self.rate.is_some_and(|(_, seen)| now.saturating_duration_since(seen) >= RATE_MAX_AGE) {
            self.rate = None;
        }
        self.state = State::Idle;
    }

    /// Detects competing traffic: the path is full, but the streams get less than its rate.
    fn detect_competition(&mut self, evidence: u32, rate: f64, now: Instant) {
        let less = self.window.is_full() && self.rate.is_some_and(|(known, _)| rate < known * FULL_RATE);
        let evidence = if less && now >= self.ignore_until { evidence + 1 } else { 0 };
        self.state = State::Full { evidence };
        if evidence >= EVIDENCE {
            self.start_yielding(now);
        }
    }

    /// Keeps the headroom until there has been no queue for [`HOLD`].
    fn keep_yielding(
        &mut self,
        (began, queue_at, drained, proved): (Instant, Instant, bool, bool),
        now: Instant,
    ) {
        if self.window.some_queued {
            self.state = State::Yielding { began, queue_at: now, drained, proved: proved || drained };
        } else if now.saturating_duration_since(queue_at) < HOLD {
            self.state = State::Yielding { began, queue_at, drained: true, proved };
        } else {
            self.ignore = if proved { IGNORE_MIN } else { (self.ignore * 2).min(IGNORE_MAX) };
            self.ignore_until = now + self.ignore;
            self.enter(State::Full { evidence: 0 }, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(60);
    const POLL: Duration = Duration::from_millis(100);
    const MEGABIT: f64 = 125_000.0;

    /// A path with four streams polled in turn, and a fifth with too little traffic to measure the queue.
    struct World {
        headroom: Headroom,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { headroom: Headroom::new(now), now }
        }

        /// An idle path whose known rate is 900 Mbit/s.
        fn known() -> Self {
            let mut world = Self::new();
            world.pass(3.0, 900.0, true);
            world.pass(3.0, 0.0, false);
            world
        }

        /// Advances time while all streams together deliver `megabits` Mbit/s.
        fn pass(&mut self, seconds: f64, megabits: f64, queued: bool) {
            let end = self.now + Duration::from_secs_f64(seconds);
            while self.now < end {
                self.now += POLL;
                let bytes = (megabits * MEGABIT / 4.0 * POLL.as_secs_f64()) as u64;
                let rtt = if queued { RTT * 2 } else { RTT };
                for stream in 0..4 {
                    self.headroom.observe(
                        stream,
                        DeliverySample { bytes, elapsed: POLL, rtt, min_rtt: RTT },
                        self.now,
                    );
                }
                // The round trip of the fifth stream is stale.
                let ping = DeliverySample {
                    bytes: 1448,
                    elapsed: POLL,
                    rtt: if queued { RTT } else { RTT * 2 },
                    min_rtt: RTT,
                };
                self.headroom.observe(4, ping, self.now);
            }
        }

        fn limit(&self) -> Option<u64> {
            self.headroom.limit().map(|limit| (limit / MEGABIT).round() as u64)
        }
    }

    #[test]
    fn an_unknown_path_gets_no_headroom() {
        let mut world = World::new();
        assert_eq!(world.limit(), None);
        world.pass(0.3, 900.0, true);
        assert_eq!(world.limit(), None);
        world.pass(5.0, 700.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn a_transfer_starts_with_headroom() {
        let mut world = World::known();
        assert_eq!(world.limit(), Some(720), "before the first byte");
        world.pass(0.7, 720.0, false);
        assert_eq!(world.limit(), Some(720));
        world.pass(0.3, 720.0, false);
        assert_eq!(world.limit(), None, "no competing traffic");
    }

    #[test]
    fn a_queue_during_the_start_keeps_the_headroom_for_competing_traffic() {
        let mut world = World::known();
        world.pass(0.2, 720.0, false);
        world.pass(10.0, 720.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(4.0, 720.0, false);
        assert_eq!(world.limit(), Some(720), "competing traffic may have lost segments");
        world.pass(2.0, 720.0, false);
        assert_eq!(world.limit(), None, "competing traffic has ended");
    }

    #[test]
    fn bytes_delivered_late_in_a_burst_do_not_count_as_a_rate() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        for _ in 0..6 {
            world.pass(0.5, 865.0, true);
            world.pass(0.5, 935.0, true);
        }
        world.pass(6.0, 900.0, true);
        assert_eq!(world.limit(), None, "a rate of 935 would leave headroom without competing traffic");
    }

    #[test]
    fn a_full_path_with_a_lower_rate_is_shared() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(3.0, 900.0, true);
        assert_eq!(world.limit(), None);
        world.pass(1.0, 840.0, true);
        assert_eq!(world.limit(), None, "one window is no evidence");
        world.pass(1.0, 840.0, true);
        assert_eq!(world.limit(), Some(720));
    }

    #[test]
    fn a_slow_host_is_no_sign_of_competing_traffic() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(10.0, 300.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn evidence_is_ignored_for_a_while_after_a_false_alarm() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(2.0, 840.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(7.0, 720.0, false);
        assert_eq!(world.limit(), None);
        world.pass(15.0, 840.0, true);
        assert_eq!(world.limit(), None, "ignored for twenty seconds");
        world.pass(10.0, 840.0, true);
        assert_eq!(world.limit(), Some(720));
    }

    #[test]
    fn a_higher_rate_is_learned_and_forgotten_after_ten_minutes() {
        let mut world = World::known();
        world.pass(2.0, 950.0, true);
        world.pass(2.0, 0.0, false);
        assert_eq!(world.limit(), Some(760));
        world.pass(600.0, 1.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn a_few_delayed_segments_do_not_set_the_rate() {
        let mut world = World::new();
        world.pass(10.0, 5.0, true);
        world.pass(2.0, 0.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn a_path_shared_for_long_is_probed_again() {
        let mut world = World::known();
        world.pass(30.0, 720.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(1.5, 950.0, true);
        assert_eq!(world.limit(), None);
        world.pass(2.0, 840.0, true);
        assert_eq!(world.limit(), Some(760));
    }

    #[test]
    fn a_closed_stream_is_forgotten() {
        let mut world = World::known();
        for stream in 0..5 {
            world.headroom.remove(stream);
        }
        assert!(world.headroom.queued_samples.is_empty() && world.headroom.window.rates.is_empty());
    }
}
