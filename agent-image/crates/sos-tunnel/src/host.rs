//! The leg between this agent and a host.

use std::future::Future;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::TcpStream;

use crate::buffers::Buffers;
use crate::sockopt::is_taken;

/// Most pieces of one write.
const MAX_SLICES: usize = 32;
/// A host that has filled no buffer yet gets one of this size: most hosts say little.
const SMALL: usize = 16 << 10;
/// How often it is looked whether a host has taken the last bytes: at first, as most do at once, and with those that take their time.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Below this much free space a buffer is replaced.
const MIN_READ: usize = 4 << 10;

/// A connection to a host. Until [`Self::end_cleanly`] every way of losing it resets the host's end: a process that is killed must not
/// look like the end of the data.
#[derive(Debug)]
pub(crate) struct Host {
    socket: TcpStream,
    buffer: BytesMut,
    /// The host says much at once.
    busy: bool,
    /// `buffer` is one that is used again.
    pooled: bool,
    ended: bool,
}

impl Host {
    pub(crate) fn new(socket: TcpStream) -> io::Result<Self> {
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, buffer: BytesMut::new(), busy: false, pooled: false, ended: false })
    }

    /// Bytes of the host, at most `room`; empty at its end, after which it must not be called.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        buffers: &Buffers,
    ) -> Poll<io::Result<Bytes>> {
        // Memory is found only once there is something to read, so that silent hosts hold none.
        ready!(self.socket.poll_read_ready(cx))?;
        self.make_space(buffers);
        // The buffer is empty between reads: what is read is split off at once.
        let wanted = room.min(self.buffer.capacity());
        let mut into = (&mut self.buffer).limit(wanted);
        let read = ready!(pin!(self.socket.read_buf(&mut into)).poll(cx))?;
        self.busy = if self.busy { read > MIN_READ } else { read == wanted && read >= MIN_READ };
        self.ended = read == 0;
        Poll::Ready(Ok(self.buffer.split().freeze()))
    }

    fn make_space(&mut self, buffers: &Buffers) {
        if self.buffer.capacity() >= MIN_READ {
            return;
        }
        let new = if self.busy { buffers.take() } else { BytesMut::with_capacity(SMALL) };
        let old = std::mem::replace(&mut self.buffer, new);
        if std::mem::replace(&mut self.pooled, self.busy) {
            buffers.put(old);
        }
    }

    /// Gives the host what there is; says how much it took.
    pub(crate) fn poll_write<'a>(
        &mut self,
        cx: &mut Context<'_>,
        pieces: impl Iterator<Item = &'a Bytes>,
    ) -> Poll<io::Result<usize>> {
        let (mut slices, mut count) = ([IoSlice::new(&[]); MAX_SLICES], 0);
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        Pin::new(&mut self.socket).poll_write_vectored(cx, &slices[..count])
    }

    /// Tells the host that there is no more.
    pub(crate) fn finish(&self) -> io::Result<()> {
        SockRef::from(&self.socket).shutdown(Shutdown::Write)
    }

    /// What has happened to the connection while nothing was read from it.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// The host has said that it will send no more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Both directions have ended: closing is no reset any more once the host has everything. What it has not read yet is in this
    /// machine's kernel, and would stay there: switches stop leading the connection here soon after the session's end is told.
    pub(crate) async fn end_cleanly(self) {
        let mut pause = LOOK_AGAIN;
        while !is_taken(&self.socket) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MAX);
        }
        // If this fails the host sees a reset after all its data, which is the best that is left.
        let _ = SockRef::from(&self.socket).set_linger(None);
    }
}
