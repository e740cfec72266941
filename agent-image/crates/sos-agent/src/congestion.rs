//! Which congestion control the streams of one path use when the configuration leaves it to us.
//!
//! Loss with a long queue means that we filled it: cubic backs off and eight of its streams share a long path steadily, where
//! eight of bbr overshoot each other (164 ms: cubic reached 0.9 of the wire, bbr 0.65). Loss without a queue is the wire's own
//! or that of a queue too short to be seen: cubic takes it for congestion and collapses (20 ms, 1 % loss: 0.02 of the wire with one
//! stream), bbr does not. So: cubic, until loss without a queue is seen; bbr then, and cubic tried again later. All streams of one
//! label to a peer are judged together, since they share the path.

use std::time::{Duration, Instant};

/// How long evidence is gathered at least before it is judged.
const WINDOW: Duration = Duration::from_millis(100);
/// And how many round trips: loss is found one after the queue that caused it, and that queue must be seen in the same window.
const WINDOW_RTTS: u32 = 3;
/// Evidence older than this says nothing about now.
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// Fewer segments than this are no evidence.
const MIN_SEGMENTS: u64 = 100;
/// Fewer resent segments than this are an accident, or the beginning of evidence.
const MIN_RESENT: u64 = 5;
/// Loss below three in a thousand does not hurt cubic on paths up to 20 ms, and is usual where it probes. On longer paths less does: what
/// one loss takes away comes back in as many round trips, whatever they last (100 ms, 0.1 % loss, 300 Mbit/s: cubic 0.52 of the wire,
/// bbr 0.89).
const LOSS: f64 = 0.003;
const LOSS_RTT: Duration = Duration::from_millis(20);
/// Round trip over its minimum from which a queue has been there.
const QUEUED_PERCENT: u64 = 140;
/// After so long without loss of the wire's own, cubic is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);

/// A congestion control of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Loss is taken for congestion.
    Cubic,
    /// The rate is modelled.
    Bbr,
}

/// What one stream did since it was last looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sample {
    /// Data segments sent, those sent again included.
    pub segments: u64,
    /// Segments sent again.
    pub resent: u64,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// The same in percent of the lowest one seen.
    pub rtt_percent: u64,
}

impl Sample {
    /// There was a queue.
    fn is_queued(&self) -> bool {
        self.rtt_percent >= QUEUED_PERCENT
    }

    /// So much was lost that cubic would suffer.
    fn hurts(&self) -> bool {
        let trips = self.rtt.max(LOSS_RTT).as_secs_f64() / LOSS_RTT.as_secs_f64();
        let bearable = self.segments as f64 * LOSS / trips;
        self.resent >= MIN_RESENT && self.resent as f64 >= bearable
    }
}

/// The choice for one path.
#[derive(Debug, Clone, Copy)]
pub struct Chooser {
    choice: Choice,
    began: Instant,
    sum: Sample,
    lossy_at: Instant,
}

impl Chooser {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self { choice: Choice::Cubic, began: now, sum: Sample::default(), lossy_at: now }
    }

    /// The choice in force.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Takes what a stream did, and judges when there is enough.
    pub fn observe(&mut self, sample: Sample, now: Instant) {
        if now.saturating_duration_since(self.began) >= WINDOW_MAX {
            (self.began, self.sum) = (now, Sample::default());
        }
        self.sum.segments = self.sum.segments.saturating_add(sample.segments);
        self.sum.resent = self.sum.resent.saturating_add(sample.resent);
        self.sum.rtt = self.sum.rtt.max(sample.rtt);
        self.sum.rtt_percent = self.sum.rtt_percent.max(sample.rtt_percent);
        let age = now.saturating_duration_since(self.began);
        let enough = age >= WINDOW.max(self.sum.rtt * WINDOW_RTTS) && self.sum.segments >= MIN_SEGMENTS;
        let undecided = (1..MIN_RESENT).contains(&self.sum.resent) && !self.sum.is_queued();
        if enough && !undecided {
            self.judge(now);
            (self.began, self.sum) = (now, Sample::default());
        }
    }

    fn judge(&mut self, now: Instant) {
        if self.sum.hurts() && !self.sum.is_queued() {
            (self.choice, self.lossy_at) = (Choice::Bbr, now);
        } else if now.saturating_duration_since(self.lossy_at) >= TRY_AGAIN {
            self.choice = Choice::Cubic;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[(u64, Sample)]) -> Choice {
        let start = Instant::now();
        let mut chooser = Chooser::new(start);
        for (ms, sample) in samples {
            chooser.observe(*sample, start + Duration::from_millis(*ms));
        }
        chooser.choice()
    }

    const RTT: Duration = Duration::from_millis(20);
    const CLEAN: Sample = Sample { segments: 10_000, resent: 0, rtt: RTT, rtt_percent: 100 };
    const IDLE: Sample = Sample { segments: 1, ..CLEAN };
    const RANDOM: Sample = Sample { segments: 1_000, resent: 10, rtt: RTT, rtt_percent: 105 };
    const OVERFLOW: Sample = Sample { segments: 10_000, resent: 700, rtt: RTT, rtt_percent: 200 };

    #[test]
    fn a_clean_path_and_a_full_queue_stay_with_cubic() {
        assert_eq!(after(&[(300, CLEAN), (600, CLEAN), (1200, OVERFLOW), (1800, OVERFLOW)]), Choice::Cubic);
    }

    #[test]
    fn loss_without_a_queue_asks_for_bbr() {
        assert_eq!(after(&[(600, RANDOM)]), Choice::Bbr);
    }

    #[test]
    fn little_evidence_is_none() {
        let few = Sample { segments: 99, resent: 9, ..CLEAN };
        assert_eq!(after(&[(600, few)]), Choice::Cubic);
        assert_eq!(after(&[(600, few), (11_000, few)]), Choice::Cubic, "forgotten after ten seconds");
        let accident = Sample { segments: 150, resent: 4, ..CLEAN };
        assert_eq!(after(&[(600, accident)]), Choice::Cubic);
    }

    #[test]
    fn little_loss_hurts_on_long_paths_and_is_found_out_over_several_windows() {
        let little = Sample { segments: 3_000, resent: 3, ..CLEAN };
        assert_eq!(after(&[(200, little), (400, little), (600, little)]), Choice::Cubic, "20 ms");
        let long = Sample { rtt: Duration::from_millis(100), ..little };
        assert_eq!(after(&[(400, long)]), Choice::Cubic, "three may be an accident");
        assert_eq!(after(&[(400, long), (800, long)]), Choice::Bbr);
        let queued = Sample { rtt_percent: 150, ..long };
        assert_eq!(after(&[(400, long), (800, queued), (1200, long)]), Choice::Cubic, "the queue's loss");
    }

    #[test]
    fn streams_are_judged_together() {
        let part = Sample { segments: 60, resent: 3, ..CLEAN };
        assert_eq!(after(&[(510, part), (520, part)]), Choice::Bbr);
        let queued = Sample { rtt_percent: 150, ..part };
        assert_eq!(after(&[(510, part), (520, queued)]), Choice::Cubic, "one of them saw the queue");
    }

    #[test]
    fn a_long_path_takes_longer_to_judge() {
        let long = Sample { rtt: Duration::from_millis(330), ..RANDOM };
        assert_eq!(
            after(&[(600, long), (900, OVERFLOW), (1000, long)]),
            Choice::Cubic,
            "the queue was in the same window"
        );
        assert_eq!(after(&[(600, long), (1000, long)]), Choice::Bbr);
    }

    #[test]
    fn cubic_is_tried_again_after_a_minute() {
        assert_eq!(after(&[(600, RANDOM), (59_000, CLEAN), (59_500, CLEAN)]), Choice::Bbr);
        assert_eq!(after(&[(600, RANDOM), (61_000, CLEAN), (61_500, CLEAN)]), Choice::Cubic);
        assert_eq!(
            after(&[(600, RANDOM), (50_000, IDLE), (50_500, RANDOM), (61_000, CLEAN), (61_500, CLEAN)]),
            Choice::Bbr
        );
    }
}
