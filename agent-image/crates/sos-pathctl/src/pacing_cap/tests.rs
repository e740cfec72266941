use proptest::prelude::*;

use super::*;
use crate::sample::{DeliverySample, LossSample};

const RTT: Duration = Duration::from_millis(60);
const POLL: Duration = Duration::from_millis(100);
const MEGABIT: f64 = 125_000.0;
const SEGMENT: f64 = 1448.0;
const STREAMS: u64 = 4;
const PARAMETERS: Parameters = Parameters { reserved_streams: 1, bbr_streams: 2, max_unsent: 512 << 10 };

/// A path with a short queue, and its streams.
struct World {
    pacing_cap: PacingCap,
    congestion: CongestionControl,
    now: Instant,
    /// Capacity in Mbit/s, and the fraction of the segments that the wire loses.
    capacity: f64,
    loss: f64,
    /// Sending rate without a cap, in multiples of the capacity.
    excess: f64,
    /// Mbit/s that hosts send; `None`: more than the path carries.
    offered: Option<f64>,
    /// Maximum deviation of the capacity and of the measured rate in each tenth of a second, as on a busy machine.
    noise: f64,
    dice: u64,
    /// One more stream carries a few small segments, without a backlog.
    small: bool,
    /// The streams are in STARTUP.
    startup: bool,
}

impl World {
    fn new(capacity: f64, loss: f64) -> Self {
        let now = Instant::now();
        Self {
            pacing_cap: PacingCap::new(PARAMETERS, now),
            congestion: CongestionControl::Bbr,
            now,
            capacity,
            loss,
            excess: 1.05,
            offered: None,
            noise: 0.0,
            small: false,
            startup: false,
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Advances time; returns the fraction of segments lost.
    fn pass(&mut self, seconds: f64) -> f64 {
        let end = self.now + Duration::from_secs_f64(seconds);
        let (mut sent, mut lost) = (0.0, 0.0);
        while self.now < end {
            self.now += POLL;
            let capacity = self.capacity * (1.0 + self.noise * self.roll());
            let wanted = self.offered.map_or(capacity * self.excess, |offered| offered / (1.0 - self.loss));
            let limit = self.pacing_cap.limit().map_or(f64::MAX, |limit| limit / MEGABIT);
            let rate = wanted.min(limit);
            let arrived = rate.min(capacity) * (1.0 - self.loss);
            sent += rate;
            lost += rate - arrived;
            let seen = arrived * (1.0 + self.noise * self.roll());
            let sample = self.sample(rate, seen);
            for stream in 0..STREAMS {
                self.pacing_cap.observe(stream, sample, self.congestion, self.now);
            }
            if self.small {
                let delivery = DeliverySample { bytes: 3 * SEGMENT as u64, ..sample.delivery };
                let loss = LossSample { segments: 3, retransmitted: 0, ..sample.loss };
                let sample =
                    StreamSample { delivery, loss: LossSample { backlogged: false, ..loss }, startup: true };
                self.pacing_cap.observe(STREAMS, sample, self.congestion, self.now);
            }
        }
        lost / sent
    }

    /// Pseudo-random number between -1 and 1 (xorshift, Marsaglia 2003).
    fn roll(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// Mean delivery rate over a period, in Mbit/s.
    fn arrives(&mut self, seconds: u32) -> f64 {
        let mut sum = 0.0;
        for _ in 0..seconds * 10 {
            let limit = self.limit().unwrap_or(f64::MAX);
            let capacity = self.capacity;
            self.pass(0.1);
            sum += limit.min(capacity) * (1.0 - self.loss);
        }
        sum / f64::from(seconds * 10)
    }

    /// The sample of one of the streams.
    fn sample(&self, rate: f64, arrived: f64) -> StreamSample {
        let part = POLL.as_secs_f64() * MEGABIT / STREAMS as f64;
        let delivery =
            DeliverySample { bytes: (arrived * part) as u64, elapsed: POLL, rtt: RTT, min_rtt: RTT };
        let loss = LossSample {
            segments: (rate * part / SEGMENT) as u64,
            retransmitted: ((rate - arrived).max(0.0) * part / SEGMENT) as u64,
            elapsed: POLL,
            rtt: RTT,
            rtt_percent: 100,
            backlogged: self.offered.is_none(),
        };
        StreamSample { delivery, loss, startup: self.startup }
    }

    fn limit(&self) -> Option<f64> {
        self.pacing_cap.limit().map(|limit| limit / MEGABIT)
    }

    fn is_near(&self, megabits: f64) -> bool {
        self.limit().is_some_and(|limit| (limit / megabits - 1.0).abs() < 0.006)
    }
}

#[test]
fn an_overflowing_path_is_capped_to_its_rate() {
    let mut world = World::new(900.0, 0.0);
    assert_eq!(world.limit(), None);
    assert!(world.pass(1.5) > 0.03);
    assert!(world.is_near(900.0), "{:?}", world.limit());
    assert!(world.pass(20.0) < 0.01);
    assert!(world.is_near(900.0), "{:?}", world.limit());
}

#[test]
fn the_cap_compensates_for_the_loss_of_the_wire() {
    for loss in [0.01, 0.03] {
        let mut world = World::new(900.0, loss);
        world.pass(4.0);
        assert!(world.is_near(900.0), "{loss}: {:?}", world.limit());
        assert!(world.pass(60.0) < loss + 0.005);
    }
}

#[test]
fn loss_of_the_wire_alone_or_under_cubic_sets_no_cap() {
    let mut world = World::new(900.0, 0.03);
    world.offered = Some(300.0);
    world.pass(5.0);
    assert_eq!(world.limit(), None, "no backlog");
    (world.offered, world.congestion) = (None, CongestionControl::Cubic);
    world.pass(5.0);
    assert_eq!(world.limit(), None, "cubic backs off by itself, and its rate is not the rate of the path");
}

#[test]
fn a_higher_rate_is_probed_step_by_step() {
    let mut world = World::new(200.0, 0.0);
    world.pass(2.0);
    world.capacity = 250.0;
    world.pass(50.0);
    assert!(world.limit().is_some_and(|limit| limit > 235.0), "{:?}", world.limit());
    world.capacity = 900.0;
    world.pass(40.0);
    assert!(world.is_near(900.0), "{:?}", world.limit());
}

/// The lifetime of a cap in seconds.
fn stands(mut world: World) -> f64 {
    let since = world.now;
    while world.limit().is_some() {
        world.pass(0.1);
    }
    (world.now - since).as_secs_f64()
}

#[test]
fn a_cap_is_relearned_after_a_minute_or_ten_seconds_if_unsteady() {
    let mut world = World::new(900.0, 0.0);
    world.pass(1.5);
    assert!((55.0..65.0).contains(&stands(world)));
    let mut world = World::new(900.0, 0.0);
    for capacity in [900.0, 600.0, 900.0, 600.0] {
        world.capacity = capacity;
        world.pass(0.3);
    }
    assert!(world.limit().is_some());
    world.capacity = 900.0;
    assert!((5.0..15.0).contains(&stands(world)));
}

#[test]
fn a_lower_rate_is_relearned() {
    let mut world = World::new(900.0, 0.01);
    world.pass(4.0);
    world.capacity = 600.0;
    world.pass(4.0);
    assert!(world.is_near(600.0), "{:?}", world.limit());
}

#[test]
fn a_cap_survives_a_pause_but_not_a_long_one() {
    let mut world = World::new(900.0, 0.0);
    world.pass(4.0);
    world.offered = Some(0.1);
    world.pass(300.0);
    assert!(world.is_near(900.0), "{:?}", world.limit());
    world.pass(310.0);
    assert_eq!(world.limit(), None);
}

#[test]
fn a_slow_host_does_not_lower_the_cap() {
    let mut world = World::new(900.0, 0.01);
    world.pass(4.0);
    world.offered = Some(100.0);
    world.pass(30.0);
    assert!(world.limit().is_some_and(|limit| limit > 880.0), "{:?}", world.limit());
}

#[test]
fn a_startup_with_heavy_loss_is_limited_to_the_rate_delivered_for_a_second() {
    let mut world = World::new(900.0, 0.0);
    world.excess = 2.0;
    let each =
        |world: &World| world.pacing_cap.stream_limit(world.now).map(|each| (each / MEGABIT).round() as u64);
    world.pass(0.2);
    assert_eq!(each(&world), Some(459), "slightly more than the rate, divided by two streams");
    world.excess = 1.01;
    world.pass(0.8);
    assert_eq!(each(&world), Some(459));
    world.pass(0.2);
    assert_eq!(each(&world), None);
}

#[test]
fn the_startup_limit_is_extended_bounded_and_renewed_in_startup() {
    let mut world = World { excess: 2.0, startup: true, ..World::new(900.0, 0.0) };
    let held = |world: &World| world.pacing_cap.startup.is_limited(world.now);
    world.pass(0.2);
    world.excess = 1.01;
    world.pass(0.9);
    assert!(held(&world), "longer than a second, while in STARTUP");
    world.startup = false;
    world.pass(0.3);
    assert!(!held(&world));
    world = World { excess: 2.0, startup: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    world.excess = 1.0;
    world.pass(RTT.as_secs_f64() * 20.0 + 0.1);
    assert!(!held(&world), "the extension is bounded");
    world.excess = 2.0;
    world.pass(0.4);
    assert!(held(&world), "still in STARTUP");
    world = World { excess: 2.0, startup: true, small: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    (world.excess, world.startup) = (1.01, false);
    world.pass(1.2);
    assert!(!held(&world), "a stream without bulk does not count");
    world = World { excess: 2.0, startup: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    world.offered = Some(0.0);
    world.pass(1.0);
    assert!(!held(&world), "nothing is sent");
}

#[test]
fn a_growing_rate_sets_no_cap() {
    let mut world = World::new(100.0, 0.03);
    for _ in 0..20 {
        world.pass(0.3);
        world.capacity *= 1.05;
        assert_eq!(world.limit(), None);
    }
}

#[test]
fn a_cap_that_does_not_lower_loss_is_dropped_for_a_minute() {
    let mut world = World::new(900.0, 0.03);
    // The streams send half of the capacity, so no queue overflows: the wire itself causes the loss.
    world.excess = 0.5;
    world.pass(1.5);
    assert!(world.limit().is_some());
    world.pass(1.5);
    assert_eq!(world.limit(), None);
    world.pass(59.0);
    assert_eq!(world.limit(), None);
    world.pass(2.0);
    assert!(world.limit().is_some());
}

#[test]
fn a_slightly_high_cap_is_lowered() {
    let mut world = World::new(900.0, 0.0);
    world.pass(5.0);
    world.capacity = 890.0;
    world.pass(4.0);
    assert!(world.limit().is_some_and(|limit| limit < 894.5 && limit > 880.0), "{:?}", world.limit());
}

#[test]
fn no_probe_without_a_backlog() {
    let mut world = World::new(900.0, 0.0);
    world.pass(5.0);
    let limit = world.limit();
    world.offered = Some(500.0);
    world.pass(100.0);
    assert_eq!(world.limit(), limit);
}

#[test]
fn small_segments_beside_bulk_do_not_hinder_learning_and_probing() {
    let mut world = World::new(200.0, 0.0);
    world.small = true;
    world.pass(4.0);
    assert!(world.is_near(200.0), "{:?}", world.limit());
    world.capacity = 900.0;
    world.pass(61.0);
    assert!(world.arrives(10) > 800.0, "{:?}", world.limit());
}

#[test]
fn other_streams_reduce_the_share_of_bulk_streams() {
    let shares = Shares { bulk: 2, others: 30.0 };
    assert!((shares.stream_limit(900.0) - 435.0).abs() < 1e-9);
    assert!((shares.stream_limit(40.0) - 10.0).abs() < 1e-9, "bulk streams keep at least half of the limit");
}

#[test]
fn a_fading_path_sets_no_cap() {
    let mut world = World::new(900.0, 0.01);
    for capacity in [900.0, 50.0, 3.0, 1.0, 1.0] {
        world.capacity = capacity;
        world.pass(0.3);
        assert_eq!(world.limit(), None);
    }
}

#[test]
fn a_cap_outlives_a_pause_of_more_than_a_minute() {
    let mut world = World::new(900.0, 0.0);
    world.pass(4.0);
    world.offered = Some(0.1);
    world.pass(90.0);
    world.offered = None;
    world.pass(5.0);
    assert!(world.limit().is_some());
    world.pass(60.0);
    assert!(world.limit().is_some() || world.pacing_cap.needs_bbr(world.now));
}

#[test]
fn a_very_lossy_wire_is_limited_once_a_minute() {
    let mut world = World::new(900.0, 0.15);
    world.excess = 0.5;
    let mut held = 0;
    for _ in 0..600 {
        world.pass(0.1);
        held += u32::from(world.pacing_cap.startup.stream_limit(world.now).is_some());
    }
    assert!((5..=25).contains(&held), "{held} tenths of a second of a minute");
}

#[test]
fn a_closed_stream_is_forgotten() {
    let mut world = World::new(900.0, 0.0);
    world.pass(0.3);
    for stream in 0..STREAMS {
        world.pacing_cap.remove(stream);
    }
    assert!(world.pacing_cap.window.rates.is_empty() && world.pacing_cap.startup.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_cap_keeps_nine_tenths_of_any_rate(
        (before, after, loss) in (5.0..1000.0, 5.0..1000.0, 0.0..0.04),
        (noise, excess, dice) in (0.0..0.15, 0.9..1.1, 1_u64..),
    ) {
        let mut world = World { noise, excess, dice, ..World::new(before, loss) };
        world.pass(30.0);
        world.capacity = after;
        world.pass(61.0);
        let rate = world.arrives(120);
        // Without a limit, streams send `excess` times the path's capacity; `excess` may be less than 1.
        prop_assert!(rate >= after * (1.0 - loss) * excess.min(1.0) * 0.9, "{rate} of {after} Mbit/s");
    }
}
