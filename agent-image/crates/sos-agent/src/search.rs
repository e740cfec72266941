//! Finds out the rate of a path while the first transfer over it begins.
//!
//! Slow start learns that a path is full from its queue, a round trip too late: by then windows have doubled once more, the queue runs
//! over, and whoever begins at the same time has taken it for the end of his own start. But what slow start sends in a burst leaves the
//! slowest link at that link's own rate. So the streams begin as they are, the first burst that is long enough to be measured tells about
//! how fast the path is, and from then on all streams together are paced:
//!
//! * at three quarters of it at first, until what arrives follows;
//! * a little more each round trip, until there is the beginning of a queue at every stream. What arrives while it lasts is the rate.
//!
//! Where nothing can be learned, since a host is slow, a transfer is short or looks come late, the search ends without a rate.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::share::Look;

/// A burst tells the path's rate from so long on: eight looks, and longer than a busy machine holds something up.
const BURST: Duration = Duration::from_millis(8);
/// It is so many times as long as the time between any two looks at one stream in it.
const BURST_LOOKS: u32 = 4;
/// And from so many bytes on.
const BURST_BYTES: u64 = 96 << 10;
/// A burst ends when nothing arrives for this part of a round trip, and so long at least.
const GAP_PART: u32 = 8;
const GAP_LEAST: Duration = Duration::from_millis(3);
/// A look that comes later than this does not tell when what it tells of arrived.
const LATE: Duration = Duration::from_millis(20);
/// Time between two looks at a stream while bursts are watched, and later.
const LOOK_BURST: Duration = Duration::from_millis(1);
const LOOK_PACED: Duration = Duration::from_millis(4);
/// Part of what a burst said that is taken at first: it knows nothing of others on the path, and is a few looks long.
const FIRST: f64 = 0.8;
/// What arrives follows what is sent when it is this part of it. So a ninth more than the path carries is the most that is sent.
const FOLLOWS: f64 = 0.9;
/// Growth in a round trip: what is sent until its queue is seen makes a queue of less than a twelfth of a round trip, which others take for
/// the end of their start only where it lasts (an eighth, 4 to 16 ms).
const GROWTH: f64 = 1.06;
/// And where the path turns out to be faster than the burst said by so much.
const WRONG: f64 = 1.1;
const GROWTH_WRONG: f64 = 1.2;
/// While a queue that has begun is watched, less is sent.
const DRAINS: f64 = 0.8;
/// A queue begins when it adds so much to a round trip: the half of what ends the start of others, and more than a busy machine does.
const QUEUE_PART: u32 = 16;
const QUEUE_LEAST: Duration = Duration::from_millis(3);
const QUEUE_MOST: Duration = Duration::from_millis(8);
/// How long it has to last: part of a round trip, and at least.
const LASTS_PART: u32 = 4;
const LASTS_LEAST: Duration = Duration::from_millis(12);
/// Bursts that were under way when pacing began are in the network for so many halves of a round trip.
const SETTLE_HALVES: u32 = 3;
/// The search ends without a rate after so long.
const MOST_RTTS: u32 = 24;
const MOST: Duration = Duration::from_millis(1_000);
/// And when what arrives does not follow for so many round trips, or nothing does for so many.
const WAIT_RTTS: u32 = 8;
const SILENT_RTTS: u32 = 3;
/// Marks that are kept of what has arrived, and the part of a round trip between two.
const MARKS: usize = 64;
const MARK_PART: u32 = 16;

/// How a search ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Found {
    /// Bytes a second.
    Rate(f64),
    /// It knows no more than before.
    Nothing,
}

/// Bytes that arrive without a pause.
#[derive(Debug, Clone, Copy)]
struct Burst {
    began: Instant,
    last: Instant,
    /// The longest time between two looks at one stream.
    widest: Duration,
    /// What had arrived before.
    before: u64,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Streams send as they like.
    Watching,
    /// They are paced: since `began`, when a burst `said` a rate, at `rate`, which grew last at `grown` and was last followed at `followed`.
    Paced { began: Instant, said: f64, rate: f64, grown: Instant, followed: Instant },
}

/// One search.
#[derive(Debug, Clone)]
pub struct Search {
    began: Instant,
    phase: Phase,
    /// The lowest round trip of any stream.
    rtt: Duration,
    /// Bytes that have arrived.
    total: u64,
    burst: Option<Burst>,
    moved: Instant,
    /// What had arrived when, from time to time.
    marks: VecDeque<(Instant, u64)>,
    /// Streams, and whether their last look that knew showed a queue.
    queues: BTreeMap<u64, bool>,
    /// Since when all of them do, and what each had since then, in how long.
    full: Option<(Instant, BTreeMap<u64, (u64, Duration)>)>,
}

impl Search {
    /// A transfer begins.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            phase: Phase::Watching,
            rtt: Duration::MAX,
            total: 0,
            burst: None,
            moved: now,
            marks: VecDeque::new(),
            queues: BTreeMap::new(),
            full: None,
        }
    }

    /// Bytes a second that all streams together may send; None = as fast as congestion control lets them.
    #[must_use]
    pub fn limit(&self) -> Option<f64> {
        match self.phase {
            Phase::Watching => None,
            Phase::Paced { rate, .. } if self.full.is_some() => Some(rate * DRAINS),
            Phase::Paced { rate, .. } => Some(rate),
        }
    }

    /// Time until a stream should be looked at again.
    #[must_use]
    pub fn pause(&self) -> Duration {
        match self.phase {
            Phase::Watching => LOOK_BURST,
            Phase::Paced { .. } => LOOK_PACED,
        }
    }

    /// When it began.
    #[must_use]
    pub fn began(&self) -> Instant {
        self.began
    }

    /// A stream has ended.
    pub fn forget(&mut self, stream: u64) {
        self.queues.remove(&stream);
    }

    /// Takes what a stream did. Says so when the search has ended.
    pub fn observe(&mut self, stream: u64, look: Look, now: Instant) -> Option<Found> {
        self.rtt = self.rtt.min(look.min_rtt);
        self.note_burst(look, now);
        self.note_queue(stream, look, now);
        self.mark(now);
        let age = now.saturating_duration_since(self.began);
        let silent = now.saturating_duration_since(self.moved) >= self.rtt * SILENT_RTTS + LATE;
        if silent || age >= MOST.max(self.rtt * MOST_RTTS) {
            return Some(Found::Nothing);
        }
        match self.phase {
            Phase::Watching => {
                self.begin_pacing(now);
                None
            }
            Phase::Paced { .. } => self.pace(now),
        }
    }

    fn note_burst(&mut self, look: Look, now: Instant) {
        let before = self.total;
        self.total += look.bytes;
        if look.bytes == 0 {
            return;
        }
        self.moved = now;
        let gap = (self.rtt / GAP_PART).max(GAP_LEAST);
        match &mut self.burst {
            _ if look.elapsed > LATE => self.burst = None,
            Some(burst) if now.saturating_duration_since(burst.last) <= gap => {
                (burst.last, burst.widest) = (now, burst.widest.max(look.elapsed));
            }
            // It began between the two looks.
            burst => {
                let (began, widest) = (now - look.elapsed / 2, look.elapsed);
                *burst = Some(Burst { began, last: now, widest, before });
            }
        }
    }

    /// Bytes a second of the burst that is arriving, if it tells.
    fn burst_rate(&self) -> Option<f64> {
        let burst = self.burst?;
        let (bytes, time) = (self.total - burst.before, burst.last.saturating_duration_since(burst.began));
        (time >= BURST.max(burst.widest * BURST_LOOKS) && bytes >= BURST_BYTES)
            .then(|| bytes as f64 / time.as_secs_f64())
    }

    fn note_queue(&mut self, stream: u64, look: Look, now: Instant) {
        if look.bytes > 0 {
            let least = (self.rtt / QUEUE_PART).clamp(QUEUE_LEAST, QUEUE_MOST);
            self.queues.insert(stream, look.rtt.saturating_sub(look.min_rtt) >= least);
        }
        let pause = now.saturating_duration_since(self.moved) > (self.rtt / GAP_PART).max(GAP_LEAST);
        if pause || self.queues.is_empty() || !self.queues.values().all(|queued| *queued) {
            self.full = None;
        } else if let Some((_, moved)) = &mut self.full {
            let (bytes, time) = moved.entry(stream).or_default();
            (*bytes, *time) = (*bytes + look.bytes, *time + look.elapsed);
        } else {
            self.full = Some((now, BTreeMap::new()));
        }
    }

    fn mark(&mut self, now: Instant) {
        let due = |at: &(Instant, u64)| now.saturating_duration_since(at.0) >= self.rtt / MARK_PART;
        if self.marks.back().is_none_or(due) {
            self.marks.push_back((now, self.total));
        }
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
    }

    /// Bytes a second that arrived in the last round trip.
    fn arriving(&self, now: Instant) -> f64 {
        let since = |at: &&(Instant, u64)| now.saturating_duration_since(at.0) >= self.rtt;
        match self.marks.iter().rev().find(since).or(self.marks.front()) {
            Some((at, total)) => {
                let time = now.saturating_duration_since(*at).max(self.rtt / 2);
                (self.total - total) as f64 / time.as_secs_f64().max(1e-3)
            }
            None => 0.0,
        }
    }

    fn begin_pacing(&mut self, now: Instant) {
        if let Some(rate) = self.burst_rate() {
            self.phase =
                Phase::Paced { began: now, said: rate, rate: rate * FIRST, grown: now, followed: now };
            self.full = None;
        }
    }

    fn pace(&mut self, now: Instant) -> Option<Found> {
        let Phase::Paced { began, said, rate, grown, followed } = self.phase else { return None };
        let since = now.saturating_duration_since(began);
        if since < self.rtt * SETTLE_HALVES / 2 {
            // The burst goes on, and says more exactly what it says.
            let more = self.burst.filter(|burst| burst.began < began).and_then(|_| self.burst_rate());
            let said = more.map_or(said, |more| said.max(more));
            self.phase = Phase::Paced { began, said, rate: said * FIRST, grown: now, followed: now };
            self.full = None;
            return None;
        }
        if let Some((at, moved)) = &self.full {
            let enough = now.saturating_duration_since(*at) >= (self.rtt / LASTS_PART).max(LASTS_LEAST);
            let rate = |(bytes, time): &(u64, Duration)| *bytes as f64 / time.as_secs_f64().max(1e-3);
            return enough.then(|| Found::Rate(moved.values().map(rate).sum()));
        }
        let follows = self.arriving(now) >= rate * FOLLOWS;
        let trips = now.saturating_duration_since(grown).as_secs_f64() / self.rtt.as_secs_f64().max(1e-3);
        let growth: f64 = if rate < said * WRONG { GROWTH } else { GROWTH_WRONG };
        let next = if follows { rate * growth.powf(trips.min(1.0)) } else { rate };
        let followed = if follows { now } else { followed };
        self.phase = Phase::Paced { began, said, rate: next, grown: now, followed };
        let waited = now.saturating_duration_since(followed) >= self.rtt * WAIT_RTTS;
        waited.then_some(Found::Nothing)
    }
}
