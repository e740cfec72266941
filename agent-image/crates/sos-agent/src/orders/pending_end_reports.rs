//! Pending end reports: session ends that controllers have not acknowledged yet (spec/order.md clause 6).

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sos_wire::{ControllerId, Ended, SessionUuid};

/// Maximum number of pending reports. Above this number, the report that is due next is dropped: its controller learns of the end because
/// the next session report omits the session.
pub const MAX_PENDING_ENDS: usize = 16_384;
/// Retransmission timeouts of an end report.
pub const RESENDS: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(1_600),
    Duration::from_millis(3_200),
];

#[derive(Debug)]
struct Pending {
    controller: ControllerId,
    ended: Ended,
    resends: usize,
    next: Instant,
}

/// End reports by session and by due time.
#[derive(Debug, Default)]
pub struct PendingEnds {
    by_session: BTreeMap<SessionUuid, Pending>,
    by_next: BTreeSet<(Instant, SessionUuid)>,
}

impl PendingEnds {
    /// Adds an end that has just been sent for the first time.
    pub fn insert(&mut self, controller: ControllerId, ended: Ended, now: Instant) {
        self.remove(ended.session);
        if self.by_session.len() >= MAX_PENDING_ENDS
            && let Some((_, session)) = self.by_next.first().copied()
        {
            self.remove(session);
        }
        self.put(Pending { controller, ended, resends: 0, next: now + RESENDS[0] });
    }

    /// Removes an end that its controller has acknowledged. An acknowledgement by another controller does not count.
    pub fn acknowledge(&mut self, controller: ControllerId, session: SessionUuid) {
        if self.by_session.get(&session).is_some_and(|pending| pending.controller == controller) {
            self.remove(session);
        }
    }

    /// Removes all ends of a forgotten controller.
    pub fn forget_controller(&mut self, controller: ControllerId) {
        self.by_session.retain(|_, pending| pending.controller != controller);
        self.by_next.retain(|(_, session)| self.by_session.contains_key(session));
    }

    /// Ends to retransmit now. After the last retransmission, the last timeout runs once more before the end is dropped.
    pub fn due(&mut self, now: Instant) -> Vec<(ControllerId, Ended)> {
        let mut due = Vec::new();
        while let Some((_, session)) = self.by_next.first().copied().filter(|(next, _)| *next <= now) {
            let Some(mut pending) = self.remove(session) else { break };
            if pending.resends == RESENDS.len() {
                continue;
            }
            due.push((pending.controller, pending.ended));
            pending.resends += 1;
            pending.next = now + RESENDS[pending.resends.min(RESENDS.len() - 1)];
            self.put(pending);
        }
        due
    }

    /// Next deadline of [`Self::due`].
    #[must_use]
    pub fn next(&self) -> Option<Instant> {
        self.by_next.first().map(|(next, _)| *next)
    }

    /// Number of pending reports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_session.len()
    }

    /// True if no report is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_session.is_empty()
    }

    fn put(&mut self, pending: Pending) {
        self.by_next.insert((pending.next, pending.ended.session));
        self.by_session.insert(pending.ended.session, pending);
    }

    fn remove(&mut self, session: SessionUuid) -> Option<Pending> {
        let pending = self.by_session.remove(&session)?;
        self.by_next.remove(&(pending.next, session));
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sos_wire::EndReason;

    const CONTROLLER: ControllerId = ControllerId(1);

    fn ended(number: u32) -> Ended {
        let mut uuid = [0; 16];
        uuid[..4].copy_from_slice(&number.to_be_bytes());
        Ended {
            session: SessionUuid(uuid),
            reason: EndReason::Finished,
            bytes_up: 1,
            bytes_down: 2,
            duration_ms: 3,
        }
    }

    #[test]
    fn retransmits_five_times_with_growing_timeouts() {
        let start = Instant::now();
        let mut ends = PendingEnds::default();
        ends.insert(CONTROLLER, ended(1), start);
        let mut times = Vec::new();
        while let Some(next) = ends.next() {
            if !ends.due(next).is_empty() {
                times.push((next - start).as_millis());
            }
        }
        assert_eq!(times, [200, 600, 1_400, 3_000, 6_200]);
        assert!(ends.is_empty());
    }

    #[test]
    fn only_the_acknowledgement_of_its_own_controller_removes_an_end() {
        let now = Instant::now();
        let mut ends = PendingEnds::default();
        ends.insert(CONTROLLER, ended(1), now);
        ends.acknowledge(ControllerId(2), ended(1).session);
        assert_eq!(ends.len(), 1);
        ends.acknowledge(CONTROLLER, ended(1).session);
        assert!(ends.is_empty() && ends.next().is_none());
    }

    #[test]
    fn the_number_of_pending_reports_is_bounded() {
        let now = Instant::now();
        let mut ends = PendingEnds::default();
        let count = u32::try_from(MAX_PENDING_ENDS).unwrap();
        for number in 0..=count {
            ends.insert(CONTROLLER, ended(number), now + Duration::from_millis(number.into()));
        }
        assert_eq!(ends.len(), MAX_PENDING_ENDS);
        assert!(!ends.by_session.contains_key(&ended(0).session));
        ends.forget_controller(CONTROLLER);
        assert!(ends.is_empty() && ends.next().is_none());
    }
}
