//! Memory that all sessions of a process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Limit on the memory that all sessions together may reserve.
///
/// A growing session gets at most half of the memory that is free at that moment (the dynamic threshold of shared-memory switches,
/// Choudhury and Hahne 1998). So a few sessions get large windows, many sessions get small windows of similar size, and some memory is
/// always left for the next session.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Size in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes reserved now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Creates a reservation of `bytes`; `None` if there is not enough free memory.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.take(bytes, |free| bytes <= free).then(|| self.share(bytes))
    }

    /// Creates a reservation of `bytes`, provided that all reservations together then stay within the budget divided by `part`.
    pub fn reserve_within(self: &Arc<Self>, bytes: usize, part: usize) -> Option<Reservation> {
        let plenty = self.limit / part;
        let generous = self.take(bytes, |free| bytes <= plenty.saturating_sub(self.limit - free));
        generous.then(|| self.share(bytes))
    }

    fn share(self: &Arc<Self>, bytes: usize) -> Reservation {
        Reservation { budget: Arc::clone(self), bytes }
    }

    fn take(&self, bytes: usize, allowed: impl Fn(usize) -> bool) -> bool {
        let take = |used: usize| allowed(self.limit.saturating_sub(used)).then(|| used + bytes);
        // Only the counter is shared, so no ordering with other memory is needed.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// A share of a [`Budget`]; released when dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reservation {
    /// Bytes reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Grows to `total` bytes if that is at most half of the free memory. Returns false if memory is short. A `total` below the current
    /// size changes nothing.
    pub fn grow_to(&mut self, total: usize) -> bool {
        let more = total.saturating_sub(self.bytes);
        let grown = self.budget.take(more, |free| more <= free && total <= free / 2);
        if grown {
            self.bytes += more;
        }
        grown
    }

    /// Releases everything.
    pub fn release(&mut self) {
        self.budget.used.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_windows_are_large_while_the_budget_is_free() {
        let budget = Budget::new(1600);
        let shares: Vec<_> = std::iter::from_fn(|| budget.reserve_within(40, 16)).collect();
        assert_eq!(shares.len(), 2);
        let _most = budget.reserve(1500).unwrap();
        assert!(budget.reserve_within(1, 16).is_none() && budget.reserve(21).is_none(), "20 bytes are left");
    }

    #[test]
    fn growth_leaves_free_memory_and_a_drop_releases_all() {
        let budget = Budget::new(1000);
        let mut first = budget.reserve(100).unwrap();
        assert!(first.grow_to(400), "900 free");
        assert!(!first.grow_to(800), "600 free");
        let mut second = budget.reserve(100).unwrap();
        assert!(second.grow_to(200), "500 free");
        assert!(!second.grow_to(300), "400 free");
        assert!(budget.reserve(401).is_none());
        assert_eq!(budget.used(), 600);
        drop((first, second));
        assert_eq!(budget.used(), 0);
    }
}
