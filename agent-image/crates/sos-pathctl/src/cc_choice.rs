//! Congestion control choice: cubic or bbr for the streams of one path, unless the configuration sets it.
//!
//! Loss with a long queue is self-inflicted, and cubic backs off. Eight cubic streams share a long path steadily, whereas eight bbr streams
//! overshoot each other (164 ms: cubic reached 0.9 of the wire, bbr 0.65). Loss without a queue is caused by the wire, or by a queue too
//! short to measure. Cubic takes such loss for congestion and collapses (20 ms, 1 % loss: 0.02 of the wire with one stream); bbr does not.
//! So cubic is used until loss without a queue hurts it. Then bbr is used, and cubic is retried later (ADR 0019), or sooner if bbr itself
//! causes the loss ([`crate::bbr_fallback`]). All streams of one label to a peer are judged together, since they share the path.

use std::time::{Duration, Instant};

use crate::bbr_fallback::{BbrFallback, Window};
use crate::sample::LossSample;
use crate::tuning::CongestionControl;

/// Minimum evidence window, in time and in round trips. Loss shows one round trip after the queue that caused it, and the window must cover
/// both.
const WINDOW: Duration = Duration::from_millis(100);
const WINDOW_RTTS: u32 = 3;
/// Age of a window at which its evidence is discarded.
const WINDOW_MAX: Duration = Duration::from_secs(10);
/// Minimum number of segments in a window of evidence.
const MIN_SEGMENTS: u64 = 100;
/// Minimum number of retransmissions, and of loss events, from which loss is judged: fewer may be chance, or the first of a longer series.
const MIN_RETRANSMITTED: u64 = 5;
const MIN_LOSSES: u64 = 3;
/// Loss below 0.3 % does not hurt cubic on paths of up to 20 ms, and is usual while cubic probes. Longer paths tolerate less, because recovery
/// takes a number of round trips (100 ms, 0.1 % loss, 300 Mbit/s: cubic 0.52 of the wire, bbr 0.89).
const LOSS: f64 = 0.003;
const LOSS_RTT: Duration = Duration::from_millis(20);
/// On longer paths, loss also hurts a stream that carries at least this fraction of cubic's rate at that loss. Without a queue the path is
/// not full, so loss bounds the stream (200 Mbit/s, 160 ms, 0.01 % loss: four cubic streams 0.5 of the wire, bbr 0.9).
const LOSS_BOUND: f64 = 0.5;
/// Minimum ratio (percent) and minimum difference of the round trip to its minimum that together indicate a queue. The difference must
/// exceed the scheduling delay of both ends: by the ratio alone, a 1 ms path would always have a queue (1 Gbit/s, 3 % loss: 82 Mbit/s with
/// cubic, 900 with bbr).
const QUEUED_PERCENT: u64 = 140;
const QUEUED_MIN: Duration = Duration::from_millis(1);
/// Cubic is retried after this time without loss caused by the wire.
const RETRY_CUBIC: Duration = Duration::from_secs(60);
/// A stream without a backlog that sent fewer segments between two polls is ignored.
const IDLE_SEGMENTS: u64 = 10;

impl LossSample {
    fn is_queued(&self) -> bool {
        let lowest = self.rtt.as_secs_f64() * 100.0 / self.rtt_percent.max(1) as f64;
        self.rtt_percent >= QUEUED_PERCENT && self.rtt.as_secs_f64() - lowest >= QUEUED_MIN.as_secs_f64()
    }

    fn add(&mut self, other: Self) {
        self.segments = self.segments.saturating_add(other.segments);
        self.retransmitted = self.retransmitted.saturating_add(other.retransmitted);
        self.elapsed = self.elapsed.saturating_add(other.elapsed);
        self.rtt = self.rtt.max(other.rtt);
        self.rtt_percent = self.rtt_percent.max(other.rtt_percent);
    }

    /// Loss is high enough to hurt cubic.
    fn hurts(&self) -> bool {
        let trips = self.rtt.max(LOSS_RTT).as_secs_f64() / LOSS_RTT.as_secs_f64();
        let bearable = self.segments as f64 * LOSS / trips;
        self.retransmitted >= MIN_RETRANSMITTED && self.retransmitted as f64 >= bearable
    }
}

/// Evidence from all streams of a path in one window.
#[derive(Debug, Clone, Copy, Default)]
struct Evidence {
    sum: LossSample,
    /// Number of loss events, at least one round trip apart: all drops of one queue overflow are one event.
    losses: u64,
    lost_at: Option<Instant>,
    /// Some stream saw a queue.
    queued: bool,
    /// Some stream had no backlog.
    idle: bool,
}

impl Evidence {
    fn add(&mut self, sample: LossSample, now: Instant) {
        self.sum.add(sample);
        self.queued |= sample.is_queued();
        self.idle |= !sample.backlogged && sample.segments >= IDLE_SEGMENTS;
        let another = self.lost_at.is_none_or(|at| now.saturating_duration_since(at) >= sample.rtt);
        if sample.retransmitted > 0 && another {
            self.losses += 1;
            self.lost_at = Some(now);
        }
    }

    /// There was loss, but too little to decide whether it hurts cubic.
    fn is_undecided(&self) -> bool {
        self.sum.retransmitted > 0 && self.losses < MIN_LOSSES && !self.sum.hurts() && !self.queued
    }

    /// The wire's own loss hurts cubic.
    fn favours_bbr(&self) -> bool {
        (self.sum.hurts() || self.is_loss_bound()) && !self.queued
    }

    /// Loss bounds the streams of a long path.
    fn is_loss_bound(&self) -> bool {
        let rate = self.sum.segments as f64 / self.sum.elapsed.as_secs_f64().max(1e-3);
        let loss = self.losses as f64 / self.sum.segments.max(1) as f64;
        self.sum.rtt > LOSS_RTT
            && self.losses >= MIN_LOSSES
            && rate >= cubic_rate(loss, self.sum.rtt) * LOSS_BOUND
    }
}

/// Rate of a cubic stream at this loss, in segments per second (RFC 9438, 5.1: with C = 0.4 the average window is 1.054 (RTT/p)^0.75, and
/// at least that of Reno).
fn cubic_rate(loss: f64, rtt: Duration) -> f64 {
    let rtt = rtt.as_secs_f64();
    (1.054 * (rtt / loss).powf(0.75)).max(1.2 / loss.sqrt()) / rtt
}

/// Congestion control choice for one path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CcChooser {
    choice: CongestionControl,
    began: Instant,
    evidence: Evidence,
    lossy_at: Instant,
    fallback: BbrFallback,
}

impl CcChooser {
    /// State of an unknown path.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            choice: CongestionControl::Cubic,
            began: now,
            evidence: Evidence::default(),
            lossy_at: now,
            fallback: BbrFallback::new(now),
        }
    }

    /// The choice in force.
    pub(crate) fn choice(&self) -> CongestionControl {
        self.choice
    }

    /// Takes a sample of a stream, and judges once there is enough evidence.
    pub(crate) fn observe(&mut self, sample: LossSample, now: Instant) {
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

    /// bbr causes the loss on this path and must not be used, even if other evidence favors it.
    pub(crate) fn refuses_bbr(&self) -> bool {
        self.fallback.refuses_bbr()
    }

    fn judge(&mut self, now: Instant) {
        let LossSample { rtt, segments, retransmitted, .. } = self.evidence.sum;
        let age = now.saturating_duration_since(self.began);
        let window = Window { age, rtt, segments, retransmitted, backlogged: !self.evidence.idle };
        if let Some(better) = self.fallback.judge(&window, self.choice, now) {
            (self.choice, self.lossy_at) = (better, now);
        } else if self.evidence.favours_bbr() && !self.refuses_bbr() {
            (self.choice, self.lossy_at) = (CongestionControl::Bbr, now);
        } else if now.saturating_duration_since(self.lossy_at) >= RETRY_CUBIC {
            if self.choice == CongestionControl::Bbr {
                self.fallback.reset_lifetime();
            }
            self.choice = CongestionControl::Cubic;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(samples: &[(u64, LossSample)]) -> CongestionControl {
        let start = Instant::now();
        let mut chooser = CcChooser::new(start);
        for (ms, sample) in samples {
            chooser.observe(*sample, start + Duration::from_millis(*ms));
        }
        chooser.choice()
    }

    const RTT: Duration = Duration::from_millis(20);
    const POLL: Duration = Duration::from_millis(100);
    const CLEAN: LossSample = LossSample {
        segments: 10_000,
        retransmitted: 0,
        elapsed: POLL,
        rtt: RTT,
        rtt_percent: 100,
        backlogged: true,
    };
    const IDLE: LossSample = LossSample { segments: 1, ..CLEAN };
    const RANDOM: LossSample = LossSample { segments: 1_000, retransmitted: 10, rtt_percent: 105, ..CLEAN };
    const OVERFLOW: LossSample = LossSample { retransmitted: 700, rtt_percent: 200, ..CLEAN };

    #[test]
    fn a_clean_path_and_a_full_queue_stay_with_cubic() {
        assert_eq!(
            after(&[(300, CLEAN), (600, CLEAN), (1200, OVERFLOW), (1800, OVERFLOW)]),
            CongestionControl::Cubic
        );
    }

    #[test]
    fn loss_without_a_queue_selects_bbr() {
        assert_eq!(after(&[(600, RANDOM)]), CongestionControl::Bbr);
    }

    #[test]
    fn little_evidence_does_not_count() {
        let few = LossSample { segments: 99, retransmitted: 9, ..CLEAN };
        assert_eq!(after(&[(600, few)]), CongestionControl::Cubic);
        assert_eq!(
            after(&[(600, few), (11_000, few)]),
            CongestionControl::Cubic,
            "evidence is discarded after ten seconds"
        );
        let accident = LossSample { segments: 150, retransmitted: 4, ..CLEAN };
        assert_eq!(after(&[(600, accident)]), CongestionControl::Cubic);
    }

    #[test]
    fn small_loss_selects_bbr_on_long_paths_over_several_windows() {
        let little = LossSample { segments: 3_000, retransmitted: 3, ..CLEAN };
        assert_eq!(after(&[(200, little), (400, little), (600, little)]), CongestionControl::Cubic, "20 ms");
        let long = LossSample { rtt: Duration::from_millis(100), ..little };
        assert_eq!(
            after(&[(400, long)]),
            CongestionControl::Cubic,
            "three retransmissions may be an accident"
        );
        assert_eq!(after(&[(400, long), (800, long)]), CongestionControl::Bbr);
        let queued = LossSample { rtt_percent: 150, ..long };
        assert_eq!(
            after(&[(400, long), (800, queued), (1200, long)]),
            CongestionControl::Cubic,
            "the queue caused the loss"
        );
    }

    /// The choice on a 160 ms path that loses 0.01 % of the segments, with `segments` sent in each tenth of a second.
    fn long_path(segments: u64, rtt_percent: u64, seconds: u64) -> CongestionControl {
        let sample = LossSample { segments, rtt: Duration::from_millis(160), rtt_percent, ..CLEAN };
        let mut sent = 0;
        let polls: Vec<_> = (1..=seconds * 10)
            .map(|poll| {
                let before = sent;
                sent += segments;
                (poll * 100, LossSample { retransmitted: sent / 10_000 - before / 10_000, ..sample })
            })
            .collect();
        after(&polls)
    }

    #[test]
    fn loss_that_bounds_the_streams_of_a_long_path_selects_bbr() {
        assert_eq!(
            long_path(800, 105, 10),
            CongestionControl::Bbr,
            "93 Mbit/s, as much as cubic carries there"
        );
        assert_eq!(long_path(800, 105, 3), CongestionControl::Cubic, "two losses may be an accident");
        assert_eq!(long_path(800, 150, 10), CongestionControl::Cubic, "the path is full");
        assert_eq!(
            long_path(40, 105, 60),
            CongestionControl::Cubic,
            "a stream that sends little is not bound by loss"
        );
    }

    #[test]
    fn drops_of_one_queue_are_one_loss_event() {
        let part = LossSample { segments: 800, retransmitted: 2, rtt: Duration::from_millis(160), ..CLEAN };
        let all = |gap: u64| after(&(1..=4).map(|n| (500 + gap * n, part)).collect::<Vec<_>>());
        assert_eq!(
            all(10),
            CongestionControl::Bbr,
            "eight retransmissions in a few thousand segments suffice"
        );
        let at_once: Vec<_> =
            (1..=20).map(|n| (n * 20, LossSample { retransmitted: u64::from(n < 5), ..part })).collect();
        assert_eq!(after(&at_once), CongestionControl::Cubic, "four streams lose simultaneously");
        let apart: Vec<_> =
            (1..=20).map(|n| (n * 50, LossSample { retransmitted: u64::from(n % 5 == 0), ..part })).collect();
        assert_eq!(after(&apart), CongestionControl::Bbr, "four losses, one after the other");
    }

    #[test]
    fn cubic_rate_follows_rfc_9438() {
        // RFC 9438, 5.1: average windows at 0.1 s with C = 0.4
        for (loss, window) in [(1e-2, 12.0), (1e-4, 187.0), (1e-6, 5_926.0)] {
            let found = cubic_rate(loss, Duration::from_millis(100)) * 0.1;
            assert!((found / window - 1.0).abs() < 0.02, "{loss}: {found}");
        }
    }

    #[test]
    fn streams_are_judged_together() {
        let part = LossSample { segments: 60, retransmitted: 3, ..CLEAN };
        assert_eq!(after(&[(510, part), (520, part)]), CongestionControl::Bbr);
        let queued = LossSample { rtt_percent: 150, ..part };
        assert_eq!(
            after(&[(510, part), (520, queued)]),
            CongestionControl::Cubic,
            "one of the streams saw the queue"
        );
    }

    #[test]
    fn a_long_path_takes_longer_to_judge() {
        let long = LossSample { rtt: Duration::from_millis(330), ..RANDOM };
        assert_eq!(
            after(&[(600, long), (900, OVERFLOW), (1000, long)]),
            CongestionControl::Cubic,
            "the queue was in the same window"
        );
        assert_eq!(after(&[(600, long), (1000, long)]), CongestionControl::Bbr);
    }

    #[test]
    fn scheduling_delay_is_no_queue() {
        let lossy = |micros, rtt_percent| {
            let rtt = Duration::from_micros(micros);
            after(&[(600, LossSample { rtt, rtt_percent, ..RANDOM })])
        };
        assert_eq!(lossy(1_600, 160), CongestionControl::Bbr, "0.6 ms");
        assert_eq!(lossy(2_200, 220), CongestionControl::Cubic, "1.2 ms");
        assert_eq!(lossy(2_200, 110), CongestionControl::Bbr);
    }

    #[test]
    fn samples_of_two_streams_do_not_add_up_to_a_queue() {
        let new = LossSample { rtt: Duration::from_micros(3_200), rtt_percent: 107, ..RANDOM };
        let old = LossSample { rtt: Duration::from_micros(1_500), rtt_percent: 150, ..RANDOM };
        assert_eq!(after(&[(500, new), (600, old)]), CongestionControl::Bbr);
    }

    #[test]
    fn bbr_that_overruns_a_short_queue_is_refused() {
        let mut now = Instant::now();
        let chooser = &mut CcChooser::new(now);
        let mut pass = |segments: u64, retransmitted: u64, polls: u32| {
            for _ in 0..polls {
                now += POLL;
                let rtt = Duration::from_micros(1_400);
                chooser.observe(
                    LossSample {
                        segments,
                        retransmitted,
                        elapsed: POLL,
                        rtt,
                        rtt_percent: 120,
                        backlogged: true,
                    },
                    now,
                );
            }
            (chooser.choice(), chooser.refuses_bbr())
        };
        assert_eq!(pass(1_000, 50, 2), (CongestionControl::Bbr, false));
        assert_eq!(pass(600, 170, 11), (CongestionControl::Cubic, true));
        assert_eq!(pass(1_000, 50, 500), (CongestionControl::Cubic, true));
        assert_eq!(pass(1_000, 50, 150), (CongestionControl::Bbr, false), "the path may have changed");
    }

    #[test]
    fn cubic_is_tried_again_after_a_minute() {
        assert_eq!(after(&[(600, RANDOM), (59_000, CLEAN), (59_500, CLEAN)]), CongestionControl::Bbr);
        assert_eq!(after(&[(600, RANDOM), (61_000, CLEAN), (61_500, CLEAN)]), CongestionControl::Cubic);
        assert_eq!(
            after(&[(600, RANDOM), (50_000, IDLE), (50_500, RANDOM), (61_000, CLEAN), (61_500, CLEAN)]),
            CongestionControl::Bbr
        );
    }
}
