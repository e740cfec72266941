//! Which congestion control the streams of one path use when the configuration leaves it to us.
//!
//! Loss with a long queue means that we filled it: cubic backs off and eight of its streams share a long path steadily, where
//! eight of bbr overshoot each other (164 ms: cubic reached 0.9 of the wire, bbr 0.65). Loss without a queue is the wire's own
//! or that of a queue too short to be seen: cubic takes it for congestion and collapses (20 ms, 1 % loss: 0.02 of the wire with one
//! stream), bbr does not. So: cubic, until loss without a queue is seen that hurts it; bbr then, and cubic tried again
//! later (ADR 0019), or sooner where bbr turns out to be what loses (overruns.rs). All streams of one label to a peer are judged
//! together, since they share the path.

use std::time::{Duration, Instant};

use crate::overruns::{Overruns, Window};

/// How long evidence is gathered at least before it is judged.
const WINDOW: Duration = Duration::from_millis(100);
/// And how many round trips: loss is found one after the queue that caused it, and that queue must be seen in the same window.
const WINDOW_RTTS: u32 = 3;
/// Evidence older than this says nothing about now.
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// Fewer segments than this are no evidence.
const MIN_SEGMENTS: u64 = 100;
/// Fewer resent segments, or fewer times that something was lost, are an accident, or the beginning of evidence.
const MIN_RESENT: u64 = 5;
const MIN_LOSSES: u64 = 3;
/// Loss below three in a thousand does not hurt cubic on paths up to 20 ms, and is usual where it probes. On longer paths less does: what
/// one loss takes away comes back in as many round trips, whatever they last (100 ms, 0.1 % loss, 300 Mbit/s: cubic 0.52 of the wire,
/// bbr 0.89).
const LOSS: f64 = 0.003;
const LOSS_RTT: Duration = Duration::from_millis(20);
/// On paths longer than that it also hurts where a stream carries this part of what cubic can carry at such a loss, or more: it is the loss that
/// bounds it then, and no queue has shown the path to be full (200 Mbit/s, 160 ms, 0.01 % loss: four streams of cubic 0.5 of the wire, bbr 0.9).
const BOUND: f64 = 0.5;
/// Round trip over its minimum from which a queue has been there. What is added is more than the ends' own turns take, too: by percents alone
/// a path of 1 ms always had one (1 Gbit/s, 3 % loss: 82 Mbit/s with cubic, 900 with bbr).
const QUEUED_PERCENT: u64 = 140;
const QUEUED_LEAST: Duration = Duration::from_millis(1);
/// After so long without loss of the wire's own, cubic is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(60);
/// A stream that sent fewer segments since the last look says little besides, and has none waiting.
const SPEAKS: u64 = 10;

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
    /// In how long.
    pub elapsed: Duration,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// The same in percent of the lowest one seen.
    pub rtt_percent: u64,
    /// There was more to send.
    pub waiting: bool,
}

impl Sample {
    /// There was a queue.
    fn is_queued(&self) -> bool {
        let lowest = self.rtt.as_secs_f64() * 100.0 / self.rtt_percent.max(1) as f64;
        self.rtt_percent >= QUEUED_PERCENT && self.rtt.as_secs_f64() - lowest >= QUEUED_LEAST.as_secs_f64()
    }

    fn add(&mut self, other: Self) {
        self.segments = self.segments.saturating_add(other.segments);
        self.resent = self.resent.saturating_add(other.resent);
        self.elapsed = self.elapsed.saturating_add(other.elapsed);
        self.rtt = self.rtt.max(other.rtt);
        self.rtt_percent = self.rtt_percent.max(other.rtt_percent);
    }

    /// So much was lost that cubic would suffer.
    fn hurts(&self) -> bool {
        let trips = self.rtt.max(LOSS_RTT).as_secs_f64() / LOSS_RTT.as_secs_f64();
        let bearable = self.segments as f64 * LOSS / trips;
        self.resent >= MIN_RESENT && self.resent as f64 >= bearable
    }
}

/// What all streams of a path did in some time.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    sum: Sample,
    /// How often something was lost, a round trip apart: what one queue drops when it runs over is one loss.
    losses: u64,
    lost_at: Option<Instant>,
    /// One of the streams saw a queue.
    queued: bool,
    /// One of them had no more to send.
    idle: bool,
}

impl Evidence {
    fn add(&mut self, sample: Sample, now: Instant) {
        self.sum.add(sample);
        self.queued |= sample.is_queued();
        self.idle |= !sample.waiting && sample.segments >= SPEAKS;
        let another = self.lost_at.is_none_or(|at| now.saturating_duration_since(at) >= sample.rtt);
        if sample.resent > 0 && another {
            self.losses += 1;
            self.lost_at = Some(now);
        }
    }

    /// Something was lost, but not so often yet, nor so much, that it could be said whether it hurts.
    fn is_undecided(&self) -> bool {
        self.sum.resent > 0 && self.losses < MIN_LOSSES && !self.sum.hurts() && !self.queued
    }

    /// The wire's own loss makes cubic suffer.
    fn speaks_for_bbr(&self) -> bool {
        (self.sum.hurts() || self.bounds()) && !self.queued
    }

    /// Loss is what bounds the streams of a long path.
    fn bounds(&self) -> bool {
        let rate = self.sum.segments as f64 / self.sum.elapsed.as_secs_f64().max(1e-3);
        let loss = self.losses as f64 / self.sum.segments.max(1) as f64;
        self.sum.rtt > LOSS_RTT && self.losses >= MIN_LOSSES && rate >= cubic(loss, self.sum.rtt) * BOUND
    }
}

/// Segments a second that a stream of cubic carries where this part of its segments is lost (RFC 9438, 5.1: with C = 0.4 the average window is
/// 1.054 (RTT/p)^0.75, and not less than Reno's).
fn cubic(loss: f64, rtt: Duration) -> f64 {
    let rtt = rtt.as_secs_f64();
    (1.054 * (rtt / loss).powf(0.75)).max(1.2 / loss.sqrt()) / rtt
}

/// The choice for one path.
#[derive(Debug, Clone, Copy)]
pub struct Chooser {
    choice: Choice,
    began: Instant,
    evidence: Evidence,
    lossy_at: Instant,
    overruns: Overruns,
}

impl Chooser {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            choice: Choice::Cubic,
            began: now,
            evidence: Evidence::default(),
            lossy_at: now,
            overruns: Overruns::new(now),
        }
    }

    /// The choice in force.
    #[must_use]
    pub fn choice(&self) -> Choice {
        self.choice
    }

    /// Takes what a stream did, and judges when there is enough.
    pub fn observe(&mut self, sample: Sample, now: Instant) {
        if now.saturating_duration_since(self.began) >= WINDOW_MAX {
            (self.began, self.evidence) = (now, Evidence::default());
        }
        self.evidence.add(sample, now);
        let (age, sum) = (now.saturating_duration_since(self.began), self.evidence.sum);
        let enough = age >= WINDOW.max(sum.rtt * WINDOW_RTTS) && sum.segments >= MIN_SEGMENTS;
        if enough && !self.evidence.is_undecided() {
            self.judge(now);
            (self.began, self.evidence) = (now, Evidence::default());
        }
    }

    /// Bbr has been found to do harm, and is not to be used whatever else speaks for it.
    #[must_use]
    pub fn refuses_bbr(&self) -> bool {
        self.overruns.refuses_bbr()
    }

    fn judge(&mut self, now: Instant) {
        let Sample { rtt, segments, resent, .. } = self.evidence.sum;
        let age = now.saturating_duration_since(self.began);
        let window = Window { age, rtt, segments, resent, pressed: !self.evidence.idle };
        if let Some(better) = self.overruns.judge(&window, self.choice, now) {
            (self.choice, self.lossy_at) = (better, now);
        } else if self.evidence.speaks_for_bbr() && !self.refuses_bbr() {
            (self.choice, self.lossy_at) = (Choice::Bbr, now);
        } else if now.saturating_duration_since(self.lossy_at) >= TRY_AGAIN {
            if self.choice == Choice::Bbr {
                self.overruns.calm();
            }
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
    const LOOK: Duration = Duration::from_millis(100);
    const CLEAN: Sample =
        Sample { segments: 10_000, resent: 0, elapsed: LOOK, rtt: RTT, rtt_percent: 100, waiting: true };
    const IDLE: Sample = Sample { segments: 1, ..CLEAN };
    const RANDOM: Sample = Sample { segments: 1_000, resent: 10, rtt_percent: 105, ..CLEAN };
    const OVERFLOW: Sample = Sample { resent: 700, rtt_percent: 200, ..CLEAN };

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

    /// What a stream does on a path of 160 ms that loses one segment in ten thousand, so many of them each tenth of a second.
    fn long_path(segments: u64, rtt_percent: u64, seconds: u64) -> Choice {
        let sample = Sample { segments, rtt: Duration::from_millis(160), rtt_percent, ..CLEAN };
        let mut sent = 0;
        let looks: Vec<_> = (1..=seconds * 10)
            .map(|look| {
                let before = sent;
                sent += segments;
                (look * 100, Sample { resent: sent / 10_000 - before / 10_000, ..sample })
            })
            .collect();
        after(&looks)
    }

    #[test]
    fn loss_that_bounds_the_streams_of_a_long_path_asks_for_bbr() {
        assert_eq!(long_path(800, 105, 10), Choice::Bbr, "93 Mbit/s, all that cubic carries there");
        assert_eq!(long_path(800, 105, 3), Choice::Cubic, "two losses may be an accident");
        assert_eq!(long_path(800, 150, 10), Choice::Cubic, "the path is full");
        assert_eq!(long_path(40, 105, 60), Choice::Cubic, "who sends little loses nothing by it");
    }

    #[test]
    fn what_one_queue_drops_is_one_loss() {
        let part = Sample { segments: 800, resent: 2, rtt: Duration::from_millis(160), ..CLEAN };
        let all = |gap: u64| after(&(1..=4).map(|n| (500 + gap * n, part)).collect::<Vec<_>>());
        assert_eq!(all(10), Choice::Bbr, "eight in a few thousand are enough by themselves");
        let at_once: Vec<_> =
            (1..=20).map(|n| (n * 20, Sample { resent: u64::from(n < 5), ..part })).collect();
        assert_eq!(after(&at_once), Choice::Cubic, "four streams at once");
        let apart: Vec<_> =
            (1..=20).map(|n| (n * 50, Sample { resent: u64::from(n % 5 == 0), ..part })).collect();
        assert_eq!(after(&apart), Choice::Bbr, "four losses, one after the other");
    }

    #[test]
    fn a_stream_of_cubic_carries_what_its_document_says() {
        // RFC 9438, 5.1: average windows at 0.1 s with C = 0.4
        for (loss, window) in [(1e-2, 12.0), (1e-4, 187.0), (1e-6, 5_926.0)] {
            let found = cubic(loss, Duration::from_millis(100)) * 0.1;
            assert!((found / window - 1.0).abs() < 0.02, "{loss}: {found}");
        }
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
    fn the_ends_own_turns_are_no_queue() {
        let lossy = |micros, rtt_percent| {
            let rtt = Duration::from_micros(micros);
            after(&[(600, Sample { rtt, rtt_percent, ..RANDOM })])
        };
        assert_eq!(lossy(1_600, 160), Choice::Bbr, "0.6 ms");
        assert_eq!(lossy(2_200, 220), Choice::Cubic, "1.2 ms");
        assert_eq!(lossy(2_200, 110), Choice::Bbr);
    }

    #[test]
    fn two_streams_see_no_queue_together_that_neither_sees() {
        let new = Sample { rtt: Duration::from_micros(3_200), rtt_percent: 107, ..RANDOM };
        let old = Sample { rtt: Duration::from_micros(1_500), rtt_percent: 150, ..RANDOM };
        assert_eq!(after(&[(500, new), (600, old)]), Choice::Bbr);
    }

    #[test]
    fn bbr_that_overruns_a_short_queue_gives_way_whatever_speaks_for_it() {
        let mut now = Instant::now();
        let chooser = &mut Chooser::new(now);
        let mut pass = |segments: u64, resent: u64, looks: u32| {
            for _ in 0..looks {
                now += LOOK;
                let rtt = Duration::from_micros(1_400);
                chooser.observe(
                    Sample { segments, resent, elapsed: LOOK, rtt, rtt_percent: 120, waiting: true },
                    now,
                );
            }
            (chooser.choice(), chooser.refuses_bbr())
        };
        assert_eq!(pass(1_000, 50, 2), (Choice::Bbr, false));
        assert_eq!(pass(600, 170, 11), (Choice::Cubic, true));
        assert_eq!(pass(1_000, 50, 500), (Choice::Cubic, true));
        assert_eq!(pass(1_000, 50, 150), (Choice::Bbr, false), "it may be another path now");
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
