//! Fallback to cubic on a short path where bbr itself causes the loss (ADR 0041).
//!
//! bbr sends a millisecond's worth of data in one burst, which may exceed a short queue (120 Mbit/s, 1.4 ms, queue of ten packets: bbr
//! loses 29 % and carries 54 Mbit/s; cubic loses 5 % and carries 106 Mbit/s). If the wire itself loses as much, cubic carries nothing. So
//! after a second of heavy loss under bbr, cubic is tried, and the better of the two is kept.

use std::time::{Duration, Instant};

use crate::tuning::CongestionControl;

/// Maximum round trip of a short path.
const SHORT: Duration = Duration::from_millis(20);
/// Heavy loss: this fraction of all segments, for this long.
const HEAVY: f64 = 0.1;
const HEAVY_LASTS: Duration = Duration::from_secs(1);
/// Duration of a trial of cubic with a backlog, and minimum fraction of bbr's rate that cubic must reach.
const TRIAL: Duration = Duration::from_secs(2);
const ENOUGH: f64 = 0.9;
/// Windows of at least this length are ignored: they contain a pause, after which bbr starts again, and each start has heavy loss.
const PAUSE: Duration = Duration::from_millis(500);
/// Lifetime of a result; doubled for each consecutive trial.
const RESULT_MIN: Duration = Duration::from_secs(60);
const RESULT_MAX: Duration = Duration::from_secs(960);

/// Counters of all streams of a path in one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) age: Duration,
    pub(crate) rtt: Duration,
    pub(crate) segments: u64,
    pub(crate) retransmitted: u64,
    /// All streams that sent had a backlog.
    pub(crate) backlogged: bool,
}

/// Segments sent, without retransmissions, and the time they took.
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
    /// No result yet: goodput of bbr since its loss became heavy.
    Unknown(Goodput),
    /// Cubic is on trial against bbr's rate, in segments per second.
    Trial { bbr: f64, cubic: Goodput },
    /// Result of the trial: cubic if it carries almost as much, otherwise bbr despite its loss.
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

    /// True if bbr must not be used, even if other evidence favors it.
    pub(crate) fn refuses_bbr(&self) -> bool {
        matches!(self.state, State::Trial { .. } | State::Known(CongestionControl::Cubic))
    }

    /// Resets the lifetime of the next result: loss was low for long enough to leave bbr, so the next trial does not count as consecutive.
    pub(crate) fn reset_lifetime(&mut self) {
        self.lifetime = RESULT_MIN;
    }

    /// Judges a window measured under `current`; returns a congestion control if the path must switch to it.
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
        assert!(!world.fallback.refuses_bbr(), "the lifetime is one minute again, not eight");
    }

    #[test]
    fn bbr_returns_where_cubic_carries_less() {
        let mut world = World::new();
        world.pass(window(3_000, 450), 10);
        assert_eq!(world.pass(window(300, 9), 19), CongestionControl::Cubic);
        assert_eq!(
            world.pass(window(300, 9), 1),
            CongestionControl::Bbr,
            "bbr carries more despite its loss"
        );
        assert_eq!(world.pass(window(3_000, 450), 599), CongestionControl::Bbr);
        assert_eq!(world.pass(window(3_000, 450), 11), CongestionControl::Cubic, "a new trial of cubic");
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
