//! Getting bytes out of a stream's socket: by poll while it is quiet, at ticks while it is busy (see [`crate::pace`]).

use std::io;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use sos_wire::frame::MAX_PAYLOAD;

use crate::buffers::{BUFFER, Buffers};
use crate::channel::ReadHalf;
use crate::pace::{Pace, Rhythm};

/// Below this much free space an empty buffer is replaced.
const MIN_READ: usize = 32 << 10;

pub(crate) struct Reader<'a> {
    socket: ReadHalf,
    /// What was read and is not decoded yet.
    pub(crate) buffer: BytesMut,
    buffers: &'a Buffers,
    pace: Pace,
    epoch: Instant,
    busy: bool,
    /// The last read filled the buffer, so it has left something behind.
    full: bool,
}

impl<'a> Reader<'a> {
    /// `epoch` is the same for all streams of a process: their ticks fall together.
    pub(crate) fn new(socket: ReadHalf, buffers: &'a Buffers, epoch: Instant) -> Self {
        let (buffer, pace) = (buffers.take(), Pace::default());
        Self { socket, buffer, buffers, pace, epoch, busy: false, full: false }
    }

    /// Appends to the buffer; says whether the stream goes on. `missing` bytes are needed for the frame at the front.
    pub(crate) async fn read(&mut self, missing: usize, rtt: Duration) -> io::Result<bool> {
        if !self.has_room(missing) || (self.buffer.is_empty() && !self.has_room(MIN_READ)) {
            self.replace_buffer();
        }
        let read = if self.busy {
            self.read_at_tick().await?
        } else {
            Some(self.socket.read_buf(&mut self.buffer).await?)
        };
        self.full = self.buffer.len() == self.buffer.capacity();
        let busy = match read {
            _ if self.busy => self.pace.note_tick(read.unwrap_or(0)),
            read => self.pace.note_poll(read.unwrap_or(0), Rhythm::of_stream(rtt), Instant::now()),
        };
        if std::mem::replace(&mut self.busy, busy) != busy {
            self.socket.set_polled(!busy)?;
        }
        Ok(read != Some(0))
    }

    /// Whether so many bytes can be read without the buffer being replaced, for which what is in it is copied.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.buffer.capacity() - self.buffer.len() >= bytes
    }

    /// What is there at the next tick; `None` if that is nothing.
    async fn read_at_tick(&mut self) -> io::Result<Option<usize>> {
        if !self.full {
            let tick = self.pace.next_tick(self.epoch, Instant::now());
            tokio::time::sleep_until(tick.into()).await;
        } else {
            tokio::task::yield_now().await;
        }
        match self.socket.receive_now(&mut self.buffer) {
            Ok(n) => Ok(Some(n)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
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
