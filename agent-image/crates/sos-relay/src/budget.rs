//! Memory that all sessions of a process share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A bound on what all sessions together may promise to hold.
///
/// A session that grows gets more only up to half of what is still free (the dynamic threshold of shared-memory switches, Choudhury and
/// Hahne 1998): a few sessions get large windows, many get fair small ones, and something is always left for the next one.
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

    /// Bytes reserved now.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes a first share, or `None` if it is not free.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.take(bytes, |free| bytes <= free).then(|| self.share(bytes))
    }

    /// Takes a first share of `wished` bytes if all shares together stay within a sixteenth of the budget then, else of `least`, or `None`
    /// if that is not free: the first sessions begin large, and there is room for nearly as many that begin small.
    pub fn reserve_first(self: &Arc<Self>, wished: usize, least: usize) -> Option<Reservation> {
        let plenty = self.limit / 16;
        let generous = self.take(wished, |free| wished <= plenty.saturating_sub(self.limit - free));
        if generous { Some(self.share(wished)) } else { self.reserve(least) }
    }

    fn share(self: &Arc<Self>, bytes: usize) -> Reservation {
        Reservation { budget: Arc::clone(self), bytes }
    }

    fn take(&self, bytes: usize, allowed: impl Fn(usize) -> bool) -> bool {
        let take = |used: usize| allowed(self.limit.saturating_sub(used)).then(|| used + bytes);
        // The counter is the only thing shared, so no ordering with other memory is needed.
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

/// A share of a [`Budget`]; given back when dropped.
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

    /// Grows to `total` bytes if that is at most half of what is free. Says whether it did; a smaller `total` changes nothing.
    pub fn grow_to(&mut self, total: usize) -> bool {
        let more = total.saturating_sub(self.bytes);
        let grown = self.budget.take(more, |free| more <= free && total <= free / 2);
        if grown {
            self.bytes += more;
        }
        grown
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_begin_large_while_there_is_much() {
        let budget = Budget::new(1600);
        let shares: Vec<_> = std::iter::from_fn(|| budget.reserve_first(40, 500)).collect();
        let sizes: Vec<_> = shares.iter().map(Reservation::bytes).collect();
        assert_eq!(sizes, [40, 40, 500, 500, 500]);
        assert!(budget.reserve_first(40, 21).is_none(), "20 are left");
    }

    #[test]
    fn growth_leaves_room_for_others_and_everything_is_given_back() {
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
