//! Write queue of a socket: bytes in memory, and bytes that move from their pipe to the socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes};
use socket2::SockRef;
use sos_wire::{Kept, Payload};
use tokio::io::Interest;
use tokio::net::tcp::OwnedWriteHalf;

use crate::transport::splice::{self, TeePipe};

/// Maximum number of iovecs of one write: pieces of a stream, and records sealed at a time. The kernel accepts 1,024.
pub(crate) const MAX_SLICES: usize = 64;

#[derive(Debug)]
enum Piece {
    Memory(Bytes),
    Kept(Kept),
    /// Bytes left in the tee pipe; only ever the first piece.
    TeePipe(usize),
}

/// Pieces to be written to one socket, in order.
#[derive(Debug, Default)]
pub(crate) struct IovecQueue {
    queue: VecDeque<Piece>,
    tee: TeePipe,
}

impl IovecQueue {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Appends a payload.
    pub(crate) fn push(&mut self, payload: Payload) {
        match payload {
            payload if payload.is_empty() => {}
            Payload::Bytes(bytes) => self.queue.push_back(Piece::Memory(bytes)),
            Payload::Kept(kept) => self.queue.push_back(Piece::Kept(kept)),
        }
    }

    /// The leading pieces that are in memory.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = &Bytes> {
        self.queue.iter().map_while(|piece| match piece {
            Piece::Memory(bytes) => Some(bytes),
            Piece::Kept(_) | Piece::TeePipe(_) => None,
        })
    }

    /// Copies the first piece into memory if it is not there, for sockets that need it in memory.
    pub(crate) fn fetch(&mut self) -> io::Result<()> {
        if let Some(front) = self.queue.front_mut()
            && let Piece::Kept(kept) = front
        {
            *front = Piece::Memory(splice::read(kept)?);
        }
        Ok(())
    }

    /// Removes written bytes: at most the bytes of [`Self::in_memory`], or of the first piece if it is not in memory.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some(front) = self.queue.front_mut().filter(|_| written > 0) {
            let len = match front {
                Piece::Memory(bytes) => bytes.len(),
                Piece::Kept(kept) => kept.range().len(),
                Piece::TeePipe(left) => *left,
            };
            if len > written {
                match front {
                    Piece::Memory(bytes) => bytes.advance(written),
                    Piece::TeePipe(left) => *left -= written,
                    Piece::Kept(_) => unreachable!("goes through the tee"),
                }
                return;
            }
            written -= len;
            if let Some(Piece::TeePipe(_)) = self.queue.pop_front() {
                self.tee.close();
            }
        }
    }

    /// Moves a kept first piece into the tee pipe.
    fn fill_tee(&mut self) -> io::Result<()> {
        if let Some(front) = self.queue.front_mut()
            && let Piece::Kept(kept) = front
        {
            let len = kept.range().len();
            *front =
                if self.tee.fill(kept)? { Piece::TeePipe(len) } else { Piece::Memory(splice::read(kept)?) };
        }
        Ok(())
    }
}

/// Writes some of the first bytes to a TCP socket without waiting, and returns their number; they stay in `pieces`.
pub(crate) fn write_now(socket: &OwnedWriteHalf, pieces: &mut IovecQueue) -> io::Result<usize> {
    pieces.fill_tee()?;
    let more = pieces.queue.len() > 1;
    if let Some(Piece::TeePipe(left)) = pieces.queue.front() {
        let give = || pieces.tee.give(*left, socket.as_ref(), more);
        return socket.as_ref().try_io(Interest::WRITABLE, give);
    }
    let (slices, count) = slices(pieces.in_memory().map(|piece| &piece[..]));
    if count == pieces.queue.len().min(MAX_SLICES) {
        return socket.try_write_vectored(&slices[..count]);
    }
    // A header and its block share a segment: the bytes after these pieces follow with the next call.
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let send = || SockRef::from(socket.as_ref()).send_vectored_with_flags(&slices[..count], flags);
    socket.as_ref().try_io(Interest::WRITABLE, send)
}

/// The first pieces as iovecs, and their number.
pub(crate) fn slices<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> ([IoSlice<'a>; MAX_SLICES], usize) {
    let (mut slices, mut count) = ([IoSlice::new(&[]); MAX_SLICES], 0);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
        count += 1;
    }
    (slices, count)
}
