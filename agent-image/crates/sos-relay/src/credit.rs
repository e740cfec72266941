//! Credit: flow control of the peer (frame.md clause 9).
//!
//! Credit is an absolute limit: the offset up to which the peer may send. It is what the host has taken plus the window, so a host that
//! stops reading stops the peer after one window and no earlier, and the receiver never holds more than it granted.
//!
//! The window has to cover the path: rate times round trip, and about as much again for blocks that wait behind a lost one. It starts at
//! what the protocol allows before anything was heard and grows when the host takes half of it within about one round trip: then the sender
//! would soon have been stopped by the window and not by the path. Growing by four up to 4 MiB lets the window run ahead of the slow start
//! of the streams, which doubles each round trip; above that it doubles.
//!
//! While little of the budget is used it begins with that already, and one that is nearly alone with what a long fast path needs: each
//! growth takes a round trip, and streams that other sessions have used are fast at once (1 Gbit/s, 164 ms: 918 instead of 850 Mbit/s in
//! the first seconds). The opener announces it in Open, so a download runs at the speed of its streams from its first byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::frame::INITIAL_CREDIT;

use crate::budget::{Budget, Reservation};

/// Window below which growth multiplies by four, above by two.
const EAGER_BELOW: u64 = 4 << 20;
/// Initial window of a session that is nearly alone, as a part of the budget: of one gibibyte 32 MiB.
const ALONE: usize = 32;
/// Initial window of others while all reservations stay within this part: they would soon reach it anyway.
const FIRST: usize = EAGER_BELOW as usize;
const PLENTY: usize = 16;
/// Largest grant: two round trips at this rate, in bytes a second, and a little more for the scheduling delay of the ends. On a short path
/// a host that is slower than the path would only have a long queue in front of it, out of the processor's cache before it is read.
const FASTEST: f64 = 5e9;
const TURNS: Duration = Duration::from_millis(2);
/// Added to the round trip when growth is judged: on short paths the host's scheduling delay exceeds the path's.
const SLACK: Duration = Duration::from_millis(10);

/// Receive window of one direction.
#[derive(Debug)]
pub struct Window {
    size: u64,
    max: u64,
    limit: u64,
    rtt: Duration,
    /// Without queueing delay: a queue must not lengthen itself.
    lowest: Duration,
    epoch: Option<Epoch>,
    reservation: Reservation,
}

/// Bytes that the host has taken since a point in time.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    since: Instant,
    bytes: u64,
}

impl Window {
    /// A window that may grow to `max` bytes, or `None` if the budget has not even the initial credit of the protocol.
    pub fn new(max: usize, rtt: Duration, budget: &Arc<Budget>) -> Option<Self> {
        let max = max.max(INITIAL_CREDIT as usize);
        // Of a small budget that part is less than the usual initial window: then the latter is tried.
        let most = usize::try_from(of_path(rtt)).unwrap_or(usize::MAX).min(max);
        let (alone, first) = (most.min(budget.limit() / ALONE), most.min(FIRST));
        let reservation = budget
            .reserve_within(alone.max(first), ALONE)
            .or_else(|| budget.reserve_within(first, PLENTY))
            .or_else(|| budget.reserve(INITIAL_CREDIT as usize))?;
        let size = reservation.bytes() as u64;
        Some(Self { size, max: max as u64, limit: size, rtt, lowest: rtt, epoch: None, reservation })
    }

    /// Current credit limit.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Current window.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sets the round trip of the streams, as measured last, and the lowest of their path.
    pub fn set_rtt(&mut self, rtt: Duration, lowest: Duration) {
        (self.rtt, self.lowest) = (rtt, lowest);
    }

    /// Notes `n` more bytes taken by the host, `delivered` in all.
    pub fn handle_delivered(&mut self, n: u64, delivered: u64, now: Instant) {
        let horizon = self.rtt * 2 + SLACK;
        let mut epoch = self.epoch.take().filter(|e| now.saturating_duration_since(e.since) <= horizon);
        let bytes = epoch.get_or_insert(Epoch { since: now, bytes: 0 }).bytes + n;
        if bytes >= self.size / 2 {
            self.grow();
        } else {
            self.epoch = epoch.map(|e| Epoch { bytes, ..e });
        }
        self.limit = self.limit.max(delivered + self.size.min(of_path(self.lowest)));
    }

    fn grow(&mut self) {
        let factor = if self.size < EAGER_BELOW { 4 } else { 2 };
        let size = (self.size * factor).min(self.max).min(of_path(self.lowest));
        let total = usize::try_from(size).expect("max came from a usize");
        if size > self.size && self.reservation.grow_to(total) {
            self.size = size;
        }
    }

    /// Releases its share of the budget. Not usable after this.
    pub fn release(&mut self) {
        self.reservation.release();
    }

    /// Checks the invariants. For tests.
    pub fn assert_invariants(&self, delivered: u64) {
        assert!(self.size <= self.max, "the window stays below its maximum");
        assert!(self.limit <= delivered + self.size, "no more than one window is granted ahead");
        assert!(self.size <= self.reservation.bytes() as u64, "the window is reserved");
    }
}

/// Largest useful window on a path of this round trip.
fn of_path(rtt: Duration) -> u64 {
    (FASTEST * (rtt * 2 + TURNS).as_secs_f64()) as u64
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// A budget without plenty.
    const SMALL: usize = 2 << 20;

    fn window(budget: usize) -> Window {
        Window::new(32 << 20, 100 * MS, &Budget::new(budget)).unwrap()
    }

    #[test]
    fn a_host_that_keeps_up_gets_a_window_that_covers_the_path() {
        // 62.5 MB/s over 100 ms: 6.25 MB in flight, delivered in steps of 1 ms.
        let (mut window, mut now, mut delivered) = (window(1 << 30), Instant::now(), 0);
        for _ in 0..1000 {
            delivered += 62_500;
            window.handle_delivered(62_500, delivered, now);
            now += MS;
        }
        assert!((16 << 20..=32 << 20).contains(&window.size()), "{}", window.size());
        window.assert_invariants(delivered);
    }

    #[test]
    fn a_slow_host_keeps_the_small_window() {
        let (mut window, mut now, mut delivered) = (window(SMALL), Instant::now(), 0);
        for _ in 0..1000 {
            delivered += 500;
            window.handle_delivered(500, delivered, now);
            now += MS;
        }
        assert_eq!(window.size(), INITIAL_CREDIT);
        assert_eq!(window.limit(), delivered + INITIAL_CREDIT);
    }

    #[test]
    fn a_small_initial_window_grows_by_four() {
        let (mut window, now, mut delivered) = (window(32 << 20), Instant::now(), 0);
        let mut sizes = vec![window.size()];
        while *sizes.last().unwrap() < 8 << 20 {
            let half = window.size() / 2;
            delivered += half;
            window.handle_delivered(half, delivered, now);
            sizes.push(window.size());
        }
        assert_eq!(sizes, [INITIAL_CREDIT, 1 << 20, 4 << 20, 8 << 20]);
        window.assert_invariants(delivered);
    }

    #[test]
    fn a_free_budget_gives_a_large_initial_window_below_the_maximum() {
        let budget = Budget::new(1 << 30);
        let windows = [1 << 30, 1 << 30, 1 << 20, 0].map(|max| Window::new(max, 100 * MS, &budget).unwrap());
        let sizes = windows.map(|w| (w.size(), w.limit()));
        assert_eq!(sizes, [32 << 20, 4 << 20, 1 << 20, INITIAL_CREDIT].map(|size| (size, size)));
        let least = Budget::new(64 << 20);
        assert_eq!(
            Window::new(1 << 30, 100 * MS, &least).unwrap().size(),
            4 << 20,
            "a part of it would be less"
        );
    }

    #[test]
    fn a_short_path_keeps_a_small_window_until_it_becomes_long() {
        let (mut now, us) = (Instant::now(), Duration::from_micros);
        let mut window = Window::new(1 << 30, us(100), &Budget::new(1 << 30)).unwrap();
        assert_eq!(window.size(), 11_000_000);
        let mut delivered = 0;
        let mut take = |window: &mut Window| {
            for _ in 0..100 {
                delivered += 1 << 20;
                window.handle_delivered(1 << 20, delivered, now);
                now += us(100);
            }
            (window.size(), window.limit() - delivered)
        };
        assert_eq!(take(&mut window), (11_000_000, 11_000_000));
        window.set_rtt(10 * MS, 10 * MS);
        assert_eq!(take(&mut window), (110_000_000, 110_000_000));
        window.set_rtt(10 * MS, us(100));
        assert_eq!(take(&mut window), (110_000_000, 11_000_000), "what is granted is not taken back");
    }

    #[test]
    fn an_exhausted_budget_only_stops_growth() {
        let (mut window, now) = (window(INITIAL_CREDIT as usize + 100), Instant::now());
        window.handle_delivered(INITIAL_CREDIT, INITIAL_CREDIT, now);
        assert_eq!((window.size(), window.limit()), (INITIAL_CREDIT, 2 * INITIAL_CREDIT));
    }
}
