//! The connection under a stream: bytes as they are, or in TLS records.

use std::io::{self, IoSlice};
use std::sync::Arc;

use bytes::BytesMut;
use sos_wire::Key;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::sockopt::receive_now;
use crate::tls::{self, Opener, PairKeyName, Sealer, TlsError};

/// Bytes that are sealed and then written at once: what is sealed can no longer go by a faster stream, and fewer would cost more system calls.
const AT_ONCE: usize = 128 << 10;
/// Most pieces of one write: those of a stream, and the records that [`AT_ONCE`] bytes make.
const MAX_SLICES: usize = 64;

/// A connection before it is a stream.
pub(crate) struct Channel {
    socket: TcpStream,
    tls: Option<Box<(Sealer, Opener)>>,
}

impl Channel {
    pub(crate) fn plain(socket: TcpStream) -> Self {
        Self { socket, tls: None }
    }

    /// Makes a connection that was dialed an encrypted one.
    pub(crate) async fn dial(mut socket: TcpStream, key: &Key, name: PairKeyName) -> Result<Self, TlsError> {
        let halves = tls::dial(&mut socket, key, name).await?;
        Ok(Self { socket, tls: Some(Box::new(halves)) })
    }

    /// Takes a connection that begins like TLS. `find` gives the pair key that the dialer names; told is which was proved.
    pub(crate) async fn accept(
        mut socket: TcpStream,
        find: impl Fn(PairKeyName) -> Option<Key> + Send + Sync + 'static,
    ) -> Result<(Self, PairKeyName), TlsError> {
        let (halves, name) = tls::accept(&mut socket, Box::new(find)).await?;
        Ok((Self { socket, tls: Some(Box::new(halves)) }, name))
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    pub(crate) async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.write_all(bytes).await };
        let mut records = Vec::new();
        tls.0.seal(&[bytes], usize::MAX, &mut records)?;
        self.socket.write_all(&records.concat()).await
    }

    pub(crate) async fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return self.socket.read_exact(bytes).await.map(drop) };
        let mut out = BytesMut::with_capacity(bytes.len());
        while out.len() < bytes.len() {
            let missing = bytes.len() - out.len();
            if tls.1.open(&mut out, missing)? == 0 {
                tls.1.make_room();
                if self.socket.read_buf(&mut tls.1.incoming).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        bytes.copy_from_slice(&out);
        Ok(())
    }

    pub(crate) fn into_split(self) -> (ReadHalf, WriteHalf) {
        let (read, write) = self.socket.into_split();
        let (sealer, opener) = self.tls.map(|tls| *tls).unzip();
        (
            ReadHalf { socket: read, opener },
            WriteHalf { socket: Arc::new(write), sealer, records: Vec::new() },
        )
    }
}

/// What a stream reads from.
pub(crate) struct ReadHalf {
    socket: OwnedReadHalf,
    opener: Option<Opener>,
}

impl AsRef<TcpStream> for ReadHalf {
    fn as_ref(&self) -> &TcpStream {
        self.socket.as_ref()
    }
}

impl ReadHalf {
    /// Waits for bytes and appends them to the free space of `buffer`, which must have some. 0 = the end.
    pub(crate) async fn read_buf(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        let Some(opener) = &mut self.opener else { return self.socket.read_buf(buffer).await };
        loop {
            let opened = opener.open(buffer, buffer.capacity() - buffer.len())?;
            if opened > 0 {
                return Ok(opened);
            }
            opener.make_room();
            if self.socket.read_buf(&mut opener.incoming).await? == 0 {
                return Ok(0);
            }
        }
    }

    /// The same with what is there, without asking the runtime (see [`receive_now`]).
    pub(crate) fn receive_now(&mut self, buffer: &mut BytesMut) -> io::Result<usize> {
        let Some(opener) = &mut self.opener else {
            return receive_now(self.socket.as_ref(), buffer, usize::MAX);
        };
        let (mut opened, mut more) = (0, true);
        loop {
            opened += opener.open(buffer, buffer.capacity() - buffer.len())?;
            if buffer.len() == buffer.capacity() || !more {
                break;
            }
            let room = opener.make_room();
            match receive_now(self.socket.as_ref(), &mut opener.incoming, usize::MAX) {
                Ok(0) => return Ok(opened),
                Ok(read) => more = read == room,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        if opened > 0 { Ok(opened) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}

/// What a stream writes to.
pub(crate) struct WriteHalf {
    socket: Arc<OwnedWriteHalf>,
    sealer: Option<Sealer>,
    /// Being written; kept for its memory.
    records: Vec<Vec<u8>>,
}

impl WriteHalf {
    /// What others may write to without waiting, while nobody else does; `None` if what is written has to be sealed.
    pub(crate) fn direct(&self) -> Option<Arc<OwnedWriteHalf>> {
        self.sealer.is_none().then(|| Arc::clone(&self.socket))
    }

    /// Writes some of the first bytes, at least one if there are any; says how many. If it is dropped before it is done the stream is of no use
    /// any more.
    pub(crate) async fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(sealer) = &mut self.sealer else { return write_some(&self.socket, pieces).await };
        let mut chunks = [[].as_slice(); MAX_SLICES];
        let count = pieces.len().min(MAX_SLICES);
        for (chunk, piece) in chunks.iter_mut().zip(pieces) {
            *chunk = piece;
        }
        let taken = sealer.seal(&chunks[..count], AT_ONCE, &mut self.records)?;
        self.write_records().await?;
        Ok(taken)
    }

    async fn write_records(&mut self) -> io::Result<()> {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let count = self.records.len().min(MAX_SLICES);
        for (slice, record) in slices.iter_mut().zip(&self.records) {
            *slice = IoSlice::new(record);
        }
        let mut left = &mut slices[..count];
        while !left.is_empty() {
            let written = write_some(&self.socket, left).await?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            IoSlice::advance_slices(&mut left, written);
        }
        self.records.clear();
        Ok(())
    }
}

async fn write_some(socket: &OwnedWriteHalf, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    loop {
        match socket.try_write_vectored(pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => socket.writable().await?,
            result => return result,
        }
    }
}
