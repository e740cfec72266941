//! Path loss: recent retransmissions of all streams of one label to a peer.

use std::time::{Duration, Instant};

/// Half-life of observations. Loss changes more slowly: on radio links with the weather, elsewhere with the hour.
const HALF: Duration = Duration::from_secs(60);
/// Minimum number of recent retransmissions for a path to count as lossy: a single retransmission may be chance.
const LEAST: f64 = 2.0;
/// Minimum fraction of segments retransmitted for a path to count as lossy. A lower loss delays less than a hundredth of short requests, so
/// their 99th percentile is unaffected.
const PART: f64 = 0.002;

/// The loss of one path.
#[derive(Debug, Clone)]
pub(crate) struct PathLoss {
    segments: f64,
    retransmitted: f64,
    at: Instant,
}

impl PathLoss {
    pub(crate) fn new(now: Instant) -> Self {
        Self { segments: 0.0, retransmitted: 0.0, at: now }
    }

    /// Adds segments and retransmissions of a stream since its last poll.
    pub(crate) fn note(&mut self, segments: u32, retransmitted: u32, now: Instant) {
        let age = now.saturating_duration_since(self.at).as_secs_f64() / HALF.as_secs_f64();
        let kept = 0.5_f64.powf(age);
        self.segments = self.segments * kept + f64::from(segments);
        self.retransmitted = self.retransmitted * kept + f64::from(retransmitted);
        self.at = now.max(self.at);
    }

    pub(crate) fn is_lossy(&self) -> bool {
        self.retransmitted >= LEAST && self.retransmitted >= self.segments * PART
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_lossy_from_two_losses_in_a_thousand_segments() {
        let now = Instant::now();
        let lossy = |segments, retransmitted| {
            let mut loss = PathLoss::new(now);
            loss.note(segments, retransmitted, now);
            loss.is_lossy()
        };
        assert!(!lossy(10, 0) && !lossy(10, 1), "one loss may be an accident");
        assert!(lossy(10, 2) && lossy(1000, 2));
        assert!(!lossy(1001, 2), "too few to tell");
    }

    #[test]
    fn old_losses_count_less() {
        let now = Instant::now();
        let mut loss = PathLoss::new(now);
        loss.note(100, 4, now);
        loss.note(0, 0, now + HALF);
        assert!(loss.is_lossy(), "two losses are left");
        loss.note(0, 0, now + HALF + Duration::from_secs(1));
        assert!(!loss.is_lossy());
    }

    #[test]
    fn streams_count_together_in_any_order_of_polls() {
        let now = Instant::now();
        let mut loss = PathLoss::new(now);
        loss.note(50, 1, now + Duration::from_secs(1));
        loss.note(50, 1, now);
        assert!(loss.is_lossy());
    }
}
