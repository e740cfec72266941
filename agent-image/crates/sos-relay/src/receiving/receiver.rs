//! Receiving half of a session: the peer's bytes on their way to the local host.

use std::time::{Duration, Instant};

use sos_wire::{Backlog, Body, Payload};

use crate::compression::codec;
use crate::receiving::credit::Window;
use crate::receiving::reorder::ReorderBuffer;

/// Delay of an acknowledgement, to acknowledge more bytes with one frame. Hosts do not notice the delay: the sending agent only keeps its
/// blocks longer.
const ACK_DELAY: Duration = Duration::from_millis(20);
/// An acknowledgement is due immediately after a number of new bytes: the window divided by `ACK_SHARE`, but at least `ACK_MIN` and at most
/// `ACK_MAX`. The sender then never lacks credit, and acknowledgements are rare enough to cost little.
const ACK_SHARE: u64 = 8;
const ACK_MIN: u64 = 32 << 10;
const ACK_MAX: u64 = 256 << 10;
/// Minimum number of bytes acknowledged by the host that is worth a separate acknowledgement; fewer bytes are reported with the next one.
const NEWS: u64 = 64 << 10;

/// The peer violated the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation;

#[derive(Debug)]
pub(crate) struct Receiver {
    reorder: ReorderBuffer,
    window: Window,
    /// Length of the direction, once known.
    end: Option<u64>,
    /// The host has received the FIN.
    ended: bool,
    /// Content of the last acknowledgement: offset, credit, and the bytes acknowledged by the host.
    acked: u64,
    advertised: u64,
    told_taken: u64,
    /// Bytes acknowledged by the host, as far as known.
    taken: u64,
    ack_at: Option<Instant>,
    ack_now: bool,
}

impl Receiver {
    pub(crate) fn new(window: Window) -> Self {
        let advertised = window.limit();
        Self {
            reorder: ReorderBuffer::default(),
            window,
            end: None,
            ended: false,
            acked: 0,
            advertised,
            told_taken: 0,
            taken: 0,
            ack_at: None,
            ack_now: false,
        }
    }

    pub(crate) fn handle_data(
        &mut self,
        offset: u64,
        payload: &Payload,
        now: Instant,
    ) -> Result<(), Violation> {
        self.check_end(offset + payload.len() as u64)?;
        self.reorder.insert(offset, payload).map_err(|_| Violation)?;
        self.schedule_ack(now);
        Ok(())
    }

    /// Handles a compressed block of `length` bytes. A block that has already arrived is not expanded again.
    pub(crate) fn handle_compressed(
        &mut self,
        offset: u64,
        (length, payload): (u32, &[u8]),
        now: Instant,
    ) -> Result<(), Violation> {
        let end = offset + u64::from(length);
        self.check_end(end)?;
        if end <= self.reorder.arrived() {
            self.schedule_ack(now);
            return Ok(());
        }
        let block = codec::expand(payload, length).ok_or(Violation)?;
        self.handle_data(offset, &block.into(), now)
    }

    /// Checks that bytes before `end` were granted, and that the direction does not end earlier.
    fn check_end(&self, end: u64) -> Result<(), Violation> {
        let fits = end <= self.window.limit() && self.end.is_none_or(|fin| end <= fin);
        if fits { Ok(()) } else { Err(Violation) }
    }

    pub(crate) fn handle_fin(&mut self, offset: u64, now: Instant) -> Result<(), Violation> {
        if self.end.is_some_and(|end| end != offset)
            || offset < self.reorder.highest()
            || offset > self.window.limit()
        {
            return Err(Violation);
        }
        self.end = Some(offset);
        self.schedule_ack(now);
        Ok(())
    }

    pub(crate) fn ready(&self) -> impl Iterator<Item = &Payload> {
        self.reorder.ready()
    }

    /// Splits the ready piece that contains this offset.
    pub(crate) fn split_ready(&mut self, at: u64) {
        self.reorder.split_ready(at);
    }

    pub(crate) fn handle_delivered(&mut self, n: usize, now: Instant) {
        self.reorder.consume(n);
        self.window.handle_delivered(n as u64, self.reorder.delivered(), now);
        self.schedule_ack(now);
    }

    /// Notes the bytes that the host has not acknowledged yet.
    pub(crate) fn handle_unacknowledged(&mut self, bytes: u64, now: Instant) {
        self.taken = self.taken.max(self.reorder.delivered().saturating_sub(bytes));
        self.schedule_ack(now);
    }

    /// Notes that the host accepts no more bytes for now.
    pub(crate) fn handle_full(&mut self) {
        self.reorder.settle();
    }

    /// Returns true once, when the host has received everything.
    pub(crate) fn poll_end(&mut self) -> bool {
        let at_end = !self.ended && self.end == Some(self.reorder.delivered());
        self.ended |= at_end;
        at_end
    }

    /// Repeats the last acknowledgement, which may have been lost.
    pub(crate) fn repeat_ack(&mut self) {
        self.ack_now = true;
    }

    pub(crate) fn set_rtt(&mut self, rtt: Duration, lowest: Duration) {
        self.window.set_rtt(rtt, lowest);
    }

    /// Makes an acknowledgement due after its delay. Also clears the deadline, which would otherwise fire repeatedly while the
    /// acknowledgement waits for a stream.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        self.ack_now |= self.ack_at.take_if(|at| *at <= now).is_some();
    }

    pub(crate) fn ack_is_due(&self) -> bool {
        self.ack_now
    }

    pub(crate) fn ack_deadline(&self) -> Option<Instant> {
        self.ack_at
    }

    /// The current acknowledgement.
    pub(crate) fn next_ack(&mut self) -> Body {
        (self.acked, self.advertised, self.told_taken) = (self.arrived(), self.window.limit(), self.taken);
        (self.ack_at, self.ack_now) = (None, false);
        let backlog = Backlog::of(self.reorder.arrived() - self.taken);
        Body::Ack { offset: self.acked, credit: self.advertised, backlog }
    }

    /// Current credit limit, for Open and Opened.
    pub(crate) fn limit(&self) -> u64 {
        self.window.limit()
    }

    pub(crate) fn window_size(&self) -> u64 {
        self.window.size()
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.reorder.delivered()
    }

    pub(crate) fn reorder_bytes(&self) -> u64 {
        self.reorder.pending_bytes()
    }

    /// True if everything has arrived, including the FIN.
    pub(crate) fn has_all(&self) -> bool {
        self.end == Some(self.reorder.arrived())
    }

    /// True if the host has received everything.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// True if the host has received everything and the peer has been sent an acknowledgement of that.
    pub(crate) fn is_finished(&self) -> bool {
        self.ended && self.end.is_some_and(|end| self.acked == end + 1) && !self.ack_now
    }

    pub(crate) fn clear(&mut self) {
        self.reorder.clear();
        (self.ack_at, self.ack_now) = (None, false);
    }

    /// Releases the window's share of the budget, because no more data arrives.
    pub(crate) fn release(&mut self) {
        self.window.release();
    }

    /// Offset of an acknowledgement: the FIN counts as one more byte (frame.md clause 8).
    fn arrived(&self) -> u64 {
        self.reorder.arrived() + u64::from(self.has_all())
    }

    fn schedule_ack(&mut self, now: Instant) {
        let (arrived, limit) = (self.arrived(), self.window.limit());
        if arrived == self.acked && limit == self.advertised && self.taken - self.told_taken < NEWS {
            return;
        }
        let step = (self.window.size() / ACK_SHARE).clamp(ACK_MIN, ACK_MAX);
        let at_end = self.end.is_some_and(|end| arrived > end);
        self.ack_now |= at_end && arrived > self.acked;
        self.ack_now |= arrived - self.acked >= step || limit - self.advertised >= step;
        self.ack_now |= self.taken - self.told_taken >= step;
        self.ack_at.get_or_insert(now + ACK_DELAY);
    }

    pub(crate) fn assert_invariants(&self) {
        self.reorder.assert_invariants();
        self.window.assert_invariants(self.reorder.delivered());
        assert!(self.reorder.highest() <= self.window.limit(), "nothing beyond the granted limit is held");
        assert!(self.reorder.bytes() <= self.window.size(), "no more than the window is held");
        assert!(self.acked <= self.arrived(), "nothing is acknowledged before it has arrived");
    }
}
