//! Retransmission: blocks that are late, and the tail of the host's data.

use std::time::Instant;

use sos_wire::Body;

use super::{Block, Fin, Place, Sender};
use crate::sending::redundancy::TAIL;
use crate::sending::scheduler::StreamId;
use crate::stats::Cause;

/// Number of blocks at the gap that are considered for retransmission.
const REINJECTED: usize = 64;

impl Sender {
    /// Retransmits one of the first blocks if its copy is expected to arrive well before the original (thesis 3.6: a gap stops all later
    /// data). Call this only if there is nothing else to send. `place` returns the placement of a block of a given length, and `expected`
    /// the expected arrival of the original.
    pub(crate) fn reinject(
        &mut self,
        place: impl Fn(usize) -> Place,
        expected: impl Fn(&Place) -> Option<Instant>,
        now: Instant,
    ) -> Option<Body> {
        let late = |b: &Block| {
            let arrives = place(b.payload.len()).due;
            let sooner = |there| arrives + (arrives - now) / 2 < there;
            !b.copied && expected(&b.place).is_some_and(sooner)
        };
        let found = self.blocks.iter().take(REINJECTED).position(late)?;
        let len = self.blocks[found].payload.len();
        if !self.gap_stops() && !self.copies.take(len as u64, self.sent) {
            return None;
        }
        self.blocks[found].copied = true;
        self.resend(found, place(len), Cause::Late)
    }

    /// True if the arrival of the first blocks would let the sender continue, or finish the session.
    fn gap_stops(&self) -> bool {
        !self.unsent.is_empty() || self.fin != Fin::Open || self.held() + self.block > self.hold
    }

    /// Returns the stream of the first byte of the tail that has not been sent twice; the FIN counts as a byte. `None` if there is no such
    /// byte, or while more data follows, because segments of that data reveal a loss.
    pub(crate) fn tail_on(&self) -> Option<StreamId> {
        if self.next_len().is_some() || !self.unsent.is_empty() {
            return None;
        }
        let block = self.blocks.get(self.tail()?).map(|b| b.place.stream);
        block.or(if let Fin::Sent(stream) = self.fin { Some(stream) } else { None })
    }

    /// Sends the next part of the tail, or the FIN, a second time; the placement of the original is kept. `None` if the allowance is
    /// exhausted.
    pub(crate) fn double(&mut self, now: Instant) -> Option<Body> {
        let Some(block) = self.blocks.get(self.tail()?) else {
            self.doubled = self.sent + 1;
            return self.allowance.take(0, now).then_some(Body::Fin { offset: self.sent });
        };
        let skip = self.tail_from().saturating_sub(block.offset);
        let (offset, end) = (block.offset + skip, block.end());
        let payload = block.payload.slice(usize::try_from(skip).ok()?..block.payload.len());
        self.doubled = end;
        let allowed = self.allowance.take(end - offset, now);
        self.retransmitted[Cause::Tail] += if allowed { end - offset } else { 0 };
        allowed.then_some(Body::Data { offset, payload })
    }

    /// Start of the part of the tail that is still to be sent twice.
    fn tail_from(&self) -> u64 {
        self.acknowledged.max(self.doubled).max(self.sent.saturating_sub(TAIL))
    }

    /// Index of the block in which the tail starts, or the number of blocks if only the FIN is left; `None` if nothing is left.
    fn tail(&self) -> Option<usize> {
        let (from, ends) = (self.tail_from(), matches!(self.fin, Fin::Sent(_)));
        if from < self.sent {
            return Some(self.blocks.partition_point(|b| b.end() <= from));
        }
        (ends && self.doubled <= self.sent).then_some(self.blocks.len())
    }

    /// Next time to check whether one of the first blocks is late; the interval increases with time.
    pub(crate) fn late_at(&self, now: Instant) -> Option<Instant> {
        let first = self.blocks.iter().take(REINJECTED).find(|b| !b.copied)?;
        let due = first.place.due;
        Some(due.max(now + now.saturating_duration_since(due) / 2))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::MAX_BLOCK;
    use crate::budget::Budget;
    use crate::sending::redundancy::Copies;

    fn place(stream: u64, due: Instant) -> Place {
        Place { stream: StreamId(stream), due, until: 0 }
    }

    #[test]
    fn the_tail_and_the_fin_are_duplicated_once() {
        let now = Instant::now();
        let mut sender = Sender::new(Some(8192), 1 << 20, Budget::new(64 << 20).reserve(0).unwrap());
        sender.handle_credit(1 << 20);
        sender.handle_data(vec![7; 20_000].into());
        sender.handle_eof();
        while sender.next_len().is_some() {
            assert_eq!(sender.tail_on(), None, "there is more to send");
            sender.next(place(3, now));
        }
        let mut doubled = Vec::new();
        while let Some(stream) = sender.tail_on() {
            assert_eq!(stream, StreamId(3));
            doubled.push(match sender.double(now).unwrap() {
                Body::Data { offset, payload } => (offset, payload.len()),
                Body::Fin { offset } => (offset, 0),
                other => panic!("{other:?}"),
            });
        }
        assert_eq!(doubled, [(20_000 - TAIL, 8192 - 5520), (8192, 8192), (16_384, 3616), (20_000, 0)]);
        sender.handle_ack(20_001).unwrap();
        assert_eq!(sender.tail_on(), None);
        sender.assert_invariants();
    }

    #[test]
    fn copies_are_bounded_unless_the_gap_stops_the_session() {
        let now = Instant::now();
        let mut sender = Sender::new(Some(MAX_BLOCK), 32 << 20, Budget::new(64 << 20).reserve(0).unwrap());
        sender.handle_credit(8 << 20);
        sender.set_rate_known(1e9);
        let say = |sender: &mut Sender| {
            while let room @ 1.. = sender.room() {
                sender.handle_data(vec![7; room.min(MAX_BLOCK)].into());
                while sender.next_len().is_some() {
                    sender.next(place(0, now));
                }
            }
        };
        while sender.sent() < 6 << 20 {
            let len = sender.room().min(MAX_BLOCK);
            sender.handle_data(vec![7; len].into());
            sender.next(place(0, now));
        }
        let copy = |sender: &mut Sender| {
            sender.reinject(|_| place(1, now), |_| Some(now + Duration::from_secs(1)), now).is_some()
        };
        while copy(&mut sender) {}
        let most = Copies::most(sender.sent());
        assert!(
            (most - MAX_BLOCK as u64..=most).contains(&sender.retransmitted[Cause::Late]),
            "{:?}",
            sender.retransmitted
        );
        say(&mut sender);
        assert_eq!(sender.next_len(), None, "credit is used up");
        assert!(copy(&mut sender));
        sender.assert_invariants();
    }

    #[test]
    fn duplication_skips_acknowledged_bytes_and_stops_at_the_allowance() {
        let now = Instant::now();
        let mut sender = Sender::new(None, 1 << 20, Budget::new(64 << 20).reserve(0).unwrap());
        sender.handle_credit(1 << 20);
        let say = |sender: &mut Sender| {
            sender.handle_data(vec![7; 10_000].into());
            assert!(sender.next(place(0, now)).is_some());
        };
        say(&mut sender);
        sender.handle_ack(4000).unwrap();
        assert!(
            matches!(sender.double(now), Some(Body::Data { offset: 4000, payload }) if payload.len() == 6000)
        );
        for _ in 0..5 {
            say(&mut sender);
            assert!(sender.double(now).is_some());
        }
        say(&mut sender);
        assert_eq!(
            (sender.tail_on(), sender.double(now)),
            (Some(StreamId(0)), None),
            "the allowance is used up"
        );
        assert_eq!(sender.tail_on(), None, "the tail is not tried a second time");
    }
}
