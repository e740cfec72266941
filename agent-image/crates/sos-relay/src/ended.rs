//! Sessions that are over, and what their late frames are answered (frame.md clause 10).
//!
//! The last frames of a session may die with their stream. Whoever still waits for one of them repeats itself on another stream, and is
//! told from here how the session ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sos_wire::{Backlog, Body, EndReason, SessionNumber};

/// How long an ended session is remembered.
pub const MEMORY: Duration = Duration::from_secs(10);
/// Most sessions remembered; beyond it the oldest is forgotten early, and its late frames get the answer of an unknown one.
pub const MAX_REMEMBERED: usize = 65_536;
/// Most Resets sent per second in answer to frames of sessions that do not exist.
pub const MAX_ANSWERS: u32 = 100;

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// Both directions ended; the peer's had this many bytes.
    Clean {
        delivered: u64,
    },
    Reset(EndReason),
}

/// The sessions with one peer that have ended lately.
#[derive(Debug, Default)]
pub struct EndedSessions {
    endings: BTreeMap<SessionNumber, Ending>,
    order: VecDeque<(Instant, SessionNumber)>,
    second: Option<Instant>,
    answers: u32,
}

impl EndedSessions {
    /// A session has ended, after it had delivered so many bytes of the peer.
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

    /// Whether a session with this number has ended lately, so that a late Open must not begin it again.
    pub fn contains(&self, number: SessionNumber) -> bool {
        self.endings.contains_key(&number)
    }

    /// What to answer a frame of a session that does not exist, if anything.
    pub fn answer(&mut self, number: SessionNumber, body: &Body, now: Instant) -> Option<Body> {
        // One who was refused since the session is remembered is told so, though it be forgotten by now.
        let refused = self.endings.get(&number).copied().filter(|_| matches!(body, Body::Open { .. }));
        self.forget(now);
        let ending = refused.or_else(|| self.endings.get(&number).copied());
        match (ending, body) {
            // Answers of this kind carry no credit and are not answered, or two ended sessions would answer each other for ever.
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

/// Whether who says this has a session that waits for an answer (frame.md clause 10).
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
    fn the_answer_tells_how_it_ended() {
        let (mut ended, now) = (EndedSessions::default(), Instant::now());
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
            "who has not heard of it opens again"
        );
        assert_eq!(ended.answer(number(1), &OPEN, now), None, "who opened has had an answer");
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
        assert!(ended.contains(number(4)), "as long as nobody asks");
        assert_eq!(ended.answer(number(4), &OPEN, late), Some(Body::Reset { reason: EndReason::PeerLost }));
        assert!(!ended.contains(number(4)));
    }

    #[test]
    fn answers_and_memory_are_bounded() {
        let (mut ended, now) = (EndedSessions::default(), Instant::now());
        let answered = |ended: &mut EndedSessions, now| {
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
