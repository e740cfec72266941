//! How often something busy is read.
//!
//! Data trickles in a few segments at a time, and waking for each costs several times what moving the bytes does. What is busy is
//! therefore taken off the poll (by its low water mark) and read at the ticks of a clock that the whole process shares, so that one turn
//! serves all of it. Between agents a tick is small beside the path's own delay; where that is short, and from hosts, it is short too, and
//! taken only for what brings much at each. What has become quiet goes back to the poll.

use std::time::{Duration, Instant};

/// Longest tick. At 1 Gbit/s a megabyte gathers meanwhile, over all streams.
const MAX_TICK: Duration = Duration::from_millis(8);
/// A tick is at most this share of the round trip, unless that is less than the shortest tick there is.
const SHARE: u32 = 10;
const SHORT_TICK: Duration = Duration::from_millis(1);
/// Reads of less are messages, not bulk.
const BULK: usize = 4 << 10;
/// Bulk reads, each soon after the one before, until something counts as busy: a short flow's few packets are all read at once.
const STREAK: u32 = 4;
/// So many after spells that were short: what answers each message with the next would wait a tick each time.
const MAX_STREAK: u32 = 256;
/// A spell of so many full ticks was not short.
const PROVED: u32 = 32;
/// Quiet after so many ticks that were not full.
const QUIET: u32 = 4;

/// How something is read while it is busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Rhythm {
    tick: Duration,
    /// Bytes of a full tick.
    least: usize,
}

impl Rhythm {
    /// Of hosts: they are near, and most that is slow is small.
    pub(crate) const HOST: Self = Self { tick: SHORT_TICK, least: 32 << 10 };

    /// Of a stream, by the round trip to the peer.
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

/// The reading of one stream or host.
#[derive(Debug)]
pub(crate) struct Pace {
    last: Option<Instant>,
    bulk: u32,
    streak: u32,
    quiet: u32,
    full: u32,
    rhythm: Rhythm,
}

impl Default for Pace {
    fn default() -> Self {
        Self { last: None, bulk: 0, streak: STREAK, quiet: 0, full: 0, rhythm: Rhythm::default() }
    }
}

impl Pace {
    /// A read by poll. Says whether it is busy now.
    pub(crate) fn note_poll(&mut self, read: usize, rhythm: Rhythm, now: Instant) -> bool {
        let recent = self.last.is_some_and(|last| now.saturating_duration_since(last) <= 2 * MAX_TICK);
        self.bulk = if recent && read >= BULK { self.bulk + 1 } else { 0 };
        self.last = Some(now);
        self.rhythm = rhythm;
        (self.quiet, self.full) = (0, 0);
        self.bulk >= self.streak
    }

    /// A read at a tick. Says whether it is still busy.
    pub(crate) fn note_tick(&mut self, read: usize) -> bool {
        let full = read >= self.rhythm.least;
        self.full = self.full.saturating_add(u32::from(full));
        self.quiet = if full { 0 } else { self.quiet + 1 };
        if self.quiet < QUIET {
            return true;
        }
        self.bulk = 0;
        self.streak = if self.full < PROVED { (2 * self.streak).min(MAX_STREAK) } else { STREAK };
        false
    }

    /// The next tick since `epoch`, which all share.
    pub(crate) fn next_tick(&self, epoch: Instant, now: Instant) -> Instant {
        let tick = self.rhythm.tick.max(SHORT_TICK).as_nanos();
        let ticks = now.saturating_duration_since(epoch).as_nanos() / tick + 1;
        epoch + Duration::from_nanos(u64::try_from(ticks * tick).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const FAR: Rhythm = Rhythm { tick: MAX_TICK, least: BULK };

    /// What `read` bytes at each of so many polls, a millisecond apart, make of it.
    fn poll(pace: &mut Pace, read: usize, rhythm: Rhythm, times: u32) -> Vec<bool> {
        let start = pace.last.unwrap_or_else(Instant::now);
        (1..=times).map(|i| pace.note_poll(read, rhythm, start + i * MS)).collect()
    }

    #[test]
    fn a_stream_is_busy_after_a_streak_and_quiet_after_a_silence() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(Rhythm::of_stream(100 * MS), FAR);
        let busy: Vec<bool> = (0..6).map(|i| pace.note_poll(20_000, FAR, start + i * MS)).collect();
        assert_eq!(busy, [false, false, false, false, true, true]);
        let still: Vec<bool> =
            [9000, 0, 0, 0, 50_000, 0, 0, 0, 0].into_iter().map(|n| pace.note_tick(n)).collect();
        assert_eq!(still, [true, true, true, true, true, true, true, true, false]);
        assert!(!pace.note_poll(20_000, FAR, start + 100 * MS));
    }

    #[test]
    fn messages_are_read_by_poll() {
        assert!(!poll(&mut Pace::default(), 100, FAR, 20).contains(&true));
    }

    #[test]
    fn a_short_path_and_a_host_are_read_at_short_ticks_while_they_bring_much() {
        let near = Rhythm::of_stream(9 * MS);
        assert_eq!(near, Rhythm { tick: SHORT_TICK, least: 16 << 10 });
        let mut pace = Pace::default();
        assert!(poll(&mut pace, 20_000, Rhythm::HOST, 5).ends_with(&[false, true]));
        assert_eq!(
            [40_000, 20_000, 20_000, 20_000, 20_000].map(|n| pace.note_tick(n)),
            [true, true, true, true, false]
        );
    }

    #[test]
    fn short_spells_make_the_next_streak_longer_and_a_long_one_forgives() {
        let mut pace = Pace::default();
        let busy_after =
            |pace: &mut Pace| poll(pace, 20_000, Rhythm::HOST, 600).iter().position(|busy| *busy);
        let spell = |pace: &mut Pace, full: u32| {
            assert!((0..full).all(|_| pace.note_tick(40_000)));
            assert!((0..QUIET).map(|_| pace.note_tick(8000)).last() == Some(false));
        };
        let mut streaks = Vec::new();
        for full in [0, 3, 0, 0, 0, 0, 0, 0, PROVED - 1, PROVED, 0] {
            // The first read of all has none before it.
            streaks.extend(busy_after(&mut pace));
            spell(&mut pace, full);
        }
        assert_eq!(streaks, [4, 7, 15, 31, 63, 127, 255, 255, 255, 255, 3]);
    }

    #[test]
    fn ticks_are_the_same_for_all() {
        let (mut a, mut b, epoch) = (Pace::default(), Pace::default(), Instant::now());
        a.note_poll(1, Rhythm::of_stream(1000 * MS), epoch);
        b.note_poll(1, Rhythm::of_stream(81 * MS), epoch + 3 * MS);
        assert_eq!(a.next_tick(epoch, epoch + 17 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 23 * MS), epoch + 24 * MS);
        assert_eq!(b.next_tick(epoch, epoch + 24 * MS), epoch + 32 * MS);
    }
}
