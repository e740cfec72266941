//! What the streams of one path carry together.

use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes of each stream and the time in which they arrived: looks at different streams are not at the same moments.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rates(BTreeMap<u64, (u64, Duration)>);

impl Rates {
    pub(crate) fn add(&mut self, stream: u64, bytes: u64, elapsed: Duration) {
        let (sum, time) = self.0.entry(stream).or_default();
        *sum += bytes;
        *time += elapsed;
    }

    /// A stream has ended.
    pub(crate) fn forget(&mut self, stream: u64) {
        self.0.remove(&stream);
    }

    /// Bytes a second, of all streams.
    pub(crate) fn total(&self) -> f64 {
        self.each().sum()
    }

    /// The streams that carry what they carry together, a quarter of what the one that carries most does or more, and what each of them does.
    pub(crate) fn carriers(&self) -> impl Iterator<Item = (u64, f64)> {
        let most = self.each().fold(0.0, f64::max);
        self.0.keys().copied().zip(self.each()).filter(move |(_, rate)| *rate > 0.0 && *rate >= most / 4.0)
    }

    fn each(&self) -> impl Iterator<Item = f64> {
        self.0.values().map(|(bytes, time)| *bytes as f64 / time.as_secs_f64().max(1e-3))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
