//! How often a busy stream is read.
//!
//! At WAN rates data trickles in a few segments at a time, and waking for each costs several times what moving the bytes does. A busy
//! stream on a long path is therefore taken off the poll (by its low water mark) and read at the ticks of a clock that all streams of the
//! process share, so that one turn serves them all. A tick is small beside the path's own delay, and a stream that has become quiet goes
//! back to the poll.

use std::time::{Duration, Instant};

/// Longest tick. At 1 Gbit/s a megabyte gathers meanwhile, over all streams.
const MAX_TICK: Duration = Duration::from_millis(8);
/// A tick is at most this share of the round trip; on paths too short for one of a millisecond every read is by poll.
const SHARE: u32 = 10;
/// Reads of less are messages, not bulk.
const BULK: usize = 4 << 10;
/// Bulk reads, each soon after the one before, until a stream counts as busy: a short flow's few packets are all read at once.
const STREAK: u32 = 4;
/// A stream is quiet after so many ticks without bulk.
const QUIET: u32 = 4;

/// The reading of one stream.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    last: Option<Instant>,
    bulk: u32,
    quiet: u32,
    tick: Duration,
}

impl Pace {
    /// A read by poll. Says whether the stream is busy now.
    pub(crate) fn note_poll(&mut self, read: usize, rtt: Duration, now: Instant) -> bool {
        let recent = self.last.is_some_and(|last| now.saturating_duration_since(last) <= 2 * MAX_TICK);
        self.bulk = if recent && read >= BULK { self.bulk + 1 } else { 0 };
        self.last = Some(now);
        self.quiet = 0;
        let tick = (rtt / SHARE).min(MAX_TICK);
        self.tick = Duration::from_millis(u64::try_from(tick.as_millis()).unwrap_or(0));
        self.bulk >= STREAK && !self.tick.is_zero()
    }

    /// A read at a tick. Says whether the stream is still busy.
    pub(crate) fn note_tick(&mut self, read: usize) -> bool {
        self.quiet = if read >= BULK { 0 } else { self.quiet + 1 };
        let busy = self.quiet < QUIET;
        if !busy {
            self.bulk = 0;
        }
        busy
    }

    /// The next tick since `epoch`, which all streams share.
    pub(crate) fn next_tick(&self, epoch: Instant, now: Instant) -> Instant {
        let tick = self.tick.max(Duration::from_millis(1)).as_nanos();
        let ticks = now.saturating_duration_since(epoch).as_nanos() / tick + 1;
        epoch + Duration::from_nanos(u64::try_from(ticks * tick).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_stream_is_busy_after_a_streak_and_quiet_after_a_silence() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let busy: Vec<bool> = (0..6).map(|i| pace.note_poll(20_000, 100 * MS, start + i * MS)).collect();
        assert_eq!(busy, [false, false, false, false, true, true]);
        let still: Vec<bool> =
            [9000, 0, 0, 0, 50_000, 0, 0, 0, 0].into_iter().map(|n| pace.note_tick(n)).collect();
        assert_eq!(still, [true, true, true, true, true, true, true, true, false]);
        assert!(!pace.note_poll(20_000, 100 * MS, start + 100 * MS));
    }

    #[test]
    fn messages_and_short_paths_are_read_by_poll() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert!((0..20).all(|i| !pace.note_poll(100, 100 * MS, start + i * MS)));
        assert!((0..20).all(|i| !pace.note_poll(20_000, 9 * MS, start + (20 + i) * MS)));
    }

    #[test]
    fn ticks_are_the_same_for_all() {
        let (mut a, mut b, epoch) = (Pace::default(), Pace::default(), Instant::now());
        a.note_poll(1, 1000 * MS, epoch);
        b.note_poll(1, 81 * MS, epoch + 3 * MS);
        assert_eq!(a.next_tick(epoch, epoch + 17 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 23 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 24 * MS), epoch + 32 * MS);
    }
}
