//! Closed sessions, and the answers to their late frames (frame.md clause 10).
//!
//! The last frames of a session may be lost with their stream. A peer that still waits for such a frame retransmits on another stream, and
//! the answer carries the end reason.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sos_wire::{Backlog, Body, EndReason, SessionNumber};

/// Time for which a closed session is remembered.
pub const MEMORY: Duration = Duration::from_secs(10);
/// Maximum number of sessions remembered; above that the oldest is removed early, and its late frames get the answer for an unknown session.
pub const MAX_REMEMBERED: usize = 65_536;
/// Maximum number of Resets sent per second in answer to frames of unknown sessions.
pub const MAX_ANSWERS: u32 = 100;

/// Result of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Both directions finished; the peer's direction had this many bytes.
    Clean {
        delivered: u64,
    },
    Reset(EndReason),
}

/// Recently closed sessions with one peer.
#[derive(Debug, Default)]
pub struct ClosedSessions {
    endings: BTreeMap<SessionNumber, Ending>,
    order: VecDeque<(Instant, SessionNumber)>,
    second: Option<Instant>,
    answers: u32,
}

impl ClosedSessions {
    /// Remembers a closed session, and the number of the peer's bytes that it had delivered.
    pub fn insert(&mut self, number: SessionNumber, reason: EndReason, delivered: u64, now: Instant) {
        self.forget(now);
        let clean = reason == EndReason::Finished;
        let ending = if clean { Ending::Clean { delivered } } else { Ending::Reset(reason) };
        if self.order.len() >= MAX_REMEMBERED
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.endings.remove(&oldest);
        }
        if self.endings.insert(number, ending).is_none() {
            self.order.push_back((now, number));
        }
    }

    /// True if a session with this number has recently closed, so that a late Open must not restart it.
    pub fn contains(&self, number: SessionNumber) -> bool {
        self.endings.contains_key(&number)
    }

    /// Returns the answer, if any, to a frame of a session that no longer exists or never existed.
    pub fn answer(&mut self, number: SessionNumber, body: &Body, now: Instant) -> Option<Body> {
        // A late Open still gets the recorded reason if the entry expires in this call.
        let refused = self.endings.get(&number).copied().filter(|_| matches!(body, Body::Open { .. }));
        self.forget(now);
        let ending = refused.or_else(|| self.endings.get(&number).copied());
        match (ending, body) {
            // An Ack without credit is itself an answer of this kind. It gets no answer, or two closed sessions would answer each other
            // forever.
            (_, Body::Ack { credit: 0, .. }) => None,
            (Some(Ending::Clean { delivered }), body) if waits(body) => {
                Some(Body::Ack { offset: delivered + 1, credit: 0, backlog: Backlog::default() })
            }
            (Some(Ending::Reset(reason)), body)
                if waits(body) || matches!(body, Body::Open { .. } | Body::Opened { .. }) =>
            {
                self.reset(reason, now)
            }
            (None, body) if waits(body) => self.reset(EndReason::PeerLost, now),
            _ => None,
        }
    }

    fn reset(&mut self, reason: EndReason, now: Instant) -> Option<Body> {
        let since = *self.second.get_or_insert(now);
        if now.saturating_duration_since(since) >= Duration::from_secs(1) {
            (self.second, self.answers) = (Some(now), 0);
        }
        self.answers += 1;
        (self.answers <= MAX_ANSWERS).then_some(Body::Reset { reason })
    }

    fn forget(&mut self, now: Instant) {
        while let Some(&(at, number)) = self.order.front() {
            if now.saturating_duration_since(at) < MEMORY {
                break;
            }
            self.order.pop_front();
            self.endings.remove(&number);
        }
    }
}

/// True if the sender of this frame has a session that waits for an answer (frame.md clause 10).
fn waits(body: &Body) -> bool {
    matches!(body, Body::Data { .. } | Body::Compressed { .. } | Body::Fin { .. } | Body::Ack { .. })
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddrV4};

    use sos_wire::{Open, SessionUuid};

    use super::*;

    const ACK: Body = Body::Ack { offset: 1, credit: 1, backlog: Backlog(0) };
    const HOST: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
    const OPEN: Body = Body::Open {
        credit: 1,
        open: Open {
            session: SessionUuid([1; 16]),
            client: HOST,
            server: HOST,
            marks: sos_wire::Marks { dscp: 0, ttl: 0 },
            block_bytes: 0,
            queue_bytes: 0,
        },
    };

    #[test]
    fn an_answer_carries_the_end_reason() {
        let (mut ended, now) = (ClosedSessions::default(), Instant::now());
        let number = SessionNumber;
        ended.insert(number(1), EndReason::Finished, 7, now);
        ended.insert(number(2), EndReason::ClientReset, 0, now);
        let done = Body::Ack { offset: 8, credit: 0, backlog: Backlog(0) };
        assert_eq!(ended.answer(number(1), &Body::Fin { offset: 7 }, now), Some(done.clone()));
        assert_eq!(ended.answer(number(1), &ACK, now), Some(done.clone()));
        assert_eq!(ended.answer(number(1), &done, now), None, "never an answer to an answer");
        assert_eq!(ended.answer(number(1), &Body::Opened { credit: 1 }, now), None);
        assert_eq!(ended.answer(number(2), &ACK, now), Some(Body::Reset { reason: EndReason::ClientReset }));
        assert_eq!(
            ended.answer(number(2), &OPEN, now),
            Some(Body::Reset { reason: EndReason::ClientReset }),
            "an opener that missed the Reset sends Open a second time"
        );
        assert_eq!(ended.answer(number(1), &OPEN, now), None, "the opener has had its answer");
        assert_eq!(ended.answer(number(3), &ACK, now), Some(Body::Reset { reason: EndReason::PeerLost }));
        assert_eq!(
            ended.answer(number(3), &Body::Reset { reason: EndReason::PeerLost }, now),
            None,
            "never Reset for Reset"
        );
        assert!(ended.contains(number(1)));
        assert_eq!(
            ended.answer(number(1), &ACK, now + MEMORY),
            Some(Body::Reset { reason: EndReason::PeerLost })
        );
        assert!(!ended.contains(number(1)));
        ended.insert(number(4), EndReason::PeerLost, 0, now);
        let late = now + 2 * MEMORY;
        assert!(ended.contains(number(4)), "until the next lookup");
        assert_eq!(ended.answer(number(4), &OPEN, late), Some(Body::Reset { reason: EndReason::PeerLost }));
        assert!(!ended.contains(number(4)));
    }

    #[test]
    fn answers_and_memory_are_bounded() {
        let (mut ended, now) = (ClosedSessions::default(), Instant::now());
        let answered = |ended: &mut ClosedSessions, now| {
            (0..1000).filter(|_| ended.answer(SessionNumber(1), &ACK, now).is_some()).count()
        };
        assert_eq!(answered(&mut ended, now), 100);
        assert_eq!(answered(&mut ended, now + Duration::from_secs(1)), 100);
        (1..=MAX_REMEMBERED as u64 + 5)
            .for_each(|n| ended.insert(SessionNumber(n), EndReason::Finished, 0, now));
        assert_eq!((ended.order.len(), ended.endings.len()), (MAX_REMEMBERED, MAX_REMEMBERED));
        assert!(!ended.contains(SessionNumber(5)) && ended.contains(SessionNumber(6)));
    }
}
