//! Parallelism: the number of streams of a path that carry bulk sessions (ADR 0040).
//!
//! Streams share the path's capacity, on the wire and in its queue. A stream with only a few segments in flight recovers from loss by RTO,
//! because too few segments follow a lost segment to trigger duplicate acknowledgements. Meanwhile, blocks that other streams have
//! delivered wait. So once a path has been full, parallelism is limited so that each stream has enough segments in flight. The path's
//! capacity does not depend on the number of streams.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::sample::{DeliverySample, StreamSample};

/// Minimum bytes in flight for each stream: eleven segments.
const STREAM_BYTES: f64 = 16_384.0;
/// Parallelism is not limited from this number of streams on.
const UNLIMITED: usize = 16;
/// Parallelism is raised if the bytes in flight reach this multiple of the total that one more stream would need. Rates of a full path vary
/// by less.
const RAISE: f64 = 1.25;
/// Minimum window length, in time and in round trips.
const WINDOW: Duration = Duration::from_millis(300);
const WINDOW_RTTS: u32 = 3;
/// A queue counts if the round trip is at least this multiple of its minimum, and exceeds the minimum by more than a busy machine adds.
const QUEUE_TIMES: u32 = 2;
const QUEUE_MIN: Duration = Duration::from_millis(4);
/// A path that has not been full for this long may have more capacity now: its limit is lifted.
const MAX_AGE: Duration = Duration::from_secs(60);
/// If the reduced number of streams delivers less than this fraction of the earlier rate in two consecutive windows, loss or competing
/// traffic bounds each stream, so the limit is lifted.
const AS_MUCH: f64 = 0.8;
/// Time for which parallelism stays unlimited after its limit has been lifted for this reason.
const BACK_OFF: Duration = Duration::from_secs(60);

/// Totals of one stream in one window.
#[derive(Debug, Clone, Copy)]
struct Part {
    bytes: u64,
    /// Bytes of each sample times its round trip in seconds.
    byte_seconds: f64,
    elapsed: Duration,
    /// Every sample saw a backlog; every sample saw a queue.
    backlogged: bool,
    queued: bool,
}

impl Part {
    const NONE: Self =
        Self { bytes: 0, byte_seconds: 0.0, elapsed: Duration::ZERO, backlogged: true, queued: true };

    fn add(&mut self, sample: &StreamSample) {
        let delivery = &sample.delivery;
        self.bytes += delivery.bytes;
        self.byte_seconds += delivery.bytes as f64 * delivery.rtt.as_secs_f64();
        self.elapsed += delivery.elapsed;
        self.backlogged &= sample.loss.backlogged;
        self.queued &= is_queued(delivery);
    }

    /// Bytes per second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }

    /// Bytes in flight (Little's law).
    fn in_flight(&self) -> f64 {
        self.byte_seconds / self.elapsed.as_secs_f64().max(1e-3)
    }
}

fn is_queued(sample: &DeliverySample) -> bool {
    sample.rtt >= (sample.min_rtt * QUEUE_TIMES).max(sample.min_rtt + QUEUE_MIN)
}

/// Parallelism of one path.
#[derive(Debug, Clone)]
pub(crate) struct Parallelism {
    streams: Option<usize>,
    /// Last time the path was full.
    full_at: Instant,
    /// Number of streams for which the bytes in flight of the previous window suffice, if the path was full.
    before: Option<usize>,
    /// Rate in bytes per second before the limit was last lowered; and whether the previous window, with a backlog, had a far lower rate.
    rate_before: f64,
    slower: bool,
    back_off_until: Instant,
    began: Instant,
    rtt: Duration,
    parts: BTreeMap<u64, Part>,
}

impl Parallelism {
    /// State of an unknown path.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            streams: None,
            full_at: now,
            before: None,
            rate_before: 0.0,
            slower: false,
            back_off_until: now,
            began: now,
            rtt: Duration::ZERO,
            parts: BTreeMap::new(),
        }
    }

    /// Maximum number of streams for a bulk session; `usize::MAX`: all.
    pub(crate) fn streams(&self) -> usize {
        self.streams.unwrap_or(usize::MAX)
    }

    /// Takes a sample of a stream.
    pub(crate) fn observe(&mut self, stream: u64, sample: &StreamSample, now: Instant) {
        self.parts.entry(stream).or_insert(Part::NONE).add(sample);
        self.rtt = self.rtt.max(sample.delivery.min_rtt);
        let (age, length) = (now.saturating_duration_since(self.began), WINDOW.max(self.rtt * WINDOW_RTTS));
        if age >= length * 2 {
            // A pause: the windows before and after it are not consecutive.
            (self.before, self.slower) = (None, false);
            self.begin(now);
        } else if age >= length {
            self.judge(now);
            self.begin(now);
        }
        if now.saturating_duration_since(self.full_at) >= MAX_AGE {
            self.streams = None;
        }
    }

    fn begin(&mut self, now: Instant) {
        (self.began, self.rtt) = (now, Duration::ZERO);
        self.parts.clear();
    }

    fn judge(&mut self, now: Instant) {
        let most = self.parts.values().map(|part| part.bytes).max().unwrap_or(0);
        // Streams with less than a quarter of the largest stream's bytes do not count.
        let bulk = self.parts.values().filter(|part| part.bytes > 0 && part.bytes >= most / 4);
        let backlogged = most > 0 && bulk.clone().all(|part| part.backlogged);
        let full = backlogged && bulk.clone().all(|part| part.queued);
        let in_flight: f64 = bulk.clone().map(Part::in_flight).sum();
        let rate: f64 = bulk.map(Part::rate).sum();
        let room = full.then(|| ((in_flight / STREAM_BYTES) as usize).max(1));
        // Take the larger of two consecutive windows: after a loss a path is briefly not full.
        let agreed = self.before.zip(room).map(|(before, room)| before.max(room));
        self.before = room;
        if agreed.is_some() {
            self.full_at = now;
        }
        let slower = self.streams.is_some() && backlogged && rate < self.rate_before * AS_MUCH;
        if slower && self.slower {
            (self.streams, self.back_off_until) = (None, now + BACK_OFF);
        } else if self.streams.is_some_and(|streams| in_flight >= (streams + 1) as f64 * STREAM_BYTES * RAISE)
        {
            self.streams = Some((in_flight / STREAM_BYTES) as usize).filter(|room| *room < UNLIMITED);
        } else if let Some(room) = agreed.filter(|room| *room < self.streams.unwrap_or(UNLIMITED))
            && now >= self.back_off_until
        {
            (self.streams, self.rate_before) = (Some(room), rate);
        }
        self.slower = slower;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sample::LossSample;

    const TICK: Duration = Duration::from_millis(100);

    /// A path: bytes per second, bytes in flight, and minimum round trip in milliseconds.
    struct Path {
        rate: f64,
        in_flight: f64,
        min_ms: f64,
    }

    /// 10 Mbit/s and 1.2 ms.
    const SLOW: Path = Path { rate: 1.25e6, in_flight: 0.0, min_ms: 1.2 };

    /// Samples of a path.
    struct World {
        parallelism: Parallelism,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { parallelism: Parallelism::new(now), now }
        }

        /// Divides a path among streams for a number of tenths of a second; returns the parallelism.
        fn pass(&mut self, streams: u64, way: &Path, backlogged: bool, ticks: u32) -> usize {
            let bytes = (way.rate / streams as f64 * TICK.as_secs_f64()) as u64;
            let delivery = DeliverySample {
                bytes,
                elapsed: TICK,
                rtt: Duration::from_secs_f64(way.in_flight / way.rate),
                min_rtt: Duration::from_secs_f64(way.min_ms / 1e3),
            };
            for _ in 0..ticks {
                self.now += TICK;
                for stream in 0..streams {
                    let sample = StreamSample {
                        delivery,
                        loss: LossSample { backlogged, ..LossSample::default() },
                        startup: false,
                    };
                    self.parallelism.observe(stream, &sample, self.now);
                }
            }
            self.parallelism.streams()
        }

        /// Loads the slow path.
        fn slow(&mut self, streams: u64, in_flight: f64, ticks: u32) -> usize {
            self.pass(streams, &Path { in_flight, ..SLOW }, true, ticks)
        }
    }

    #[test]
    fn a_path_that_holds_a_few_segments_gets_one_stream() {
        let mut world = World::new();
        assert_eq!(world.slow(4, 16_500.0, 3), usize::MAX, "after one window");
        assert_eq!(world.slow(4, 16_500.0, 3), 1);
        assert_eq!(world.slow(1, 16_500.0, 100), 1, "one stream fills the path as well");
    }

    #[test]
    fn parallelism_follows_the_bytes_in_flight() {
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
    fn parallelism_stays_unlimited_without_a_queue_or_a_backlog() {
        let far = Path { in_flight: 5_000.0, min_ms: 3.0, ..SLOW };
        assert_eq!(World::new().pass(4, &far, true, 50), usize::MAX, "4 ms is less than twice 3 ms");
        let quick = Path { rate: 1.25e8, in_flight: 30_000.0, min_ms: 0.1 };
        assert_eq!(
            World::new().pass(4, &quick, true, 50),
            usize::MAX,
            "a quarter of a millisecond is no queue"
        );
        assert_eq!(World::new().pass(4, &Path { in_flight: 16_500.0, ..SLOW }, false, 50), usize::MAX);
    }

    #[test]
    fn a_stream_with_little_traffic_does_not_count() {
        let mut world = World::new();
        for _ in 0..7 {
            world.slow(4, 16_500.0, 1);
            let rtt = Duration::from_micros(1_200);
            let delivery = DeliverySample { bytes: 200, elapsed: TICK, rtt, min_rtt: rtt };
            let sample = StreamSample { delivery, loss: LossSample::default(), startup: false };
            world.parallelism.observe(9, &sample, world.now);
        }
        assert_eq!(world.parallelism.streams(), 1);
    }

    #[test]
    fn a_faster_path_gets_more_streams() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        let quicker = |in_flight| Path { rate: 1.25e7, in_flight, ..SLOW };
        assert_eq!(world.pass(1, &quicker(39_000.0), true, 10), 1, "below two and a quarter streams");
        assert_eq!(world.pass(1, &quicker(42_000.0), true, 10), 2);
        assert_eq!(world.pass(1, &quicker(1e6), false, 10), usize::MAX);
    }

    #[test]
    fn all_streams_are_tried_again_after_a_minute_without_a_full_path() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        world.slow(1, 4_000.0, 590);
        assert_eq!(world.parallelism.streams(), 1);
        assert_eq!(world.slow(1, 4_000.0, 20), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 16), 1, "unlimited for a second or two only");
    }

    #[test]
    fn a_limit_that_lowers_the_rate_is_lifted() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 12);
        let one = Path { rate: 0.9e6, in_flight: 12_000.0, ..SLOW };
        assert_eq!(world.pass(1, &one, true, 3), 1, "one slow window may be a PROBE_RTT of bbr");
        assert_eq!(world.pass(1, &one, true, 6), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 590), usize::MAX, "unlimited for a minute");
        assert_eq!(world.slow(4, 16_500.0, 20), 1);
        assert_eq!(world.pass(1, &one, false, 50), 1, "a low rate without a backlog is no evidence");
    }

    #[test]
    fn windows_around_a_pause_are_not_consecutive() {
        let mut world = World::new();
        world.slow(4, 16_500.0, 3);
        world.now += Duration::from_secs(20);
        assert_eq!(world.slow(4, 16_500.0, 3), usize::MAX);
        assert_eq!(world.slow(4, 16_500.0, 6), 1);
    }

    proptest! {
        /// Parallelism does not depend on the number of streams that share the path, and more bytes in flight never reduce it.
        #[test]
        fn path_sets_the_parallelism(streams in 1_u64..9, others in 1_u64..9, in_flight in 6_500.0..400_000.0_f64, more in 1.0..3.0_f64) {
            let most = |streams, in_flight| World::new().slow(streams, in_flight, 12);
            let few = most(streams, in_flight);
            prop_assert!(few >= 1);
            prop_assert!(few == usize::MAX || few < UNLIMITED);
            // A sample counts whole bytes, so the results may differ by one.
            prop_assert!(most(others, in_flight).abs_diff(few) <= 1 || few >= UNLIMITED - 1);
            prop_assert!(most(streams, in_flight * more) >= few);
        }
    }
}
