//! What all streams of one path send together at most, where they make a queue run over that is too short to be seen (ADR 0039).
//!
//! Each stream of bbr finds the rate of its path by sending more now and then, and believes the most that it has seen. Several of them
//! together keep more on the way than a short queue holds, and go on losing what is too much. But what arrives then is what the path
//! carries: under that limit nothing is lost, and nothing else is given up.
//!
//! * Some windows in a row in which bbr loses much, although the streams had more to send at every look, say what the path carries.
//! * A beginning that loses a great deal is held to a little more than what arrived, for as long as bbr takes to find that out by itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sos_tunnel::PeerConfig;

use crate::beginning::Beginning;
use crate::congestion::{Choice, Sample};
use crate::held::{Gone, Held, OVERRUN, Seen};
use crate::rates::Rates;
use crate::share::Look;

/// Part of the segments that is lost where a queue runs over for the first time, as everybody doubles what they send.
const BURST: f64 = 0.1;
/// Segments of which that can be said.
const BURST_SEGMENTS: f64 = 500.0;
/// Windows in a row that are looked back at for what the path carries.
const EVIDENCE: usize = 4;
/// So much more than some windows ago, and what arrives still grows.
const GROWS: f64 = 1.05;
/// Rates of all windows but one that differ by no more are steady.
const STEADY: f64 = 0.95;
/// How long rates are measured while there is no limit, and how many round trips, at least; and under a limit.
const FREE: (Duration, u32) = (Duration::from_millis(250), 2);
const LIMITED: (Duration, u32) = (Duration::from_millis(500), 3);
/// How long nothing is tried after a limit that was of no use.
const DOUBT: Duration = Duration::from_secs(60);
/// Less than this part of what the path carries says nothing.
const IDLE: f64 = 0.02;
/// A limit that has not been needed for so long is forgotten.
const KNOWN: Duration = Duration::from_secs(600);

/// What one stream did since it was last looked at.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// What arrived.
    pub look: Look,
    /// What was sent, and sent again.
    pub sample: Sample,
    /// It had more to send than it sent.
    pub waiting: bool,
}

#[derive(Debug, Clone, Default)]
struct Window {
    rates: Rates,
    segments: u64,
    resent: u64,
    min_rtt: Duration,
    /// A look at a stream that sends found nothing waiting.
    spare: bool,
}

impl Window {
    fn add(&mut self, stream: u64, told: Told) {
        self.rates.add(stream, told.look.bytes, told.look.elapsed);
        self.segments += told.sample.segments;
        self.resent += told.sample.resent;
        self.min_rtt = self.min_rtt.max(told.look.min_rtt);
        self.spare |= told.look.tells() && !told.waiting;
    }

    fn seen(&self) -> Seen {
        Seen {
            rate: self.rates.total(),
            segments: self.segments as f64,
            resent: self.resent as f64,
            pressed: !self.spare,
        }
    }
}

fn bursts(seen: &Seen) -> bool {
    seen.segments >= BURST_SEGMENTS && seen.loss() >= BURST
}

/// The ceiling of one path.
#[derive(Debug, Clone)]
pub struct Ceiling {
    held: Option<Held>,
    beginning: Beginning,
    /// When it was needed last.
    used: Instant,
    carriers: usize,
    began: Instant,
    window: Window,
    /// A limit was of no use: there is none before.
    doubt_until: Instant,
    /// The last windows without a limit.
    recent: VecDeque<Seen>,
}

impl Ceiling {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            held: None,
            beginning: Beginning::new(),
            used: now,
            carriers: 0,
            began: now,
            window: Window::default(),
            doubt_until: now,
            recent: VecDeque::new(),
        }
    }

    /// Bytes a second that each stream may send; None = as fast as congestion control lets them. A session that is bulk does not use all streams:
    /// those that carry share the limit, or in a beginning those that will.
    #[must_use]
    pub fn each(&self, now: Instant) -> Option<f64> {
        let known = self.limit().map(|limit| limit / self.carriers.max(1) as f64);
        known.or_else(|| self.beginning.limit(now).map(|limit| limit / PeerConfig::MODELLED_STREAMS as f64))
    }

    /// There is a limit until further notice.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// All streams together.
    fn limit(&self) -> Option<f64> {
        self.held.map(|held| held.limit())
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u64) {
        self.window.rates.forget(stream);
        self.beginning.forget(stream);
    }

    /// Takes what a stream did under the congestion control that is in force.
    pub fn observe(&mut self, stream: u64, told: Told, choice: Choice, now: Instant) {
        self.window.add(stream, told);
        self.beginning.add(stream, told.look);
        let bursts = self.recent.front().is_some_and(bursts) || bursts(&self.window.seen());
        if self.held.is_none() && choice == Choice::Bbr && bursts {
            self.beginning.hold(self.window.min_rtt, now);
        }
        let (least, trips) = if self.held.is_some() { LIMITED } else { FREE };
        if now.saturating_duration_since(self.began) < least.max(self.window.min_rtt * trips) {
            return;
        }
        self.judge(self.window.seen(), choice, now);
        (self.began, self.window) = (now, Window::default());
        self.beginning.turn(now);
    }

    fn judge(&mut self, seen: Seen, choice: Choice, now: Instant) {
        let idle = self.held.is_some_and(|held| seen.rate < held.carried * IDLE);
        if self.held.is_some() && now.saturating_duration_since(self.used) >= KNOWN {
            self.held = None;
        } else if !idle {
            self.used = now;
            if seen.pressed {
                self.carriers = self.window.rates.carriers();
            }
            self.held = match self.held.map(|held| held.judge(seen, now)) {
                Some(Ok(held)) => Some(held),
                Some(Err(gone)) => {
                    if gone == Gone::Useless {
                        self.doubt_until = now + DOUBT;
                    }
                    None
                }
                None if now < self.doubt_until => None,
                None => self.learn(seen, choice, now),
            };
        }
    }

    fn learn(&mut self, seen: Seen, choice: Choice, now: Instant) -> Option<Held> {
        self.recent.truncate(EVIDENCE - 1);
        self.recent.push_front(seen);
        if choice != Choice::Bbr || !self.overruns() {
            return None;
        }
        let lost = self.recent.iter().map(Seen::loss).sum::<f64>() / EVIDENCE as f64;
        let mut rates: Vec<_> = self.recent.drain(..).map(|seen| seen.rate).collect();
        rates.sort_by(|one, other| other.total_cmp(one));
        // Bbr pauses in some window, and in the best one what was held up before may have arrived as well.
        Some(Held::new(rates[1], lost, rates[2] >= rates[0] * STEADY, now))
    }

    /// The queue ran over in all windows that are looked back at, and what arrives does not grow any more.
    fn overruns(&self) -> bool {
        let grows = self
            .recent
            .front()
            .zip(self.recent.back())
            .is_none_or(|(last, first)| last.rate > first.rate * GROWS);
        self.recent.len() == EVIDENCE
            && !grows
            && self.recent.iter().all(|seen| seen.pressed && seen.loss() >= OVERRUN)
    }
}

#[cfg(test)]
mod tests {
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
            }
        }

        /// Time passes; says which part of what was sent in it was lost.
        fn pass(&mut self, seconds: f64) -> f64 {
            let end = self.now + Duration::from_secs_f64(seconds);
            let (mut sent, mut lost) = (0.0, 0.0);
            while self.now < end {
                self.now += LOOK;
                let wanted =
                    self.offered.map_or(self.capacity * self.excess, |offered| offered / (1.0 - self.loss));
                let limit = self.ceiling.limit().map_or(f64::MAX, |limit| limit / MEGABIT);
                let rate = wanted.min(limit);
                let arrived = rate.min(self.capacity) * (1.0 - self.loss);
                sent += rate;
                lost += rate - arrived;
                for stream in 0..STREAMS {
                    self.ceiling.observe(stream, self.told(rate, arrived), self.choice, self.now);
                }
            }
            lost / sent
        }

        /// What a stream has of that.
        fn told(&self, rate: f64, arrived: f64) -> Told {
            let part = LOOK.as_secs_f64() * MEGABIT / STREAMS as f64;
            let look = Look { bytes: (arrived * part) as u64, elapsed: LOOK, rtt: RTT, min_rtt: RTT };
            let sample = Sample {
                segments: (rate * part / SEGMENT) as u64,
                resent: ((rate - arrived) * part / SEGMENT) as u64,
                elapsed: LOOK,
                rtt: RTT,
                rtt_percent: 100,
            };
            Told { look, sample, waiting: self.offered.is_none() }
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
    fn a_stream_that_ends_is_forgotten() {
        let mut world = World::new(900.0, 0.0);
        world.pass(0.3);
        for stream in 0..STREAMS {
            world.ceiling.forget(stream);
        }
        assert!(world.ceiling.window.rates.is_empty() && world.ceiling.beginning.is_empty());
    }
}
