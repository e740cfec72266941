//! Histogram of the time from a client's acceptance to its server's first byte: bounded, whatever is observed.

use std::time::Duration;

const BUCKETS: usize = 12;

/// Upper bounds of the buckets in milliseconds, from a site's own network to several round trips of a satellite path. The last bucket, for
/// slower servers, has no bound.
const BOUNDS_MS: [u64; BUCKETS - 1] = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 10_000];

/// Times by bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FirstByteTimes {
    counts: [u64; BUCKETS],
    /// Sum of all times.
    pub sum: Duration,
}

impl FirstByteTimes {
    /// Counts a time in the first bucket whose upper bound is not smaller.
    pub fn observe(&mut self, time: Duration) {
        self.counts[BOUNDS_MS.partition_point(|ms| Duration::from_millis(*ms) < time)] += 1;
        self.sum = self.sum.saturating_add(time);
    }

    /// Number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Upper bound of each bucket and number of times in it, not cumulative; `None` is no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS_MS.into_iter().map(|ms| Some(Duration::from_millis(ms)));
        bounds.chain([None]).zip(self.counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_in_the_first_bucket_that_is_large_enough() {
        let (mut found, ms) = (FirstByteTimes::default(), Duration::from_millis);
        let times: Vec<_> = BOUNDS_MS.into_iter().flat_map(|bound| [ms(bound), ms(bound + 1)]).collect();
        times.iter().for_each(|time| found.observe(*time));
        assert_eq!((found.count(), found.sum), (times.len() as u64, times.iter().sum()));
        let mut cumulative = 0;
        for (bound, count) in found.buckets() {
            cumulative += count;
            let within = times.iter().filter(|time| bound.is_none_or(|bound| **time <= bound)).count();
            assert_eq!(cumulative, within as u64, "{bound:?}");
        }
        assert_eq!(found.buckets().count(), BUCKETS);
    }
}
