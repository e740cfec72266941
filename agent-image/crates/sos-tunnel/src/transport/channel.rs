//! The connection under a stream: plain TCP, TLS records over TCP, or QUIC.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::BytesMut;
use sos_relay::Reservation;
use sos_wire::{Key, Payload};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::transport::handle::TransportHandle;
use crate::transport::quic;
use crate::transport::sockopt::{receive_now, set_polled};
use crate::transport::splice::PipePool;
use crate::transport::tls::{self, FindKey, Opener, PairKeyName, Sealer, TlsError};
use crate::transport::write_queue_iovecs::{IovecQueue, MAX_SLICES, slices, write_now};

/// Number of bytes sealed and written at a time. Sealed bytes can no longer move to a faster stream, but smaller amounts would cost more
/// system calls.
const AT_ONCE: usize = 128 << 10;

/// Kind of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// TCP.
    Plain,
    /// TLS over TCP.
    Encrypted,
    /// QUIC, which is always encrypted.
    Quic,
}

impl Kind {
    pub(crate) fn is_encrypted(self) -> bool {
        self != Self::Plain
    }
}

/// A connection before its handshake.
pub(crate) struct Channel(Whole);

enum Whole {
    Tcp(TcpStream, Option<Box<(Sealer, Opener)>>),
    Quic(Box<quic::Connected>),
}

impl Channel {
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self(Whole::Tcp(socket, None))
    }

    pub(crate) fn quic(connected: quic::Connected) -> Self {
        Self(Whole::Quic(Box::new(connected)))
    }

    /// Encrypts a dialed connection.
    pub(crate) async fn dial(mut socket: TcpStream, key: &Key, name: PairKeyName) -> Result<Self, TlsError> {
        let halves = tls::dial(&mut socket, key, name).await?;
        Ok(Self(Whole::Tcp(socket, Some(Box::new(halves)))))
    }

    /// Accepts a connection that begins like TLS. `find` looks up the pair key that the dialer names. The second part of the result is the
    /// name of the key that the dialer has proved.
    pub(crate) async fn accept(
        mut socket: TcpStream,
        find: FindKey,
    ) -> Result<(Self, PairKeyName), TlsError> {
        let (halves, name) = tls::accept(&mut socket, find).await?;
        Ok((Self(Whole::Tcp(socket, Some(Box::new(halves)))), name))
    }

    pub(crate) fn kind(&self) -> Kind {
        match &self.0 {
            Whole::Tcp(_, None) => Kind::Plain,
            Whole::Tcp(_, Some(_)) => Kind::Encrypted,
            Whole::Quic(_) => Kind::Quic,
        }
    }

    /// Control handle of the connection.
    pub(crate) fn handle(&self) -> io::Result<TransportHandle> {
        match &self.0 {
            Whole::Tcp(socket, _) => Ok(TransportHandle::tcp(socket.as_fd().try_clone_to_owned()?)),
            Whole::Quic(connected) => Ok(TransportHandle::quic(connected.gauge.clone())),
        }
    }

    /// The peer's address.
    pub(crate) fn peer(&self) -> io::Result<IpAddr> {
        match &self.0 {
            Whole::Tcp(socket, _) => Ok(socket.peer_addr()?.ip()),
            Whole::Quic(connected) => Ok(connected.peer()),
        }
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.0 {
            Whole::Tcp(socket, None) => socket.write_all(bytes).await,
            Whole::Tcp(socket, Some(tls)) => {
                let mut records = Vec::new();
                tls.0.seal(&[bytes], usize::MAX, &mut records)?;
                socket.write_all(&records.concat()).await
            }
            Whole::Quic(connected) => connected.sender.write_all(bytes).await,
        }
    }

    pub(crate) async fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match &mut self.0 {
            Whole::Tcp(socket, None) => socket.read_exact(bytes).await.map(drop),
            Whole::Tcp(socket, Some(tls)) => open_exact(socket, &mut tls.1, bytes).await,
            Whole::Quic(connected) => connected.receiver.read_exact(bytes).await,
        }
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self.0 {
            Whole::Tcp(socket, tls) => {
                let (read, write) = socket.into_split();
                let (sealer, opener) = tls.map(|tls| *tls).unzip();
                let write = TcpWrite { socket: Arc::new(write), sealer, records: Vec::new() };
                (ReadHalf(Reading::Tcp(read, opener)), WriteHalf(Writing::Tcp(write)))
            }
            Whole::Quic(connected) => {
                let ((read, window), write) = connected.into_split();
                (ReadHalf(Reading::Quic(read, window)), WriteHalf(Writing::Quic(write)))
            }
        }
    }
}

/// Fills `bytes` from decrypted records.
async fn open_exact(socket: &mut TcpStream, opener: &mut Opener, bytes: &mut [u8]) -> io::Result<()> {
    let mut out = BytesMut::with_capacity(bytes.len());
    while out.len() < bytes.len() {
        let missing = bytes.len() - out.len();
        if opener.open(&mut out, missing)? == 0 {
            opener.make_room();
            if socket.read_buf(&mut opener.incoming).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
    bytes.copy_from_slice(&out);
    Ok(())
}

/// Reading half of a stream's connection.
pub(crate) struct ReadHalf(Reading);

enum Reading {
    Tcp(OwnedReadHalf, Option<Opener>),
    /// A QUIC stream with the reservation of its window.
    Quic(quic::Receiver, #[allow(dead_code)] Reservation),
}

impl ReadHalf {
    /// Sets whether polls report arrived data, or only the end, errors and a full window.
    pub(crate) fn set_polled(&self, polled: bool) -> io::Result<()> {
        match &self.0 {
            Reading::Tcp(socket, _) => set_polled(socket.as_ref(), polled),
            // Nothing to set: a non-blocking read registers no waker, so arriving data wakes no task.
            Reading::Quic(..) => Ok(()),
        }
    }

    /// Receives at most `most` available bytes without copying. `None` if that is not possible.
    pub(crate) fn receive_kept(&self, pipes: &Arc<PipePool>, most: usize) -> Option<io::Result<Payload>> {
        match &self.0 {
            Reading::Tcp(socket, None) => pipes.receive(socket.as_ref(), most),
            _ => None,
        }
    }

    /// True if bytes need not enter this process's memory.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.0, Reading::Tcp(_, None))
    }

    /// Waits for bytes and appends them to `buffer`, which must have free space. 0 = the end.
    pub(crate) async fn read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        match &mut self.0 {
            Reading::Tcp(socket, None) => socket.read_buf(buffer).await,
            Reading::Tcp(socket, Some(opener)) => open_some(socket, opener, buffer).await,
            Reading::Quic(receiver, _) => receiver.read_buf(buffer).await,
        }
    }

    /// Appends available bytes, bypassing the runtime (see [`receive_now`]).
    ///
    /// At most `most` bytes are read from a plain stream.
    pub(crate) fn receive_now(&mut self, buffer: &mut BytesMut, most: usize) -> io::Result<usize> {
        match &mut self.0 {
            Reading::Tcp(socket, None) => receive_now(socket.as_ref(), buffer, most),
            Reading::Tcp(socket, Some(opener)) => open_now(socket, opener, buffer),
            Reading::Quic(receiver, _) => receiver.receive_now(buffer),
        }
    }
}

async fn open_some(
    socket: &mut OwnedReadHalf,
    opener: &mut Opener,
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    loop {
        let opened = opener.open(buffer, buffer.capacity() - buffer.len())?;
        if opened > 0 {
            return Ok(opened);
        }
        opener.make_room();
        if socket.read_buf(&mut opener.incoming).await? == 0 {
            return Ok(0);
        }
    }
}

fn open_now(socket: &OwnedReadHalf, opener: &mut Opener, buffer: &mut BytesMut) -> io::Result<usize> {
    let (mut opened, mut more) = (0, true);
    loop {
        opened += opener.open(buffer, buffer.capacity() - buffer.len())?;
        if buffer.len() == buffer.capacity() || !more {
            break;
        }
        let room = opener.make_room();
        match receive_now(socket.as_ref(), &mut opener.incoming, usize::MAX) {
            Ok(0) => return Ok(opened),
            Ok(read) => more = read == room,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    if opened > 0 { Ok(opened) } else { Err(io::ErrorKind::WouldBlock.into()) }
}

/// Writing half of a stream's connection.
pub(crate) struct WriteHalf(Writing);

enum Writing {
    Tcp(TcpWrite),
    Quic(quic::Sender),
}

struct TcpWrite {
    socket: Arc<OwnedWriteHalf>,
    sealer: Option<Sealer>,
    /// Records being written; kept to reuse their memory.
    records: Vec<Vec<u8>>,
}

impl WriteHalf {
    /// Socket for direct writes while no other task writes; `None` if bytes have to be sealed.
    pub(crate) fn direct(&self) -> Option<Arc<OwnedWriteHalf>> {
        match &self.0 {
            Writing::Tcp(tcp) => tcp.sealer.is_none().then(|| Arc::clone(&tcp.socket)),
            Writing::Quic(_) => None,
        }
    }

    /// Writes some of the first bytes, at least one if there are any, and returns their number. Cancelling leaves the stream unusable.
    pub(crate) async fn write_some(&mut self, pieces: &mut IovecQueue) -> io::Result<usize> {
        match &mut self.0 {
            Writing::Tcp(tcp) => tcp.write_some(pieces).await,
            Writing::Quic(sender) => {
                pieces.fetch()?;
                sender.write_some(pieces.in_memory()).await
            }
        }
    }
}

impl TcpWrite {
    async fn write_some(&mut self, pieces: &mut IovecQueue) -> io::Result<usize> {
        let Some(sealer) = &mut self.sealer else {
            return write_pieces(&self.socket, pieces).await;
        };
        pieces.fetch()?;
        let (mut chunks, mut count) = ([[].as_slice(); MAX_SLICES], 0);
        for (chunk, piece) in chunks.iter_mut().zip(pieces.in_memory()) {
            *chunk = piece;
            count += 1;
        }
        let taken = sealer.seal(&chunks[..count], AT_ONCE, &mut self.records)?;
        self.write_records().await?;
        Ok(taken)
    }

    async fn write_records(&mut self) -> io::Result<()> {
        let (mut slices, count) = slices(self.records.iter().map(|record| &record[..]));
        let mut left = &mut slices[..count];
        while !left.is_empty() {
            let written = write_slices(&self.socket, left).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, written);
        }
        self.records.clear();
        Ok(())
    }
}

async fn write_pieces(socket: &OwnedWriteHalf, pieces: &mut IovecQueue) -> io::Result<usize> {
    loop {
        match write_now(socket, pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            result => return result,
        }
    }
}

async fn write_slices(socket: &OwnedWriteHalf, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        match socket.try_write_vectored(pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            result => return result,
        }
    }
}
