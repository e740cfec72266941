//! Delivery rates of all streams of a path, summed.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of each stream and the time in which they were delivered, per stream because polls are not simultaneous.
#[derive(Debug, Clone, Default)]
pub(crate) struct RateSampler(BTreeMap<u64, (u64, Duration)>);

impl RateSampler {
    pub(crate) fn add(&mut self, stream: u64, bytes: u64, elapsed: Duration) {
        let (sum, time) = self.0.entry(stream).or_default();
        *sum += bytes;
        *time += elapsed;
    }

    /// Removes a stream that has closed.
    pub(crate) fn remove(&mut self, stream: u64) {
        self.0.remove(&stream);
    }

    /// Bytes per second of all streams.
    pub(crate) fn total(&self) -> f64 {
        self.rates().sum()
    }

    /// Streams that carry bulk, and their rates: at least a quarter of the highest rate.
    pub(crate) fn bulk(&self) -> impl Iterator<Item = (u64, f64)> {
        let most = self.rates().fold(0.0, f64::max);
        self.0.keys().copied().zip(self.rates()).filter(move |(_, rate)| *rate > 0.0 && *rate >= most / 4.0)
    }

    fn rates(&self) -> impl Iterator<Item = f64> {
        self.0.values().map(|(bytes, time)| *bytes as f64 / time.as_secs_f64().max(1e-3))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
