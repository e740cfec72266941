//! DSCP and TTL of the hosts' packets (frame.md section 8): announces changes to the peer, each with the first byte that it applies to.

use std::collections::{BTreeMap, BTreeSet};

use sos_wire::{Body, Marks};

use crate::sending::scheduler::StreamId;

/// Maximum number of changes kept for bytes that the host has not received yet. Beyond this number, the oldest change is dropped, and its
/// bytes keep the previous marks.
const MAX_PENDING: usize = 64;

/// Marks of the local host, announced to the peer.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// Marks as announced to the peer.
    marks: Marks,
    offset: u64,
    change: u64,
    /// Streams that have carried the last change ahead of its data.
    sent_on: BTreeSet<StreamId>,
    due: bool,
}

impl Announced {
    /// Sets the marks that the peer already knows from Open.
    pub(crate) fn begin(&mut self, marks: Marks) {
        self.marks = marks;
    }

    /// Notes the host's current marks, which apply to bytes from `offset` on.
    pub(crate) fn change(&mut self, marks: Marks, offset: u64) {
        if marks == self.marks {
            return;
        }
        (self.marks, self.offset) = (marks, offset);
        self.change += 1;
        self.sent_on.clear();
        self.due = true;
    }

    /// True if the last change must be announced even without data after it.
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// Frame that must precede data on this stream.
    pub(crate) fn before(&mut self, stream: StreamId) -> Option<Body> {
        (self.change > 0 && self.sent_on.insert(stream)).then(|| {
            self.due = false;
            Body::Marks { offset: self.offset, change: self.change, marks: self.marks }
        })
    }

    /// Handles the loss of a stream. If the stream carried the last change, that frame may be lost, so the change is due again.
    pub(crate) fn handle_stream_lost(&mut self, stream: StreamId) {
        self.due |= self.sent_on.remove(&stream);
    }
}

/// Marks of the far host, for the connection to the local host.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// Number of the change that applies to the next bytes.
    applied: u64,
    /// Later changes by number, with the offset from which they apply.
    pending: BTreeMap<u64, (u64, Marks)>,
}

impl Received {
    /// Handles an announced change. Frames on different streams may overtake each other: a change is ignored if a later change is already
    /// in force.
    pub(crate) fn handle(&mut self, change: u64, offset: u64, marks: Marks) {
        if change > self.applied {
            self.pending.insert(change, (offset, marks));
            if self.pending.len() > MAX_PENDING {
                self.pending.pop_first();
            }
        }
    }

    /// Marks in force from now on, once the host has received all bytes before `delivered`.
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
        assert!(!announced.is_due() && announced.before(one).is_none(), "the peer knows these marks");
        announced.change(marks(46), 100);
        assert!(announced.is_due());
        assert_eq!(announced.before(one), Some(Body::Marks { offset: 100, change: 1, marks: marks(46) }));
        assert!(!announced.is_due() && announced.before(one).is_none());
        assert!(announced.before(other).is_some());
        announced.handle_stream_lost(other);
        assert!(announced.is_due(), "the announcement may be lost");
        announced.change(marks(8), 100);
        assert_eq!(announced.before(one), Some(Body::Marks { offset: 100, change: 2, marks: marks(8) }));
    }

    #[test]
    fn marks_apply_from_their_byte_in_order() {
        let mut received = Received::default();
        received.handle(3, 200, marks(3));
        received.handle(1, 0, marks(1));
        received.handle(2, 100, marks(2));
        assert_eq!((received.poll(0), received.next()), (Some(marks(1)), Some(100)));
        assert_eq!(received.poll(99), None);
        assert_eq!((received.poll(100), received.next()), (Some(marks(2)), Some(200)));
        received.handle(1, 0, marks(1));
        assert_eq!(received.poll(150), None, "a replaced change is ignored");
        assert_eq!((received.poll(200), received.next()), (Some(marks(3)), None));
    }

    #[test]
    fn pending_changes_are_bounded_and_the_last_is_kept() {
        let mut received = Received::default();
        for change in 1..=10 * MAX_PENDING as u64 {
            received.handle(change, change, marks(u8::try_from(change % 64).unwrap()));
        }
        assert_eq!(received.pending.len(), MAX_PENDING);
        assert_eq!(received.poll(u64::MAX), Some(marks((10 * MAX_PENDING % 64) as u8)));
    }
}
