//! Zero-copy relaying: received bytes stay in pages of the kernel, each piece in a separate pipe.
//!
//! splice(2) moves pages from a socket into a pipe and on into another socket. A block that may have to be retransmitted stays in its pipe until
//! acknowledged; the socket gets a second reference to the same pages, made by tee(2). The kernel counts references, so no page is reused while
//! a socket still has it.
//!
//! Pipes are few: beyond the limit, or if the kernel refuses another pipe of the requested size, bytes are copied instead.

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{Bytes, BytesMut};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, tee};
use rustix::process::{Resource, getrlimit};
use sos_wire::stream::frame::MAX_PAYLOAD;
use sos_wire::{Keeper, Kept, Payload};

use crate::lock;

/// Maximum number of pipes: with blocks of 256 KiB they hold the bytes in flight at 3 Gbit/s and 160 ms.
const MAX_PIPES: usize = 256;
/// The number of pipes is at most the process's descriptor limit divided by this; each pipe takes two descriptors.
const SHARE_OF_FILES: u64 = 16;
/// Size of a pipe. The kernel counts a whole page for each piece of a segment: this size is 256 pages, enough for a block of 256 KiB in
/// segments of 1,448 bytes. Unprivileged processes get no larger pipes (`fs.pipe-max-size`).
const SIZE: usize = 1 << 20;
/// Minimum bytes worth a pipe: copying fewer is cheaper.
pub(crate) const MIN_SPLICE: usize = 16 << 10;

/// The pipes of a process.
#[derive(Debug)]
pub(crate) struct PipePool {
    /// Empty pipes.
    idle: Mutex<Vec<PipeEnds>>,
    lent: AtomicUsize,
    /// Maximum number of pipes that may be lent.
    most: AtomicUsize,
    /// Prerequisites; without them no pipe is lent.
    base: Option<Base>,
}

/// Prerequisites of lending pipes.
#[derive(Debug)]
struct Base {
    /// Sink of bytes that are no longer needed.
    null: File,
    /// Scratch pipe through which kept bytes are copied into memory, whether or not another pipe is free.
    way: Mutex<PipeEnds>,
}

#[derive(Debug)]
struct PipeEnds {
    read: OwnedFd,
    write: OwnedFd,
}

impl Default for PipePool {
    fn default() -> Self {
        let files = getrlimit(Resource::Nofile)
            .current
            .map_or(MAX_PIPES, |files| usize::try_from(files / SHARE_OF_FILES).unwrap_or(MAX_PIPES));
        let base = Base::new().ok();
        let most = if base.is_some() { files.min(MAX_PIPES) } else { 0 };
        Self { idle: Mutex::default(), lent: AtomicUsize::new(0), most: AtomicUsize::new(most), base }
    }
}

impl Base {
    fn new() -> io::Result<Self> {
        let null = OpenOptions::new().write(true).open("/dev/null")?;
        Ok(Self { null, way: Mutex::new(PipeEnds::new()?) })
    }
}

impl PipePool {
    /// Receives at most `most` available bytes without waiting: in a pipe, or in memory if they are few; never returns zero bytes. `None`
    /// if no pipe is available, or if splice(2) returns 0: at the end of the data, or before an urgent byte once the FIN has arrived. The
    /// caller then reads into memory.
    pub(crate) fn receive(self: &Arc<Self>, socket: impl AsFd, most: usize) -> Option<io::Result<Payload>> {
        let mut lent = self.take()?;
        let most = most.min(MAX_PAYLOAD);
        let read = splice(socket, None, &lent.ends().write, None, most, SpliceFlags::NONBLOCK);
        match read {
            Ok(0) => {
                lent.give_back();
                None
            }
            Ok(read) if read < MIN_SPLICE => Some(lent.into_memory(read)),
            Ok(read) => Some(Ok(Payload::Kept(Kept::new(Arc::new(Pipe::new(lent, read)), read)))),
            Err(error) => {
                lent.give_back();
                Some(Err(error.into()))
            }
        }
    }

    /// Lends an empty pipe, unless the limit is reached.
    fn take(self: &Arc<Self>) -> Option<Lent> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |lent: usize| (lent < most).then_some(lent + 1);
        let before = self.lent.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let idle = lock(&self.idle).pop();
        match idle.map_or_else(PipeEnds::new, Ok) {
            Ok(ends) => Some(Lent { ends: Some(ends), pipes: Arc::clone(self) }),
            Err(_) => {
                // The kernel refuses further pipes. Lower the limit, because repeated requests would cost more than they gain.
                self.most.fetch_min(before, Ordering::Relaxed);
                self.lent.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }
}

impl PipeEnds {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // A pipe of another size would hold too little.
        fcntl_setpipe_size(&write, SIZE)?;
        Ok(Self { read, write })
    }

    /// Fills this pipe, which must be empty, with references to a part of kept bytes.
    fn refer(&self, kept: &Kept, null: &File) -> io::Result<()> {
        let (pipe, range) = (Pipe::of(kept)?, kept.range());
        let referred = tee(&pipe.lent.ends().read, &self.write, range.end, SpliceFlags::NONBLOCK);
        if referred.map_err(certain)? < range.end {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.skip(range.start, null)
    }

    /// Drops the first bytes.
    fn skip(&self, mut bytes: usize, null: &File) -> io::Result<()> {
        while bytes > 0 {
            match splice(&self.read, None, null, None, bytes, SpliceFlags::NONBLOCK).map_err(certain)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                skipped => bytes -= skipped,
            }
        }
        Ok(())
    }

    /// Copies the first bytes into memory.
    fn read_out(&self, len: usize) -> io::Result<Bytes> {
        let mut bytes = BytesMut::zeroed(len);
        let mut at = 0;
        while at < len {
            match rustix::io::read(&self.read, &mut bytes[at..]).map_err(certain)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => at += read,
            }
        }
        Ok(bytes.freeze())
    }

    /// Moves the first bytes to a socket, as many as it accepts without waiting.
    fn push(&self, len: usize, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let flags = if more { SpliceFlags::NONBLOCK | SpliceFlags::MORE } else { SpliceFlags::NONBLOCK };
        Ok(splice(&self.read, None, socket, None, len, flags)?)
    }
}

/// A lent pipe. Dropping it closes the pipe with its content; an empty pipe should be given back.
#[derive(Debug)]
struct Lent {
    ends: Option<PipeEnds>,
    pipes: Arc<PipePool>,
}

impl Lent {
    fn ends(&self) -> &PipeEnds {
        self.ends.as_ref().expect("until it is given back")
    }

    fn null(&self) -> io::Result<&File> {
        self.pipes.base.as_ref().map(|base| &base.null).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Copies the first bytes into memory and gives back the pipe, which must contain no other bytes.
    fn into_memory(mut self, len: usize) -> io::Result<Payload> {
        let bytes = self.ends().read_out(len)?;
        self.give_back();
        Ok(bytes.into())
    }

    /// Gives back the pipe, which must be empty.
    fn give_back(&mut self) {
        if let Some(ends) = self.ends.take() {
            lock(&self.pipes.idle).push(ends);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pipes.lent.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Bytes of one read, in their pipe.
#[derive(Debug)]
struct Pipe {
    lent: Lent,
    len: usize,
    /// Bytes dropped from the front.
    gone: Mutex<usize>,
}

impl Keeper for Pipe {}

impl Pipe {
    fn new(lent: Lent, len: usize) -> Self {
        Self { lent, len, gone: Mutex::new(0) }
    }

    fn of(kept: &Kept) -> io::Result<&Self> {
        (kept.keeper() as &dyn Any).downcast_ref().ok_or_else(|| ErrorKind::InvalidInput.into())
    }

    /// Drops the bytes before `start`; returns the total number dropped.
    fn skip_to(&self, start: usize) -> io::Result<MutexGuard<'_, usize>> {
        let mut gone = lock(&self.gone);
        self.lent.ends().skip(start.saturating_sub(*gone), self.lent.null()?)?;
        *gone = start.max(*gone);
        Ok(gone)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if self.skip_to(self.len).is_ok() {
            self.lent.give_back();
        }
    }
}

/// Turns an error of a pipe into an error that ends the operation: a pipe's WouldBlock must not make the caller wait for its socket.
fn certain(error: Errno) -> io::Error {
    io::Error::other(io::Error::from(error))
}

/// Moves bytes from the front of kept bytes to a socket, without waiting. The moved bytes and all bytes before them are dropped. `more`:
/// further bytes follow.
pub(crate) fn give(kept: &Kept, socket: impl AsFd, more: bool) -> io::Result<usize> {
    let (pipe, range) = (Pipe::of(kept)?, kept.range());
    let mut gone = pipe.skip_to(range.start)?;
    let given = pipe.lent.ends().push(range.end - *gone, socket, more)?;
    *gone += given;
    Ok(given)
}

/// Copies kept bytes into memory; they also stay in their pipe.
pub(crate) fn read(kept: &Kept) -> io::Result<Bytes> {
    let base = Pipe::of(kept)?.lent.pipes.base.as_ref().ok_or(ErrorKind::NotFound)?;
    let way = lock(&base.way);
    let bytes = way.refer(kept, &base.null).and_then(|()| way.read_out(kept.range().len()));
    if bytes.is_err() {
        // Drain bytes left behind, so that the next caller does not get them.
        while rustix::io::read(&way.read, &mut [0; 4096]).is_ok_and(|read| read > 0) {}
    }
    bytes
}

/// Copy of kept bytes for a socket, made by tee(2), so that the original stays. It occupies a pipe only while it contains bytes, because
/// there may be more streams than pipes.
#[derive(Debug, Default)]
pub(crate) struct TeePipe {
    lent: Option<Lent>,
}

impl TeePipe {
    /// Takes references to kept bytes; returns false if there was no pipe, so that the bytes have to be copied. The previous copy must have been
    /// closed.
    pub(crate) fn fill(&mut self, kept: &Kept) -> io::Result<bool> {
        self.lent = Pipe::of(kept)?.lent.pipes.take();
        let Some(lent) = &self.lent else { return Ok(false) };
        lent.ends().refer(kept, lent.null()?)?;
        Ok(true)
    }

    /// Gives back the pipe, which must be empty.
    pub(crate) fn close(&mut self) {
        if let Some(mut lent) = self.lent.take() {
            lent.give_back();
        }
    }

    /// Moves some of the `len` bytes to a socket without waiting. `more`: further bytes follow.
    pub(crate) fn give(&self, len: usize, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let lent = self.lent.as_ref().ok_or(ErrorKind::NotFound)?;
        lent.ends().push(len, socket, more)
    }
}

#[cfg(test)]
mod tests;
