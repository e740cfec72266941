//! Headroom: the part of a path that streams leave to competing traffic.
//!
//! Congestion control shares a path fairly among flows of about the same size. A flow that is still small stays small for many seconds where
//! streams that know the path keep its queue full: cubic recovers from a loss in seconds, not in round trips. So the streams leave a fifth of
//! the path, as much as one more flow beside four streams gets,
//!
//! * at the start of a transfer on a path whose rate is known: a flow that starts at the same time has room to find its own rate, and the
//!   queue that it builds while doing so reveals it;
//! * while there is a queue although the streams get less than the path has carried for them: competing traffic has the rest;
//!
//! and until there has been no queue for some seconds. The rate is learned while the path is full, so a path that never has a queue of some
//! length gets no headroom. All streams of one label to a peer count together, since they share the path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rate_sampler::RateSampler;
use crate::sample::DeliverySample;

/// Part of the path's rate that the streams use while they leave headroom.
const USED: f64 = 0.8;
/// A full path that delivers less than this part of its rate is shared with competing traffic. Without any, rates differ by half as much.
const FULL_RATE: f64 = 0.98;
/// Windows in a row that have to show it.
const EVIDENCE: u32 = 3;
/// Shortest window in which rates are measured, in time and in round trips.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOW_RTTS: u32 = 3;
/// Least bytes of the streams in the queue for a rate to count as the path's: a few segments that were held up somewhere prove nothing, and a
/// rate taken too low would hold everything down.
const QUEUE_BYTES: f64 = 131_072.0;
/// Length of a start: competing flows have found their rate after eight round trips of slow start.
const START_RTTS: u32 = 8;
const START_MIN: Duration = Duration::from_millis(700);
/// Samples in a row of one stream that have to show a queue during a start.
const START_SAMPLES: u32 = 2;
/// A path that carries less than this part of its rate is idle.
const IDLE: f64 = 0.02;
/// Time without a queue after which the headroom is taken back.
const HOLD: Duration = Duration::from_secs(5);
/// Longest time of headroom; then all of the path is probed again, since it may carry more than is known.
const YIELD_MAX: Duration = Duration::from_secs(30);
/// Age at which a rate is forgotten once the path is idle.
const RATE_MAX_AGE: Duration = Duration::from_secs(600);
/// Time after a false alarm in which evidence is ignored; doubled for each one in a row.
const IGNORE_MIN: Duration = Duration::from_secs(10);
const IGNORE_MAX: Duration = Duration::from_secs(160);

/// All streams in one window.
#[derive(Debug, Clone, Default)]
struct Window {
    rates: RateSampler,
    rtt: Duration,
    /// The shortest queueing delay.
    queue: Duration,
    /// Some stream delivered enough to measure the queue; all such samples saw one, or some did.
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

    /// The streams kept the path full: their bytes in the queue are their rate times its delay.
    fn is_full(&self) -> bool {
        self.measured && self.all_queued && self.rates.total() * self.queue.as_secs_f64() >= QUEUE_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Little is sent.
    Idle,
    /// A transfer has started: headroom until then.
    Starting { until: Instant },
    /// No headroom; windows in a row that show competing traffic.
    Full { evidence: u32 },
    /// Headroom for competing traffic. `drained`: the first queue has gone; `proved`: another one came after it.
    Yielding { began: Instant, queue_at: Instant, drained: bool, proved: bool },
}

/// Headroom of one path.
#[derive(Debug, Clone)]
pub(crate) struct Headroom {
    state: State,
    /// Bytes a second that the path has carried for its streams, and when it last did.
    rate: Option<(f64, Instant)>,
    began: Instant,
    window: Window,
    /// Rate of the window before, if the path was full in it.
    full_before: Option<f64>,
    /// Samples in a row with a queue, by stream.
    queued_samples: BTreeMap<u64, u32>,
    ignore: Duration,
    ignore_until: Instant,
}

impl Headroom {
    /// A path of which nothing is known yet.
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

    /// Bytes a second that all streams together may send; `None`: no limit but congestion control.
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

    /// Rate below which the path is idle, bytes a second.
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

    /// The rate is the lower one of two full windows in a row: bytes that a busy machine holds up in one window arrive in the next.
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

    /// Looks for competing traffic: a full path on which the streams get less than its rate.
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

    /// A path with four streams polled in turn, and one with next to no traffic that measures no queue.
    struct World {
        headroom: Headroom,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { headroom: Headroom::new(now), now }
        }

        /// An idle path on which a transfer had 900 Mbit/s before.
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
                // Its round trip is stale.
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
        assert_eq!(world.limit(), Some(720), "before its first byte");
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
        assert_eq!(world.limit(), None, "competing traffic has gone");
    }

    #[test]
    fn bytes_held_up_and_delivered_at_once_are_no_rate() {
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
    fn a_false_alarm_is_not_repeated_at_once() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(2.0, 840.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(7.0, 720.0, false);
        assert_eq!(world.limit(), None);
        world.pass(15.0, 840.0, true);
        assert_eq!(world.limit(), None, "twenty seconds");
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
    fn segments_held_up_are_not_the_rate_of_a_path() {
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
