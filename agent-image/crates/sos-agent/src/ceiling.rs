//! What all streams of one path send together at most, where they make a queue run over that is too short to be seen (ADR 0039).
//!
//! Each stream of bbr finds the rate of its path by sending more now and then, and believes the most that it has seen. Several of them
//! together keep more on the way than a short queue holds, and go on losing what is too much. But what arrives then is what the path
//! carries: under that limit nothing is lost, and nothing else is given up.
//!
//! * Some windows in a row in which bbr loses much, although the streams had more to send at every look, say what the path carries.
//! * A beginning that loses a great deal is held to a little more than what arrived, for as long as bbr takes to find that out by itself.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use crate::beginning::Beginning;
use crate::congestion::{Choice, Sample};
use crate::held::{Gone, Held, Seen};
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
/// Rates of all windows but one that differ by more are of different paths; by no more than this, and they are steady.
const LIKE: f64 = 0.75;
const STEADY: f64 = 0.95;
/// How long rates are measured while there is no limit, and how many round trips, at least; and under a limit.
const FREE: (Duration, u32) = (Duration::from_millis(250), 2);
const LIMITED: (Duration, u32) = (Duration::from_millis(500), 3);
/// How long nothing is tried after a limit that was of no use.
const DOUBT: Duration = Duration::from_secs(60);
/// How long bbr stays in force after a limit, so that another one can be learned.
const ANEW: Duration = Duration::from_secs(10);
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
    /// Its congestion control still looks for the rate as it does at the beginning: its first slow start, or bbr's startup.
    pub searches: bool,
}

#[derive(Debug, Clone, Default)]
struct Window {
    rates: Rates,
    segments: u64,
    resent: u64,
    min_rtt: Duration,
    /// Streams with nothing waiting at some look.
    spare: BTreeSet<u64>,
}

impl Window {
    fn add(&mut self, stream: u64, told: Told) {
        self.rates.add(stream, told.look.bytes, told.look.elapsed);
        self.segments += told.sample.segments;
        self.resent += told.sample.resent;
        self.min_rtt = self.min_rtt.max(told.look.min_rtt);
        if told.look.tells() && !told.sample.waiting {
            self.spare.insert(stream);
        }
    }

    fn seen(&self) -> Seen {
        Seen {
            rate: self.rates.total(),
            segments: self.segments as f64,
            resent: self.resent as f64,
            pressed: self.rates.carriers().all(|(stream, _)| !self.spare.contains(&stream)),
        }
    }

    fn parts(&self) -> Parts {
        let (carriers, carried) =
            self.rates.carriers().fold((0, 0.0), |(count, sum), (_, rate)| (count + 1, sum + rate));
        Parts { carriers, others: self.rates.total() - carried }
    }
}

/// Who shares a limit.
#[derive(Debug, Clone, Copy, Default)]
struct Parts {
    /// Streams that carry what is carried.
    carriers: usize,
    /// What all others carry, bytes a second.
    others: f64,
}

impl Parts {
    /// What each stream that carries may send.
    fn each(self, limit: f64) -> f64 {
        (limit - self.others).max(limit / 2.0) / self.carriers.max(1) as f64
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
    parts: Parts,
    began: Instant,
    window: Window,
    /// Very much was lost in the window before.
    burst: bool,
    /// A limit was of no use: there is none before.
    doubt_until: Instant,
    /// A limit has come to its end: the next one is learned until then.
    anew_until: Instant,
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
            parts: Parts::default(),
            began: now,
            window: Window::default(),
            burst: false,
            doubt_until: now,
            anew_until: now,
            recent: VecDeque::new(),
        }
    }

    /// Bytes a second that each stream may send; None = as fast as congestion control lets them. A session that is bulk does not use all streams:
    /// those that carry share the limit, or in a beginning those that will.
    #[must_use]
    pub fn each(&self, now: Instant) -> Option<f64> {
        let known = self.limit().map(|limit| self.parts.each(limit));
        known.or_else(|| self.beginning.each(now))
    }

    /// There is a limit until further notice.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.held.is_some()
    }

    /// Streams go on with bbr: there is a limit, or it is learned anew.
    #[must_use]
    pub fn needs_bbr(&self, now: Instant) -> bool {
        self.held.is_some() || now < self.anew_until
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
        self.beginning.add(stream, told.look, told.searches, now);
        let burst = self.burst || bursts(&self.window.seen());
        if self.held.is_none() && choice == Choice::Bbr && burst {
            self.beginning.hold(self.window.min_rtt, now);
        }
        let (least, trips) = if self.held.is_some() { LIMITED } else { FREE };
        if now.saturating_duration_since(self.began) < least.max(self.window.min_rtt * trips) {
            return;
        }
        let seen = self.window.seen();
        self.burst = bursts(&seen);
        self.judge(seen, choice, now);
        (self.began, self.window) = (now, Window::default());
        self.beginning.turn(now);
    }

    fn judge(&mut self, seen: Seen, choice: Choice, now: Instant) {
        let idle = self.held.is_some_and(|held| seen.rate < held.carried * IDLE);
        if !seen.pressed || idle {
            self.held = self.held.map(|held| held.rest(now - self.began));
        }
        if self.held.is_some() && now.saturating_duration_since(self.used) >= KNOWN {
            self.held = None;
        } else if !idle {
            self.used = now;
            if seen.pressed {
                self.parts = self.window.parts();
            }
            self.held = match self.held.map(|held| held.judge(seen, now)) {
                Some(Ok(held)) => Some(held),
                Some(Err(gone)) => {
                    match gone {
                        Gone::Useless => self.doubt_until = now + DOUBT,
                        Gone::Changed => self.anew_until = now + ANEW,
                    }
                    None
                }
                None if now < self.doubt_until => None,
                None => self.learn(seen, choice, now),
            };
        }
    }

    fn learn(&mut self, seen: Seen, choice: Choice, now: Instant) -> Option<Held> {
        // What something else held down says nothing of the path.
        if choice != Choice::Bbr || self.beginning.is_held(now) || !seen.overruns() {
            self.recent.clear();
            return None;
        }
        self.recent.push_back(seen);
        if self.recent.len() < EVIDENCE {
            return None;
        }
        let grows = seen.rate > self.recent[0].rate * GROWS;
        let lost = self.recent.iter().map(Seen::loss).sum::<f64>() / EVIDENCE as f64;
        let mut rates: Vec<_> = self.recent.iter().map(|seen| seen.rate).collect();
        rates.sort_by(|one, other| other.total_cmp(one));
        self.recent.pop_front();
        // Bbr pauses in some window, and in the best one what was held up before may have arrived as well.
        if grows || rates[2] < rates[0] * LIKE {
            return None;
        }
        self.recent.clear();
        Some(Held::new(rates[1], lost, rates[2] >= rates[0] * STEADY, now))
    }
}

#[cfg(test)]
#[path = "ceiling_tests.rs"]
mod tests;
