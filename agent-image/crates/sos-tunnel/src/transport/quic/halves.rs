//! The two directions of a QUIC stream.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use quinn::{Connection, RecvStream, SendStream, VarInt};
use tokio::io::AsyncReadExt;
use tokio::runtime::Handle;

use super::steering::Steering;

/// Maximum number of pieces of one write.
const MAX_CHUNKS: usize = 64;
/// Time for which an ended stream keeps sending its backlog (a refusal, or the ends of sessions), as the kernel does for TCP.
const LINGER: Duration = Duration::from_secs(1);

/// Reading direction of a QUIC stream.
pub(crate) struct Receiver(pub(super) RecvStream);

impl Receiver {
    /// Waits for bytes and appends them to the free space of `buffer`. 0 = the end.
    pub(crate) async fn read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.0.read_buf(buffer).await
    }

    pub(crate) async fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        AsyncReadExt::read_exact(&mut self.0, bytes).await.map(drop)
    }

    /// Appends available bytes. This registers no waker.
    pub(crate) fn receive_now(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(self.0.read_buf(buffer)).poll(&mut context) {
            Poll::Ready(read) => read,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

/// Writing direction of a QUIC stream. Dropping it closes the connection, after up to [`LINGER`] for the backlog.
pub(crate) struct Sender {
    stream: SendStream,
    connection: Connection,
    steering: Arc<Steering>,
    /// Send window last set: maximum number of bytes that the connection may hold.
    room: u64,
}

impl Sender {
    pub(super) fn new(stream: SendStream, connection: Connection, steering: Arc<Steering>) -> Self {
        Self { stream, connection, steering, room: 0 }
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.make_room();
        Ok(self.stream.write_all(bytes).await?)
    }

    /// Writes some of the first bytes without copying them, at least one if there are any, and returns their number.
    pub(crate) async fn write_some(&mut self, pieces: impl Iterator<Item = &Bytes>) -> io::Result<usize> {
        self.make_room();
        let (mut chunks, mut count) = ([const { Bytes::new() }; MAX_CHUNKS], 0);
        for (chunk, piece) in chunks.iter_mut().zip(pieces) {
            *chunk = piece.clone();
            count += 1;
        }
        Ok(self.stream.write_chunks(&mut chunks[..count]).await?.bytes)
    }

    /// Limits the bytes that the connection holds to its congestion window and a short backlog. The limit is updated only after large
    /// changes, because setting it costs a lock.
    fn make_room(&mut self) {
        let room = self.steering.room();
        if room.abs_diff(self.room) > self.room / 16 {
            self.connection.set_send_window(room);
            self.room = room;
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.stream.finish();
        let (taken, connection) = (self.stream.stopped(), self.connection.clone());
        let close = async move {
            let _ = tokio::time::timeout(LINGER, taken).await;
            connection.close(VarInt::from_u32(0), b"");
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(close)),
            Err(_) => self.connection.close(VarInt::from_u32(0), b""),
        }
    }
}
