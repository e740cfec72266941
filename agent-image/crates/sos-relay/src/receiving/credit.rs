//! Credit: flow control of the peer (frame.md clause 9).
//!
//! Credit is an absolute limit: the offset up to which the peer may send. It is the number of bytes that the host has taken plus the window. So
//! a host that stops reading stops the peer after one window and no earlier, and the receiver never holds more than it granted.
//!
//! The window must cover the path: rate times round trip, and about as much again for blocks that wait behind a lost block. The window
//! starts at the protocol's initial credit, and grows when the host takes half of it within about two round trips: then the window, not the
//! path, would soon limit the sender. Growing by a factor of four up to 4 MiB lets the window run ahead of the streams' slow start, which
//! doubles each round trip; above that the window doubles.
//!
//! While little of the budget is used, a window starts at 4 MiB. The window of a session that is nearly alone starts at the size that a
//! long fast path needs. A smaller window would limit warm streams: each growth takes a round trip, but streams with congestion windows
//! already opened by earlier sessions are fast immediately (1 Gbit/s, 164 ms: 918 instead of 850 Mbit/s in the first seconds). The opener
//! announces the window in Open, so a download runs at the speed of its streams from its first byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::stream::frame::INITIAL_CREDIT;

use crate::budget::{Budget, Reservation};

/// Windows below this size grow by a factor of four, larger ones by two.
const EAGER_BELOW: u64 = 4 << 20;
/// Divisor of the budget for the initial window of a session that is nearly alone: 32 MiB of one gibibyte. Nearly alone means that all
/// reservations together, including this window, stay within this part of the budget.
const ALONE: usize = 32;
/// Initial window of other sessions, while all reservations stay within the budget divided by `PLENTY`: windows would soon reach this size
/// anyway.
const FIRST: usize = EAGER_BELOW as usize;
const PLENTY: usize = 16;
/// Maximum window of a path: the bytes that arrive at the rate `FASTEST`, in bytes per second, in two round trips plus `TURNS`, the
/// scheduling delay of both ends. On a short path, a larger window would only queue more data for a host slower than the path, and this
/// data would leave the processor's cache before the host reads it.
const FASTEST: f64 = 5e9;
const TURNS: Duration = Duration::from_millis(2);
/// Added to the two round trips within which a host must take half of the window to make the window grow: on short paths the host's
/// scheduling delay exceeds the round trip.
const SLACK: Duration = Duration::from_millis(10);

/// Receive window of one direction.
#[derive(Debug)]
pub struct Window {
    size: u64,
    max: u64,
    limit: u64,
    rtt: Duration,
    /// Round trip without queueing delay: a window sized by the delayed round trip would lengthen the queue further.
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
    /// A window that may grow to `max` bytes, or `None` if the budget cannot cover the protocol's initial credit.
    pub fn new(max: usize, rtt: Duration, budget: &Arc<Budget>) -> Option<Self> {
        let max = max.max(INITIAL_CREDIT as usize);
        // With a small budget, `alone` may be less than the usual initial window `first`: then try `first`.
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

    /// Sets the last measured round trip of the streams, and the minimum of their path.
    pub fn set_rtt(&mut self, rtt: Duration, lowest: Duration) {
        (self.rtt, self.lowest) = (rtt, lowest);
    }

    /// Notes `n` more bytes taken by the host, `delivered` in total.
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

    /// Releases the window's share of the budget. The window is unusable afterwards.
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

/// Maximum useful window on a path of this round trip.
fn of_path(rtt: Duration) -> u64 {
    (FASTEST * (rtt * 2 + TURNS).as_secs_f64()) as u64
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    /// A small budget.
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
            "the divided budget would be less"
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
        assert_eq!(take(&mut window), (110_000_000, 11_000_000), "granted credit is not taken back");
    }

    #[test]
    fn an_exhausted_budget_only_stops_growth() {
        let (mut window, now) = (window(INITIAL_CREDIT as usize + 100), Instant::now());
        window.handle_delivered(INITIAL_CREDIT, INITIAL_CREDIT, now);
        assert_eq!((window.size(), window.limit()), (INITIAL_CREDIT, 2 * INITIAL_CREDIT));
    }
}
