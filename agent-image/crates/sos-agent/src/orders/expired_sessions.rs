//! Sessions whose preparation at this egress agent has expired (spec/order.md clause 3).

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use sos_wire::SessionUuid;

use crate::orders::preparations::MAX_PREPARATIONS;

/// Time after its expiry for which a session may not begin: longer than streams between agents delay an Open, since the ingress agent
/// repeats it every second on live streams (spec/frame.md clause 10).
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// Expired sessions, oldest first. At the bound, the oldest is forgotten.
#[derive(Debug, Default)]
pub struct ExpiredSessions {
    by_age: VecDeque<(Instant, SessionUuid)>,
    sessions: BTreeSet<SessionUuid>,
}

impl ExpiredSessions {
    /// Adds a session.
    pub fn insert(&mut self, session: SessionUuid, now: Instant) {
        self.forget_old(now);
        if self.by_age.len() >= MAX_PREPARATIONS {
            self.forget_oldest();
        }
        if self.sessions.insert(session) {
            self.by_age.push_back((now + REMEMBERED_FOR, session));
        }
    }

    /// True if the session's preparation has expired recently.
    #[must_use]
    pub fn contains(&self, session: SessionUuid) -> bool {
        self.sessions.contains(&session)
    }

    /// Forgets sessions that expired long ago.
    pub fn forget_old(&mut self, now: Instant) {
        while self.by_age.front().is_some_and(|(until, _)| *until <= now) {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some((_, session)) = self.by_age.pop_front() {
            self.sessions.remove(&session);
        }
    }

    #[cfg(test)]
    pub(crate) fn assert_invariants(&self) {
        assert!(self.by_age.len() <= MAX_PREPARATIONS);
        assert_eq!(self.by_age.len(), self.sessions.len(), "each session has exactly one deadline");
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_remembered_for_a_minute() {
        let (mut expired, now) = (ExpiredSessions::default(), Instant::now());
        expired.insert(SessionUuid([1; 16]), now);
        expired.forget_old(now + REMEMBERED_FOR - Duration::from_millis(1));
        assert!(expired.contains(SessionUuid([1; 16])));
        expired.forget_old(now + REMEMBERED_FOR);
        assert!(!expired.contains(SessionUuid([1; 16])));
        expired.assert_invariants();
    }

    #[test]
    fn at_the_bound_the_oldest_session_is_forgotten() {
        let (mut expired, now) = (ExpiredSessions::default(), Instant::now());
        let session = |number: usize| SessionUuid((number as u128).to_be_bytes());
        for number in 0..=MAX_PREPARATIONS {
            expired.insert(session(number), now);
        }
        expired.assert_invariants();
        assert!(!expired.contains(session(0)));
        assert!(expired.contains(session(1)) && expired.contains(session(MAX_PREPARATIONS)));
    }
}
