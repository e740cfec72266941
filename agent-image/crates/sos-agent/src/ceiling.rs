//! What all streams of one path send together at most, where they make a queue run over that is too short to be seen (ADR 0039).
//!
//! Each stream of bbr finds the rate of its path by sending more now and then, and believes the most that it has seen. Several of them
//! together keep more on the way than a short queue holds, and go on losing what is too much. But what arrives then is what the path
//! carries: under that limit nothing is lost, and nothing else is given up.
//!
//! * Some windows in a row in which bbr loses much, although the streams had more to send at every look, say what the path carries.
//! * A beginning that loses a great deal is held to a little more than what arrived, for as long as bbr takes to find that out by itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sos_tunnel::PeerConfig;

use crate::beginning::Beginning;
use crate::congestion::{Choice, Sample};
use crate::held::{Gone, Held, OVERRUN, Seen};
use crate::rates::Rates;
use crate::share::Look;

/// Part of the segments that is lost where a queue runs over for the first time, as everybody doubles what they send.
const BURST: f64 = 0.1;
/// Segments of which that can be said.
const BURST_SEGMENTS: f64 = 500.0;
/// Windows in a row that are looked back at for what the path carries.
const EVIDENCE: usize = 4;
/// So much more than some windows ago, and what arrives still grows.
const GROWS: f64 = 1.05;
/// Rates of all windows but one that differ by no more are steady.
const STEADY: f64 = 0.95;
/// How long rates are measured while there is no limit, and how many round trips, at least; and under a limit.
const FREE: (Duration, u32) = (Duration::from_millis(250), 2);
const LIMITED: (Duration, u32) = (Duration::from_millis(500), 3);
/// How long nothing is tried after a limit that was of no use.
const DOUBT: Duration = Duration::from_secs(60);
/// Less than this part of what the path carries says nothing.
const IDLE: f64 = 0.02;
/// A limit that has not been needed for so long is forgotten.
const KNOWN: Duration = Duration::from_secs(600);

/// What one stream did since it was last looked at.
#[derive(Debug, Clone, Copy)]
pub struct Told {
    /// What arrived.
    pub look: Look,
    /// What was sent, and sent again.
    pub sample: Sample,
    /// It had more to send than it sent.
    pub waiting: bool,
}

#[derive(Debug, Clone, Default)]
struct Window {
    rates: Rates,
    segments: u64,
    resent: u64,
    min_rtt: Duration,
    /// A look at a stream that sends found nothing waiting.
    spare: bool,
}

impl Window {
    fn add(&mut self, stream: u64, told: Told) {
        self.rates.add(stream, told.look.bytes, told.look.elapsed);
        self.segments += told.sample.segments;
        self.resent += told.sample.resent;
        self.min_rtt = self.min_rtt.max(told.look.min_rtt);
        self.spare |= told.look.tells() && !told.waiting;
    }

    fn seen(&self) -> Seen {
        Seen {
            rate: self.rates.total(),
            segments: self.segments as f64,
            resent: self.resent as f64,
            pressed: !self.spare,
        }
    }
}

fn bursts(seen: &Seen) -> bool {
    seen.segments >= BURST_SEGMENTS && seen.loss() >= BURST
}

/// The ceiling of one path.
#[derive(Debug, Clone)]
pub struct Ceiling {
    held: Option<Held>,
    beginning: Beginning,
    /// When it was needed last.
    used: Instant,
    carriers: usize,
    began: Instant,
    window: Window,
    /// A limit was of no use: there is none before.
    doubt_until: Instant,
    /// The last windows without a limit.
    recent: VecDeque<Seen>,
}

impl Ceiling {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            held: None,
            beginning: Beginning::new(),
            used: now,
            carriers: 0,
            began: now,
            window: Window::default(),
            doubt_until: now,
            recent: VecDeque::new(),
        }
    }

    /// Bytes a second that each stream may send; None = as fast as congestion control lets them. A session that is bulk does not use all streams:
    /// those that carry share the limit, or in a beginning those that will.
    #[must_use]
    pub fn each(&self, now: Instant) -> Option<f64> {
        let known = self.limit().map(|limit| limit / self.carriers.max(1) as f64);
        known.or_else(|| self.beginning.limit(now).map(|limit| limit / PeerConfig::MODELLED_STREAMS as f64))
    }

    /// There is a limit until further notice.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// All streams together.
    fn limit(&self) -> Option<f64> {
        self.held.map(|held| held.limit())
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u64) {
        self.window.rates.forget(stream);
        self.beginning.forget(stream);
    }

    /// Takes what a stream did under the congestion control that is in force.
    pub fn observe(&mut self, stream: u64, told: Told, choice: Choice, now: Instant) {
        self.window.add(stream, told);
        self.beginning.add(stream, told.look);
        let bursts = self.recent.front().is_some_and(bursts) || bursts(&self.window.seen());
        if self.held.is_none() && choice == Choice::Bbr && bursts {
            self.beginning.hold(self.window.min_rtt, now);
        }
        let (least, trips) = if self.held.is_some() { LIMITED } else { FREE };
        if now.saturating_duration_since(self.began) < least.max(self.window.min_rtt * trips) {
            return;
        }
        self.judge(self.window.seen(), choice, now);
        (self.began, self.window) = (now, Window::default());
        self.beginning.turn(now);
    }

    fn judge(&mut self, seen: Seen, choice: Choice, now: Instant) {
        let idle = self.held.is_some_and(|held| seen.rate < held.carried * IDLE);
        if self.held.is_some() && now.saturating_duration_since(self.used) >= KNOWN {
            self.held = None;
        } else if !idle {
            self.used = now;
            if seen.pressed {
                self.carriers = self.window.rates.carriers();
            }
            self.held = match self.held.map(|held| held.judge(seen, now)) {
                Some(Ok(held)) => Some(held),
                Some(Err(gone)) => {
                    if gone == Gone::Useless {
                        self.doubt_until = now + DOUBT;
                    }
                    None
                }
                None if now < self.doubt_until => None,
                None => self.learn(seen, choice, now),
            };
        }
    }

    fn learn(&mut self, seen: Seen, choice: Choice, now: Instant) -> Option<Held> {
        self.recent.truncate(EVIDENCE - 1);
        self.recent.push_front(seen);
        if choice != Choice::Bbr || !self.overruns() {
            return None;
        }
        let lost = self.recent.iter().map(Seen::loss).sum::<f64>() / EVIDENCE as f64;
        let mut rates: Vec<_> = self.recent.drain(..).map(|seen| seen.rate).collect();
        rates.sort_by(|one, other| other.total_cmp(one));
        // Bbr pauses in some window, and in the best one what was held up before may have arrived as well.
        Some(Held::new(rates[1], lost, rates[2] >= rates[0] * STEADY, now))
    }

    /// The queue ran over in all windows that are looked back at, and what arrives does not grow any more.
    fn overruns(&self) -> bool {
        let grows = self
            .recent
            .front()
            .zip(self.recent.back())
            .is_none_or(|(last, first)| last.rate > first.rate * GROWS);
        self.recent.len() == EVIDENCE
            && !grows
            && self.recent.iter().all(|seen| seen.pressed && seen.loss() >= OVERRUN)
    }
}

#[cfg(test)]
#[path = "ceiling_tests.rs"]
mod tests;
