//! Sending half of a session: the local host's bytes on their way to the peer.

mod retransmit;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use sos_wire::stream::frame::INITIAL_CREDIT;
use sos_wire::{Backlog, Body, Payload};

use crate::budget::Reservation;
use crate::sending::read_ahead::ReadAhead;
use crate::sending::redundancy::{Allowance, Copies};
use crate::sending::scheduler::StreamId;
use crate::stats::{Cause, Retransmitted};
use crate::{DEFAULT_BLOCK, MAX_BLOCK};

/// Bytes that a sender may hold without a reservation, so that a session makes progress even when the budget is exhausted.
pub(crate) const FLOOR: usize = 64 << 10;
/// Divisor of the window that gives the automatic block size. Large windows belong to fast paths, where the CPU cost of each block matters
/// more than the delay that a large block adds.
const BLOCK_SHARE: u64 = 32;
/// Maximum size of a block, as sending time of a stream in seconds: blocks of other sessions wait behind the whole block.
const BLOCK_TIME: f64 = 0.005;
/// Maximum backlog of bytes that were read from the host and not cut into blocks yet, in blocks. With this backlog, a stream with buffer
/// space need not wait for the next read from the host.
const UNSENT_BLOCKS: usize = 4;
/// Minimum size of a block that is cut short for lack of credit while earlier bytes are unacknowledged: the acknowledgement of these bytes
/// may bring more credit (silly window, RFC 9293 3.8.6.2).
const MIN_CUT: u64 = 16 << 10;

/// A block that was sent and is kept until acknowledged.
#[derive(Debug)]
struct Block {
    offset: u64,
    payload: Payload,
    place: Place,
    /// A copy was sent because the block may be late. A block is copied only once.
    copied: bool,
}

/// Placement of a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) stream: StreamId,
    /// Expected time of arrival.
    pub(crate) due: Instant,
    /// Total of bytes queued on the stream, up to and including this block, for [`crate::sending::scheduler::StreamView::has_passed`].
    pub(crate) until: u64,
}

impl Block {
    fn end(&self) -> u64 {
        self.offset + self.payload.len() as u64
    }
}

/// State of the FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fin {
    /// The host may send more.
    Open,
    /// The host has ended; the FIN is due once all bytes are sent.
    Due,
    /// Sent on this stream.
    Sent(StreamId),
    /// The peer has acknowledged the FIN.
    Acknowledged,
}

/// Acknowledgement of bytes that were never sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ImpossibleAck;

#[derive(Debug)]
pub(crate) struct Sender {
    /// Blocks sent, by offset; the first may be partly acknowledged.
    blocks: VecDeque<Block>,
    /// Offsets of blocks whose stream failed or stalled.
    lost: BTreeMap<u64, Cause>,
    /// Bytes from the host that were never sent.
    unsent: VecDeque<Payload>,
    unsent_bytes: usize,
    acknowledged: u64,
    sent: u64,
    credit: u64,
    block: usize,
    /// The block size is automatic, not requested.
    auto_block: bool,
    /// Rate of the fastest stream in bytes per second; unlimited until a stream is known.
    rate: f64,
    fin: Fin,
    /// The FIN was sent, perhaps on a stream that has failed since: the peer may have it.
    fin_told: bool,
    stalled: bool,
    hold: usize,
    max_hold: usize,
    ahead: ReadAhead,
    reservation: Reservation,
    /// Offset up to which the tail needs no second transmission any more; an offset after the last byte includes the FIN.
    doubled: u64,
    allowance: Allowance,
    copies: Copies,
    pub(crate) retransmitted: Retransmitted,
    pub(crate) credit_stalls: u64,
}

impl Sender {
    pub(crate) fn new(block: Option<usize>, max_hold: usize, reservation: Reservation) -> Self {
        let max_hold = max_hold.max(FLOOR);
        Self {
            blocks: VecDeque::new(),
            lost: BTreeMap::new(),
            unsent: VecDeque::new(),
            unsent_bytes: 0,
            acknowledged: 0,
            sent: 0,
            credit: INITIAL_CREDIT,
            block: block.unwrap_or(DEFAULT_BLOCK),
            auto_block: block.is_none(),
            rate: f64::MAX,
            fin: Fin::Open,
            fin_told: false,
            stalled: false,
            hold: FLOOR,
            max_hold,
            ahead: ReadAhead::new(max_hold as u64),
            reservation,
            doubled: 0,
            allowance: Allowance::default(),
            copies: Copies::default(),
            retransmitted: Retransmitted::default(),
            credit_stalls: 0,
        }
    }

    /// Current size of a block.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    /// Number of bytes accepted from the host now. Grows the session's share of the budget if the share is the limit.
    pub(crate) fn room(&mut self) -> usize {
        let uncut = (UNSENT_BLOCKS * self.block).saturating_sub(self.unsent_bytes);
        if self.fin != Fin::Open || uncut < self.block {
            return 0;
        }
        // Reserve more only once more than half of the current limit is held: most sessions are idle and stay within the initial limit
        // `FLOOR`, which needs no reservation.
        if self.held() > self.hold / 2 {
            let total = (self.hold * 2).min(self.max_hold);
            if total > self.hold && self.reservation.grow_to(total) {
                self.hold = total;
            }
        }
        let ahead = self.ahead.room(self.taken());
        uncut.min(self.hold.saturating_sub(self.held())).min(ahead)
    }

    /// Starts with the delivery rate of other sessions.
    pub(crate) fn set_rate_known(&mut self, rate: f64) {
        self.ahead.set_rate(rate);
    }

    pub(crate) fn set_rtt(&mut self, rtt: Duration) {
        self.ahead.set_rtt(rtt);
    }

    /// Sets windows and round trips of the streams.
    pub(crate) fn set_streams(&mut self, streams: impl Iterator<Item = (u64, Duration)>) {
        self.ahead.set_streams(streams);
    }

    pub(crate) fn host_window(&self) -> u64 {
        self.ahead.window()
    }

    pub(crate) fn delivery_rate(&self) -> f64 {
        self.ahead.rate()
    }

    /// Notes that the peer's host has acknowledged everything before `offset` except the last bytes, whose number is the backlog.
    pub(crate) fn handle_backlog(&mut self, offset: u64, backlog: Backlog, now: Instant) {
        self.ahead.handle_taken(offset.min(self.sent).saturating_sub(backlog.bytes()), now);
    }

    pub(crate) fn handle_data(&mut self, payload: Payload) {
        debug_assert!(self.fin == Fin::Open, "the host has ended");
        if !payload.is_empty() {
            self.unsent_bytes += payload.len();
            self.unsent.push_back(payload);
        }
    }

    /// Offset before which everything has been taken from the host.
    pub(crate) fn taken(&self) -> u64 {
        self.sent + self.unsent_bytes as u64
    }

    pub(crate) fn handle_eof(&mut self) {
        if self.fin == Fin::Open {
            self.fin = Fin::Due;
        }
    }

    pub(crate) fn handle_credit(&mut self, limit: u64) {
        self.credit = self.credit.max(limit);
        self.fit_block();
        self.stalled &= self.sent >= self.credit;
    }

    /// Sets the rate of the fastest stream.
    pub(crate) fn set_rate(&mut self, bytes_per_second: f64) {
        self.rate = bytes_per_second;
        self.fit_block();
    }

    fn fit_block(&mut self) {
        if self.auto_block {
            let share = (self.credit - self.acknowledged.min(self.credit)) / BLOCK_SHARE;
            let quick = (self.rate * BLOCK_TIME) as u64;
            let block = usize::try_from(share.min(quick)).unwrap_or(MAX_BLOCK);
            self.block = block.clamp(DEFAULT_BLOCK, MAX_BLOCK);
        }
    }

    pub(crate) fn handle_ack(&mut self, offset: u64) -> Result<(), ImpossibleAck> {
        if offset > self.sent + u64::from(self.fin_told) {
            return Err(ImpossibleAck);
        }
        if offset > self.sent {
            self.fin = Fin::Acknowledged;
        }
        self.acknowledged = self.acknowledged.max(offset.min(self.sent));
        while let Some(block) = self.blocks.front().filter(|b| b.end() <= self.acknowledged) {
            self.lost.remove(&block.offset);
            self.blocks.pop_front();
        }
        Ok(())
    }

    /// Marks the unacknowledged blocks of this stream for retransmission: the stream failed, or stalled while other streams make progress.
    pub(crate) fn handle_stream_lost(&mut self, stream: StreamId, cause: Cause) {
        self.lost.extend(self.blocks.iter().filter(|b| b.place.stream == stream).map(|b| (b.offset, cause)));
        if self.fin == Fin::Sent(stream) {
            self.fin = Fin::Due;
        }
    }

    /// Bytes of the next frame, 0 for a FIN; `None` if there is nothing to send or no credit.
    pub(crate) fn next_len(&self) -> Option<usize> {
        if let Some((offset, _)) = self.lost.first_key_value() {
            return self.find(*offset).map(|i| self.blocks[i].payload.len());
        }
        match self.unsent.front() {
            Some(chunk) => self.cut(chunk.len()),
            None => (self.fin == Fin::Due).then_some(0),
        }
    }

    /// Notes that a stream was available but no credit.
    pub(crate) fn note_stall(&mut self) {
        if !self.stalled && self.sent >= self.credit && !self.unsent.is_empty() {
            self.stalled = true;
            self.credit_stalls += 1;
        }
    }

    /// Bytes left to send, or `None` while the host is ahead of the streams and the end is unknown.
    pub(crate) fn left(&self) -> Option<usize> {
        let endless = self.fin == Fin::Open && self.unsent_bytes >= UNSENT_BLOCKS / 2 * self.block;
        (!endless).then_some(self.unsent_bytes)
    }

    /// Bytes that may be in flight.
    pub(crate) fn window(&self) -> u64 {
        self.credit.saturating_sub(self.acknowledged)
    }

    /// The frame announced by [`Self::next_len`], with its placement.
    pub(crate) fn next(&mut self, place: Place) -> Option<Body> {
        if let Some((offset, cause)) = self.lost.pop_first() {
            return self.find(offset).and_then(|found| self.resend(found, place, cause));
        }
        let Some(chunk) = self.unsent.front_mut() else {
            let due = self.fin == Fin::Due;
            return due.then(|| {
                self.fin = Fin::Sent(place.stream);
                self.fin_told = true;
                Body::Fin { offset: self.sent }
            });
        };
        let available = chunk.len();
        let len = cut(available, self.block, self.credit - self.sent, self.sent > self.acknowledged)?;
        let payload = chunk.split_to(len);
        if len == available {
            self.unsent.pop_front();
        }
        let offset = self.sent;
        self.unsent_bytes -= len;
        self.sent += len as u64;
        self.blocks.push_back(Block { offset, payload: payload.clone(), place, copied: false });
        Some(Body::Data { offset, payload })
    }

    fn resend(&mut self, found: usize, place: Place, cause: Cause) -> Option<Body> {
        let acknowledged = self.acknowledged;
        let block = &mut self.blocks[found];
        block.place = place;
        let offset = block.offset;
        let skip = acknowledged.saturating_sub(block.offset);
        let payload = block.payload.slice(usize::try_from(skip).ok()?..block.payload.len());
        self.retransmitted[cause] += payload.len() as u64;
        Some(Body::Data { offset: offset + skip, payload })
    }

    fn find(&self, offset: u64) -> Option<usize> {
        self.blocks.binary_search_by_key(&offset, |b| b.offset).ok()
    }

    fn cut(&self, available: usize) -> Option<usize> {
        cut(available, self.block, self.credit - self.sent, self.sent > self.acknowledged)
    }

    /// True if the peer has everything, including the FIN.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin == Fin::Acknowledged
    }

    /// True if bytes are in flight.
    pub(crate) fn awaits_ack(&self) -> bool {
        !self.blocks.is_empty() || matches!(self.fin, Fin::Sent(_))
    }

    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Bytes held: unacknowledged or unsent.
    pub(crate) fn held(&self) -> usize {
        let first = self.blocks.front().map_or(self.sent, |b| b.offset);
        self.unsent_bytes + usize::try_from(self.sent - first).expect("held in memory")
    }

    /// Drops all blocks, because the session is over.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.lost.clear();
        self.unsent.clear();
        self.unsent_bytes = 0;
    }

    /// Releases the sender's share of the budget, because it holds no more bytes.
    pub(crate) fn release(&mut self) {
        self.reservation.release();
    }

    pub(crate) fn assert_invariants(&self) {
        assert_eq!(
            self.unsent.iter().map(Payload::len).sum::<usize>(),
            self.unsent_bytes,
            "unsent bytes are counted"
        );
        assert!(self.acknowledged <= self.sent, "nothing is acknowledged before it was sent");
        assert!(self.sent <= self.credit, "credit is never exceeded");
        assert!(self.held() <= self.hold, "held bytes are bounded");
        assert!(self.hold <= FLOOR.max(self.reservation.bytes()), "held bytes are reserved");
        assert!(self.lost.keys().all(|o| self.find(*o).is_some()), "lost blocks are kept");
        for (a, b) in self.blocks.iter().zip(self.blocks.iter().skip(1)) {
            assert_eq!(a.end(), b.offset, "blocks are contiguous");
        }
    }
}

/// Length of the part of a chunk that goes into one block, or `None` to wait for credit.
fn cut(available: usize, block: usize, credit: u64, in_flight: bool) -> Option<usize> {
    let wanted = available.min(block);
    let len = usize::try_from(credit).unwrap_or(usize::MAX).min(wanted);
    let silly = len < wanted && (len as u64) < MIN_CUT && in_flight;
    (len > 0 && !silly).then_some(len)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    #[test]
    fn an_idle_host_reserves_nothing_and_a_busy_one_does() {
        let budget = Budget::new(64 << 20);
        let mut sender = Sender::new(None, 32 << 20, budget.reserve(0).unwrap());
        assert_eq!((sender.room(), budget.used()), (FLOOR, 0));
        sender.handle_data(vec![7; 1000].into());
        assert_eq!((sender.room(), budget.used()), (FLOOR - 1000, 0));
        sender.handle_data(vec![7; FLOOR - 1000].into());
        assert!(sender.room() > 0 && budget.used() > FLOOR);
    }

    #[test]
    fn blocks_fit_the_window_and_the_fastest_stream() {
        let mut sender = Sender::new(None, 32 << 20, Budget::new(64 << 20).reserve(0).unwrap());
        sender.handle_credit(32 << 20);
        assert_eq!(sender.block, MAX_BLOCK, "no stream is known");
        sender.set_rate(31.25e6);
        assert_eq!(sender.block, 156_250);
        sender.set_rate(1e6);
        assert_eq!(sender.block, DEFAULT_BLOCK);
        let mut asked = Sender::new(Some(4096), 32 << 20, Budget::new(64 << 20).reserve(0).unwrap());
        asked.set_rate(1e9);
        assert_eq!(asked.block, 4096);
    }
}
