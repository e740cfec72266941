//! Checks whether a client's host may connect to a server without SOS (docs/adr/0059). Pure: returns the check packets to send.
//!
//! A *check* is a bare SYN from the client's own address and a reserved port. Network policies and firewalls that apply to the client's
//! connection also apply to the check. An answer with SYN and ACK opens the path for [`OPEN_FOR`]. A missing answer closes the path for
//! [`CLOSED_FOR`]. After a reset or an ICMP error, the next connection is checked. The reserved port is bound but never connected, so the
//! kernel on the client's side answers the SYN-ACK with a reset, and the server's program never accepts the check's connection.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

/// Time for which a path stays open after its last answered check. A changed policy therefore takes effect on new accelerated connections
/// after at most this time.
pub const OPEN_FOR: Duration = Duration::from_secs(30);
/// Age of a result from which the next use of an open path starts another check, without delaying the connection.
pub const CHECK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// Time for which connections over a closed path go plain without another check.
pub const CLOSED_FOR: Duration = Duration::from_secs(5);
/// Times after the first check at which it is retransmitted, because a SYN or its answer may be lost.
const RETRANSMIT_AFTER: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(700)];
/// Time after which an unanswered check closes the path. It is shorter than the time until a client's second retransmission of its SYN (3 s
/// on Linux).
pub const ANSWER_WITHIN: Duration = Duration::from_millis(1_200);
/// Maximum number of paths with a result; above that the oldest result is removed.
pub const MAX_PATHS: usize = 16_384;
/// Maximum number of unanswered checks; further connections go plain.
pub const MAX_CHECKS: usize = 1_024;

/// A client's address and a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The client's address.
    pub client: Ipv4Addr,
    /// The server's address and port.
    pub server: SocketAddrV4,
}

/// A check to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// The path.
    pub path: Path,
    /// Initial sequence number, which the server's answer acknowledges.
    pub sequence: u32,
}

/// An answer to a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The path.
    pub path: Path,
    /// Acknowledgement number.
    pub acknowledged: u32,
    /// True for a reset or an ICMP error.
    pub refused: bool,
}

/// State of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The last check was answered.
    Open {
        /// True if the check should be repeated.
        stale: bool,
    },
    /// The last check was not answered.
    Closed,
    /// No recent result, or the last check was refused.
    Unknown,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    sequence: u32,
    began: Instant,
    retransmitted: usize,
}

/// Results of checks, and unanswered checks.
#[derive(Debug, Default)]
pub struct PlainPaths {
    /// Time of the last check, and true if it was answered.
    results: BTreeMap<Path, (Instant, bool)>,
    order: BTreeSet<(Instant, Path)>,
    pending: BTreeMap<Path, Pending>,
}

impl PlainPaths {
    /// State of a path.
    #[must_use]
    pub fn state(&self, path: Path, now: Instant) -> State {
        let Some((at, open)) = self.results.get(&path) else { return State::Unknown };
        let age = now.saturating_duration_since(*at);
        match open {
            true if age < OPEN_FOR => State::Open { stale: age >= CHECK_AGAIN_AFTER },
            false if age < CLOSED_FOR => State::Closed,
            _ => State::Unknown,
        }
    }

    /// True while a check of the path is unanswered.
    #[must_use]
    pub fn is_pending(&self, path: Path) -> bool {
        self.pending.contains_key(&path)
    }

    /// Begins a check. Returns `None` if a check of the path is unanswered, or if there are [`MAX_CHECKS`] unanswered checks.
    pub fn begin(&mut self, path: Path, sequence: u32, now: Instant) -> Option<Check> {
        if self.is_pending(path) || self.pending.len() >= MAX_CHECKS {
            return None;
        }
        self.pending.insert(path, Pending { sequence, began: now, retransmitted: 0 });
        Some(Check { path, sequence })
    }

    /// Handles an answer. Returns whether the path is open, or `None` if the answer belongs to no check.
    pub fn answer(&mut self, answer: Answer, now: Instant) -> Option<bool> {
        let pending = self.pending.get(&answer.path)?;
        if answer.acknowledged != pending.sequence.wrapping_add(1) {
            return None;
        }
        self.pending.remove(&answer.path);
        if answer.refused {
            self.forget(answer.path);
        } else {
            self.note(answer.path, true, now);
        }
        Some(!answer.refused)
    }

    /// Returns the checks to retransmit, and the paths that an unanswered check has closed.
    pub fn expire(&mut self, now: Instant) -> (Vec<Check>, Vec<Path>) {
        let late = |pending: &Pending| pending.began + ANSWER_WITHIN <= now;
        let closed: Vec<Path> = self.pending.iter().filter(|(_, p)| late(p)).map(|(path, _)| *path).collect();
        for path in &closed {
            self.pending.remove(path);
            self.note(*path, false, now);
        }
        let mut again = Vec::new();
        for (path, pending) in &mut self.pending {
            if next(pending) <= now {
                pending.retransmitted += 1;
                again.push(Check { path: *path, sequence: pending.sequence });
            }
        }
        (again, closed)
    }

    /// Next deadline of [`Self::expire`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.pending.values().map(next).min()
    }

    fn forget(&mut self, path: Path) {
        if let Some((at, _)) = self.results.remove(&path) {
            self.order.remove(&(at, path));
        }
    }

    fn note(&mut self, path: Path, open: bool, now: Instant) {
        self.forget(path);
        self.results.insert(path, (now, open));
        self.order.insert((now, path));
        if self.order.len() > MAX_PATHS
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.results.remove(&oldest);
        }
    }
}

fn next(pending: &Pending) -> Instant {
    pending.began + RETRANSMIT_AFTER.get(pending.retransmitted).copied().unwrap_or(ANSWER_WITHIN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(number: u32) -> Path {
        Path { client: Ipv4Addr::new(10, 0, 0, 1), server: SocketAddrV4::new(Ipv4Addr::from(number), 80) }
    }

    fn answer(number: u32, acknowledged: u32, refused: bool) -> Answer {
        Answer { path: path(number), acknowledged, refused }
    }

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn an_answered_check_opens_the_path_for_a_time() {
        let (mut paths, now) = (PlainPaths::default(), Instant::now());
        assert_eq!(paths.state(path(1), now), State::Unknown);
        assert_eq!(paths.begin(path(1), 7, now), Some(Check { path: path(1), sequence: 7 }));
        assert_eq!(paths.begin(path(1), 8, now), None, "one check of a path at a time");
        assert_eq!(paths.answer(answer(1, 7, false), now), None, "a forged answer");
        assert_eq!(paths.answer(answer(1, 8, false), now), Some(true));
        assert_eq!(paths.answer(answer(1, 8, true), now), None, "no check is unanswered");
        assert_eq!(paths.state(path(1), now), State::Open { stale: false });
        assert_eq!(paths.state(path(1), now + CHECK_AGAIN_AFTER), State::Open { stale: true });
        assert_eq!(paths.state(path(1), now + OPEN_FOR), State::Unknown);
    }

    #[test]
    fn an_unanswered_check_is_retransmitted_and_closes_the_path() {
        let (mut paths, now) = (PlainPaths::default(), Instant::now());
        let check = paths.begin(path(1), u32::MAX, now).unwrap();
        assert_eq!(paths.next_timeout(), Some(now + MS(300)));
        assert_eq!(paths.expire(now + MS(299)), (vec![], vec![]));
        assert_eq!(paths.expire(now + MS(300)), (vec![check], vec![]));
        assert_eq!(paths.expire(now + MS(700)), (vec![check], vec![]));
        assert_eq!(paths.next_timeout(), Some(now + ANSWER_WITHIN));
        let late = now + ANSWER_WITHIN;
        assert_eq!(paths.expire(late), (vec![], vec![path(1)]));
        assert_eq!(paths.state(path(1), late), State::Closed);
        assert_eq!(paths.state(path(1), late + CLOSED_FOR), State::Unknown);
        assert_eq!(paths.next_timeout(), None);
    }

    #[test]
    fn a_reset_closes_an_open_path() {
        let (mut paths, now) = (PlainPaths::default(), Instant::now());
        paths.begin(path(1), u32::MAX, now);
        assert_eq!(paths.answer(answer(1, 0, false), now), Some(true), "sequence numbers wrap around");
        paths.begin(path(1), 3, now);
        assert_eq!(paths.state(path(1), now), State::Open { stale: false }, "open until the answer");
        assert_eq!(paths.answer(answer(1, 4, true), now), Some(false));
        assert_eq!(
            paths.state(path(1), now),
            State::Unknown,
            "the next connection is checked, which takes one round trip"
        );
    }

    proptest! {
        #[test]
        fn tables_are_bounded_and_agree(events in prop::collection::vec((0u32..20_000, any::<bool>(), 0u64..50), 0..400)) {
            let (mut paths, mut now) = (PlainPaths::default(), Instant::now());
            for (number, answered, wait) in events {
                now += MS(wait);
                paths.begin(path(number), number, now);
                if answered {
                    paths.answer(answer(number, number + 1, false), now);
                }
                let (again, closed) = paths.expire(now);
                prop_assert!(again.iter().all(|check| paths.is_pending(check.path)));
                prop_assert!(closed.iter().all(|path| !paths.is_pending(*path)));
                prop_assert_eq!(paths.results.len(), paths.order.len());
                prop_assert!(paths.pending.len() <= MAX_CHECKS && paths.results.len() <= MAX_PATHS);
                prop_assert!(paths.next_timeout().is_none_or(|at| at > now));
            }
        }
    }

    #[test]
    fn the_oldest_result_and_surplus_checks_are_dropped() {
        let (mut paths, now) = (PlainPaths::default(), Instant::now());
        for number in 0..=u32::try_from(MAX_PATHS).unwrap() {
            let at = now + Duration::from_nanos(number.into());
            paths.begin(path(number), 1, at);
            paths.answer(answer(number, 2, false), at);
        }
        assert_eq!(paths.results.len(), MAX_PATHS);
        assert_eq!(paths.state(path(0), now), State::Unknown);
        for number in 0..u32::try_from(MAX_CHECKS).unwrap() {
            assert!(paths.begin(path(number), 1, now).is_some());
        }
        assert!(paths.begin(path(20_000), 1, now).is_none());
    }
}
