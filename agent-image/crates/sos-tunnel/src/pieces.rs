//! What has been taken to be written on a stream: bytes in memory, and bytes that go from their pipe to the socket.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes};
use socket2::SockRef;
use sos_wire::{Kept, Payload};
use tokio::io::Interest;
use tokio::net::tcp::OwnedWriteHalf;

use crate::pipes::{self, Sluice};

/// Most pieces of one write: those of a stream, and the records that are sealed at once. The kernel takes 1,024.
pub(crate) const MAX_SLICES: usize = 64;

#[derive(Debug)]
enum Piece {
    Memory(Bytes),
    Kept(Kept),
    /// So many bytes in the sluice; only ever the first piece.
    Sluice(usize),
}

/// Pieces on their way to one socket, in order.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    queue: VecDeque<Piece>,
    sluice: Sluice,
}

impl Pieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Puts another behind them.
    pub(crate) fn push(&mut self, payload: Payload) {
        match payload {
            payload if payload.is_empty() => {}
            Payload::Bytes(bytes) => self.queue.push_back(Piece::Memory(bytes)),
            Payload::Kept(kept) => self.queue.push_back(Piece::Kept(kept)),
        }
    }

    /// The first pieces that are in memory.
    pub(crate) fn in_memory(&self) -> impl Iterator<Item = &Bytes> {
        self.queue.iter().map_while(|piece| match piece {
            Piece::Memory(bytes) => Some(bytes),
            Piece::Kept(_) | Piece::Sluice(_) => None,
        })
    }

    /// Brings the first piece into memory if it is not there: for sockets that need it there.
    pub(crate) fn fetch(&mut self) -> io::Result<()> {
        if let Some(front) = self.queue.front_mut()
            && let Piece::Kept(kept) = front
        {
            *front = Piece::Memory(pipes::read(kept)?);
        }
        Ok(())
    }

    /// So many bytes of the first have been written: not more than [`Self::in_memory`] has, or else than the first piece.
    pub(crate) fn advance(&mut self, mut written: usize) {
        while let Some(front) = self.queue.front_mut().filter(|_| written > 0) {
            let len = match front {
                Piece::Memory(bytes) => bytes.len(),
                Piece::Kept(kept) => kept.range().len(),
                Piece::Sluice(left) => *left,
            };
            if len > written {
                match front {
                    Piece::Memory(bytes) => bytes.advance(written),
                    Piece::Sluice(left) => *left -= written,
                    Piece::Kept(_) => unreachable!("goes through the sluice"),
                }
                return;
            }
            written -= len;
            if let Some(Piece::Sluice(_)) = self.queue.pop_front() {
                self.sluice.close();
            }
        }
    }

    /// Lets what is kept and comes first into the sluice.
    fn open_sluice(&mut self) -> io::Result<()> {
        if let Some(front) = self.queue.front_mut()
            && let Piece::Kept(kept) = front
        {
            let len = kept.range().len();
            *front =
                if self.sluice.fill(kept)? { Piece::Sluice(len) } else { Piece::Memory(pipes::read(kept)?) };
        }
        Ok(())
    }
}

/// Writes some of the first bytes to a TCP socket without waiting, and says how many; they are still in `pieces`.
pub(crate) fn write_now(socket: &OwnedWriteHalf, pieces: &mut Pieces) -> io::Result<usize> {
    pieces.open_sluice()?;
    let more = pieces.queue.len() > 1;
    if let Some(Piece::Sluice(left)) = pieces.queue.front() {
        let give = || pieces.sluice.give(*left, socket.as_ref(), more);
        return socket.as_ref().try_io(Interest::WRITABLE, give);
    }
    let (slices, count) = slices(pieces.in_memory().map(|piece| &piece[..]));
    if count == pieces.queue.len().min(MAX_SLICES) {
        return socket.try_write_vectored(&slices[..count]);
    }
    // A head and its block in one segment: what is behind these pieces comes with the next call.
    let flags = libc::MSG_MORE | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let send = || SockRef::from(socket.as_ref()).send_vectored_with_flags(&slices[..count], flags);
    socket.as_ref().try_io(Interest::WRITABLE, send)
}

/// The first pieces as slices, and how many.
pub(crate) fn slices<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> ([IoSlice<'a>; MAX_SLICES], usize) {
    let (mut slices, mut count) = ([IoSlice::new(&[]); MAX_SLICES], 0);
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
        count += 1;
    }
    (slices, count)
}
