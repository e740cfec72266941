//! Batched reads: reads a busy socket at the ticks of a clock instead of by poll.
//!
//! Data arrives a few segments at a time, and each wake-up costs several times as much as moving the bytes. So a busy socket is
//! excluded from polling (by a high low-water mark) and read at the ticks of a clock that the whole process shares: one wake-up serves all
//! busy sockets. Between agents a tick is small compared with the path's own delay. On short paths and for hosts, the shortest tick is used,
//! and only sockets that receive much data per tick are read at ticks. A socket that has become quiet returns to polling.

use std::time::{Duration, Instant};

/// Maximum tick length: at 1 Gbit/s over all streams, a megabyte arrives in this time.
const MAX_TICK: Duration = Duration::from_millis(8);
/// A tick lasts at most the round trip divided by this value, but never less than [`SHORT_TICK`].
const SHARE: u32 = 10;
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Minimum size of a bulk read; smaller reads are messages.
const BULK: usize = 4 << 10;
/// Number of bulk reads in quick succession after which a socket is busy. The few packets of a short flow are thus all read immediately.
const STREAK: u32 = 4;
/// Upper bound of the streak. The streak doubles after each short busy period, because a request-response protocol would otherwise wait a
/// tick for each message.
const MAX_STREAK: u32 = 256;
/// A busy period with fewer full ticks than this counts as short.
const PROVED: u32 = 32;
/// A socket is quiet after this number of consecutive ticks that were not full.
const QUIET: u32 = 4;

/// Clock of a busy socket's reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadClock {
    tick: Duration,
    /// Minimum bytes of a full tick.
    least: usize,
}

impl ReadClock {
    /// Clock for hosts: a short tick, because hosts are nearby, and a high minimum, so that slow hosts stay on polling.
    pub(crate) const HOST: Self = Self { tick: SHORT_TICK, least: 32 << 10 };

    /// Clock for a stream, by the round trip to the peer.
    pub(crate) fn of_stream(rtt: Duration) -> Self {
        let share = (rtt / SHARE).min(MAX_TICK);
        let tick = Duration::from_millis(u64::try_from(share.as_millis()).unwrap_or(0));
        if tick < SHORT_TICK {
            Self { tick: SHORT_TICK, least: 16 << 10 }
        } else {
            Self { tick, least: BULK }
        }
    }
}

/// Read mode of one stream or host.
#[derive(Debug)]
pub(crate) struct BatchedRead {
    last: Option<Instant>,
    bulk: u32,
    streak: u32,
    quiet: u32,
    full: u32,
    clock: ReadClock,
}

impl Default for BatchedRead {
    fn default() -> Self {
        Self { last: None, bulk: 0, streak: STREAK, quiet: 0, full: 0, clock: ReadClock::default() }
    }
}

impl BatchedRead {
    /// Notes a read by poll. Returns whether the socket is busy now.
    pub(crate) fn note_poll(&mut self, read: usize, clock: ReadClock, now: Instant) -> bool {
        let recent = self.last.is_some_and(|last| now.saturating_duration_since(last) <= 2 * MAX_TICK);
        self.bulk = if recent && read >= BULK { self.bulk + 1 } else { 0 };
        self.last = Some(now);
        self.clock = clock;
        (self.quiet, self.full) = (0, 0);
        self.bulk >= self.streak
    }

    /// Notes a read at a tick. Returns whether the socket is still busy.
    pub(crate) fn note_tick(&mut self, read: usize) -> bool {
        let full = read >= self.clock.least;
        self.full = self.full.saturating_add(u32::from(full));
        self.quiet = if full { 0 } else { self.quiet + 1 };
        if self.quiet < QUIET {
            return true;
        }
        self.bulk = 0;
        self.streak = if self.full < PROVED { (2 * self.streak).min(MAX_STREAK) } else { STREAK };
        false
    }

    /// The tick that follows `now`. Ticks are counted from `epoch`, which all sockets share.
    pub(crate) fn next_tick(&self, epoch: Instant, now: Instant) -> Instant {
        let tick = self.clock.tick.max(SHORT_TICK).as_nanos();
        let ticks = now.saturating_duration_since(epoch).as_nanos() / tick + 1;
        epoch + Duration::from_nanos(u64::try_from(ticks * tick).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const FAR: ReadClock = ReadClock { tick: MAX_TICK, least: BULK };

    /// Results of polls that read `read` bytes each, a millisecond apart.
    fn poll(batching: &mut BatchedRead, read: usize, clock: ReadClock, times: u32) -> Vec<bool> {
        let start = batching.last.unwrap_or_else(Instant::now);
        (1..=times).map(|i| batching.note_poll(read, clock, start + i * MS)).collect()
    }

    #[test]
    fn a_stream_is_busy_after_a_streak_and_quiet_after_a_silence() {
        let (mut batching, start) = (BatchedRead::default(), Instant::now());
        assert_eq!(ReadClock::of_stream(100 * MS), FAR);
        let busy: Vec<bool> = (0..6).map(|i| batching.note_poll(20_000, FAR, start + i * MS)).collect();
        assert_eq!(busy, [false, false, false, false, true, true]);
        let still: Vec<bool> =
            [9000, 0, 0, 0, 50_000, 0, 0, 0, 0].into_iter().map(|n| batching.note_tick(n)).collect();
        assert_eq!(still, [true, true, true, true, true, true, true, true, false]);
        assert!(!batching.note_poll(20_000, FAR, start + 100 * MS));
    }

    #[test]
    fn messages_are_read_by_poll() {
        assert!(!poll(&mut BatchedRead::default(), 100, FAR, 20).contains(&true));
    }

    #[test]
    fn short_paths_and_hosts_are_read_at_short_ticks_while_busy() {
        let near = ReadClock::of_stream(9 * MS);
        assert_eq!(near, ReadClock { tick: SHORT_TICK, least: 16 << 10 });
        let mut batching = BatchedRead::default();
        assert!(poll(&mut batching, 20_000, ReadClock::HOST, 5).ends_with(&[false, true]));
        assert_eq!(
            [40_000, 20_000, 20_000, 20_000, 20_000].map(|n| batching.note_tick(n)),
            [true, true, true, true, false]
        );
    }

    #[test]
    fn short_busy_periods_lengthen_the_next_streak_and_a_long_one_resets_it() {
        let mut batching = BatchedRead::default();
        let busy_after = |batching: &mut BatchedRead| {
            poll(batching, 20_000, ReadClock::HOST, 600).iter().position(|busy| *busy)
        };
        let spell = |batching: &mut BatchedRead, full: u32| {
            assert!((0..full).all(|_| batching.note_tick(40_000)));
            assert!((0..QUIET).map(|_| batching.note_tick(8000)).last() == Some(false));
        };
        let mut streaks = Vec::new();
        for full in [0, 3, 0, 0, 0, 0, 0, 0, PROVED - 1, PROVED, 0] {
            // The very first read has no predecessor.
            streaks.extend(busy_after(&mut batching));
            spell(&mut batching, full);
        }
        assert_eq!(streaks, [4, 7, 15, 31, 63, 127, 255, 255, 255, 255, 3]);
    }

    #[test]
    fn ticks_coincide_for_all_sockets() {
        let (mut a, mut b, epoch) = (BatchedRead::default(), BatchedRead::default(), Instant::now());
        a.note_poll(1, ReadClock::of_stream(1000 * MS), epoch);
        b.note_poll(1, ReadClock::of_stream(81 * MS), epoch + 3 * MS);
        assert_eq!(a.next_tick(epoch, epoch + 17 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 23 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 24 * MS), epoch + 32 * MS);
    }
}
