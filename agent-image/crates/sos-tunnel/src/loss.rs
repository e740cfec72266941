//! Whether a path loses segments: what the streams of one label to a peer had to send again lately, all together.

use std::time::{Duration, Instant};

/// What was seen counts half after so long: loss comes and goes with the weather on radio links, and with the hour elsewhere.
const HALF: Duration = Duration::from_secs(60);
/// A path is lossy from so many segments sent again: one may have been an accident.
const LEAST: f64 = 2.0;
/// And from such a part of all. Below it so few short exchanges meet a loss that the slowest in a hundred does not tell.
const PART: f64 = 0.002;

/// The loss of one path.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    segments: f64,
    resent: f64,
    at: Instant,
}

impl Loss {
    pub(crate) fn new(now: Instant) -> Self {
        Self { segments: 0.0, resent: 0.0, at: now }
    }

    /// A stream has sent so many segments since it was asked last, of them so many again.
    pub(crate) fn note(&mut self, segments: u32, resent: u32, now: Instant) {
        let age = now.saturating_duration_since(self.at).as_secs_f64() / HALF.as_secs_f64();
        let kept = 0.5_f64.powf(age);
        self.segments = self.segments * kept + f64::from(segments);
        self.resent = self.resent * kept + f64::from(resent);
        self.at = now.max(self.at);
    }

    pub(crate) fn is_lossy(&self) -> bool {
        self.resent >= LEAST && self.resent >= self.segments * PART
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_lossy_from_two_in_a_thousand_and_not_by_one_accident() {
        let now = Instant::now();
        let lossy = |segments, resent| {
            let mut loss = Loss::new(now);
            loss.note(segments, resent, now);
            loss.is_lossy()
        };
        assert!(!lossy(10, 0) && !lossy(10, 1), "one may have been an accident");
        assert!(lossy(10, 2) && lossy(1000, 2));
        assert!(!lossy(1001, 2), "too few to tell");
    }

    #[test]
    fn what_was_lost_long_ago_counts_less() {
        let now = Instant::now();
        let mut loss = Loss::new(now);
        loss.note(100, 4, now);
        loss.note(0, 0, now + HALF);
        assert!(loss.is_lossy(), "two are left");
        loss.note(0, 0, now + HALF + Duration::from_secs(1));
        assert!(!loss.is_lossy());
    }

    #[test]
    fn streams_count_together_in_whatever_order_they_were_asked() {
        let now = Instant::now();
        let mut loss = Loss::new(now);
        loss.note(50, 1, now + Duration::from_secs(1));
        loss.note(50, 1, now);
        assert!(loss.is_lossy());
    }
}
