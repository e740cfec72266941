//! Scheduler: chooses the stream of the next frame.
//!
//! Streams use paths of different delay and rate. A block on the wrong stream arrives late, and all later data waits. So a frame uses the
//! stream on which it arrives first, including its time in the stream's queue (ECF, Lim et al. 2017). It waits for a faster stream if the
//! faster streams would exhaust the window before the frame could be acknowledged on a slow stream (BLEST, Ferlin et al. 2016). With large
//! windows and a backlog, every stream is used at its full rate.

use std::time::Duration;

/// Id of a stream at one agent. Never reused in one boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Snapshot of a stream and its path, as numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamView {
    /// The stream.
    pub id: StreamId,
    /// Path label of the stream.
    pub label: u8,
    /// The stream accepts a frame now.
    pub has_room: bool,
    /// Bytes queued on the stream and not yet sent by its transport.
    pub queued: usize,
    /// Bytes queued on the stream so far, in total.
    pub queued_total: u64,
    /// Number of leading bytes of `queued_total` that the transport knows to be acknowledged.
    pub acked: u64,
    /// Round trip time, including the queue in the network.
    pub rtt: Duration,
    /// Bytes that the transport keeps in flight in one round trip; 0 = unknown.
    pub window: u64,
    /// Slow start: the window doubles each round trip.
    pub slow_start: bool,
    /// Data in flight has remained unacknowledged for much longer than expected.
    pub stalled: bool,
    /// Another stream over the same path has stalled, and this stream has no recent acknowledgement either.
    pub suspect: bool,
    /// Maximum number of streams over the same path that carry bulk; applied by stream reservation.
    pub parallelism: usize,
    /// Reserved for other sessions: this session uses the remaining streams of the path.
    pub reserved: bool,
    /// The stream's path loses segments.
    pub lossy: bool,
}

impl StreamView {
    /// Time until `len` more bytes have arrived.
    pub fn arrival(&self, len: usize) -> Duration {
        self.drain((self.queued + len) as u64) + self.rtt / 2
    }

    /// True if the peer has received the bytes queued up to `until`, an earlier value of `queued_total`. `until` counts bytes before
    /// compression, so it may exceed the current total.
    pub(crate) fn has_passed(&self, until: u64) -> bool {
        self.acked >= until.min(self.queued_total)
    }

    /// Bytes per second.
    pub(crate) fn rate(&self) -> f64 {
        self.window_or_default() / self.rtt.as_secs_f64().max(MIN_RTT)
    }

    fn drain(&self, bytes: u64) -> Duration {
        let windows = bytes as f64 / self.window_or_default();
        let trips = if self.slow_start { windows.min((1.0 + windows).log2()) } else { windows };
        Duration::from_secs_f64((trips * self.rtt.as_secs_f64().max(MIN_RTT)).min(FAR_AWAY))
    }

    fn window_or_default(&self) -> f64 {
        if self.window == 0 { INITIAL_WINDOW } else { self.window as f64 }
    }

    /// Idle stream with room on path `label`, without losses: the base of the views in tests.
    #[cfg(test)]
    pub(crate) fn idle(id: u64, label: u8, rtt: Duration) -> Self {
        Self {
            id: StreamId(id),
            label,
            has_room: true,
            queued: 0,
            queued_total: 0,
            acked: 0,
            rtt,
            window: 1 << 20,
            slow_start: false,
            stalled: false,
            suspect: false,
            parallelism: usize::MAX,
            reserved: false,
            lossy: false,
        }
    }
}

/// Ten segments (RFC 6928).
const INITIAL_WINDOW: f64 = 14_480.0;
/// Lower bound of round trips, in seconds: below this, scheduling delay matters more.
const MIN_RTT: f64 = 100e-6;
/// Upper bound of expected times until arrival, in seconds.
const FAR_AWAY: f64 = 3600.0;

/// A frame to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// Bytes of the frame.
    pub len: usize,
    /// Bytes left to send, including the frame; `None` if the end is unknown.
    pub left: Option<usize>,
    /// Bytes that may be in flight before the peer has acknowledged the first of them.
    pub window: u64,
}

/// Choice among streams. Called once per frame, so that the choice is made as late as possible.
pub trait Scheduler: Send {
    /// Returns the stream for this frame, among the streams with buffer space, or `None` to wait for a better stream. The caller retries
    /// when a stream gets buffer space, and after [`crate::ASK_AGAIN`].
    fn choose(&mut self, streams: &[StreamView], demand: Demand) -> Option<StreamId>;
}

/// Granularity at which queues are compared, so that small frames do not make a session hop between streams.
const STEP: usize = 16 << 10;
/// Arrivals within `SAME_PERCENT` percent of the earliest arrival, plus `SAME`, count as equal to the earliest: measurements are no more
/// accurate.
const SAME_PERCENT: u32 = 125;
const SAME: Duration = Duration::from_millis(2);

/// Earliest arrival first. Among equals, the stream with the shortest queue comes first, then the last used stream, so that a short flow
/// stays on one stream and in order.
#[derive(Debug, Clone, Copy, Default)]
pub struct EarliestArrival {
    last: Option<StreamId>,
    /// Selects the first stream of a session, to spread sessions over streams.
    start: u64,
}

impl EarliestArrival {
    /// `seed`, the session's number, spreads sessions over streams.
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

/// Streams without a stall, suspicion or reservation. If there are none, the streams that have not stalled; if all have stalled, all
/// streams.
pub fn usable(streams: &[StreamView]) -> Vec<&StreamView> {
    least_in_doubt(streams, |s| s.suspect || s.reserved)
}

fn least_in_doubt(streams: &[StreamView], avoided: impl Fn(&StreamView) -> bool) -> Vec<&StreamView> {
    let doubt = |s: &StreamView| u8::from(s.stalled) * 2 + u8::from(avoided(s) && !s.stalled);
    let least = streams.iter().map(doubt).min();
    streams.iter().filter(|s| Some(doubt(s)) == least).collect()
}

/// A frame is not sent on a slow stream if more than this number of later bytes would arrive before it, over faster streams, and wait for
/// it at the receiver. This bounds the delay that a slow stream may add. Four times this number would be acceptable, but a few lost
/// segments delay a slow path by a multiple of its expected delay.
const WORTH: f64 = (8 << 20) as f64;

/// True if a frame should wait for a stream without buffer space instead of using `here`, the best stream with buffer space.
fn waits(usable: &[&StreamView], here: &StreamView, demand: Demand) -> bool {
    let best = here.arrival(demand.len);
    let faster = usable.iter().filter(|s| s.arrival(demand.len) * SAME_PERCENT / 100 + SAME < best);
    let Some(first) = faster.clone().map(|s| s.arrival(demand.len)).min() else { return false };
    let rate: f64 = faster.map(|s| s.rate()).sum();
    // The bytes that the faster streams carry until this frame is acknowledged must fit the window, which does not move until then.
    let blocked = rate * (best + here.rtt / 2).as_secs_f64() > demand.window as f64;
    let held_up = rate * (best - first).as_secs_f64() > WORTH;
    let through = |left: usize| first.as_secs_f64() + left as f64 / rate < best.as_secs_f64();
    blocked || held_up || demand.left.is_some_and(through)
}

/// Stream on which small frames arrive first. Small frames cost the path nothing, so reserved streams are included.
pub(crate) fn quickest(streams: &[StreamView]) -> Option<StreamId> {
    let usable = least_in_doubt(streams, |s| s.suspect).into_iter().filter(|s| s.has_room);
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
        StreamView { queued, queued_total: queued as u64, window, ..StreamView::idle(id, 0, rtt) }
    }

    fn full(view: StreamView) -> StreamView {
        StreamView { has_room: false, queued: BLOCK, ..view }
    }

    const BULK: Demand = Demand { len: BLOCK, left: None, window: 64 << 20 };
    const SMALL: Demand = Demand { len: 100, left: Some(100), window: 256 << 10 };

    #[test]
    fn equals_are_ordered_by_queue_then_by_last_use() {
        let (mut scheduler, few) = (EarliestArrival::new(7), 96);
        let views =
            |queued: [usize; 3]| -> Vec<_> { (0..3).map(|i| view(i, 50, queued[i as usize])).collect() };
        assert_eq!(scheduler.choose(&views([0, 0, 0]), SMALL), Some(StreamId(1)));
        assert_eq!(
            scheduler.choose(&views([0, few, 0]), SMALL),
            Some(StreamId(1)),
            "the session stays on its stream"
        );
        assert_eq!(scheduler.choose(&views([BLOCK, 0, BLOCK]), SMALL), Some(StreamId(1)));
        assert_eq!(scheduler.choose(&views([few, BLOCK, 0]), SMALL), Some(StreamId(2)), "7 % 2 skips one");
        assert_eq!(scheduler.choose(&[], SMALL), None);
    }

    #[test]
    fn the_longer_path_is_used_only_with_a_backlog() {
        let mut scheduler = EarliestArrival::new(0);
        assert_eq!(scheduler.choose(&[view(0, 160, 0), view(1, 50, 0)], BULK), Some(StreamId(1)));
        let busy = [view(0, 160, 0), full(view(1, 50, 0))];
        assert_eq!(scheduler.choose(&busy, BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&busy, SMALL), None, "it arrives sooner on the shorter path");
        let tight = Demand { window: 256 << 10, ..BULK };
        assert_eq!(scheduler.choose(&busy, tight), None, "it would block 500 kB");
    }

    #[test]
    fn a_slow_path_takes_no_block_that_would_delay_too_much_data() {
        let mut scheduler = EarliestArrival::new(0);
        let slow = StreamView { window: 25_000, ..view(0, 100, 0) };
        let beside = |rate: u64| [slow, full(StreamView { window: rate / 20, ..view(1, 50, 0) })];
        // A block takes 0.31 s on the slow stream.
        assert_eq!(scheduler.choose(&beside(20_000_000), BULK), Some(StreamId(0)), "5 MB wait for it");
        assert_eq!(scheduler.choose(&beside(40_000_000), BULK), None, "10 MB would wait");
    }

    #[test]
    fn stalled_streams_are_used_only_when_all_have_stalled() {
        let mut scheduler = EarliestArrival::new(0);
        let stalled = |view: StreamView| StreamView { stalled: true, ..view };
        let (good, bad) = (view(0, 160, 0), stalled(view(1, 50, 0)));
        assert_eq!(scheduler.choose(&[good, bad], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[full(good), bad], BULK), None);
        assert_eq!(scheduler.choose(&[stalled(full(good)), bad], BULK), Some(StreamId(1)));
        let suspect = StreamView { suspect: true, ..view(2, 10, 0) };
        assert_eq!(scheduler.choose(&[good, suspect, bad], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[suspect, bad], BULK), Some(StreamId(2)));
        assert_eq!((quickest(&[good, bad]), quickest(&[bad])), (Some(StreamId(0)), Some(StreamId(1))));
    }

    #[test]
    fn reserved_streams_are_used_only_when_the_others_stall() {
        let mut scheduler = EarliestArrival::new(0);
        let (good, reserved) = (view(0, 160, 0), StreamView { reserved: true, ..view(1, 50, 0) });
        assert_eq!(scheduler.choose(&[good, reserved], BULK), Some(StreamId(0)));
        assert_eq!(scheduler.choose(&[full(good), reserved], BULK), None);
        assert_eq!(
            quickest(&[full(good), reserved]),
            Some(StreamId(1)),
            "an acknowledgement uses the reserved stream"
        );
        assert_eq!(
            scheduler.choose(&[StreamView { stalled: true, ..good }, reserved], BULK),
            Some(StreamId(1))
        );
    }

    #[test]
    fn slow_start_shortens_the_estimated_arrival() {
        let young = StreamView { window: 15_000, slow_start: true, ..view(0, 100, 0) };
        assert!(young.arrival(15 * 15_000) < 460 * MS, "four round trips and a half: 1 + 2 + 4 + 8 windows");
        assert!(StreamView { slow_start: false, ..young }.arrival(15 * 15_000) > 1500 * MS);
    }
}
