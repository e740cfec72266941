//! Statistics, per switch and in total: latencies, rates, outstanding packets, fairness.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Histogram of latencies with three significant digits, up to a minute; memory does not grow with the number of samples.
#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, 60_000_000, 3).expect("bounds that are right"))
    }
}

impl Latencies {
    /// Record a latency; a latency above a minute counts as a minute.
    pub fn record(&mut self, latency: Duration) {
        self.0.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
    }

    /// Add the samples of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.0 += &other.0;
    }

    /// Number of samples.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Quantile in milliseconds; None without samples.
    pub fn quantile_ms(&self, quantile: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros_to_ms(self.0.value_at_quantile(quantile)))
    }

    /// Maximum in milliseconds; None without samples.
    pub fn max_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| micros_to_ms(self.0.max()))
    }
}

#[expect(clippy::cast_precision_loss, reason = "at most a minute of microseconds")]
fn micros_to_ms(micros: u64) -> f64 {
    micros as f64 / 1000.0
}

/// Jain's fairness index: 1 for equal shares, 1/n if only one share is not zero; 1 if all shares are zero.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    #[expect(clippy::cast_precision_loss, reason = "a number of switches")]
    let count = shares.len() as f64;
    if squares == 0.0 { 1.0 } else { sum * sum / (count * squares) }
}

/// Messages of a controller, by type.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Messages {
    /// Flow-mods that add.
    pub adds: u64,
    /// Flow-mods that modify or delete.
    pub deletes: u64,
    /// Packet-outs.
    pub packet_outs: u64,
    /// Barrier requests.
    pub barriers: u64,
}

impl Messages {
    /// Difference from earlier counts.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            adds: self.adds - earlier.adds,
            deletes: self.deletes - earlier.deletes,
            packet_outs: self.packet_outs - earlier.packet_outs,
            barriers: self.barriers - earlier.barriers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fairness_is_one_for_equal_shares_and_one_nth_for_a_single_share() {
        assert!((jain(&[3.0, 3.0, 3.0]) - 1.0).abs() < 1e-9);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-9);
        assert!((jain(&[0.0, 0.0]) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn quantiles_match_the_recorded_latencies() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_ms(0.5), None);
        (1..=1000_u64).for_each(|ms| latencies.record(Duration::from_millis(ms)));
        let half = latencies.quantile_ms(0.5).expect("there are some");
        assert!((half - 500.0).abs() < 1.0, "{half}");
        assert!((latencies.max_ms().expect("there are some") - 1000.0).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn fairness_lies_between_one_nth_and_one(shares in prop::collection::vec(0.0..1e6_f64, 1..50)) {
            let index = jain(&shares);
            #[expect(clippy::cast_precision_loss, reason = "small")]
            let least = 1.0 / shares.len() as f64;
            prop_assert!(index >= least - 1e-9 && index <= 1.0 + 1e-9);
        }
    }
}
