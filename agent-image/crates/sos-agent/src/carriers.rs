//! How many streams of a path carry bulk sessions (ADR 0040).
//!
//! Streams share what their path holds, on the wire and in its queue. With a few segments each they find losses by timeouts, as too little
//! comes behind a lost segment to tell of it, and what other streams have brought meanwhile waits. So a path that has been seen full is
//! used by no more streams than get a fair number of segments each. What it holds does not depend on how many there are.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::ceiling::Told;
use crate::share::Look;

/// Bytes of a path that a stream has for itself: eleven segments.
const EACH: f64 = 16_384.0;
/// So many streams are never too many.
const ENOUGH: usize = 16;
/// More is used when the path holds so much more than the streams in use and another one need: rates of a full path differ by less.
const MORE: f64 = 1.25;
/// How long a path is looked at, at least; and how many round trips.
const WINDOW: Duration = Duration::from_millis(300);
const WINDOW_RTTS: u32 = 3;
/// A queue is seen when a round trip lasts so many of the shortest one, and is longer by more than a busy machine makes it.
const QUEUE_TIMES: u32 = 2;
const QUEUE_LEAST: Duration = Duration::from_millis(4);
/// A path that has not been seen full for so long may hold more than it did.
const KNOWN: Duration = Duration::from_secs(60);
/// Less than this part of what more streams carried, twice in a row, and they were not too many: loss or others bound each of them.
const AS_MUCH: f64 = 0.8;
/// They are all used for so long then.
const DOUBT: Duration = Duration::from_secs(60);

/// What a stream did in a window.
#[derive(Debug, Clone, Copy)]
struct Part {
    bytes: u64,
    /// Each look's bytes, times the seconds that each of them was under way.
    byte_seconds: f64,
    elapsed: Duration,
    /// Every look at it saw more that it had to send; and a queue.
    waiting: bool,
    queued: bool,
}

impl Part {
    const NONE: Self =
        Self { bytes: 0, byte_seconds: 0.0, elapsed: Duration::ZERO, waiting: true, queued: true };

    fn add(&mut self, told: &Told) {
        let look = &told.look;
        self.bytes += look.bytes;
        self.byte_seconds += look.bytes as f64 * look.rtt.as_secs_f64();
        self.elapsed += look.elapsed;
        self.waiting &= told.sample.waiting;
        self.queued &= is_queued(look);
    }

    /// Bytes a second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }

    /// Bytes that it had under way (Little's law).
    fn held(&self) -> f64 {
        self.byte_seconds / self.elapsed.as_secs_f64().max(1e-3)
    }
}

fn is_queued(look: &Look) -> bool {
    look.rtt >= (look.min_rtt * QUEUE_TIMES).max(look.min_rtt + QUEUE_LEAST)
}

/// The number of streams for one path.
#[derive(Debug, Clone)]
pub struct Carriers {
    most: Option<usize>,
    /// When the path was last seen full.
    full_at: Instant,
    /// How many streams the path had room for in the window before, if it was full.
    before: Option<usize>,
    /// Bytes a second before the number was lowered last; and whether the window before had far less, with more to send.
    carried: f64,
    short: bool,
    doubt_until: Instant,
    began: Instant,
    rtt: Duration,
    parts: BTreeMap<u64, Part>,
}

impl Carriers {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            most: None,
            full_at: now,
            before: None,
            carried: 0.0,
            short: false,
            doubt_until: now,
            began: now,
            rtt: Duration::ZERO,
            parts: BTreeMap::new(),
        }
    }

    /// Streams that a bulk session uses at most; `usize::MAX` = all there are.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most.unwrap_or(usize::MAX)
    }

    /// Takes what a stream did.
    pub fn observe(&mut self, stream: u64, told: &Told, now: Instant) {
        self.parts.entry(stream).or_insert(Part::NONE).add(told);
        self.rtt = self.rtt.max(told.look.min_rtt);
        let (age, length) = (now.saturating_duration_since(self.began), WINDOW.max(self.rtt * WINDOW_RTTS));
        if age >= length * 2 {
            // A pause: what was before it and what comes now are not one after the other.
            (self.before, self.short) = (None, false);
            self.begin(now);
        } else if age >= length {
            self.judge(now);
            self.begin(now);
        }
        if now.saturating_duration_since(self.full_at) >= KNOWN {
            self.most = None;
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.rtt) = (now, Duration::ZERO);
        self.parts.clear();
    }

    fn judge(&mut self, now: Instant) {
        let most = self.parts.values().map(|part| part.bytes).max().unwrap_or(0);
        // Those that say little beside the others have no part in it.
        let carrying = self.parts.values().filter(|part| part.bytes > 0 && part.bytes >= most / 4);
        let pressed = most > 0 && carrying.clone().all(|part| part.waiting);
        let full = pressed && carrying.clone().all(|part| part.queued);
        let held: f64 = carrying.clone().map(Part::held).sum();
        let rate: f64 = carrying.map(Part::rate).sum();
        let room = full.then(|| ((held / EACH) as usize).max(1));
        // Two windows in a row, of which the larger counts: after a loss a path is not full for a moment.
        let agreed = self.before.zip(room).map(|(before, room)| before.max(room));
        self.before = room;
        if agreed.is_some() {
            self.full_at = now;
        }
        let short = self.most.is_some() && pressed && rate < self.carried * AS_MUCH;
        if short && self.short {
            (self.most, self.doubt_until) = (None, now + DOUBT);
        } else if self.most.is_some_and(|most| held >= (most + 1) as f64 * EACH * MORE) {
            self.most = Some((held / EACH) as usize).filter(|room| *room < ENOUGH);
        } else if let Some(room) = agreed.filter(|room| *room < self.most.unwrap_or(ENOUGH))
            && now >= self.doubt_until
        {
            (self.most, self.carried) = (Some(room), rate);
        }
        self.short = short;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::congestion::Sample;

    const TICK: Duration = Duration::from_millis(100);

    /// A path: bytes a second, what is under way on it, and its lowest round trip in milliseconds.
    struct Way {
        rate: f64,
        held: f64,
        min_ms: f64,
    }

    /// 10 Mbit/s and 1.2 ms.
    const SLOW: Way = Way { rate: 1.25e6, held: 0.0, min_ms: 1.2 };

    /// Looks at a path.
    struct World {
        carriers: Carriers,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { carriers: Carriers::new(now), now }
        }

        /// So many streams share a path for so many tenths of a second. How many carry bulk then.
        fn pass(&mut self, streams: u64, way: &Way, waiting: bool, ticks: u32) -> usize {
            let bytes = (way.rate / streams as f64 * TICK.as_secs_f64()) as u64;
            let look = Look {
                bytes,
                elapsed: TICK,
                rtt: Duration::from_secs_f64(way.held / way.rate),
                min_rtt: Duration::from_secs_f64(way.min_ms / 1e3),
            };
            for _ in 0..ticks {
                self.now += TICK;
                for stream in 0..streams {
                    let told =
                        Told { look, sample: Sample { waiting, ..Sample::default() }, searches: false };
                    self.carriers.observe(stream, &told, self.now);
                }
            }
            self.carriers.most()
        }

        /// So much is under way on the slow path.
        fn slow(&mut self, streams: u64, held: f64, ticks: u32) -> usize {
            self.pass(streams, &Way { held, ..SLOW }, true, ticks)
        }
    }

    #[test]
    fn a_path_that_holds_a_few_segments_is_for_one_stream() {
        let mut world = World::new();
        assert_eq!(world.slow(4, 16_500.0, 3), usize::MAX, "one window");
        assert_eq!(world.slow(4, 16_500.0, 3), 1);
        assert_eq!(world.slow(1, 16_500.0, 100), 1, "it holds as much for one");
    }

    #[test]
    fn each_stream_has_its_part() {
        assert_eq!(World::new().slow(4, 36_000.0, 12), 2);
        assert_eq!(World::new().slow(4, 300_000.0, 100), usize::MAX);
    }

    #[test]
    fn the_larger_of_two_windows_counts() {
        let mut world = World::new();
        world.slow(4, 66_000.0, 3);
        assert_eq!(world.slow(4, 16_500.0, 3), 4);
        assert_eq!(world.slow(4, 16_500.0, 3), 1);
    }

    #[test]
    fn without_a_queue_or_without_more_to_send_nothing_is_said() {
        let far = Way { held: 5_000.0, min_ms: 3.0, ..SLOW };
        assert_eq!(World::new().pass(4, &far, true, 50), usize::MAX, "4 ms are not twice 3");
        let quick = Way { rate: 1.25e8, held: 30_000.0, min_ms: 0.1 };
        assert_eq!(
            World::new().pass(4, &quick, true, 50),
            usize::MAX,
            "a quarter of a millisecond is no queue"
        );
        assert_eq!(World::new().pass(4, &Way { held: 16_500.0, ..SLOW }, false, 50), usize::MAX);
    }

    #[test]
    fn a_stream_that_says_little_does_not_matter() {
        let mut world = World::new();
        for _ in 0..7 {
            world.slow(4, 16_500.0, 1);
            let rtt = Duration::from_micros(1_200);
            let look = Look { bytes: 200, elapsed: TICK, rtt, min_rtt: rtt };
            let told = Told { look, sample: Sample::default(), searches: false };
            world.carriers.observe(9, &told, world.now);
        }
        assert_eq!(world.carriers.most(), 1);
    }

    #[test]
    fn a_path_that_carries_more_gets_more_streams() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        let quicker = |held| Way { rate: 1.25e7, held, ..SLOW };
        assert_eq!(world.pass(1, &quicker(39_000.0), true, 10), 1, "two and a fourth part of it");
        assert_eq!(world.pass(1, &quicker(42_000.0), true, 10), 2);
        assert_eq!(world.pass(1, &quicker(1e6), false, 10), usize::MAX);
    }

    #[test]
    fn what_has_not_been_seen_for_a_minute_is_tried_again() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        world.slow(1, 4_000.0, 590);
        assert_eq!(world.carriers.most(), 1);
        assert_eq!(world.slow(1, 4_000.0, 20), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 16), 1, "for a second or two");
    }

    #[test]
    fn fewer_streams_that_carry_less_were_not_too_many() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        let one = Way { rate: 0.9e6, held: 12_000.0, ..SLOW };
        assert_eq!(world.pass(1, &one, true, 3), 1, "bbr may have been looking for a shorter round trip");
        assert_eq!(world.pass(1, &one, true, 6), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 590), usize::MAX, "for a minute");
        assert_eq!(world.slow(4, 16_500.0, 20), 1);
        assert_eq!(world.pass(1, &one, false, 50), 1, "who has little to send carries little");
    }

    #[test]
    fn windows_with_a_pause_between_them_are_not_two_in_a_row() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 3);
        world.now += Duration::from_secs(20);
        assert_eq!(world.slow(4, 16_500.0, 3), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 6), 1);
    }

    proptest! {
        /// However many streams looked, the path has the same room; and more room is never for fewer.
        #[test]
        fn the_number_is_the_paths(streams in 1_u64..9, others in 1_u64..9, held in 6_500.0..400_000.0_f64, more in 1.0..3.0_f64) {
            let most = |streams, held| World::new().slow(streams, held, 12);
            let few = most(streams, held);
            prop_assert!(few >= 1);
            prop_assert!(few == usize::MAX || few < ENOUGH);
            // What one stream has in a look is whole bytes.
            prop_assert!(most(others, held).abs_diff(few) <= 1 || few >= ENOUGH - 1);
            prop_assert!(most(streams, held * more) >= few);
        }
    }
}
