//! Reader of a stream's socket: by poll while the socket is quiet, at ticks while it is busy (see [`crate::transport::batched_read`]).
//!
//! At ticks, large Data frames bypass the buffer (see [`crate::transport::splice`]): only the headers and small frames between them are
//! read into the buffer.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sos_wire::stream::frame::MAX_PAYLOAD;
use sos_wire::{Decoder, Frame, Payload};

use crate::transport::batched_read::{BatchedRead, ReadClock};
use crate::transport::buffers::{BUFFER, Buffers};
use crate::transport::channel::ReadHalf;
use crate::transport::splice::{MIN_SPLICE, PipePool};

/// Number of consecutive reads without part of a large frame after which no further large frame is expected: each large frame is preceded
/// by a header, and sometimes by an acknowledgement.
const MAX_OTHERS: u32 = 4;
/// An empty buffer with less free space is replaced.
const MIN_READ: usize = 32 << 10;

pub(crate) struct Reader<'a> {
    socket: ReadHalf,
    /// Bytes not decoded yet.
    pub(crate) buffer: BytesMut,
    buffers: &'a Buffers,
    pipes: &'a Arc<PipePool>,
    batching: BatchedRead,
    epoch: Instant,
    busy: bool,
    /// The last read filled its space, so more may be available.
    full: bool,
    /// Bytes of recent reads that have not been counted as a tick yet.
    gathered: usize,
    /// Large frames are arriving: other bytes are read only as far as their length is known.
    passing: bool,
    /// Reads since the last part of a large frame.
    others: u32,
}

/// Result of a read.
pub(crate) enum ReadOutcome {
    /// The stream has ended.
    End,
    /// Bytes are in the buffer.
    Buffered,
    /// The next bytes of the current Data frame, outside the buffer.
    Elsewhere(Payload),
}

impl<'a> Reader<'a> {
    /// `epoch` is the same for all streams of a process: their ticks coincide.
    pub(crate) fn new(
        socket: ReadHalf,
        buffers: &'a Buffers,
        pipes: &'a Arc<PipePool>,
        epoch: Instant,
    ) -> Self {
        let (buffer, batching) = (buffers.take(), BatchedRead::default());
        Self {
            socket,
            buffer,
            buffers,
            pipes,
            batching,
            epoch,
            busy: false,
            full: false,
            gathered: 0,
            passing: false,
            others: 0,
        }
    }

    /// Appends at least the bytes that the decoder needs to the buffer, or returns bytes outside it.
    pub(crate) async fn read(&mut self, decoder: &Decoder, rtt: Duration) -> io::Result<ReadOutcome> {
        if self.busy {
            return self.read_at_tick(decoder).await;
        }
        self.make_space(decoder);
        let read = self.socket.read_buf(&mut self.buffer).await?;
        self.full = self.buffer.len() == self.buffer.capacity();
        self.busy = self.batching.note_poll(read, ReadClock::of_stream(rtt), Instant::now());
        if self.busy {
            self.socket.set_polled(false)?;
        }
        Ok(if read == 0 { ReadOutcome::End } else { ReadOutcome::Buffered })
    }

    /// Takes the received part of the current frame if the rest should bypass the buffer or does not fit. Call this after taking all whole
    /// frames out of the buffer.
    pub(crate) fn take_part(&mut self, decoder: &mut Decoder) -> Option<Frame> {
        let missing = decoder.begun().saturating_sub(self.buffer.len());
        let passes = self.busy && missing >= MIN_SPLICE && self.socket.is_plain();
        self.passing = passes || (self.passing && self.others < MAX_OTHERS);
        if passes {
            decoder.take_begun(&mut self.buffer)
        } else if !self.has_room(decoder.missing(self.buffer.len())) {
            decoder.take_part(&mut self.buffer)
        } else {
            None
        }
    }

    /// Reads at the next tick.
    async fn read_at_tick(&mut self, decoder: &Decoder) -> io::Result<ReadOutcome> {
        if !self.full {
            let tick = self.batching.next_tick(self.epoch, Instant::now());
            tokio::time::sleep_until(tick.into()).await;
        } else if !self.passing || self.others == 0 {
            tokio::task::yield_now().await;
        }
        let (brought, read) = match self.receive(decoder) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (ReadOutcome::Buffered, None),
            Ok((_, 0)) => (ReadOutcome::End, Some(0)),
            Ok((brought, read)) => (brought, Some(read)),
            Err(error) => return Err(error),
        };
        self.full &= read.is_some();
        self.gathered += read.unwrap_or(0);
        // A read that emptied the socket counts as a tick. Other reads count only after [`MIN_READ`] bytes in total, because they may have
        // read only a header.
        let counts = !self.full || self.gathered >= MIN_READ;
        if counts && !self.batching.note_tick(std::mem::take(&mut self.gathered)) {
            (self.busy, self.passing) = (false, false);
            self.socket.set_polled(true)?;
        }
        Ok(brought)
    }

    /// Reads available bytes; returns their number.
    fn receive(&mut self, decoder: &Decoder) -> io::Result<(ReadOutcome, usize)> {
        let begun = decoder.begun();
        if self.passing
            && self.buffer.is_empty()
            && begun >= MIN_SPLICE
            && let Some(received) = self.socket.receive_kept(self.pipes, begun)
        {
            let payload = received?;
            let read = payload.len();
            (self.full, self.others) = (read == begun, 0);
            return Ok((ReadOutcome::Elsewhere(payload), read));
        }
        self.make_space(decoder);
        let free = self.buffer.capacity() - self.buffer.len();
        let most = if self.passing && begun < MIN_SPLICE {
            decoder.missing(self.buffer.len()).min(free)
        } else {
            free
        };
        let read = self.socket.receive_now(&mut self.buffer, most)?;
        self.full = read == most;
        self.others = self.others.saturating_add(1);
        Ok((ReadOutcome::Buffered, read))
    }

    /// True if `bytes` more bytes fit without replacing the buffer, which would copy its content.
    fn has_room(&self, bytes: usize) -> bool {
        self.buffer.capacity() - self.buffer.len() >= bytes
    }

    fn make_space(&mut self, decoder: &Decoder) {
        let missing = decoder.missing(self.buffer.len());
        if !self.has_room(missing) || (self.buffer.is_empty() && !self.has_room(MIN_READ)) {
            self.replace_buffer();
        }
    }

    /// Replaces the buffer by a fresh one that contains the bytes of the current frame. A frame always fits: [`BUFFER`] is at least the
    /// maximum payload, and the decoder takes out headers as soon as they are complete.
    fn replace_buffer(&mut self) {
        const { assert!(BUFFER >= MAX_PAYLOAD) };
        let mut new = self.buffers.take();
        new.extend_from_slice(&self.buffer);
        let mut old = std::mem::replace(&mut self.buffer, new);
        old.clear();
        self.buffers.put(old);
    }
}
