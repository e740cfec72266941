//! A limit for what the streams of one path send together: when it is raised and lowered, and when it is none any more (ADR 0039).
//!
//! * What is lost below the limit is the wire's own loss, and the limit is higher by it.
//! * Where a little is lost again and again, the limit was a little too high. Where much is, the path carries less than it did, or somebody
//!   else came: there is no limit until it is known anew.
//! * Now and then the limit is raised by a little; if more arrives it stays, and is raised by twice as much. And after a while it is learned anew.

use std::time::{Duration, Instant};

/// Part of the segments that is lost, beyond the wire's own, where a queue runs over.
const OVERRUN: f64 = 0.015;
/// More of what was lost before is lost under a limit, and it was the wire that lost it: the limit is none.
const HELPS: f64 = 0.8;
/// Windows in a row that have to speak against a limit.
const AGAINST: u32 = 2;
/// How long a limit stands before it is raised to see whether more arrives; twice as long after each time that it did not at once.
const STANDS: Duration = Duration::from_secs(10);
/// After how long it is learned anew, and when what it was learned from was not steady.
const LASTS: Duration = Duration::from_secs(60);
const LASTS_UNSTEADY: Duration = Duration::from_secs(10);
/// By how much it is raised, and how much at most before there is none; the part of that which has to arrive.
const STEP: f64 = 0.02;
const STEP_MOST: f64 = 0.3;
const ARRIVES: f64 = 0.75;
/// By how much it is lowered when a little is lost, and what is left of it at least.
const LOWER: f64 = 0.005;
const LOWEST: f64 = 0.97;
/// How fast the wire's own loss is taken to be less.
const LEARNS: f64 = 0.25;
/// Fewer segments say nothing.
const TELLING: f64 = 100.0;
/// Segments that are sent again by accident.
const ACCIDENT: f64 = 20.0;
/// Less than this part of what the path carried, although there was more to send and something was lost, is all that it carries now.
const LESS: f64 = 0.9;

/// What a window says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seen {
    /// Bytes a second that arrived.
    pub(crate) rate: f64,
    /// Segments sent, those sent again included, and those sent again.
    pub(crate) segments: f64,
    pub(crate) resent: f64,
    /// Every stream had more to send all the time.
    pub(crate) pressed: bool,
}

impl Seen {
    /// Part of the segments that was sent again. QUIC counts a segment as lost long after it was sent, so there may be more of them.
    pub(crate) fn loss(&self) -> f64 {
        (self.resent / self.segments.max(1.0)).min(0.5)
    }

    /// Enough was sent, by streams that had more to send all the time.
    fn tells(&self) -> bool {
        self.pressed && self.segments >= TELLING
    }

    /// A queue ran over, or the wire loses much.
    pub(crate) fn overruns(&self) -> bool {
        self.tells() && self.loss() >= OVERRUN
    }

    /// More was sent again than a wire with this loss makes it by chance.
    fn exceeds(&self, own: f64) -> bool {
        let expected = own * self.segments;
        self.resent > expected + 4.0 * expected.sqrt() + ACCIDENT
    }
}

/// How far it is known what a path carries.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// What the wire loses is not known yet, only what was lost before.
    Learned { lost: f64 },
    /// The limit stands.
    Stands { since: Instant },
    /// The limit is raised by this part.
    Raised(f64),
}

/// Why there is no limit any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gone {
    /// As much is lost as without it.
    Useless,
    /// The path carries something else.
    Changed,
}

/// A limit in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Held {
    phase: Phase,
    /// Bytes a second that arrive when the path is full, as it was learned and as it is taken for now.
    learned: f64,
    pub(crate) carried: f64,
    /// What arrived last of it.
    arrived: f64,
    /// The wire's own loss.
    loss: f64,
    /// Windows in a row that speak against the limit, and in which a little more was lost than the wire's own.
    against: u32,
    more: u32,
    /// How long it stands until it is raised, and until when at all, as long as hosts want all of it.
    stands: Duration,
    until: Instant,
    /// The window that runs began before the limit was what it is.
    settling: bool,
}

impl Held {
    /// What arrives, in bytes a second, the part of the segments that was lost meanwhile, and whether that has been so for some windows.
    pub(crate) fn new(carried: f64, lost: f64, steady: bool, now: Instant) -> Self {
        Self {
            phase: Phase::Learned { lost },
            learned: carried,
            carried,
            arrived: carried,
            loss: 0.0,
            against: 0,
            more: 0,
            stands: STANDS,
            until: now + if steady { LASTS } else { LASTS_UNSTEADY },
            settling: true,
        }
    }

    /// Bytes a second that may be sent.
    pub(crate) fn limit(&self) -> f64 {
        let raised = if let Phase::Raised(by) = self.phase { by } else { 0.0 };
        self.carried / (1.0 - self.loss) * (1.0 + raised)
    }

    /// Hosts did not want all of it for so long: a limit that nobody meets does not age.
    pub(crate) fn rest(self, elapsed: Duration) -> Self {
        Self { until: self.until + elapsed, ..self }
    }

    fn enter(self, phase: Phase) -> Self {
        Self { phase, settling: true, against: 0, more: 0, ..self }
    }

    /// After a window.
    pub(crate) fn judge(self, seen: Seen, now: Instant) -> Result<Self, Gone> {
        match self.phase {
            Phase::Raised(by) => self.look_higher(by, seen, now),
            _ if self.settling => Ok(Self { settling: false, ..self }),
            Phase::Learned { .. } if !seen.tells() => Ok(self),
            Phase::Learned { lost } => self.learn_loss(lost, seen),
            Phase::Stands { since } => self.stand(since, seen, now),
        }
    }

    /// After the first window under the limit, when this part was lost before.
    fn learn_loss(self, lost: f64, seen: Seen) -> Result<Self, Gone> {
        let loss = seen.loss();
        let held = Self { loss, arrived: seen.rate, ..self };
        if loss <= lost * HELPS { Ok(held.enter(Phase::Raised(STEP))) } else { Err(Gone::Useless) }
    }

    /// After a window in which the limit stood.
    fn stand(self, since: Instant, seen: Seen, now: Instant) -> Result<Self, Gone> {
        let less = seen.pressed && seen.loss() > self.loss && seen.rate < self.carried * LESS;
        let against = if less || seen.loss() > self.loss + OVERRUN { self.against + 1 } else { 0 };
        let more = if seen.exceeds(self.loss) { self.more + 1 } else { 0 };
        if against >= AGAINST || now >= self.until {
            return Err(Gone::Changed);
        }
        let lowered = (self.carried * (1.0 - LOWER)).max(self.learned * LOWEST);
        let held = Self {
            against,
            more,
            carried: if more >= AGAINST { lowered } else { self.carried },
            arrived: seen.rate,
            loss: self.loss - (self.loss - seen.loss()).max(0.0) * LEARNS,
            ..self
        };
        let time = more == 0 && seen.pressed && now.saturating_duration_since(since) >= self.stands;
        Ok(if time { held.enter(Phase::Raised(STEP)) } else { held })
    }

    /// After a window with a raised limit.
    fn look_higher(self, by: f64, seen: Seen, now: Instant) -> Result<Self, Gone> {
        if !seen.pressed {
            return Ok(self.enter(Phase::Stands { since: now }));
        }
        if seen.exceeds(self.loss) || !self.settling && seen.rate < self.arrived * (1.0 + by * ARRIVES) {
            let stands = if by > STEP { STANDS } else { self.stands * 2 };
            return Ok(Self { stands, ..self }.enter(Phase::Stands { since: now }));
        }
        if self.settling {
            return Ok(Self { settling: false, ..self });
        }
        let next = by * 2.0;
        let carried = self.carried * (1.0 + by);
        let held = Self { carried, learned: carried, arrived: seen.rate, stands: STANDS, ..self };
        if next <= STEP_MOST { Ok(held.enter(Phase::Raised(next))) } else { Err(Gone::Changed) }
    }
}
