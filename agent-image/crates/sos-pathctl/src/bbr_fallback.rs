//! Falls back to cubic where bbr itself causes the loss, on a short path (ADR 0041).
//!
//! bbr sends a millisecond at its rate in one burst, which may be more than a short queue holds (120 Mbit/s, 1.4 ms, room for ten packets: 29 %
//! lost and 54 Mbit/s, where cubic has 106 with 5 %). Or the wire loses as much, and cubic would carry nothing. So where bbr loses very much
//! for a second, cubic is tried, and the better one is kept.

use std::time::{Duration, Instant};

use crate::tuning::CongestionControl;

/// Longest round trip of a short path.
const SHORT: Duration = Duration::from_millis(20);
/// Heavy loss: this part of all segments, for this long.
const HEAVY: f64 = 0.1;
const HEAVY_LASTS: Duration = Duration::from_secs(1);
/// Time that cubic is tried with a backlog, and the part of bbr's rate that it has to reach.
const TRIAL: Duration = Duration::from_secs(2);
const ENOUGH: f64 = 0.9;
/// A window of this length contains a pause, so two starts, each with much loss.
const PAUSE: Duration = Duration::from_millis(500);
/// Lifetime of a result; doubled for each trial in a row.
const RESULT_MIN: Duration = Duration::from_secs(60);
const RESULT_MAX: Duration = Duration::from_secs(960);

/// All streams of a path in one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) age: Duration,
    pub(crate) rtt: Duration,
    pub(crate) segments: u64,
    pub(crate) retransmitted: u64,
    /// All streams that sent had a backlog.
    pub(crate) backlogged: bool,
}

/// Segments sent once, and the time they took.
#[derive(Debug, Clone, Copy, Default)]
struct Goodput {
    segments: u64,
    lasted: Duration,
}

impl Goodput {
    fn add(&mut self, window: &Window) {
        self.segments += window.segments.saturating_sub(window.retransmitted);
        self.lasted += window.age;
    }

    fn rate(self) -> f64 {
        self.segments as f64 / self.lasted.as_secs_f64().max(1e-3)
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No result; the goodput of bbr since its loss became heavy.
    Unknown(Goodput),
    /// Cubic on trial against bbr's segments a second.
    Trial { bbr: f64, cubic: Goodput },
    /// Cubic carries as much, or bbr is better despite its loss.
    Known(CongestionControl),
}

/// Fallback state of one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BbrFallback {
    state: State,
    until: Instant,
    lifetime: Duration,
}

impl BbrFallback {
    pub(crate) fn new(now: Instant) -> Self {
        Self { state: State::Unknown(Goodput::default()), until: now, lifetime: RESULT_MIN }
    }

    /// bbr must not be used, whatever else speaks for it.
    pub(crate) fn refuses_bbr(&self) -> bool {
        matches!(self.state, State::Trial { .. } | State::Known(CongestionControl::Cubic))
    }

    /// Loss has been low for long enough to give bbr up: the next trial is not one more in a row.
    pub(crate) fn reset_lifetime(&mut self) {
        self.lifetime = RESULT_MIN;
    }

    /// Takes a window under `current`; returns another congestion control to use from now on.
    pub(crate) fn judge(
        &mut self,
        window: &Window,
        current: CongestionControl,
        now: Instant,
    ) -> Option<CongestionControl> {
        let expired = !matches!(self.state, State::Unknown(_)) && now >= self.until;
        if expired || window.rtt > SHORT {
            self.state = State::Unknown(Goodput::default());
        }
        let paused = window.age >= PAUSE;
        match &mut self.state {
            State::Unknown(goodput) => {
                let heavy = window.retransmitted as f64 >= window.segments as f64 * HEAVY;
                if current != CongestionControl::Bbr || !heavy || paused || window.rtt > SHORT {
                    *goodput = Goodput::default();
                    return None;
                }
                goodput.add(window);
                let bbr = (goodput.lasted >= HEAVY_LASTS).then(|| goodput.rate())?;
                self.enter(State::Trial { bbr, cubic: Goodput::default() }, now);
                Some(CongestionControl::Cubic)
            }
            State::Trial { bbr, cubic } if window.backlogged && !paused => {
                cubic.add(window);
                let rate = (cubic.lasted >= TRIAL).then(|| cubic.rate())?;
                let better =
                    if rate < *bbr * ENOUGH { CongestionControl::Bbr } else { CongestionControl::Cubic };
                self.enter(State::Known(better), now);
                self.lifetime = (self.lifetime * 2).min(RESULT_MAX);
                Some(better)
            }
            State::Trial { .. } | State::Known(_) => None,
        }
    }

    fn enter(&mut self, state: State, now: Instant) {
        (self.state, self.until) = (state, now + self.lifetime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TENTH: Duration = Duration::from_millis(100);

    struct World {
        fallback: BbrFallback,
        congestion: CongestionControl,
        now: Instant,
    }

    impl World {
        fn new() -> Self {
            let now = Instant::now();
            Self { fallback: BbrFallback::new(now), congestion: CongestionControl::Bbr, now }
        }

        /// Passes windows; returns the congestion control in force after them.
        fn pass(&mut self, window: Window, windows: u32) -> CongestionControl {
            for _ in 0..windows {
                self.now += window.age;
                let switch = self.fallback.judge(&window, self.congestion, self.now);
                self.congestion = switch.unwrap_or(self.congestion);
            }
            self.congestion
        }
    }

    fn window(segments: u64, retransmitted: u64) -> Window {
        Window { age: TENTH, rtt: Duration::from_millis(2), segments, retransmitted, backlogged: true }
    }

    #[test]
    fn better_cubic_is_kept_for_a_minute_and_then_for_two() {
        let mut world = World::new();
        for seconds in [60, 120, 240] {
            world.congestion = CongestionControl::Bbr;
            assert_eq!(
                world.pass(window(600, 170), 9),
                CongestionControl::Bbr,
                "bbr may still be finding the rate"
            );
            assert_eq!(world.pass(window(600, 170), 1), CongestionControl::Cubic);
            assert_eq!(world.pass(window(900, 45), 20 + seconds * 10 - 1), CongestionControl::Cubic);
            assert!(world.fallback.refuses_bbr());
            world.pass(window(900, 45), 1);
            assert!(!world.fallback.refuses_bbr(), "the path may have changed");
        }
        world.fallback.reset_lifetime();
        world.congestion = CongestionControl::Bbr;
        world.pass(window(600, 170), 10);
        world.pass(window(900, 45), 20 + 600);
        assert!(!world.fallback.refuses_bbr(), "one minute, not eight");
    }

    #[test]
    fn bbr_returns_where_cubic_carries_less() {
        let mut world = World::new();
        world.pass(window(3_000, 450), 10);
        assert_eq!(world.pass(window(300, 9), 19), CongestionControl::Cubic);
        assert_eq!(world.pass(window(300, 9), 1), CongestionControl::Bbr, "despite its loss");
        assert_eq!(world.pass(window(3_000, 450), 599), CongestionControl::Bbr);
        assert_eq!(world.pass(window(3_000, 450), 11), CongestionControl::Cubic, "tried again");
    }

    #[test]
    fn a_stream_without_a_backlog_is_no_evidence() {
        let mut world = World::new();
        world.pass(window(600, 170), 10);
        let little = Window { backlogged: false, ..window(100, 0) };
        assert_eq!(world.pass(little, 100), CongestionControl::Cubic);
        assert_eq!(world.pass(window(900, 45), 20), CongestionControl::Cubic);
        assert!(world.fallback.refuses_bbr());
    }

    #[test]
    fn starts_and_long_paths_are_no_evidence() {
        let mut world = World::new();
        for _ in 0..20 {
            assert_eq!(
                world.pass(Window { age: Duration::from_secs(2), ..window(600, 170) }, 1),
                CongestionControl::Bbr
            );
            assert_eq!(world.pass(window(600, 170), 8), CongestionControl::Bbr);
        }
        assert_eq!(world.pass(window(600, 5), 1), CongestionControl::Bbr);
        let long = Window { rtt: Duration::from_millis(30), ..window(600, 170) };
        assert_eq!(world.pass(long, 100), CongestionControl::Bbr);
    }

    #[test]
    fn bbr_is_not_refused_once_the_path_is_long() {
        let mut world = World::new();
        world.pass(window(600, 170), 10);
        world.pass(window(900, 45), 30);
        assert!(world.fallback.refuses_bbr());
        world.pass(Window { rtt: Duration::from_millis(30), ..window(900, 45) }, 1);
        assert!(!world.fallback.refuses_bbr());
    }
}
