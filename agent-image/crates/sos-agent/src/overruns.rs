//! Whether bbr is what loses segments on a short path (ADR 0041).
//!
//! What bbr sends at once, a millisecond at its rate, may be more than a short queue holds (120 Mbit/s, 1.4 ms, room for ten packets: 29 %
//! lost and 54 Mbit/s, where cubic has 106 with 5 %). Or the wire loses as much, and cubic would carry nothing. So where bbr loses very much
//! for a second, cubic is tried, and what brings more is kept.

use std::time::{Duration, Instant};

use crate::congestion::Choice;

/// Longest round trip of such a path.
const SHORT: Duration = Duration::from_millis(20);
/// This part of all segments, for so long.
const HEAVY: f64 = 0.1;
const HEAVY_LASTS: Duration = Duration::from_secs(1);
/// How long cubic is tried, with more to send, and the part of bbr's rate that it has to bring.
const TRIED: Duration = Duration::from_secs(2);
const ENOUGH: f64 = 0.9;
/// A window that took so long has a pause in it: two beginnings, which lose much each.
const PAUSE: Duration = Duration::from_millis(500);
/// What is found out holds for so long; doubled each time in a row.
const FOUND_LEAST: Duration = Duration::from_secs(60);
const FOUND_MOST: Duration = Duration::from_secs(960);

/// What all streams of a path did in some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) age: Duration,
    pub(crate) rtt: Duration,
    pub(crate) segments: u64,
    pub(crate) resent: u64,
    /// All streams that sent had more to send.
    pub(crate) pressed: bool,
}

/// Segments that were not sent again, and in how long.
#[derive(Debug, Clone, Copy, Default)]
struct Brought {
    segments: u64,
    lasted: Duration,
}

impl Brought {
    fn add(&mut self, window: &Window) {
        self.segments += window.segments.saturating_sub(window.resent);
        self.lasted += window.age;
    }

    fn rate(self) -> f64 {
        self.segments as f64 / self.lasted.as_secs_f64().max(1e-3)
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Nothing is known but for how long bbr has been losing very much, and what it brought meanwhile.
    Unknown(Brought),
    /// Cubic in place of bbr, which brought so many segments a second.
    Trying { bbr: f64, cubic: Brought },
    /// Cubic brings as much, or bbr is better whatever it loses.
    Known(Choice),
}

/// What is known of one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Overruns {
    state: State,
    until: Instant,
    found: Duration,
}

impl Overruns {
    pub(crate) fn new(now: Instant) -> Self {
        Self { state: State::Unknown(Brought::default()), until: now, found: FOUND_LEAST }
    }

    /// Bbr is not to be used, whatever speaks for it.
    pub(crate) fn refuses_bbr(&self) -> bool {
        matches!(self.state, State::Trying { .. } | State::Known(Choice::Cubic))
    }

    /// Nothing was lost for long enough for bbr to be given up: what comes next is not one more in a row.
    pub(crate) fn calm(&mut self) {
        self.found = FOUND_LEAST;
    }

    /// Takes what was done with `choice`; tells another one that is to be used now.
    pub(crate) fn judge(&mut self, window: &Window, choice: Choice, now: Instant) -> Option<Choice> {
        let over = !matches!(self.state, State::Unknown(_)) && now >= self.until;
        if over || window.rtt > SHORT {
            self.state = State::Unknown(Brought::default());
        }
        let paused = window.age >= PAUSE;
        match &mut self.state {
            State::Unknown(brought) => {
                let heavy = window.resent as f64 >= window.segments as f64 * HEAVY;
                if choice != Choice::Bbr || !heavy || paused || window.rtt > SHORT {
                    *brought = Brought::default();
                    return None;
                }
                brought.add(window);
                let bbr = (brought.lasted >= HEAVY_LASTS).then(|| brought.rate())?;
                self.hold(State::Trying { bbr, cubic: Brought::default() }, now);
                Some(Choice::Cubic)
            }
            State::Trying { bbr, cubic } if window.pressed && !paused => {
                cubic.add(window);
                let brought = (cubic.lasted >= TRIED).then(|| cubic.rate())?;
                let better = if brought < *bbr * ENOUGH { Choice::Bbr } else { Choice::Cubic };
                self.hold(State::Known(better), now);
                self.found = (self.found * 2).min(FOUND_MOST);
                Some(better)
            }
            State::Trying { .. } | State::Known(_) => None,
        }
    }

    fn hold(&mut self, state: State, now: Instant) {
        (self.state, self.until) = (state, now + self.found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    struct World {
        overruns: Overruns,
        choice: Choice,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { overruns: Overruns::new(now), choice: Choice::Bbr, now }
        }

        /// So many windows of a tenth of a second with a thousand segments; what is used after them.
        fn pass(&mut self, window: Window, windows: u32) -> Choice {
            for _ in 0..windows {
                self.now += window.age;
                let told = self.overruns.judge(&window, self.choice, self.now);
                self.choice = told.unwrap_or(self.choice);
            }
            self.choice
        }
    }

    fn window(segments: u64, resent: u64) -> Window {
        Window { age: TENTH, rtt: Duration::from_millis(2), segments, resent, pressed: true }
    }

    #[test]
    fn cubic_that_brings_more_is_kept_for_a_minute_and_then_for_two() {
        let mut world = World::new();
        for seconds in [60, 120, 240] {
            world.choice = Choice::Bbr;
            assert_eq!(world.pass(window(600, 170), 9), Choice::Bbr, "it may be finding the rate");
            assert_eq!(world.pass(window(600, 170), 1), Choice::Cubic);
            assert_eq!(world.pass(window(900, 45), 20 + seconds * 10 - 1), Choice::Cubic);
            assert!(world.overruns.refuses_bbr());
            world.pass(window(900, 45), 1);
            assert!(!world.overruns.refuses_bbr(), "it may be another path now");
        }
        world.overruns.calm();
        world.choice = Choice::Bbr;
        world.pass(window(600, 170), 10);
        world.pass(window(900, 45), 20 + 600);
        assert!(!world.overruns.refuses_bbr(), "a minute again");
    }

    #[test]
    fn bbr_comes_back_where_cubic_brings_less() {
        let mut world = World::new();
        world.pass(window(3_000, 450), 10);
        assert_eq!(world.pass(window(300, 9), 19), Choice::Cubic);
        assert_eq!(world.pass(window(300, 9), 1), Choice::Bbr, "whatever it loses");
        assert_eq!(world.pass(window(3_000, 450), 599), Choice::Bbr);
        assert_eq!(world.pass(window(3_000, 450), 11), Choice::Cubic, "and looked at anew");
    }

    #[test]
    fn who_has_little_to_send_shows_nothing() {
        let mut world = World::new();
        world.pass(window(600, 170), 10);
        let little = Window { pressed: false, ..window(100, 0) };
        assert_eq!(world.pass(little, 100), Choice::Cubic);
        assert_eq!(world.pass(window(900, 45), 20), Choice::Cubic);
        assert!(world.overruns.refuses_bbr());
    }

    #[test]
    fn beginnings_and_long_paths_say_nothing() {
        let mut world = World::new();
        for _ in 0..20 {
            assert_eq!(
                world.pass(Window { age: Duration::from_secs(2), ..window(600, 170) }, 1),
                Choice::Bbr
            );
            assert_eq!(world.pass(window(600, 170), 8), Choice::Bbr);
        }
        assert_eq!(world.pass(window(600, 5), 1), Choice::Bbr);
        let long = Window { rtt: Duration::from_millis(30), ..window(600, 170) };
        assert_eq!(world.pass(long, 100), Choice::Bbr);
    }

    #[test]
    fn nothing_is_refused_where_the_path_has_become_a_long_one() {
        let mut world = World::new();
        world.pass(window(600, 170), 10);
        world.pass(window(900, 45), 30);
        assert!(world.overruns.refuses_bbr());
        world.pass(Window { rtt: Duration::from_millis(30), ..window(900, 45) }, 1);
        assert!(!world.overruns.refuses_bbr());
    }
}
