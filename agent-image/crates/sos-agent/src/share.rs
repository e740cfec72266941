//! How much of a path the streams to one peer take when others may want some of it.
//!
//! Congestion control shares a path among connections that are as large as each other. One that is still small stays small for many
//! seconds where streams that know the path fill its queue: cubic comes back from a loss in seconds, not in round trips. So streams
//! leave a fifth of the path, as much as another one beside four streams gets,
//!
//! * at the beginning of a transfer on a path whose rate is known: whoever begins at the same time has room to find its own rate, and
//!   the queue that it makes doing so tells of it;
//! * whenever there is a queue although they get less than the path has carried for them: somebody else has the rest;
//!
//! and until there has been no queue for some seconds. The rate is known from when the path was full, so a path that never has a queue
//! of some length is never left a part of. All streams of one label to a peer count together, since they share the path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::rates::Rates;

/// Part of the path's rate that is taken where others may want some.
const TAKEN: f64 = 0.8;
/// Less of the rate than this, and somebody else has the rest. Rates of a full path that nobody else uses differ by half as much.
const ALL: f64 = 0.98;
/// Windows in a row that have to say so.
const EVIDENCE: u32 = 3;
/// How long rates are measured, at least; and how many round trips.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOW_RTTS: u32 = 3;
/// A queue is seen when it adds so much to a round trip: a quarter of it, but more than a busy machine does.
const QUEUE_PART: u32 = 4;
const QUEUE_LEAST: Duration = Duration::from_millis(10);
/// And a rate is that of the path only when so many bytes of the streams were in that queue: a few segments that were held up somewhere
/// say nothing, and a rate that is taken for too low would hold everything down.
const QUEUE_BYTES: f64 = 131_072.0;
/// A stream that moved less than this between two looks knows nothing of the queue: its round trip is an old one.
const TELLING: u64 = 4096;
/// How long a beginning takes: others have found their rate after eight round trips of slow start.
const START_RTTS: u32 = 8;
const START_LEAST: Duration = Duration::from_millis(700);
/// Looks in a row at one stream that have to show a queue in a beginning.
const START_LOOKS: u32 = 2;
/// A path that carries less than this part of its rate is idle.
const IDLE: f64 = 0.02;
/// Without a queue for so long nobody else wants the rest.
const HOLD: Duration = Duration::from_secs(5);
/// And after so long it is looked at anew, whether the path may carry more than is known.
const GIVE_MOST: Duration = Duration::from_secs(30);
/// A rate that was seen longer ago is forgotten when the path is idle.
const KNOWN: Duration = Duration::from_secs(600);
/// After evidence that turned out to be none, no more is taken for so long; doubled each time in a row.
const DOUBT_LEAST: Duration = Duration::from_secs(10);
const DOUBT_MOST: Duration = Duration::from_secs(160);

/// What one stream did since it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Bytes that have arrived.
    pub bytes: u64,
    /// In how long.
    pub elapsed: Duration,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// The lowest one seen.
    pub min_rtt: Duration,
}

impl Look {
    fn queue(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }

    fn is_queued(&self) -> bool {
        self.tells() && self.queue() >= (self.min_rtt / QUEUE_PART).max(QUEUE_LEAST)
    }

    /// A round trip takes about as long as the shortest one. Where it does not, there is a queue, or the way is another one.
    pub(crate) fn is_near(&self) -> bool {
        self.queue() <= self.min_rtt / QUEUE_PART
    }

    /// It knows of the queue as it is.
    pub(crate) fn tells(&self) -> bool {
        self.bytes >= TELLING
    }

    /// Bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }
}

/// What all streams did in some time.
#[derive(Debug, Clone, Default)]
struct Window {
    rates: Rates,
    rtt: Duration,
    /// The shortest queue.
    queue: Duration,
    /// Some stream moved enough to know of the queue; of its looks every one, and some one, has seen one.
    told: bool,
    all_queued: bool,
    some_queued: bool,
}

impl Window {
    fn new() -> Self {
        Self { all_queued: true, queue: Duration::MAX, ..Self::default() }
    }

    fn add(&mut self, stream: u64, look: Look) {
        self.rates.add(stream, look.bytes, look.elapsed);
        self.rtt = self.rtt.max(look.min_rtt);
        if !look.tells() {
            return;
        }
        self.told = true;
        self.queue = self.queue.min(look.queue());
        self.all_queued &= look.is_queued();
        self.some_queued |= look.is_queued();
    }

    /// The streams kept the path full: what of theirs is in a queue is their rate times its delay.
    fn is_full(&self) -> bool {
        self.told && self.all_queued && self.rates.total() * self.queue.as_secs_f64() >= QUEUE_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing much is sent.
    Idle,
    /// A transfer has begun.
    Starting { until: Instant },
    /// All of the path is taken.
    Open { evidence: u32 },
    /// Some of it is left, since `began`. `proved`: a queue came after the one that was there at first had gone.
    Giving { began: Instant, queue_at: Instant, gone: bool, proved: bool },
}

/// The share of one path.
#[derive(Debug, Clone)]
pub struct Sharer {
    state: State,
    /// Bytes a second that the path has carried for its streams, and when it last did.
    rate: Option<(f64, Instant)>,
    began: Instant,
    window: Window,
    /// What the window before had, if the path was full in it.
    full_before: Option<f64>,
    queued_looks: BTreeMap<u64, u32>,
    doubt: Duration,
    doubt_until: Instant,
}

impl Sharer {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Idle,
            rate: None,
            began: now,
            window: Window::new(),
            full_before: None,
            queued_looks: BTreeMap::new(),
            doubt: DOUBT_LEAST,
            doubt_until: now,
        }
    }

    /// Bytes a second that all streams together may send; None = as fast as congestion control lets them.
    #[must_use]
    pub fn limit(&self) -> Option<f64> {
        let (rate, _) = self.rate?;
        (!matches!(self.state, State::Open { .. })).then_some(rate * TAKEN)
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u64) {
        self.queued_looks.remove(&stream);
        self.window.rates.forget(stream);
    }

    /// Takes what a stream did.
    pub fn observe(&mut self, stream: u64, look: Look, now: Instant) {
        let run = self.queued_looks.entry(stream).or_default();
        *run = if look.is_queued() { *run + 1 } else { 0 };
        let queued = *run >= START_LOOKS;
        self.window.add(stream, look);
        match self.state {
            State::Idle if look.rate() >= self.least() => {
                let length = (look.min_rtt * START_RTTS).max(START_LEAST);
                self.enter(State::Starting { until: now + length }, now);
            }
            State::Starting { .. } if queued && self.rate.is_some() => self.give(now),
            State::Starting { until } if now >= until => self.enter(State::Open { evidence: 0 }, now),
            _ => {}
        }
        if now.saturating_duration_since(self.began) >= WINDOW.max(self.window.rtt * WINDOW_RTTS) {
            self.judge(now);
            (self.began, self.window) = (now, Window::new());
        }
    }

    /// What is more than idle, bytes a second.
    fn least(&self) -> f64 {
        self.rate.map_or(1.0, |(rate, _)| rate * IDLE)
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        (self.began, self.window, self.full_before) = (now, Window::new(), None);
        self.queued_looks.values_mut().for_each(|run| *run = 0);
    }

    fn give(&mut self, now: Instant) {
        self.enter(State::Giving { began: now, queue_at: now, gone: false, proved: false }, now);
    }

    fn judge(&mut self, now: Instant) {
        let rate = self.window.rates.total();
        if rate < self.least() {
            self.rest(now);
            return;
        }
        self.learn(rate, now);
        match self.state {
            State::Idle | State::Starting { .. } => {}
            State::Open { evidence } => self.weigh(evidence, rate, now),
            State::Giving { began, .. } if now.saturating_duration_since(began) >= GIVE_MOST => {
                self.enter(State::Open { evidence: 0 }, now);
            }
            State::Giving { began, queue_at, gone, proved } => {
                self.hold((began, queue_at, gone, proved), now);
            }
        }
    }

    /// The rate is what two full windows in a row had at least: what is held up in one of them, by a busy machine, arrives in the next.
    fn learn(&mut self, rate: f64, now: Instant) {
        let full = self.window.is_full().then_some(rate);
        let both = self.full_before.zip(full).map(|(before, rate)| before.min(rate));
        self.full_before = full;
        if let Some(rate) = both.filter(|rate| self.rate.is_none_or(|(known, _)| *rate >= known * ALL)) {
            self.rate = Some((self.rate.map_or(rate, |(known, _)| known.max(rate)), now));
        }
    }

    /// Nothing much was sent.
    fn rest(&mut self, now: Instant) {
        if self.rate.is_some_and(|(_, seen)| now.saturating_duration_since(seen) >= KNOWN) {
            self.rate = None;
        }
        self.state = State::Idle;
    }

    /// Whether somebody else has a part of the path.
    fn weigh(&mut self, evidence: u32, rate: f64, now: Instant) {
        let less = self.window.is_full() && self.rate.is_some_and(|(known, _)| rate < known * ALL);
        let evidence = if less && now >= self.doubt_until { evidence + 1 } else { 0 };
        self.state = State::Open { evidence };
        if evidence >= EVIDENCE {
            self.give(now);
        }
    }

    /// Whether somebody else still wants it.
    fn hold(&mut self, (began, queue_at, gone, proved): (Instant, Instant, bool, bool), now: Instant) {
        if self.window.some_queued {
            self.state = State::Giving { began, queue_at: now, gone, proved: proved || gone };
        } else if now.saturating_duration_since(queue_at) < HOLD {
            self.state = State::Giving { began, queue_at, gone: true, proved };
        } else {
            self.doubt = if proved { DOUBT_LEAST } else { (self.doubt * 2).min(DOUBT_MOST) };
            self.doubt_until = now + self.doubt;
            self.enter(State::Open { evidence: 0 }, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(60);
    const LOOK: Duration = Duration::from_millis(100);
    const MEGABIT: f64 = 125_000.0;

    /// A path and four streams that are looked at by turns, beside one that carries next to nothing and knows of no queue.
    struct World {
        sharer: Sharer,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { sharer: Sharer::new(now), now }
        }

        /// A path on which a transfer had 900 Mbit/s, and which is idle again.
        fn known() -> Self {
            let mut world = Self::new();
            world.pass(3.0, 900.0, true);
            world.pass(3.0, 0.0, false);
            world
        }

        /// Time passes in which all streams together have so many Mbit/s.
        fn pass(&mut self, seconds: f64, megabits: f64, queued: bool) {
            let end = self.now + Duration::from_secs_f64(seconds);
            while self.now < end {
                self.now += LOOK;
                let bytes = (megabits * MEGABIT / 4.0 * LOOK.as_secs_f64()) as u64;
                let rtt = if queued { RTT * 2 } else { RTT };
                for stream in 0..4 {
                    self.sharer.observe(stream, Look { bytes, elapsed: LOOK, rtt, min_rtt: RTT }, self.now);
                }
                // Its last round trip is from another time.
                let ping = Look {
                    bytes: 1448,
                    elapsed: LOOK,
                    rtt: if queued { RTT } else { RTT * 2 },
                    min_rtt: RTT,
                };
                self.sharer.observe(4, ping, self.now);
            }
        }

        fn limit(&self) -> Option<u64> {
            self.sharer.limit().map(|limit| (limit / MEGABIT).round() as u64)
        }
    }

    #[test]
    fn nothing_is_left_on_a_path_that_is_not_known() {
        let mut world = World::new();
        assert_eq!(world.limit(), None);
        world.pass(0.3, 900.0, true);
        assert_eq!(world.limit(), None);
        world.pass(5.0, 700.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn a_transfer_begins_with_a_part_of_what_the_path_had() {
        let mut world = World::known();
        assert_eq!(world.limit(), Some(720), "before its first byte");
        world.pass(0.7, 720.0, false);
        assert_eq!(world.limit(), Some(720));
        world.pass(0.3, 720.0, false);
        assert_eq!(world.limit(), None, "nobody else was there");
    }

    #[test]
    fn what_queues_in_a_beginning_is_somebody_else_who_keeps_a_part() {
        let mut world = World::known();
        world.pass(0.2, 720.0, false);
        world.pass(10.0, 720.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(4.0, 720.0, false);
        assert_eq!(world.limit(), Some(720), "it may have lost something");
        world.pass(2.0, 720.0, false);
        assert_eq!(world.limit(), None, "it has gone");
    }

    #[test]
    fn what_was_held_up_and_came_at_once_is_no_rate() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        for _ in 0..6 {
            world.pass(0.5, 865.0, true);
            world.pass(0.5, 935.0, true);
        }
        world.pass(6.0, 900.0, true);
        assert_eq!(world.limit(), None, "a rate of 935 would leave somebody a part who is not there");
    }

    #[test]
    fn a_full_path_that_carries_less_is_shared() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(3.0, 900.0, true);
        assert_eq!(world.limit(), None);
        world.pass(1.0, 840.0, true);
        assert_eq!(world.limit(), None, "it may be an accident");
        world.pass(1.0, 840.0, true);
        assert_eq!(world.limit(), Some(720));
    }

    #[test]
    fn a_host_that_is_slow_is_no_sign_of_others() {
        let mut world = World::known();
        world.pass(1.0, 720.0, false);
        world.pass(10.0, 300.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn an_alarm_for_nothing_is_not_repeated_at_once() {
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
    fn a_path_that_carries_more_is_known_for_more_and_forgotten_after_ten_minutes() {
        let mut world = World::known();
        world.pass(2.0, 950.0, true);
        world.pass(2.0, 0.0, false);
        assert_eq!(world.limit(), Some(760));
        world.pass(600.0, 1.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn segments_that_were_held_up_are_not_the_rate_of_a_path() {
        let mut world = World::new();
        world.pass(10.0, 5.0, true);
        world.pass(2.0, 0.0, false);
        assert_eq!(world.limit(), None);
    }

    #[test]
    fn a_path_that_is_shared_for_long_is_looked_at_anew() {
        let mut world = World::known();
        world.pass(30.0, 720.0, true);
        assert_eq!(world.limit(), Some(720));
        world.pass(1.5, 950.0, true);
        assert_eq!(world.limit(), None);
        world.pass(2.0, 840.0, true);
        assert_eq!(world.limit(), Some(760));
    }

    #[test]
    fn a_stream_that_ends_is_forgotten() {
        let mut world = World::known();
        for stream in 0..5 {
            world.sharer.forget(stream);
        }
        assert!(world.sharer.queued_looks.is_empty() && world.sharer.window.rates.is_empty());
    }
}
