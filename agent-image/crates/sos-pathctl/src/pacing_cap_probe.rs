//! Pacing cap probe: the lifecycle of an aggregate rate cap, from learning the wire's loss to raising, lowering and dropping the cap (ADR 0039).
//!
//! * Loss under the cap is caused by the wire; the cap is raised to compensate for it.
//! * Repeated small loss means that the cap is slightly too high: lower it. Heavy loss means that the path carries less than before or that
//!   competing traffic has arrived: drop the cap and relearn it.
//! * The cap is raised slightly now and then. If more is delivered, the raise is kept and the next raise is twice as large. After a while the cap
//!   is relearned.

use std::time::{Duration, Instant};

/// Loss ratio, beyond the wire's own loss, that shows a queue overflow.
const OVERFLOW: f64 = 0.015;
/// If more than this fraction of the earlier loss remains under the cap, the wire causes the loss: drop the cap.
const HELPS: f64 = 0.8;
/// Number of consecutive windows with evidence against a cap before the cap is lowered or dropped.
const AGAINST: u32 = 2;
/// Time between two probes for a higher rate; doubled after each probe that fails at its first step.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
/// Age at which a cap is relearned. The second value applies if the cap was learned from rates that were not steady.
const MAX_AGE: Duration = Duration::from_secs(60);
const MAX_AGE_UNSTEADY: Duration = Duration::from_secs(10);
/// Size of a probe's first step; maximum step (a larger step drops the cap); and fraction of a step that must be delivered.
const STEP: f64 = 0.02;
const STEP_MAX: f64 = 0.3;
const DELIVERED: f64 = 0.75;
/// Reduction after repeated small loss, as a fraction of the current rate; and lower bound of the cap, as a fraction of the learned rate.
const LOWER: f64 = 0.005;
const LOWEST: f64 = 0.97;
/// Smoothing factor with which the estimate of the wire's own loss decreases.
const LOSS_GAIN: f64 = 0.25;
/// Minimum number of segments in a window that counts as evidence.
const MIN_SEGMENTS: f64 = 100.0;
/// Number of retransmissions in a window that may be spurious.
const SPURIOUS: f64 = 20.0;
/// If a backlogged window has more loss than the wire's own, and a delivery rate below this fraction of the cap's rate, the path now carries
/// less.
const LESS: f64 = 0.9;

/// Totals of all streams in one window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowSummary {
    /// Delivery rate in bytes per second.
    pub(crate) rate: f64,
    /// Segments sent, including retransmissions; and retransmissions alone.
    pub(crate) segments: f64,
    pub(crate) retransmitted: f64,
    /// Every stream had a backlog at every poll.
    pub(crate) backlogged: bool,
}

impl WindowSummary {
    /// Fraction of the segments retransmitted. QUIC counts a segment as lost long after sending it, so retransmissions may outnumber segments.
    pub(crate) fn loss(&self) -> f64 {
        (self.retransmitted / self.segments.max(1.0)).min(0.5)
    }

    /// Backlogged streams sent enough segments.
    fn is_evidence(&self) -> bool {
        self.backlogged && self.segments >= MIN_SEGMENTS
    }

    /// A queue overflows, or the wire's loss is high.
    pub(crate) fn overflows(&self) -> bool {
        self.is_evidence() && self.loss() >= OVERFLOW
    }

    /// More retransmissions than the wire's own loss and chance can explain.
    fn exceeds(&self, own: f64) -> bool {
        let expected = own * self.segments;
        self.retransmitted > expected + 4.0 * expected.sqrt() + SPURIOUS
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// The wire's own loss is not known yet, only the loss before the cap.
    Learned { lost: f64 },
    /// The cap has been in force since this time, without a probe.
    Steady { since: Instant },
    /// The cap is raised by this fraction.
    Raised(f64),
}

/// Reason for dropping a cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// The cap does not reduce the loss.
    Useless,
    /// The path's rate has changed.
    Changed,
}

/// A cap in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Cap {
    phase: Phase,
    /// Delivery rate of the saturated path when the cap was learned, raised by each successful probe, in bytes per second.
    learned: f64,
    pub(crate) rate: f64,
    /// Rate delivered in the last window.
    delivered: f64,
    /// The wire's own loss.
    loss: f64,
    /// Consecutive windows with evidence against the cap, and consecutive windows with slightly more than the wire's own loss.
    against: u32,
    lossy: u32,
    /// Time until the next probe; and end of the cap's lifetime, postponed while hosts do not use all of the cap.
    probe_interval: Duration,
    until: Instant,
    /// The current window began before the last change of the cap.
    settling: bool,
}

impl Cap {
    /// A cap learned from a delivery rate in bytes per second and the fraction of the segments lost at that rate. `steady`: several windows had
    /// about this rate.
    pub(crate) fn new(rate: f64, lost: f64, steady: bool, now: Instant) -> Self {
        Self {
            phase: Phase::Learned { lost },
            learned: rate,
            rate,
            delivered: rate,
            loss: 0.0,
            against: 0,
            lossy: 0,
            probe_interval: PROBE_INTERVAL,
            until: now + if steady { MAX_AGE } else { MAX_AGE_UNSTEADY },
            settling: true,
        }
    }

    /// Bytes per second that all streams together may send.
    pub(crate) fn limit(&self) -> f64 {
        let raised = if let Phase::Raised(by) = self.phase { by } else { 0.0 };
        self.rate / (1.0 - self.loss) * (1.0 + raised)
    }

    /// Postpones the end by a period in which hosts did not use all of the cap: an unused cap does not age.
    pub(crate) fn postpone(self, elapsed: Duration) -> Self {
        Self { until: self.until + elapsed, ..self }
    }

    fn enter(self, phase: Phase) -> Self {
        Self { phase, settling: true, against: 0, lossy: 0, ..self }
    }

    /// Judges a window; returns the cap for the next window, or the reason for dropping it.
    pub(crate) fn judge(self, window: WindowSummary, now: Instant) -> Result<Self, Dropped> {
        match self.phase {
            Phase::Raised(by) => self.end_probe(by, window, now),
            _ if self.settling => Ok(Self { settling: false, ..self }),
            Phase::Learned { .. } if !window.is_evidence() => Ok(self),
            Phase::Learned { lost } => self.learn_loss(lost, window),
            Phase::Steady { since } => self.adjust(since, window, now),
        }
    }

    /// Ends the first window under the cap: keeps the cap if it reduced the loss.
    fn learn_loss(self, lost: f64, window: WindowSummary) -> Result<Self, Dropped> {
        let loss = window.loss();
        let cap = Self { loss, delivered: window.rate, ..self };
        if loss <= lost * HELPS { Ok(cap.enter(Phase::Raised(STEP))) } else { Err(Dropped::Useless) }
    }

    /// Ends a window under a steady cap: keeps, lowers or drops the cap, or raises it as a probe.
    fn adjust(self, since: Instant, window: WindowSummary, now: Instant) -> Result<Self, Dropped> {
        let less = window.backlogged && window.loss() > self.loss && window.rate < self.rate * LESS;
        let against = if less || window.loss() > self.loss + OVERFLOW { self.against + 1 } else { 0 };
        let lossy = if window.exceeds(self.loss) { self.lossy + 1 } else { 0 };
        if against >= AGAINST || now >= self.until {
            return Err(Dropped::Changed);
        }
        let lowered = (self.rate * (1.0 - LOWER)).max(self.learned * LOWEST);
        let cap = Self {
            against,
            lossy,
            rate: if lossy >= AGAINST { lowered } else { self.rate },
            delivered: window.rate,
            loss: self.loss - (self.loss - window.loss()).max(0.0) * LOSS_GAIN,
            ..self
        };
        let probe =
            lossy == 0 && window.backlogged && now.saturating_duration_since(since) >= self.probe_interval;
        Ok(if probe { cap.enter(Phase::Raised(STEP)) } else { cap })
    }

    /// Ends a window under a raised cap: keeps the step and doubles the next step, or reverts the step.
    fn end_probe(self, by: f64, window: WindowSummary, now: Instant) -> Result<Self, Dropped> {
        if !window.backlogged {
            return Ok(self.enter(Phase::Steady { since: now }));
        }
        let no_more = !self.settling && window.rate < self.delivered * (1.0 + by * DELIVERED);
        if window.exceeds(self.loss) || no_more {
            let probe_interval = if by > STEP { PROBE_INTERVAL } else { self.probe_interval * 2 };
            return Ok(Self { probe_interval, ..self }.enter(Phase::Steady { since: now }));
        }
        if self.settling {
            return Ok(Self { settling: false, ..self });
        }
        let next = by * 2.0;
        let rate = self.rate * (1.0 + by);
        let cap =
            Self { rate, learned: rate, delivered: window.rate, probe_interval: PROBE_INTERVAL, ..self };
        if next <= STEP_MAX { Ok(cap.enter(Phase::Raised(next))) } else { Err(Dropped::Changed) }
    }
}
