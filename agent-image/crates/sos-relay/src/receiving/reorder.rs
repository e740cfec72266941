//! Reorder buffer: puts blocks in order (thesis 3.6).

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use sos_wire::Payload;
use thiserror::Error;

/// Maximum number of pieces behind a gap. A sender that cuts 32 MiB into blocks of the minimum size stays well below this limit. Without
/// the limit, a hostile sender could send single bytes with gaps between them, each of which costs a hundred bytes of memory.
pub const MAX_PIECES: usize = 65_536;
/// Adjacent pieces behind a gap are joined up to this size, so that a host that sends many small blocks does not use up [`MAX_PIECES`].
const JOIN_LIMIT: usize = 8 << 10;
/// Number of in-order pieces above which adjacent pieces are joined while the host does not take them: a piece of one byte costs a hundred
/// bytes.
const FEW_PIECES: usize = 16;
/// Waiting pieces shorter than this are copied to separate memory. A piece may be a small part of a read buffer that also contains pieces
/// of many other sessions, and would keep the whole buffer alive without counting in any budget. A longer piece keeps at most half a buffer
/// alive in addition to its own bytes.
const COPY_BELOW: usize = 128 << 10;

/// More than [`MAX_PIECES`] pieces behind a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("too many pieces behind a gap")]
pub struct TooManyPieces;

/// Holds blocks until everything before them has arrived.
///
/// The caller bounds the number of bytes by refusing blocks beyond the granted credit. [`MAX_PIECES`] and the joining of small pieces bound
/// the number of pieces.
#[derive(Debug, Default)]
pub struct ReorderBuffer {
    /// In-order pieces that wait for the host.
    ready: VecDeque<Payload>,
    ready_bytes: u64,
    /// Number of leading ready pieces that have been through [`Self::settle`].
    settled: usize,
    /// First offset that the host has not taken.
    delivered: u64,
    /// Pieces behind a gap, by offset; disjoint, none starts at or before `arrived`.
    pending: BTreeMap<u64, Payload>,
    pending_bytes: u64,
}

impl ReorderBuffer {
    /// Inserts a block, without the bytes that have already arrived.
    ///
    /// # Errors
    /// [`TooManyPieces`]; only a part of the block has then been inserted.
    pub fn insert(&mut self, offset: u64, block: &Payload) -> Result<(), TooManyPieces> {
        let end = offset + block.len() as u64;
        let mut start = offset.max(self.arrived());
        if let Some((&at, piece)) = self.pending.range(..=start).next_back() {
            start = start.max(at + piece.len() as u64);
        }
        while start < end {
            let next =
                self.pending.range(start..end).next().map(|(&at, piece)| (at, at + piece.len() as u64));
            let stop = next.map_or(end, |(at, _)| at);
            if start < stop {
                self.place(start, block.slice(index(start - offset)..index(stop - offset)))?;
            }
            start = next.map_or(end, |(_, after)| after);
        }
        self.join_ready();
        Ok(())
    }

    /// Bytes for the host, in order.
    pub fn ready(&self) -> impl Iterator<Item = &Payload> {
        self.ready.iter()
    }

    /// Splits the piece that holds bytes on both sides of an offset.
    pub fn split_ready(&mut self, at: u64) {
        let mut start = self.delivered;
        for i in 0..self.ready.len() {
            let len = self.ready[i].len() as u64;
            if start < at && at < start + len {
                let first = self.ready[i].split_to(index(at - start));
                self.ready.insert(i, first);
                self.settled += usize::from(i < self.settled);
                return;
            }
            start += len;
        }
    }

    /// Removes `n` bytes of [`Self::ready`] that the host has taken.
    ///
    /// # Panics
    /// If fewer bytes are ready.
    pub fn consume(&mut self, n: usize) {
        assert!(n as u64 <= self.ready_bytes, "consumed {n} of {} ready bytes", self.ready_bytes);
        self.ready_bytes -= n as u64;
        self.delivered += n as u64;
        let mut left = n;
        while let Some(front) = self.ready.front_mut().filter(|_| left > 0) {
            if front.len() > left {
                let _ = front.split_to(left);
                break;
            }
            left -= front.len();
            self.ready.pop_front();
            self.settled = self.settled.saturating_sub(1);
        }
    }

    /// Copies short pieces to separate memory. Called when the host accepts no more bytes for now: waiting bytes then keep at most half a
    /// buffer more than their own length.
    pub fn settle(&mut self) {
        self.ready.iter_mut().skip(self.settled).for_each(own);
        self.settled = self.ready.len();
    }

    /// Offset before which the host has taken everything.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Offset before which everything has arrived.
    pub fn arrived(&self) -> u64 {
        self.delivered + self.ready_bytes
    }

    /// End of the last byte held or delivered.
    pub fn highest(&self) -> u64 {
        self.pending.last_key_value().map_or(self.arrived(), |(at, piece)| at + piece.len() as u64)
    }

    /// Bytes behind a gap.
    pub fn pending_bytes(&self) -> u64 {
        self.pending_bytes
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.ready_bytes + self.pending_bytes
    }

    /// Drops all content.
    pub fn clear(&mut self) {
        *self = Self { delivered: self.delivered, ..Self::default() };
    }

    /// Inserts a piece that does not overlap any other.
    fn place(&mut self, at: u64, mut piece: Payload) -> Result<(), TooManyPieces> {
        let len = piece.len() as u64;
        if at == self.arrived() {
            self.ready.push_back(piece);
            self.ready_bytes += len;
            self.join_last();
            return Ok(());
        }
        self.pending_bytes += len;
        if let Some((&before, neighbour)) = self.pending.range_mut(..at).next_back()
            && before + neighbour.len() as u64 == at
            && let Some(joined) = join(neighbour, &piece)
        {
            *neighbour = joined;
            return Ok(());
        }
        own(&mut piece);
        self.pending.insert(at, piece);
        if self.pending.len() > MAX_PIECES { Err(TooManyPieces) } else { Ok(()) }
    }

    /// Joins the last in-order pieces if there are many. The last piece is joined only if it is at least half as long as the piece before
    /// it, so that each byte is copied a few times, not once for each later piece.
    fn join_last(&mut self) {
        if self.ready.len() <= FEW_PIECES {
            return;
        }
        while let Some(last) = self.ready.pop_back() {
            let before = self.ready.back_mut().filter(|before| before.len() / 2 <= last.len());
            let Some((before, joined)) = before.and_then(|before| join(before, &last).map(|j| (before, j)))
            else {
                self.ready.push_back(last);
                break;
            };
            *before = joined;
        }
        self.settled = self.settled.min(self.ready.len());
    }

    /// Moves pieces that are no longer behind a gap to the ready pieces.
    fn join_ready(&mut self) {
        while let Some(first) = self.pending.first_entry() {
            if *first.key() != self.delivered + self.ready_bytes {
                break;
            }
            let piece = first.remove();
            self.pending_bytes -= piece.len() as u64;
            self.ready_bytes += piece.len() as u64;
            self.ready.push_back(piece);
        }
    }

    /// Checks the invariants. For tests.
    pub fn assert_invariants(&self) {
        assert_eq!(
            self.ready.iter().map(|b| b.len() as u64).sum::<u64>(),
            self.ready_bytes,
            "ready bytes are counted"
        );
        assert_eq!(
            self.pending.values().map(|b| b.len() as u64).sum::<u64>(),
            self.pending_bytes,
            "pending bytes are counted"
        );
        assert!(self.ready.iter().all(|b| !b.is_empty()), "no empty pieces");
        assert!(self.settled <= self.ready.len(), "settled pieces are ready pieces");
        let mut end = self.arrived();
        for (at, piece) in &self.pending {
            assert!(*at > self.arrived() && *at >= end, "pieces are disjoint and behind a gap");
            end = at + piece.len() as u64;
        }
    }
}

/// Joins two pieces if they are small and in memory.
fn join(one: &Payload, other: &Payload) -> Option<Payload> {
    let (one, other) = (one.bytes()?, other.bytes()?);
    (one.len() + other.len() <= JOIN_LIMIT).then(|| {
        let mut joined = BytesMut::with_capacity(one.len() + other.len());
        joined.extend_from_slice(one);
        joined.extend_from_slice(other);
        joined.freeze().into()
    })
}

/// Copies a short piece to separate memory.
fn own(piece: &mut Payload) {
    if let Some(bytes) = piece.bytes().filter(|bytes| bytes.len() < COPY_BELOW) {
        *piece = Bytes::copy_from_slice(bytes).into();
    }
}

fn index(n: u64) -> usize {
    usize::try_from(n).expect("a position inside a block")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::any::Any;
    use std::sync::Arc;

    use sos_wire::{Keeper, Kept};

    use super::*;

    /// The content of a piece, in memory.
    #[derive(Debug)]
    struct Memory(Vec<u8>);

    impl Keeper for Memory {}

    fn kept(bytes: &[u8]) -> Payload {
        Payload::Kept(Kept::new(Arc::new(Memory(bytes.to_vec())), bytes.len()))
    }

    fn bytes(payload: &Payload) -> Vec<u8> {
        let Payload::Kept(kept) = payload else { return payload.bytes().unwrap().to_vec() };
        (kept.keeper() as &dyn Any).downcast_ref::<Memory>().unwrap().0[kept.range()].to_vec()
    }

    fn take(buffer: &mut ReorderBuffer, n: usize) -> Vec<u8> {
        let all: Vec<u8> = buffer.ready().flat_map(bytes).collect();
        let n = n.min(all.len());
        buffer.consume(n);
        all[..n].to_vec()
    }

    #[test]
    fn small_neighbours_behind_a_gap_are_joined() {
        let mut buffer = ReorderBuffer::default();
        for at in 1..5000u64 {
            buffer.insert(at, &b"x".to_vec().into()).unwrap();
        }
        assert_eq!((buffer.pending.len(), buffer.pending_bytes()), (1, 4999));
        buffer.insert(0, &b"y".to_vec().into()).unwrap();
        assert_eq!((buffer.arrived(), buffer.pending_bytes()), (5000, 0));
    }

    #[test]
    fn small_pieces_for_a_stopped_host_are_joined() {
        let mut buffer = ReorderBuffer::default();
        for at in 0..100_000u64 {
            buffer.insert(at, &vec![at as u8].into()).unwrap();
        }
        assert!(buffer.ready.len() <= 100_000 / (JOIN_LIMIT / 4), "{} pieces", buffer.ready.len());
        let expected: Vec<u8> = (0..100_000u64).map(|at| at as u8).collect();
        assert_eq!(take(&mut buffer, 100_000), expected);
        buffer.assert_invariants();
    }

    /// Buffers of 256 KiB, each with 10 kB of this session.
    fn parts() -> (Vec<BytesMut>, Vec<Payload>) {
        let buffer = |_| {
            let mut buffer = BytesMut::zeroed(256 << 10);
            let part = buffer.split_to(10_000).freeze().into();
            (buffer, part)
        };
        (0..64).map(buffer).unzip()
    }

    /// Counts the buffers that cannot be reused.
    fn kept_alive(buffers: Vec<BytesMut>) -> usize {
        let is_kept = |mut buffer: BytesMut| {
            buffer.clear();
            !buffer.try_reclaim(256 << 10)
        };
        buffers.into_iter().map(is_kept).filter(|kept| *kept).count()
    }

    #[test]
    fn waiting_pieces_do_not_pin_shared_buffers() {
        for gap in [0, 1] {
            let ((buffers, parts), mut buffer) = (parts(), ReorderBuffer::default());
            for (at, part) in parts.iter().enumerate() {
                buffer.insert(gap + 10_000 * at as u64, part).unwrap();
                // The host takes one piece in four.
                if gap == 0 && at % 4 == 0 {
                    buffer.consume(10_000);
                }
                buffer.settle();
            }
            drop(parts);
            assert_eq!(kept_alive(buffers), 0, "behind a gap: {gap}");
            buffer.assert_invariants();
        }
    }

    #[test]
    fn too_many_pieces_are_an_error() {
        let mut buffer = ReorderBuffer::default();
        let mut piece = |i: usize| buffer.insert(2 * i as u64 + 1, &b"x".to_vec().into());
        assert!((0..MAX_PIECES).all(|i| piece(i).is_ok()));
        assert_eq!(piece(MAX_PIECES), Err(TooManyPieces));
    }

    proptest! {
        /// Compare with a simple model: for any order, overlap, repetition and kind of memory, the output is a prefix of the data, and
        /// finally complete.
        #[test]
        fn delivers_prefixes_of_the_data_for_any_arrival_order(
            len in 1usize..4000,
            cuts in prop::collection::vec((any::<prop::sample::Index>(), 1usize..600, any::<bool>()), 0..80),
            takes in prop::collection::vec(0usize..900, 1..20),
        ) {
            let text: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
            let (mut buffer, mut out) = (ReorderBuffer::default(), Vec::new());
            let mut takes = takes.iter().cycle();
            for (at, size, in_memory) in &cuts {
                let at = at.index(len);
                let block = &text[at..(at + size).min(len)];
                let block = if *in_memory { block.to_vec().into() } else { kept(block) };
                buffer.insert(at as u64, &block).unwrap();
                buffer.assert_invariants();
                out.extend(take(&mut buffer, *takes.next().unwrap()));
                if size % 3 == 0 {
                    buffer.settle();
                }
                prop_assert_eq!(out.len() as u64, buffer.delivered());
                prop_assert!(text.starts_with(&out));
            }
            buffer.insert(0, &text.clone().into()).unwrap();
            out.extend(take(&mut buffer, len));
            prop_assert_eq!(&out, &text);
            prop_assert_eq!(buffer.bytes(), 0);
            buffer.assert_invariants();
        }
    }
}
