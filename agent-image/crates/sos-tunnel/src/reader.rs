//! Getting bytes out of a stream's socket: by poll while it is quiet, at ticks while it is busy (see [`crate::pace`]).
//!
//! What comes at ticks in large Data frames passes by the buffer (see [`crate::pipes`]): then no more is read into it than what is needed to
//! know what comes next.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sos_wire::frame::MAX_PAYLOAD;
use sos_wire::{Decoder, Frame, Payload};

use crate::buffers::{BUFFER, Buffers};
use crate::channel::ReadHalf;
use crate::pace::{Pace, Rhythm};
use crate::pipes::{LEAST, Pipes};

/// Reads in a row that brought no part of a large frame, until it is no longer expected that the next one will: a header before each, and now and
/// then an acknowledgement.
const MAX_OTHERS: u32 = 4;
/// Below this much free space an empty buffer is replaced.
const MIN_READ: usize = 32 << 10;

pub(crate) struct Reader<'a> {
    socket: ReadHalf,
    /// What was read and is not decoded yet.
    pub(crate) buffer: BytesMut,
    buffers: &'a Buffers,
    pipes: &'a Arc<Pipes>,
    pace: Pace,
    epoch: Instant,
    busy: bool,
    /// The last read took all that it wanted, so it may have left something behind.
    full: bool,
    /// Bytes read that have not been counted as a tick yet.
    gathered: usize,
    /// Large frames come: what does not belong to one is read only as far as is known of it.
    passing: bool,
    /// Reads since the last of a large frame.
    others: u32,
}

/// What a read has brought.
pub(crate) enum Brought {
    /// The stream has ended.
    End,
    /// What is in the buffer now.
    Buffered,
    /// The next bytes of the Data frame that has begun.
    Elsewhere(Payload),
}

impl<'a> Reader<'a> {
    /// `epoch` is the same for all streams of a process: their ticks fall together.
    pub(crate) fn new(socket: ReadHalf, buffers: &'a Buffers, pipes: &'a Arc<Pipes>, epoch: Instant) -> Self {
        let (buffer, pace) = (buffers.take(), Pace::default());
        Self {
            socket,
            buffer,
            buffers,
            pipes,
            pace,
            epoch,
            busy: false,
            full: false,
            gathered: 0,
            passing: false,
            others: 0,
        }
    }

    /// Appends to the buffer what the decoder misses and more, or brings bytes past it.
    pub(crate) async fn read(&mut self, decoder: &Decoder, rtt: Duration) -> io::Result<Brought> {
        if self.busy {
            return self.read_at_tick(decoder).await;
        }
        self.make_space(decoder);
        let read = self.socket.read_buf(&mut self.buffer).await?;
        self.full = self.buffer.len() == self.buffer.capacity();
        self.busy = self.pace.note_poll(read, Rhythm::of_stream(rtt), Instant::now());
        if self.busy {
            self.socket.set_polled(false)?;
        }
        Ok(if read == 0 { Brought::End } else { Brought::Buffered })
    }

    /// Once all whole frames have been taken out of the buffer: what there is of one that has begun, if the rest had better pass by the
    /// buffer or does not fit it.
    pub(crate) fn take_part(&mut self, decoder: &mut Decoder) -> Option<Frame> {
        let missing = decoder.begun().saturating_sub(self.buffer.len());
        let passes = self.busy && missing >= LEAST && self.socket.is_plain();
        self.passing = passes || (self.passing && self.others < MAX_OTHERS);
        if passes {
            decoder.take_begun(&mut self.buffer)
        } else if !self.has_room(decoder.missing(self.buffer.len())) {
            decoder.take_part(&mut self.buffer)
        } else {
            None
        }
    }

    /// What is there at the next tick.
    async fn read_at_tick(&mut self, decoder: &Decoder) -> io::Result<Brought> {
        if !self.full {
            let tick = self.pace.next_tick(self.epoch, Instant::now());
            tokio::time::sleep_until(tick.into()).await;
        } else if !self.passing || self.others == 0 {
            tokio::task::yield_now().await;
        }
        let (brought, read) = match self.receive(decoder) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (Brought::Buffered, None),
            Ok((_, 0)) => (Brought::End, Some(0)),
            Ok((brought, read)) => (brought, Some(read)),
            Err(error) => return Err(error),
        };
        self.full &= read.is_some();
        self.gathered += read.unwrap_or(0);
        // A read that has left something behind is as good as a tick, unless it brought no more than a header.
        let counts = !self.full || self.gathered >= MIN_READ;
        if counts && !self.pace.note_tick(std::mem::take(&mut self.gathered)) {
            (self.busy, self.passing) = (false, false);
            self.socket.set_polled(true)?;
        }
        Ok(brought)
    }

    /// What is there, and how many bytes that is.
    fn receive(&mut self, decoder: &Decoder) -> io::Result<(Brought, usize)> {
        let begun = decoder.begun();
        if self.passing
            && self.buffer.is_empty()
            && begun >= LEAST
            && let Some(received) = self.socket.receive_kept(self.pipes, begun)
        {
            let payload = received?;
            let read = payload.len();
            (self.full, self.others) = (read == begun, 0);
            return Ok((Brought::Elsewhere(payload), read));
        }
        self.make_space(decoder);
        let free = self.buffer.capacity() - self.buffer.len();
        let most =
            if self.passing && begun < LEAST { decoder.missing(self.buffer.len()).min(free) } else { free };
        let read = self.socket.receive_now(&mut self.buffer, most)?;
        self.full = read == most;
        self.others = self.others.saturating_add(1);
        Ok((Brought::Buffered, read))
    }

    /// Whether so many bytes can be read without the buffer being replaced, for which what is in it is copied.
    fn has_room(&self, bytes: usize) -> bool {
        self.buffer.capacity() - self.buffer.len() >= bytes
    }

    fn make_space(&mut self, decoder: &Decoder) {
        let missing = decoder.missing(self.buffer.len());
        if !self.has_room(missing) || (self.buffer.is_empty() && !self.has_room(MIN_READ)) {
            self.replace_buffer();
        }
    }

    /// A fresh buffer with the bytes of the frame that has begun. A frame always fits: [`BUFFER`] is the longest payload, and the decoder
    /// takes headers out as soon as they are whole.
    fn replace_buffer(&mut self) {
        const { assert!(BUFFER >= MAX_PAYLOAD) };
        let mut new = self.buffers.take();
        new.extend_from_slice(&self.buffer);
        let mut old = std::mem::replace(&mut self.buffer, new);
        old.clear();
        self.buffers.put(old);
    }
}
