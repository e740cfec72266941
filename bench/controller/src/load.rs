//! Send times of SYNs: at a constant rate regardless of answers, or when fewer SYNs than a limit are unanswered.

use std::time::Duration;

/// Load model of the SYNs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// Rate per second over all switches, evenly spaced, regardless of answers (open loop).
    Rate(f64),
    /// Constant number of unanswered SYNs at each switch (closed loop).
    Outstanding(u32),
}

/// Counts the SYNs due in an open loop.
#[derive(Debug, Default)]
pub struct Pacer {
    offered: u64,
}

impl Pacer {
    /// Number of SYNs that are due `elapsed` after the start and not issued yet, at most `limit`; the next call returns the rest.
    pub fn due(&mut self, rate: f64, elapsed: Duration, limit: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are positive, runs are short"
        )]
        let owed = (elapsed.as_secs_f64() * rate) as u64;
        let now = owed.saturating_sub(self.offered).min(limit);
        self.offered += now;
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rate_is_exact_for_any_intervals_between_calls(rate in 1.0..1e5_f64, gaps in prop::collection::vec(1_u64..50_000, 1..200)) {
            let (mut pacer, mut elapsed, mut sent) = (Pacer::default(), Duration::ZERO, 0);
            for gap in gaps {
                elapsed += Duration::from_micros(gap);
                let burst = pacer.due(rate, elapsed, 1000);
                prop_assert!(burst <= 1000);
                sent += burst;
            }
            sent += pacer.due(rate, elapsed, u64::MAX);
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let off = (sent as f64 - elapsed.as_secs_f64() * rate).abs();
            prop_assert!(off <= 1.0);
        }
    }
}
