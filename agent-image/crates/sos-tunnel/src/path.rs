//! What is known of a stream's path, asked of the kernel now and then.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::sockopt::{PathInfo, path_info};

/// How old an answer may be: asking costs a system call, and little changes in less.
const FRESH: Duration = Duration::from_millis(5);
/// A stream has stalled when nothing has been acknowledged for two round trips and this: longer than the kernel's first attempts to repair
/// a loss take, much shorter than the silence that ends a stream.
const STALL: Duration = Duration::from_millis(300);

/// The path of one stream.
#[derive(Debug)]
pub(crate) struct Path {
    info: PathInfo,
    asked: Option<Instant>,
    /// When something was acknowledged last, or nothing was under way.
    moved: Instant,
    /// When something was acknowledged last.
    proved: Instant,
}

impl Path {
    /// A path of which its round trip is known.
    pub(crate) fn new(rtt: Duration, now: Instant) -> Self {
        Self {
            info: PathInfo { rtt, grows: true, ..PathInfo::default() },
            asked: None,
            moved: now,
            proved: now,
        }
    }

    /// Asks again if it is time to. What the kernel does not tell stays as it was.
    pub(crate) fn ask(&mut self, socket: &impl AsFd, now: Instant) {
        if self.asked.is_none_or(|asked| now.saturating_duration_since(asked) >= FRESH) {
            self.asked = Some(now);
            let _ = path_info(socket).map(|info| self.note(info, now));
        }
    }

    fn note(&mut self, info: PathInfo, now: Instant) {
        if info.acknowledged != self.info.acknowledged {
            self.proved = now;
        }
        // Whatever was sent first after a pause counts from when it is seen.
        if info.acknowledged != self.info.acknowledged || info.outstanding == 0 || self.info.outstanding == 0
        {
            self.moved = now;
        }
        self.info = info;
    }

    /// The last answer.
    pub(crate) fn info(&self) -> &PathInfo {
        &self.info
    }

    /// Nothing has been acknowledged for far too long.
    pub(crate) fn is_stalled(&self, now: Instant) -> bool {
        self.info.outstanding > 0 && now.saturating_duration_since(self.moved) >= self.patience()
    }

    /// Nothing shows that it works: if another stream over it has stalled, this one may as well.
    pub(crate) fn is_unproved(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.proved) >= self.patience()
    }

    fn patience(&self) -> Duration {
        self.info.rtt * 2 + STALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_path_stalls_when_what_is_under_way_is_not_acknowledged() {
        let start = Instant::now();
        let (rtt, at) = (50 * MS, |ms: u32| start + MS * ms);
        let info =
            |acknowledged, outstanding| PathInfo { rtt, acknowledged, outstanding, ..PathInfo::default() };
        let mut path = Path::new(rtt, start);
        path.note(info(0, 0), at(0));
        assert!(!path.is_stalled(at(10_000)), "idle");
        path.note(info(0, 3), at(10_000));
        assert!(!path.is_stalled(at(10_399)) && path.is_stalled(at(10_400)));
        path.note(info(0, 3), at(10_300));
        assert!(path.is_stalled(at(10_400)), "looking at it changes nothing");
        path.note(info(1, 3), at(10_500));
        assert!(!path.is_stalled(at(10_899)) && path.is_stalled(at(10_900)));
        assert!(
            !path.is_unproved(at(10_899)) && path.is_unproved(at(10_900)),
            "whether or not something is under way"
        );
    }
}
