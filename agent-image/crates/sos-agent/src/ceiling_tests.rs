use proptest::prelude::*;

use super::*;

const RTT: Duration = Duration::from_millis(60);
const LOOK: Duration = Duration::from_millis(100);
const MEGABIT: f64 = 125_000.0;
const SEGMENT: f64 = 1448.0;
const STREAMS: u64 = 4;

/// A path with a short queue and its streams.
struct World {
    ceiling: Ceiling,
    choice: Choice,
    now: Instant,
    /// Mbit/s; the wire loses this part of it.
    capacity: f64,
    loss: f64,
    /// So many times what the path carries is sent where nothing keeps streams from it.
    excess: f64,
    /// Mbit/s that hosts send; None = more than the path carries.
    offered: Option<f64>,
    /// The path carries up to so much of its rate more or less in each tenth of a second, and as much more or less is seen to arrive, as on a machine
    /// that is busy.
    noise: f64,
    dice: u64,
    /// Another stream carries a few small segments and nothing waits there.
    small: bool,
    /// The streams' congestion control has not found the rate yet.
    searches: bool,
}

impl World {
    fn new(capacity: f64, loss: f64) -> Self {
        let now = Instant::now();
        Self {
            ceiling: Ceiling::new(now),
            choice: Choice::Bbr,
            now,
            capacity,
            loss,
            excess: 1.05,
            offered: None,
            noise: 0.0,
            small: false,
            searches: false,
            dice: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Time passes; says which part of what was sent in it was lost.
    fn pass(&mut self, seconds: f64) -> f64 {
        let end = self.now + Duration::from_secs_f64(seconds);
        let (mut sent, mut lost) = (0.0, 0.0);
        while self.now < end {
            self.now += LOOK;
            let capacity = self.capacity * (1.0 + self.noise * self.roll());
            let wanted = self.offered.map_or(capacity * self.excess, |offered| offered / (1.0 - self.loss));
            let limit = self.ceiling.limit().map_or(f64::MAX, |limit| limit / MEGABIT);
            let rate = wanted.min(limit);
            let arrived = rate.min(capacity) * (1.0 - self.loss);
            sent += rate;
            lost += rate - arrived;
            let seen = arrived * (1.0 + self.noise * self.roll());
            let told = self.told(rate, seen);
            for stream in 0..STREAMS {
                self.ceiling.observe(stream, told, self.choice, self.now);
            }
            if self.small {
                let look = Look { bytes: 3 * SEGMENT as u64, ..told.look };
                let sample = Sample { segments: 3, resent: 0, ..told.sample };
                let told = Told { look, sample: Sample { waiting: false, ..sample }, searches: true };
                self.ceiling.observe(STREAMS, told, self.choice, self.now);
            }
        }
        lost / sent
    }

    /// Between -1 and 1 (xorshift, Marsaglia 2003).
    fn roll(&mut self) -> f64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        (self.dice >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
    }

    /// The mean of what arrives in some time, Mbit/s.
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

    /// What a stream has of that.
    fn told(&self, rate: f64, arrived: f64) -> Told {
        let part = LOOK.as_secs_f64() * MEGABIT / STREAMS as f64;
        let look = Look { bytes: (arrived * part) as u64, elapsed: LOOK, rtt: RTT, min_rtt: RTT };
        let sample = Sample {
            segments: (rate * part / SEGMENT) as u64,
            resent: ((rate - arrived).max(0.0) * part / SEGMENT) as u64,
            elapsed: LOOK,
            rtt: RTT,
            rtt_percent: 100,
            waiting: self.offered.is_none(),
        };
        Told { look, sample, searches: self.searches }
    }

    fn limit(&self) -> Option<f64> {
        self.ceiling.limit().map(|limit| limit / MEGABIT)
    }

    fn is_near(&self, megabits: f64) -> bool {
        self.limit().is_some_and(|limit| (limit / megabits - 1.0).abs() < 0.006)
    }
}

#[test]
fn what_runs_over_is_held_just_below_what_the_path_carries() {
    let mut world = World::new(900.0, 0.0);
    assert_eq!(world.limit(), None);
    assert!(world.pass(1.5) > 0.03);
    assert!(world.is_near(900.0), "{:?}", world.limit());
    assert!(world.pass(20.0) < 0.01);
    assert!(world.is_near(900.0), "{:?}", world.limit());
}

#[test]
fn the_limit_is_higher_by_what_the_wire_loses() {
    for loss in [0.01, 0.03] {
        let mut world = World::new(900.0, loss);
        world.pass(4.0);
        assert!(world.is_near(900.0), "{loss}: {:?}", world.limit());
        assert!(world.pass(60.0) < loss + 0.005);
    }
}

#[test]
fn what_is_lost_by_a_wire_alone_or_with_cubic_is_no_limit() {
    let mut world = World::new(900.0, 0.03);
    world.offered = Some(300.0);
    world.pass(5.0);
    assert_eq!(world.limit(), None, "hosts did not have more");
    (world.offered, world.choice) = (None, Choice::Cubic);
    world.pass(5.0);
    assert_eq!(world.limit(), None, "cubic makes room by itself, and not what the path carries is left");
}

#[test]
fn a_path_that_carries_more_is_found_out_step_by_step() {
    let mut world = World::new(200.0, 0.0);
    world.pass(2.0);
    world.capacity = 250.0;
    world.pass(50.0);
    assert!(world.limit().is_some_and(|limit| limit > 235.0), "{:?}", world.limit());
    world.capacity = 900.0;
    world.pass(40.0);
    assert!(world.is_near(900.0), "{:?}", world.limit());
}

/// For how long a limit stands.
fn stands(mut world: World) -> f64 {
    let since = world.now;
    while world.limit().is_some() {
        world.pass(0.1);
    }
    (world.now - since).as_secs_f64()
}

#[test]
fn a_limit_is_learned_anew_after_a_minute_and_after_ten_seconds_if_rates_were_not_steady() {
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
fn a_path_that_carries_less_is_known_anew() {
    let mut world = World::new(900.0, 0.01);
    world.pass(4.0);
    world.capacity = 600.0;
    world.pass(4.0);
    assert!(world.is_near(600.0), "{:?}", world.limit());
}

#[test]
fn a_transfer_after_a_pause_has_the_limit_at_once_and_after_a_long_one_none() {
    let mut world = World::new(900.0, 0.0);
    world.pass(4.0);
    world.offered = Some(0.1);
    world.pass(300.0);
    assert!(world.is_near(900.0), "{:?}", world.limit());
    world.pass(310.0);
    assert_eq!(world.limit(), None);
}

#[test]
fn a_host_that_sends_less_is_no_sign_that_the_path_carries_less() {
    let mut world = World::new(900.0, 0.01);
    world.pass(4.0);
    world.offered = Some(100.0);
    world.pass(30.0);
    assert!(world.limit().is_some_and(|limit| limit > 880.0), "{:?}", world.limit());
}

#[test]
fn a_beginning_that_loses_a_great_deal_is_held_to_what_arrived_for_a_second() {
    let mut world = World::new(900.0, 0.0);
    world.excess = 2.0;
    let each = |world: &World| world.ceiling.each(world.now).map(|each| (each / MEGABIT).round() as u64);
    world.pass(0.2);
    assert_eq!(each(&world), Some(459), "a little more, by two streams");
    world.excess = 1.01;
    world.pass(0.8);
    assert_eq!(each(&world), Some(459));
    world.pass(0.2);
    assert_eq!(each(&world), None);
}

#[test]
fn a_beginning_that_does_not_end_is_held_until_it_does_and_again_where_it_goes_on() {
    let mut world = World { excess: 2.0, searches: true, ..World::new(900.0, 0.0) };
    let held = |world: &World| world.ceiling.beginning.is_held(world.now);
    world.pass(0.2);
    world.excess = 1.01;
    world.pass(0.9);
    assert!(held(&world), "longer than a second, as long as it begins");
    world.searches = false;
    world.pass(0.3);
    assert!(!held(&world));
    world = World { excess: 2.0, searches: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    world.excess = 1.0;
    world.pass(RTT.as_secs_f64() * 20.0 + 0.1);
    assert!(!held(&world), "not for ever");
    world.excess = 2.0;
    world.pass(0.4);
    assert!(held(&world), "it has not ended yet");
    world = World { excess: 2.0, searches: true, small: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    (world.excess, world.searches) = (1.01, false);
    world.pass(1.2);
    assert!(!held(&world), "a stream that carries little says nothing");
    world = World { excess: 2.0, searches: true, ..World::new(900.0, 0.0) };
    world.pass(0.2);
    world.offered = Some(0.0);
    world.pass(1.0);
    assert!(!held(&world), "nobody sends");
}

#[test]
fn what_arrives_still_grows_says_nothing_of_what_the_path_carries() {
    let mut world = World::new(100.0, 0.03);
    for _ in 0..20 {
        world.pass(0.3);
        world.capacity *= 1.05;
        assert_eq!(world.limit(), None);
    }
}

#[test]
fn a_limit_under_which_as_much_is_lost_is_none_and_is_not_tried_again_at_once() {
    let mut world = World::new(900.0, 0.03);
    // Bbr cannot do more, and nothing runs over.
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
fn a_limit_that_was_a_little_too_high_is_lowered() {
    let mut world = World::new(900.0, 0.0);
    world.pass(5.0);
    world.capacity = 890.0;
    world.pass(4.0);
    assert!(world.limit().is_some_and(|limit| limit < 894.5 && limit > 880.0), "{:?}", world.limit());
}

#[test]
fn no_more_is_tried_while_hosts_want_no_more() {
    let mut world = World::new(900.0, 0.0);
    world.pass(5.0);
    let limit = world.limit();
    world.offered = Some(500.0);
    world.pass(100.0);
    assert_eq!(world.limit(), limit);
}

#[test]
fn small_segments_beside_it_do_not_keep_a_limit_from_being_learned_raised_and_learned_anew() {
    let mut world = World::new(200.0, 0.0);
    world.small = true;
    world.pass(4.0);
    assert!(world.is_near(200.0), "{:?}", world.limit());
    world.capacity = 900.0;
    world.pass(61.0);
    assert!(world.arrives(10) > 800.0, "{:?}", world.limit());
}

#[test]
fn what_others_carry_is_no_part_of_what_bulk_may_send() {
    let parts = Parts { carriers: 2, others: 30.0 };
    assert!((parts.each(900.0) - 435.0).abs() < 1e-9);
    assert!((parts.each(40.0) - 10.0).abs() < 1e-9, "half of it at least");
}

#[test]
fn a_path_that_fades_away_is_no_path_that_carries_little() {
    let mut world = World::new(900.0, 0.01);
    for capacity in [900.0, 50.0, 3.0, 1.0, 1.0] {
        world.capacity = capacity;
        world.pass(0.3);
        assert_eq!(world.limit(), None);
    }
}

#[test]
fn a_transfer_after_more_than_a_minute_has_the_limit_for_more_than_a_window() {
    let mut world = World::new(900.0, 0.0);
    world.pass(4.0);
    world.offered = Some(0.1);
    world.pass(90.0);
    world.offered = None;
    world.pass(5.0);
    assert!(world.limit().is_some());
    world.pass(60.0);
    assert!(world.limit().is_some() || world.ceiling.needs_bbr(world.now));
}

#[test]
fn a_wire_that_loses_a_tenth_is_held_down_once_a_minute() {
    let mut world = World::new(900.0, 0.15);
    world.excess = 0.5;
    let mut held = 0;
    for _ in 0..600 {
        world.pass(0.1);
        held += u32::from(world.ceiling.beginning.each(world.now).is_some());
    }
    assert!((5..=25).contains(&held), "{held} tenths of a second of a minute");
}

#[test]
fn a_stream_that_ends_is_forgotten() {
    let mut world = World::new(900.0, 0.0);
    world.pass(0.3);
    for stream in 0..STREAMS {
        world.ceiling.forget(stream);
    }
    assert!(world.ceiling.window.rates.is_empty() && world.ceiling.beginning.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_path_carries_a_limit_takes_little_of_it_away(
        (before, after, loss) in (5.0..1000.0, 5.0..1000.0, 0.0..0.04),
        (noise, excess, dice) in (0.0..0.15, 0.9..1.1, 1_u64..),
    ) {
        let mut world = World { noise, excess, dice, ..World::new(before, loss) };
        world.pass(30.0);
        world.capacity = after;
        world.pass(61.0);
        let rate = world.arrives(120);
        prop_assert!(rate >= after * (1.0 - loss) * 0.9, "{rate} of {after} Mbit/s");
    }
}
