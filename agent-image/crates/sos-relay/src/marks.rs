//! DSCP and TTL of the hosts' packets (frame.md section 8): when the peer is told of a change, and from which byte on it holds.

use std::collections::{BTreeMap, BTreeSet};

use sos_wire::{Body, Marks};

use crate::scheduler::StreamId;

/// Changes kept for bytes that the host has not been given yet. A host that changes its marks more often than it is read gets the later ones
/// for the bytes between.
const MAX_PENDING: usize = 64;

/// Marks of the local host, on their way to the peer.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// As the peer knows them, or is about to.
    marks: Marks,
    offset: u64,
    change: u64,
    /// Streams on which the last change stands in front of what follows it.
    sent_on: BTreeSet<StreamId>,
    due: bool,
}

impl Announced {
    /// The peer knows these already: Open has told them.
    pub(crate) fn begin(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// The host's packets have these marks, and with them the bytes from `offset` on.
    pub(crate) fn change(&mut self, marks: Marks, offset: u64) {
        if marks == self.marks {
            return;
        }
        (self.marks, self.offset) = (marks, offset);
        self.change += 1;
        self.sent_on.clear();
        self.due = true;
    }

    /// True if the last change is to be told though no data follows it.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// The frame that has to be in front of data on this stream.
    pub(crate) fn before(&mut self, stream: StreamId) -> Option<Body> {
        (self.change > 0 && self.sent_on.insert(stream)).then(|| {
            self.due = false;
            Body::Marks { offset: self.offset, change: self.change, marks: self.marks }
        })
    }

    /// Frames on a stream may never arrive.
    pub(crate) fn handle_stream_lost(&mut self, stream: StreamId) {
        self.due |= self.sent_on.remove(&stream);
    }
}

/// Marks of the far host, for the local one's connection.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The number of the change that holds for what is delivered next.
    applied: u64,
    /// Later ones: from which byte on they hold.
    pending: BTreeMap<u64, (u64, Marks)>,
}

impl Received {
    /// The peer tells of a change. Frames overtake each other on other streams: one that a later change has taken the place of is ignored.
    pub(crate) fn handle(&mut self, change: u64, offset: u64, marks: Marks) {
        if change > self.applied {
            self.pending.insert(change, (offset, marks));
            if self.pending.len() > MAX_PENDING {
                self.pending.pop_first();
            }
        }
    }

    /// The marks that hold from now on, all bytes before `delivered` having been given to the host.
    pub(crate) fn poll(&mut self, delivered: u64) -> Option<Marks> {
        let reached = self.pending.iter().rev().find(|(_, (offset, _))| *offset <= delivered);
        let (change, marks) = reached.map(|(change, (_, marks))| (*change, *marks))?;
        self.applied = change;
        self.pending = self.pending.split_off(&(change + 1));
        Some(marks)
    }

    /// Offset of the next change: bytes are delivered up to it first.
    pub(crate) fn next(&self) -> Option<u64> {
        self.pending.values().map(|(offset, _)| *offset).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(dscp: u8) -> Marks {
        Marks { dscp, ttl: 64 }
    }

    #[test]
    fn a_change_precedes_data_on_each_stream_once() {
        let (mut announced, one, other) = (Announced::default(), StreamId(1), StreamId(2));
        announced.begin(marks(8));
        announced.change(marks(8), 0);
        assert!(!announced.is_due() && announced.before(one).is_none(), "the peer knows");
        announced.change(marks(46), 100);
        assert!(announced.is_due());
        assert_eq!(announced.before(one), Some(Body::Marks { offset: 100, change: 1, marks: marks(46) }));
        assert!(!announced.is_due() && announced.before(one).is_none());
        assert!(announced.before(other).is_some());
        announced.handle_stream_lost(other);
        assert!(announced.is_due(), "it may be lost");
        announced.change(marks(8), 100);
        assert_eq!(announced.before(one), Some(Body::Marks { offset: 100, change: 2, marks: marks(8) }));
    }

    #[test]
    fn marks_hold_from_their_byte_on_in_the_order_of_changes() {
        let mut received = Received::default();
        received.handle(3, 200, marks(3));
        received.handle(1, 0, marks(1));
        received.handle(2, 100, marks(2));
        assert_eq!((received.poll(0), received.next()), (Some(marks(1)), Some(100)));
        assert_eq!(received.poll(99), None);
        assert_eq!((received.poll(100), received.next()), (Some(marks(2)), Some(200)));
        received.handle(1, 0, marks(1));
        assert_eq!(received.poll(150), None, "late, and of no account");
        assert_eq!((received.poll(200), received.next()), (Some(marks(3)), None));
    }

    #[test]
    fn changes_that_wait_are_bounded_and_the_last_is_kept() {
        let mut received = Received::default();
        for change in 1..=10 * MAX_PENDING as u64 {
            received.handle(change, change, marks(u8::try_from(change % 64).unwrap()));
        }
        assert_eq!(received.pending.len(), MAX_PENDING);
        assert_eq!(received.poll(u64::MAX), Some(marks((10 * MAX_PENDING % 64) as u8)));
    }
}
