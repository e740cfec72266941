//! Which stream takes the next frame.
//!
//! Streams run over paths of different delay and rate. A block on the wrong one arrives late, and everything behind it waits; so a frame
//! goes where it will have arrived first, counting what is queued there (ECF, Lim et al. 2017), and rather waits for a better stream than
//! take one on which it would use up the window of the better ones (BLEST, Ferlin et al. 2016). With windows and much to send every stream
//! carries what it can.

use std::time::Duration;

/// Names a stream at one agent. Never reused in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A stream and what is known of its path now, as plain numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// The stream.
    pub id: StreamId,
    /// The path label it uses.
    pub label: u8,
    /// It takes a frame now.
    pub has_room: bool,
    /// Bytes queued on it and not yet sent by its transport.
    pub queued: usize,
    /// Bytes that were ever queued on it.
    pub given: u64,
    /// How many of them, from the first on, its transport is sure that the peer has.
    pub passed: u64,
    /// Round trip time, with what waits in the network now.
    pub rtt: Duration,
    /// Bytes its transport keeps under way in one round trip; 0 = not known.
    pub window: u64,
    /// That window doubles each round trip.
    pub grows: bool,
    /// Nothing of what is under way has been acknowledged for much longer than it should have been.
    pub stalled: bool,
    /// Another stream over the same path has stalled, and nothing has been acknowledged on this one lately either.
    pub doubtful: bool,
    /// How many streams over the same path carry bulk at most: whoever says which are spare goes by it.
    pub carriers: usize,
    /// Others over the same path carry this session better without it.
    pub spare: bool,
    /// Its path loses segments.
    pub lossy: bool,
}

impl StreamView {
    /// How long until `len` more bytes have arrived.
    pub fn arrival(&self, len: usize) -> Duration {
        self.drain((self.queued + len) as u64) + self.rtt / 2
    }

    /// Whether the peer has what was queued up to `until`, an earlier `given`. What is compressed on its way ends before that.
    pub(crate) fn has_passed(&self, until: u64) -> bool {
        self.passed >= until.min(self.given)
    }

    /// Bytes per second.
    pub(crate) fn rate(&self) -> f64 {
        self.window_or_default() / self.rtt.as_secs_f64().max(MIN_RTT)
    }

    fn drain(&self, bytes: u64) -> Duration {
        let windows = bytes as f64 / self.window_or_default();
        let trips = if self.grows { windows.min((1.0 + windows).log2()) } else { windows };
        Duration::from_secs_f64((trips * self.rtt.as_secs_f64().max(MIN_RTT)).min(FAR_AWAY))
    }

    fn window_or_default(&self) -> f64 {
        if self.window == 0 { INITIAL_WINDOW } else { self.window as f64 }
    }
}

/// Ten segments (RFC 6928).
const INITIAL_WINDOW: f64 = 14_480.0;
/// Paths shorter than this count as this long, in seconds: below it the ends' own turns matter more.
const MIN_RTT: f64 = 100e-6;
/// Longest time worth telling apart, in seconds.
const FAR_AWAY: f64 = 3600.0;

/// What is to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Bytes of the frame.
    pub len: usize,
    /// Bytes left to send with it, `None` if there is no end in sight.
    pub left: Option<usize>,
    /// Bytes that may be under way before the peer has acknowledged the first of them.
    pub window: u64,
}

/// Chooses among streams. Called once per frame, so the choice is made as late as it can be.
pub trait Scheduler: Send {
    /// The stream with room for this frame, or `None` to wait although there may be room. The caller asks again when a stream gets room, and
    /// after [`crate::ASK_AGAIN`].
    fn choose(&mut self, streams: &[StreamView], demand: Demand) -> Option<StreamId>;
}

/// Queues are compared in steps of this many bytes, so that acknowledgements and the like do not make a session hop between streams.
const STEP: usize = 16 << 10;
/// Arrivals this much later (in percent, and besides it) are as good as the earliest: measurements are no better.
const SAME_PERCENT: u32 = 125;
const SAME: Duration = Duration::from_millis(2);

/// Where the frame arrives first; among equals the stream with the least queued, then the one used last, so that a short flow stays on one
/// stream and in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct EarliestArrival {
    last: Option<StreamId>,
    /// Where a session that has used none begins: spreads sessions over streams.
    start: u64,
}

impl EarliestArrival {
    /// `seed` spreads sessions over streams: the session's number does.
    pub fn new(seed: u64) -> Self {
        Self { last: None, start: seed }
    }

    fn pick(&mut self, equals: &[&StreamView]) -> Option<StreamId> {
        let least = equals.iter().map(|s| s.queued / STEP).min()?;
        let shortest: Vec<StreamId> =
            equals.iter().filter(|s| s.queued / STEP == least).map(|s| s.id).collect();
        let again = self.last.filter(|last| shortest.contains(last));
        let skip = usize::try_from(self.start % shortest.len() as u64).unwrap_or(0);
        self.last = again.or_else(|| shortest.get(skip).copied());
        self.last
    }
}

impl Scheduler for EarliestArrival {
    fn choose(&mut self, streams: &[StreamView], demand: Demand) -> Option<StreamId> {
        let usable = usable(streams);
        let arrival = |s: &StreamView| s.arrival(demand.len);
        let first = usable.iter().filter(|s| s.has_room).min_by_key(|s| arrival(s))?;
        if waits(&usable, first, demand) {
            return None;
        }
        let best = arrival(first);
        let limit = best * SAME_PERCENT / 100 + SAME;
        let equals: Vec<_> =
            usable.into_iter().filter(|s| s.has_room && s.arrival(demand.len) <= limit).collect();
        self.pick(&equals)
    }
}

/// The streams that are neither stalled nor doubtful nor spare; without any, those that only have not stalled; all, if all have.
pub fn usable(streams: &[StreamView]) -> Vec<&StreamView> {
    least_in_doubt(streams, |s| s.doubtful || s.spare)
}

fn least_in_doubt(streams: &[StreamView], avoided: impl Fn(&StreamView) -> bool) -> Vec<&StreamView> {
    let doubt = |s: &StreamView| u8::from(s.stalled) * 2 + u8::from(avoided(s) && !s.stalled);
    let least = streams.iter().map(doubt).min();
    streams.iter().filter(|s| Some(doubt(s)) == least).collect()
}

/// Bytes that may be expected to come before a frame and wait for it: what a slow stream adds is worth no more. It is a quarter of what they
/// should be at most, since a slow path can be later than it seems by some times: a few lost segments are enough.
const WORTH: f64 = (8 << 20) as f64;

/// Whether a frame had better wait for a stream without room than go by `here`, the best of those with room.
fn waits(usable: &[&StreamView], here: &StreamView, demand: Demand) -> bool {
    let best = here.arrival(demand.len);
    let faster = usable.iter().filter(|s| s.arrival(demand.len) * SAME_PERCENT / 100 + SAME < best);
    let Some(first) = faster.clone().map(|s| s.arrival(demand.len)).min() else { return false };
    let rate: f64 = faster.map(|s| s.rate()).sum();
    // What the faster streams would carry until this frame is acknowledged has to fit the window: until then it does not move.
    let blocked = rate * (best + here.rtt / 2).as_secs_f64() > demand.window as f64;
    let held_up = rate * (best - first).as_secs_f64() > WORTH;
    let through = |left: usize| first.as_secs_f64() + left as f64 / rate < best.as_secs_f64();
    blocked || held_up || demand.left.is_some_and(through)
}

/// The stream with room that small frames arrive first on; they cost the path nothing, so spare ones will do.
pub(crate) fn quickest(streams: &[StreamView]) -> Option<StreamId> {
    let usable = least_in_doubt(streams, |s| s.doubtful).into_iter().filter(|s| s.has_room);
    usable.min_by_key(|s| (s.arrival(0), s.queued)).map(|s| s.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BLOCK: usize = 64 << 10;

    /// A stream of 10 MB/s.
    fn view(id: u64, rtt_ms: u64, queued: usize) -> StreamView {
        let rtt = Duration::from_millis(rtt_ms);
        let window = 10_000 * rtt_ms;
        StreamView {
            id: StreamId(id),
            label: 0,
            has_room: true,
            queued,
            given: queued as u64,
            passed: 0,
            rtt,
            window,
            grows: false,
            stalled: false,
            doubtful: false,
            carriers: usize::MAX,
            spare: false,
            lossy: false,
        }
    }

    fn full(view: StreamView) -> StreamView {
        StreamView { has_room: false, queued: BLOCK, ..view }
    }

    const BULK: Demand = Demand { len: BLOCK, left: None, window: 64 << 20 };
    const SMALL: Demand = Demand { len: 100, left: Some(100), window: 256 << 10 };

    #[test]
    fn among_equals_the_least_queued_then_the_last_one() {
        let (mut scheduler, few) = (EarliestArrival::new(7), 96);
        let views =
            |queued: [usize; 3]| -> Vec<_> { (0..3).map(|i| view(i, 50, queued[i as usize])).collect() };
        assert_eq!(scheduler.choose(&views([0, 0, 0]), SMALL), Some(StreamId(1)));
        assert_eq!(scheduler.choose(&views([0, few, 0]), SMALL), Some(StreamId(1)), "stays");
        assert_eq!(scheduler.choose(&views([BLOCK, 0, BLOCK]), SMALL), Some(StreamId(1)));
        assert_eq!(scheduler.choose(&views([few, BLOCK, 0]), SMALL), Some(StreamId(2)), "7 % 2 skips one");
        assert_eq!(scheduler.choose(&[], SMALL), None);
    }

    #[test]
    fn the_shorter_path_first_and_the_longer_when_there_is_much() {
        let mut scheduler = EarliestArrival::new(0);
        assert_eq!(scheduler.choose(&[view(0, 160, 0), view(1, 50, 0)], BULK), Some(StreamId(1)));
        let busy = [view(0, 160, 0), full(view(1, 50, 0))];
        assert_eq!(scheduler.choose(&busy, BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&busy, SMALL), None, "it is through sooner on the shorter one");
        let tight = Demand { window: 256 << 10, ..BULK };
        assert_eq!(scheduler.choose(&busy, tight), None, "it would block 500 kB");
    }

    #[test]
    fn a_slow_path_takes_nothing_that_much_would_wait_for() {
        let mut scheduler = EarliestArrival::new(0);
        let slow = StreamView { window: 25_000, ..view(0, 100, 0) };
        let beside = |rate: u64| [slow, full(StreamView { window: rate / 20, ..view(1, 50, 0) })];
        // It takes 0.31 s there.
        assert_eq!(scheduler.choose(&beside(20_000_000), BULK), Some(StreamId(0)), "for 5 MB");
        assert_eq!(scheduler.choose(&beside(40_000_000), BULK), None, "10 MB");
    }

    #[test]
    fn stalled_streams_only_when_all_are() {
        let mut scheduler = EarliestArrival::new(0);
        let stalled = |view: StreamView| StreamView { stalled: true, ..view };
        let (good, bad) = (view(0, 160, 0), stalled(view(1, 50, 0)));
        assert_eq!(scheduler.choose(&[good, bad], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[full(good), bad], BULK), None);
        assert_eq!(scheduler.choose(&[stalled(full(good)), bad], BULK), Some(StreamId(1)));
        let doubtful = StreamView { doubtful: true, ..view(2, 10, 0) };
        assert_eq!(scheduler.choose(&[good, doubtful, bad], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[doubtful, bad], BULK), Some(StreamId(2)));
        assert_eq!((quickest(&[good, bad]), quickest(&[bad])), (Some(StreamId(0)), Some(StreamId(1))));
    }

    #[test]
    fn spare_streams_only_when_the_others_stall() {
        let mut scheduler = EarliestArrival::new(0);
        let (good, spare) = (view(0, 160, 0), StreamView { spare: true, ..view(1, 50, 0) });
        assert_eq!(scheduler.choose(&[good, spare], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[full(good), spare], BULK), None);
        assert_eq!(quickest(&[full(good), spare]), Some(StreamId(1)), "an acknowledgement takes it");
        assert_eq!(scheduler.choose(&[StreamView { stalled: true, ..good }, spare], BULK), Some(StreamId(1)));
    }

    #[test]
    fn a_window_that_grows_is_not_as_slow_as_it_looks() {
        let young = StreamView { window: 15_000, grows: true, ..view(0, 100, 0) };
        assert!(young.arrival(15 * 15_000) < 460 * MS, "four round trips and a half: 1 + 2 + 4 + 8 windows");
        assert!(StreamView { grows: false, ..young }.arrival(15 * 15_000) > 1500 * MS);
    }
}
