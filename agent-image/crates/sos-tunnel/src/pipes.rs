//! Bytes that pass through without being copied: what a host or a peer sends stays in pages of the kernel, a piece in a pipe of its own.
//!
//! splice(2) moves pages from a socket into a pipe and on into another socket. What may have to be sent again stays in its pipe until it is
//! acknowledged; what is sent is a second reference to the same pages, made by tee(2). The kernel counts the references, so no page is used
//! for something else while a socket still has it.
//!
//! Pipes are few: beyond the bound, or where the kernel gives no more of them in the size asked for, bytes are copied as if there were none.

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
use sos_wire::frame::MAX_PAYLOAD;
use sos_wire::{Keeper, Kept, Payload};

use crate::lock;

/// Most pipes at once: of blocks of 256 KiB they hold what is under way at 3 Gbit/s and 160 ms.
const MAX_PIPES: usize = 256;
/// And most in relation to the descriptors that the process may have, of which each takes two.
const SHARE_OF_FILES: u64 = 16;
/// Bytes of a pipe as the kernel counts them, a page for each piece of a segment: 256, as many as a block in segments of 1,448 bytes has.
/// More is not given to processes without privileges (`fs.pipe-max-size`).
const SIZE: usize = 1 << 20;
/// Less than this is not worth a pipe: copying it is cheaper.
pub(crate) const LEAST: usize = 16 << 10;

/// The pipes of a process.
#[derive(Debug)]
pub(crate) struct Pipes {
    /// Empty ones.
    idle: Mutex<Vec<Ends>>,
    lent: AtomicUsize,
    /// Most that may be lent.
    most: AtomicUsize,
    /// Without it no pipe is lent.
    base: Option<Base>,
}

/// What pipes cannot do without.
#[derive(Debug)]
struct Base {
    /// Where bytes go that nobody wants any more.
    null: File,
    /// Through this one what is kept is brought into memory, whether or not there are others.
    way: Mutex<Ends>,
}

#[derive(Debug)]
struct Ends {
    read: OwnedFd,
    write: OwnedFd,
}

impl Default for Pipes {
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
        Ok(Self { null, way: Mutex::new(Ends::new()?) })
    }
}

impl Pipes {
    /// What a socket has now, at most `most` bytes, without waiting: in a pipe, or in memory if it is little, and never empty. `None` if
    /// there is no pipe for it, or splice(2) finds nothing and never will: at the end, but also before an urgent byte once the end has come.
    pub(crate) fn receive(self: &Arc<Self>, socket: impl AsFd, most: usize) -> Option<io::Result<Payload>> {
        let mut lent = self.take()?;
        let most = most.min(MAX_PAYLOAD);
        let read = splice(socket, None, &lent.ends().write, None, most, SpliceFlags::NONBLOCK);
        match read {
            Ok(0) => {
                lent.give_back();
                None
            }
            Ok(read) if read < LEAST => Some(lent.into_memory(read)),
            Ok(read) => Some(Ok(Payload::Kept(Kept::new(Arc::new(Pipe::new(lent, read)), read)))),
            Err(error) => {
                lent.give_back();
                Some(Err(error.into()))
            }
        }
    }

    /// An empty pipe, if there may be another.
    fn take(self: &Arc<Self>) -> Option<Lent> {
        let most = self.most.load(Ordering::Relaxed);
        let more = |lent: usize| (lent < most).then_some(lent + 1);
        let before = self.lent.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        let idle = lock(&self.idle).pop();
        match idle.map_or_else(Ends::new, Ok) {
            Ok(ends) => Some(Lent { ends: Some(ends), pipes: Arc::clone(self) }),
            Err(_) => {
                // So many are given and no more: asking again each time would cost more than it brings.
                self.most.fetch_min(before, Ordering::Relaxed);
                self.lent.fetch_sub(1, Ordering::AcqRel);
                None
            }
        }
    }
}

impl Ends {
    fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // One that is not given this size holds too little.
        fcntl_setpipe_size(&write, SIZE)?;
        Ok(Self { read, write })
    }

    /// Puts references to a part of what is kept here, where nothing is.
    fn refer(&self, kept: &Kept, null: &File) -> io::Result<()> {
        let (pipe, range) = (Pipe::of(kept)?, kept.range());
        let referred = tee(&pipe.lent.ends().read, &self.write, range.end, SpliceFlags::NONBLOCK);
        if referred.map_err(certain)? < range.end {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.skip(range.start, null)
    }

    /// Forgets the first bytes.
    fn skip(&self, mut bytes: usize, null: &File) -> io::Result<()> {
        while bytes > 0 {
            match splice(&self.read, None, null, None, bytes, SpliceFlags::NONBLOCK).map_err(certain)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                skipped => bytes -= skipped,
            }
        }
        Ok(())
    }

    /// Moves the first bytes into memory.
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

    /// Moves the first bytes to a socket, as many as it takes without waiting.
    fn push(&self, len: usize, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let flags = if more { SpliceFlags::NONBLOCK | SpliceFlags::MORE } else { SpliceFlags::NONBLOCK };
        Ok(splice(&self.read, None, socket, None, len, flags)?)
    }
}

/// A pipe in use. Dropped it is closed, whatever is in it; an empty one had better be given back.
#[derive(Debug)]
struct Lent {
    ends: Option<Ends>,
    pipes: Arc<Pipes>,
}

impl Lent {
    fn ends(&self) -> &Ends {
        self.ends.as_ref().expect("until it is given back")
    }

    fn null(&self) -> io::Result<&File> {
        self.pipes.base.as_ref().map(|base| &base.null).ok_or_else(|| ErrorKind::NotFound.into())
    }

    /// Its first bytes, which are all it has, in memory.
    fn into_memory(mut self, len: usize) -> io::Result<Payload> {
        let bytes = self.ends().read_out(len)?;
        self.give_back();
        Ok(bytes.into())
    }

    /// Nothing is in it any more.
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

/// What was received at once, in its pipe.
#[derive(Debug)]
struct Pipe {
    lent: Lent,
    len: usize,
    /// Bytes at the front that are not there any more.
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

    /// Gives up what is before `start`; says what is gone from now on.
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

/// An error of a pipe, not of a socket for which one might wait.
fn certain(error: Errno) -> io::Error {
    io::Error::other(io::Error::from(error))
}

/// Gives bytes from the front of what is kept to a socket, without waiting: they are not kept any more, nor is what is before them. `more` is
/// about to follow.
pub(crate) fn give(kept: &Kept, socket: impl AsFd, more: bool) -> io::Result<usize> {
    let (pipe, range) = (Pipe::of(kept)?, kept.range());
    let mut gone = pipe.skip_to(range.start)?;
    let given = pipe.lent.ends().push(range.end - *gone, socket, more)?;
    *gone += given;
    Ok(given)
}

/// What is kept, in memory; it stays where it is, too.
pub(crate) fn read(kept: &Kept) -> io::Result<Bytes> {
    let base = Pipe::of(kept)?.lent.pipes.base.as_ref().ok_or(ErrorKind::NotFound)?;
    let way = lock(&base.way);
    let bytes = way.refer(kept, &base.null).and_then(|()| way.read_out(kept.range().len()));
    if bytes.is_err() {
        // Whatever got there is not for the next.
        while rustix::io::read(&way.read, &mut [0; 4096]).is_ok_and(|read| read > 0) {}
    }
    bytes
}

/// On its way to a socket that gets it without its being given up. It has a pipe only while something is in it: streams are many.
#[derive(Debug, Default)]
pub(crate) struct Sluice {
    lent: Option<Lent>,
}

impl Sluice {
    /// Takes in what is kept; says whether it did. Where there is no pipe for that it has to go another way. It must have been closed.
    pub(crate) fn fill(&mut self, kept: &Kept) -> io::Result<bool> {
        self.lent = Pipe::of(kept)?.lent.pipes.take();
        let Some(lent) = &self.lent else { return Ok(false) };
        lent.ends().refer(kept, lent.null()?)?;
        Ok(true)
    }

    /// Everything in it has been given.
    pub(crate) fn close(&mut self) {
        if let Some(mut lent) = self.lent.take() {
            lent.give_back();
        }
    }

    /// Gives some of the `len` bytes in it to a socket without waiting. `more` is about to follow.
    pub(crate) fn give(&self, len: usize, socket: impl AsFd, more: bool) -> io::Result<usize> {
        let lent = self.lent.as_ref().ok_or(ErrorKind::NotFound)?;
        lent.ends().push(len, socket, more)
    }
}

#[cfg(test)]
mod tests;
