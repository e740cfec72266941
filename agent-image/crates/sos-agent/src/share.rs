//! How much of a path the streams to one peer take when others may want some of it.
//!
//! Congestion control shares a path among connections that are as large as each other. One that is still small stays small for many
//! seconds where streams that know the path fill its queue: cubic comes back from a loss in seconds, not in round trips. So streams
//! leave a fifth of the path, as much as another one beside four streams gets,
//!
//! * at the beginning of a transfer on a path whose rate is known: whoever begins at the same time has room to find its own rate, and
//!   the queue that it makes doing so tells of it;
//! * whenever there is a queue although they get less than the path has carried for them: somebody else has the rest;
//!
//! and until there has been no queue for some seconds. The rate is known from when the path was full, or from the search with which the
//! first transfer begins (`search`); a path that never has a queue of some length is never left a part of. All streams of one label to a peer count together, since they share the path.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::search::{Found, Search};

/// Part of the path's rate that is taken where others may want some.
const TAKEN: f64 = 0.8;
/// Less of the rate than this, and somebody else has the rest. Rates of a full path that nobody else uses differ by half as much.
const ALL: f64 = 0.98;
/// Windows in a row that have to say so.
const EVIDENCE: u32 = 3;
/// How long rates are measured, at least; and how many round trips.
const WINDOW: Duration = Duration::from_millis(500);
const WINDOW_RTTS: u32 = 3;
/// A queue is seen when it adds so much to a round trip: a quarter of it, but more than a busy machine does.
const QUEUE_PART: u32 = 4;
const QUEUE_LEAST: Duration = Duration::from_millis(10);
/// And a rate is that of the path only when so many bytes of the streams were in that queue: a few segments that were held up somewhere
/// say nothing, and a rate that is taken for too low would hold everything down.
const QUEUE_BYTES: f64 = 131_072.0;
/// A stream that moved less than this between two looks knows nothing of the queue: its round trip is an old one.
const TELLING: u64 = 4096;
/// How long a beginning takes: others have found their rate after eight round trips of slow start.
const START_RTTS: u32 = 8;
const START_LEAST: Duration = Duration::from_millis(700);
/// In a first transfer the rate is looked for first: somebody else's start takes a few round trips more than that, and at least so many
/// more are left.
const SEARCH_RTTS: u32 = 12;
const SEARCH_LEFT_RTTS: u32 = 3;
/// Bytes of a stream under way, or arrived since the last look, from which a first transfer may be worth a search.
const SEARCH_BYTES: u64 = 65_536;
/// After a search that found nothing there is none for so long.
const SEARCH_PAUSE: Duration = Duration::from_secs(2);
/// After a search the windows of the streams are larger than path and queue together: nothing has been lost yet. Until they fit, and for
/// so long at most, the streams take a little more than the rate, so that the queue fills slowly and little is lost when it is full.
const LIFTED: f64 = 1.04;
const LIFT_MOST: Duration = Duration::from_secs(30);
/// Windows fit when they are so many times what is under way without a queue.
const FITS: f64 = 1.6;
/// And if no queue comes the rate was known too low: so much more with each window of time.
const LIFT_GROWTH: f64 = 1.1;
/// Looks in a row at one stream that have to show a queue in a beginning.
const START_LOOKS: u32 = 2;
/// A path that carries less than this part of its rate is idle.
const IDLE: f64 = 0.02;
/// And one of which no rate is known when it carries less than this, bytes a second: pings, and what else agents say to each other.
const IDLE_UNKNOWN: f64 = 100_000.0;
/// Without a queue for so long nobody else wants the rest.
const HOLD: Duration = Duration::from_secs(5);
/// And after so long it is looked at anew, whether the path may carry more than is known.
const GIVE_MOST: Duration = Duration::from_secs(30);
/// A rate that was seen longer ago is forgotten when the path is idle.
const KNOWN: Duration = Duration::from_secs(600);
/// After evidence that turned out to be none, no more is taken for so long; doubled each time in a row.
const DOUBT_LEAST: Duration = Duration::from_secs(10);
const DOUBT_MOST: Duration = Duration::from_secs(160);

/// What one stream did since it was last looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Bytes that have arrived.
    pub bytes: u64,
    /// In how long.
    pub elapsed: Duration,
    /// Smoothed round trip now.
    pub rtt: Duration,
    /// The lowest one seen.
    pub min_rtt: Duration,
    /// Bytes sent that have not arrived.
    pub under_way: u64,
    /// Bytes that congestion control lets it have under way; all bits set while that doubles each round trip.
    pub window: u64,
}

impl Look {
    fn queue(&self) -> Duration {
        self.rtt.saturating_sub(self.min_rtt)
    }

    fn is_queued(&self) -> bool {
        self.tells() && self.queue() >= (self.min_rtt / QUEUE_PART).max(QUEUE_LEAST)
    }

    /// It knows of the queue as it is.
    fn tells(&self) -> bool {
        self.bytes >= TELLING
    }

    /// Bytes a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-3)
    }
}

/// What all streams did in some time.
#[derive(Debug, Clone, Default)]
struct Window {
    streams: BTreeMap<u64, (u64, Duration)>,
    rtt: Duration,
    /// The shortest queue.
    queue: Duration,
    /// Some stream moved enough to know of the queue; of its looks every one, and some one, has seen one.
    told: bool,
    all_queued: bool,
    some_queued: bool,
    /// What streams that told may have under way, each.
    windows: BTreeMap<u64, u64>,
}

impl Window {
    fn new() -> Self {
        Self { all_queued: true, queue: Duration::MAX, ..Self::default() }
    }

    fn add(&mut self, stream: u64, look: Look) {
        let (bytes, elapsed) = self.streams.entry(stream).or_default();
        *bytes += look.bytes;
        *elapsed += look.elapsed;
        self.rtt = self.rtt.max(look.min_rtt);
        if !look.tells() {
            return;
        }
        self.told = true;
        self.windows.insert(stream, look.window);
        self.queue = self.queue.min(look.queue());
        self.all_queued &= look.is_queued();
        self.some_queued |= look.is_queued();
    }

    /// Bytes a second. Looks at different streams are not at the same moments: each has its own time.
    fn rate(&self) -> f64 {
        self.streams.values().map(|(bytes, time)| *bytes as f64 / time.as_secs_f64().max(1e-3)).sum()
    }

    /// The streams kept the path full: what of theirs is in a queue is their rate times its delay.
    fn is_full(&self) -> bool {
        self.told && self.all_queued && self.rate() * self.queue.as_secs_f64() >= QUEUE_BYTES
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing much is sent.
    Idle,
    /// A transfer has begun.
    Starting { until: Instant },
    /// All of the path is taken.
    Open { evidence: u32 },
    /// Some of it is left, since `began`. `proved`: a queue came after the one that was there at first had gone.
    Giving { began: Instant, queue_at: Instant, gone: bool, proved: bool },
}

/// The share of one path.
#[derive(Debug, Clone)]
pub struct Sharer {
    state: State,
    /// Bytes a second that the path has carried for its streams, and when it last did.
    rate: Option<(f64, Instant)>,
    began: Instant,
    window: Window,
    queued_looks: BTreeMap<u64, u32>,
    doubt: Duration,
    doubt_until: Instant,
    search: Option<Search>,
    search_from: Instant,
    /// So many times the rate is taken of an open path, since when.
    lifted: Option<(f64, Instant)>,
}

impl Sharer {
    /// Nothing is known of the path yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            state: State::Idle,
            rate: None,
            began: now,
            window: Window::new(),
            queued_looks: BTreeMap::new(),
            doubt: DOUBT_LEAST,
            doubt_until: now,
            search: None,
            search_from: now,
            lifted: None,
        }
    }

    /// Bytes a second that all streams together may send; None = as fast as congestion control lets them.
    #[must_use]
    pub fn limit(&self) -> Option<f64> {
        if let Some(search) = &self.search {
            return search.limit();
        }
        let (rate, _) = self.rate?;
        match self.state {
            State::Open { .. } => self.lifted.map(|(times, _)| rate * times),
            _ => Some(rate * TAKEN),
        }
    }

    /// Time until a stream should be looked at again, if it is not the usual one.
    #[must_use]
    pub fn pause(&self) -> Option<Duration> {
        self.search.as_ref().map(Search::pause)
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u64) {
        self.queued_looks.remove(&stream);
        if let Some(search) = &mut self.search {
            search.forget(stream);
        }
        self.window.streams.remove(&stream);
        self.window.windows.remove(&stream);
    }

    /// Takes what a stream did.
    pub fn observe(&mut self, stream: u64, look: Look, now: Instant) {
        if self.is_searching(stream, look, now) {
            return;
        }
        let run = self.queued_looks.entry(stream).or_default();
        *run = if look.is_queued() { *run + 1 } else { 0 };
        let queued = *run >= START_LOOKS;
        self.window.add(stream, look);
        match self.state {
            State::Idle if self.begins(look) => {
                let length = (look.min_rtt * START_RTTS).max(START_LEAST);
                self.enter(State::Starting { until: now + length }, now);
            }
            State::Starting { .. } if queued && self.rate.is_some() => self.give(now),
            State::Starting { until } if now >= until => self.enter(State::Open { evidence: 0 }, now),
            _ => {}
        }
        if now.saturating_duration_since(self.began) >= WINDOW.max(self.window.rtt * WINDOW_RTTS) {
            self.judge(now);
            (self.began, self.window) = (now, Window::new());
        }
    }

    /// A transfer has begun. What agents say to each other is none.
    fn begins(&self, look: Look) -> bool {
        match self.rate {
            Some((rate, _)) => look.rate() >= rate * IDLE,
            None => look.bytes.max(look.under_way) >= SEARCH_BYTES,
        }
    }

    /// The rate is not known, and is looked for.
    fn is_searching(&mut self, stream: u64, look: Look, now: Instant) -> bool {
        let may = self.search.is_none() && self.rate.is_none() && self.state == State::Idle;
        if may && now >= self.search_from && self.begins(look) {
            self.search = Some(Search::new(now));
            self.enter(State::Idle, now);
            return true;
        }
        let Some(search) = &mut self.search else { return false };
        let began = search.began();
        if let Some(found) = search.observe(stream, look, now) {
            self.search = None;
            self.take(found, (began, look.min_rtt), now);
        }
        true
    }

    /// Goes on with what a search has found.
    fn take(&mut self, found: Found, (began, rtt): (Instant, Duration), now: Instant) {
        match found {
            Found::Rate(rate) => {
                let until = began + (rtt * SEARCH_RTTS).max(START_LEAST);
                let until = until.max(now + rtt * SEARCH_LEFT_RTTS);
                (self.rate, self.lifted) = (Some((rate, now)), Some((LIFTED, until)));
                self.enter(State::Starting { until }, now);
            }
            Found::Nothing => {
                self.search_from = now + SEARCH_PAUSE;
                self.enter(State::Open { evidence: 0 }, now);
            }
        }
    }

    /// What is more than idle, bytes a second.
    fn least(&self) -> f64 {
        self.rate.map_or(IDLE_UNKNOWN, |(rate, _)| rate * IDLE)
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        (self.began, self.window) = (now, Window::new());
        self.queued_looks.values_mut().for_each(|run| *run = 0);
    }

    fn give(&mut self, now: Instant) {
        self.enter(State::Giving { began: now, queue_at: now, gone: false, proved: false }, now);
    }

    fn judge(&mut self, now: Instant) {
        let rate = self.window.rate();
        if rate < self.least() {
            self.rest(now);
            return;
        }
        if self.window.is_full() && self.rate.is_none_or(|(known, _)| rate >= known * ALL) {
            self.rate = Some((self.rate.map_or(rate, |(known, _)| known.max(rate)), now));
        }
        self.lift(now);
        match self.state {
            State::Idle | State::Starting { .. } => {}
            State::Open { evidence } => self.weigh(evidence, rate, now),
            State::Giving { began, .. } if now.saturating_duration_since(began) >= GIVE_MOST => {
                self.enter(State::Open { evidence: 0 }, now);
            }
            State::Giving { began, queue_at, gone, proved } => {
                self.hold((began, queue_at, gone, proved), now);
            }
        }
    }

    /// How much of an open path is taken after a search.
    fn lift(&mut self, now: Instant) {
        let (Some((times, since)), Some((rate, _)), State::Open { .. }) =
            (self.lifted, self.rate, self.state)
        else {
            return;
        };
        let windows = self.window.windows.values().fold(0_u64, |sum, window| sum.saturating_add(*window));
        let fit = self.window.told && windows as f64 <= rate * self.window.rtt.as_secs_f64() * FITS;
        let times = match (self.window.is_full(), self.window.some_queued) {
            (true, _) => LIFTED,
            (_, true) => times,
            _ => times * LIFT_GROWTH,
        };
        let over = fit || now.saturating_duration_since(since) >= LIFT_MOST;
        self.lifted = (!over).then_some((times, since));
    }

    /// Nothing much was sent.
    fn rest(&mut self, now: Instant) {
        if self.rate.is_some_and(|(_, seen)| now.saturating_duration_since(seen) >= KNOWN) {
            self.rate = None;
        }
        self.state = State::Idle;
    }

    /// Whether somebody else has a part of the path.
    fn weigh(&mut self, evidence: u32, rate: f64, now: Instant) {
        let less = self.window.is_full() && self.rate.is_some_and(|(known, _)| rate < known * ALL);
        let evidence = if less && now >= self.doubt_until { evidence + 1 } else { 0 };
        self.state = State::Open { evidence };
        if evidence >= EVIDENCE {
            self.give(now);
        }
    }

    /// Whether somebody else still wants it.
    fn hold(&mut self, (began, queue_at, gone, proved): (Instant, Instant, bool, bool), now: Instant) {
        if self.window.some_queued {
            self.state = State::Giving { began, queue_at: now, gone, proved: proved || gone };
        } else if now.saturating_duration_since(queue_at) < HOLD {
            self.state = State::Giving { began, queue_at, gone: true, proved };
        } else {
            self.doubt = if proved { DOUBT_LEAST } else { (self.doubt * 2).min(DOUBT_MOST) };
            self.doubt_until = now + self.doubt;
            self.enter(State::Open { evidence: 0 }, now);
        }
    }
}

#[cfg(test)]
#[path = "share_tests.rs"]
mod tests;
