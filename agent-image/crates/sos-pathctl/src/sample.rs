//! Samples of one stream: the difference of its transport's counters between two polls.

use std::time::Duration;

/// A minimum round trip of this or more is not a measurement: before the first sample the kernel reports more than an hour.
pub(crate) const RTT_UNKNOWN: Duration = Duration::from_secs(60);

/// A queue counts if the queueing delay is at least the minimum round trip divided by `QUEUE_PART`, and at least `QUEUE_MIN`, which is more
/// than a busy machine adds.
const QUEUE_PART: u32 = 4;
const QUEUE_MIN: Duration = Duration::from_millis(10);
/// A stream that delivered fewer bytes between two polls has a stale round trip, which does not measure the queue.
const MEASURES_QUEUE: u64 = 4096;

/// Counters of a stream's transport (TCP_INFO, or the same for QUIC), cumulative since it connected; 32-bit counters wrap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamCounters {
    /// Smoothed round trip.
    pub rtt: Duration,
    /// Minimum round trip.
    pub min_rtt: Duration,
    /// Data segments sent, retransmissions included.
    pub segments: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
    /// Segments delivered, including those received behind a gap.
    pub delivered: u32,
    /// Bytes of a full segment.
    pub mss: u32,
    /// Bytes in the socket that have never been sent.
    pub unsent: u32,
    /// True during the first slow start, or during bbr's STARTUP.
    pub startup: bool,
}

/// Changes of one stream's counters between two polls.
#[derive(Debug, Clone, Copy)]
pub struct StreamSample {
    /// Bytes delivered.
    pub delivery: DeliverySample,
    /// Segments sent and retransmitted.
    pub loss: LossSample,
    /// True during the first slow start, or during bbr's STARTUP.
    pub startup: bool,
}

impl StreamSample {
    pub(crate) fn between(before: StreamCounters, after: StreamCounters, elapsed: Duration) -> Self {
        Self {
            delivery: DeliverySample::between(before, after, elapsed),
            loss: LossSample::between(before, after, elapsed),
            startup: after.startup,
        }
    }
}

/// Bytes that one stream delivered between two polls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliverySample {
    /// Bytes delivered.
    pub bytes: u64,
    /// Time between the polls.
    pub elapsed: Duration,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// Minimum round trip.
    pub min_rtt: Duration,
}

impl DeliverySample {
    fn between(before: StreamCounters, after: StreamCounters, elapsed: Duration) -> Self {
        Self {
            // Not from the cumulative acknowledgement, which would stop at a gap and jump when the gap closes.
            bytes: u64::from(after.delivered.wrapping_sub(before.delivered)) * u64::from(after.mss),
            elapsed,
            rtt: after.rtt,
            min_rtt: if after.min_rtt < RTT_UNKNOWN { after.min_rtt } else { Duration::ZERO },
        }
    }

    pub(crate) fn queueing_delay(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }

    pub(crate) fn is_queued(&self) -> bool {
        self.measures_queue() && self.queueing_delay() >= (self.min_rtt / QUEUE_PART).max(QUEUE_MIN)
    }

    /// The round trip is near its minimum. Otherwise there is a queue, or the route has changed.
    pub(crate) fn is_unqueued(&self) -> bool {
        self.queueing_delay() <= self.min_rtt / QUEUE_PART
    }

    /// The stream delivered enough for its round trip to be current.
    pub(crate) fn measures_queue(&self) -> bool {
        self.bytes >= MEASURES_QUEUE
    }

    /// Bytes per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }
}

/// Segments that one stream sent and retransmitted between two polls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LossSample {
    /// Data segments sent, retransmissions included.
    pub segments: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
    /// Time between the polls.
    pub elapsed: Duration,
    /// Smoothed round trip: the larger value of both polls.
    pub rtt: Duration,
    /// Smoothed round trip in percent of the minimum.
    pub rtt_percent: u64,
    /// The socket had unsent bytes.
    pub backlogged: bool,
}

impl LossSample {
    fn between(before: StreamCounters, after: StreamCounters, elapsed: Duration) -> Self {
        // A queue that overflowed between the polls has drained by now: it shows in the previous poll.
        let rtt = before.rtt.max(after.rtt);
        let percent = rtt.as_micros() * 100 / after.min_rtt.as_micros().max(1);
        Self {
            segments: after.segments.wrapping_sub(before.segments).into(),
            retransmitted: after.retransmitted.wrapping_sub(before.retransmitted).into(),
            elapsed,
            rtt,
            rtt_percent: u64::try_from(percent).unwrap_or(u64::MAX),
            backlogged: after.unsent > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_millis(100);

    #[test]
    fn a_queue_that_overflowed_between_two_polls_shows_in_the_sample() {
        let ms = Duration::from_millis;
        let before = StreamCounters {
            rtt: ms(36),
            min_rtt: ms(20),
            segments: u32::MAX - 9,
            retransmitted: 3,
            ..StreamCounters::default()
        };
        let after = StreamCounters {
            rtt: ms(22),
            min_rtt: ms(20),
            segments: 90,
            retransmitted: 10,
            unsent: 1,
            ..StreamCounters::default()
        };
        let sample = LossSample {
            segments: 100,
            retransmitted: 7,
            elapsed: POLL,
            rtt: ms(36),
            rtt_percent: 180,
            backlogged: true,
        };
        assert_eq!(LossSample::between(before, after, POLL), sample);
    }
}
