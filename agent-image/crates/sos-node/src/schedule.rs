//! Schedule of passes. Pure: `now` and observations are arguments.

use std::time::{Duration, Instant};

/// Interval between passes without a visible change: the maximum time for which a manual change of the switch goes unnoticed.
pub const PERIOD: Duration = Duration::from_secs(5);
/// First wait after a failure.
pub const BACKOFF_MIN: Duration = Duration::from_millis(200);
/// Maximum wait after a failure. A restart of Open vSwitch is detected earlier, by its sockets.
pub const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// Decides when a pass is due.
#[derive(Debug)]
pub struct Schedule<F> {
    due: Instant,
    backoff: Duration,
    seen: Option<F>,
}

impl<F: PartialEq> Schedule<F> {
    /// Create a schedule whose first pass is due immediately.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { due: now, backoff: BACKOFF_MIN, seen: None }
    }

    /// Record an observation, and make a pass due if it differs from the last observation.
    pub fn observe(&mut self, seen: F, now: Instant) {
        if self.seen.as_ref() != Some(&seen) {
            self.seen = Some(seen);
            self.wake(now);
        }
    }

    /// Make a pass due immediately.
    pub fn wake(&mut self, now: Instant) {
        self.due = now;
        self.backoff = BACKOFF_MIN;
    }

    /// True if a pass is due.
    #[must_use]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.due
    }

    /// Record the end of a pass, successful or not.
    pub fn ended(&mut self, well: bool, now: Instant) {
        if well {
            self.due = now + PERIOD;
            self.backoff = BACKOFF_MIN;
        } else {
            self.due = now + self.backoff;
            self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_doubles_the_wait_and_a_change_ends_it() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(now);
        schedule.observe(1, now);
        let mut waits = vec![];
        for _ in 0..7 {
            assert!(schedule.is_due(now));
            schedule.ended(false, now);
            let start = now;
            while !schedule.is_due(now) {
                now += Duration::from_millis(100);
            }
            waits.push((now - start).as_millis());
        }
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 5000, 5000]);
        schedule.ended(false, now);
        schedule.observe(1, now);
        assert!(!schedule.is_due(now));
        schedule.observe(2, now);
        assert!(schedule.is_due(now));
        schedule.ended(true, now);
        assert!(!schedule.is_due(now + PERIOD - Duration::from_millis(1)));
        assert!(schedule.is_due(now + PERIOD));
    }
}
