//! The leg between this agent and a host.

use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::BytesMut;
use socket2::SockRef;
use sos_wire::{Kept, Marks, Payload};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tracing::debug;

use crate::buffers::Buffers;
use crate::pace::{Pace, Rhythm};
use crate::pipes::{self, Pipes};
use crate::segment_marks::{SegmentMarks, Watched, set_marks};
use crate::sockopt::{
    Gate, LegInfo, is_taken, leg_info, probe_at_once, receive_now, set_gate, set_keepalive, set_polled,
    set_window, unacknowledged,
};

/// Most pieces of one write.
const MAX_SLICES: usize = 32;
/// A host that has filled no buffer yet gets one of this size: most hosts say little.
const SMALL: usize = 16 << 10;
/// How often it is looked whether a host has taken the last bytes: at first, as most do at once, and with those that take their time.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Below this much free space a buffer is replaced; what comes in ticks is worth larger pieces.
const MIN_READ: usize = 4 << 10;
const MIN_TICK_READ: usize = 32 << 10;

/// Windows that a host is offered: what is in the kernel's buffer is ahead of the far host, too. The least lets a host on the same LAN send
/// without a pause between two turns of the agent, the most between two ticks at 20 Gbit/s; between them it is a part of what may be ahead.
const LEAST_WINDOW: u64 = 64 << 10;
const MOST_WINDOW: u64 = 8 << 20;
const WINDOW_SHARE: u64 = 8;

/// When an idle host is probed by the agent's own will: Linux's defaults, and the least that RFC 9293 3.8.4 allows. A connection that plain TCP keeps
/// through an outage must outlive it here too.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(2 * 3600);
/// Pause between such probes (tcp_keepalive_intvl).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
/// Probes without an answer after which a host is gone (tcp_keepalive_probes).
pub const KEEPALIVE_PROBES: u32 = 9;

/// Where what is read goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) buffers: &'a Buffers,
    /// Pipes for what is read at ticks, and how many bytes at most go into one; none if it is needed in memory.
    pub(crate) pipes: Option<(&'a Arc<Pipes>, usize)>,
}

/// A connection to a host, as it comes.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) socket: TcpStream,
    /// Routers between the two hosts' sites, which lower the TTL of plain packets.
    pub(crate) routers: u8,
}

/// A connection to a host. Until [`Self::end_cleanly`] every way of losing it resets the host's end: a process that is killed must not
/// look like the end of the data.
#[derive(Debug)]
pub(crate) struct Host {
    socket: Arc<TcpStream>,
    gate: Gate,
    watched: Option<Watched>,
    routers: u8,
    buffer: BytesMut,
    /// The host says much at once.
    busy: bool,
    /// `buffer` is one that is used again.
    pooled: bool,
    ended: bool,
    /// The most that the host is offered.
    window: u64,
    pace: Pace,
    /// The start of the ticks, which all of the process share.
    epoch: Instant,
    /// The host says so much that it is read at ticks (see [`crate::pace`]): when next.
    tick_at: Option<Instant>,
}

impl Host {
    pub(crate) fn new(leg: Leg, filters: Option<&Arc<SegmentMarks>>, epoch: Instant) -> io::Result<Self> {
        let Leg { socket, routers } = leg;
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        // An urgent byte (telnet's and FTP's interrupt) is one of the others, as RFC 6093 wants it; without this the kernel would take it out.
        SockRef::from(&socket).set_out_of_band_inline(true)?;
        socket.set_nodelay(true)?;
        let watched = filters.and_then(|filters| Watched::new(filters, &socket).ok());
        Ok(Self {
            socket: Arc::new(socket),
            gate: Gate::Open,
            watched,
            routers,
            buffer: BytesMut::new(),
            busy: false,
            pooled: false,
            ended: false,
            window: 0,
            pace: Pace::default(),
            epoch,
            tick_at: None,
        })
    }

    /// Bytes of the host, at most `room`; empty at its end, after which it must not be called. Pending until the next tick ([`Self::tick_at`])
    /// if the host is read at ticks.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        room: usize,
        places: Places<'_>,
    ) -> Poll<io::Result<Payload>> {
        if let Some(tick) = self.tick_at {
            return if tick <= now { self.read_at_tick(cx, now, room, places) } else { Poll::Pending };
        }
        let read = ready!(self.read(cx, room, places.buffers))?;
        if self.pace.note_poll(read, Rhythm::HOST, now) {
            set_polled(&self.socket, false)?;
            self.busy = true;
            self.tick_at = Some(self.pace.next_tick(self.epoch, now));
        }
        Poll::Ready(Ok(self.buffer.split().freeze().into()))
    }

    /// For whoever looks at it now and then.
    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// What of the host's segments passes. A kernel that takes no filter lets everything pass.
    pub(crate) fn set_gate(&mut self, gate: Gate) {
        if gate != self.gate {
            let set = match &self.watched {
                Some(watched) => watched.set_gate(&self.socket, gate),
                None => set_gate(&self.socket, gate),
            };
            self.gate = if set.is_ok() { gate } else { Gate::Open };
        }
    }

    pub(crate) fn watched(&self) -> Option<&Watched> {
        self.watched.as_ref()
    }

    /// DSCP and TTL of what the host sent last.
    pub(crate) fn marks(&self) -> Option<Marks> {
        self.watched.as_ref()?.marks()
    }

    /// Marks segments from now on, with the TTL lowered by the routers. A kernel that refuses leaves the marks as they are.
    pub(crate) fn set_marks(&self, marks: Marks) {
        if let Err(error) = set_marks(&SockRef::from(&*self.socket), marks.behind(self.routers)) {
            debug!(%error, ?marks, "cannot mark what a host is sent");
        }
    }

    pub(crate) fn gate(&self) -> Gate {
        self.gate
    }

    /// Has the kernel probe the host, or leaves it to the usual times again.
    pub(crate) fn probe(&self, probing: bool) {
        let set = if probing {
            probe_at_once(&self.socket)
        } else {
            set_keepalive(&self.socket, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES)
        };
        if let Err(error) = set {
            debug!(%error, "cannot have a host probed");
        }
    }

    /// What the kernel knows of the host.
    pub(crate) fn info(&self) -> Option<LegInfo> {
        leg_info(&self.socket).ok()
    }

    /// Offers the host a window that fits how far it may be ahead. Where the kernel does not take it, its own tuning stays.
    pub(crate) fn fit_window(&mut self, ahead: u64) {
        let window = (ahead / WINDOW_SHARE).clamp(LEAST_WINDOW, MOST_WINDOW);
        if window >= 2 * self.window || window <= self.window / 4 {
            self.window = window;
            let _ = set_window(&self.socket, u32::try_from(window).unwrap_or(u32::MAX));
        }
    }

    /// Bytes that the host was given and has not acknowledged; none once the connection is gone.
    pub(crate) fn unacknowledged(&self) -> u64 {
        unacknowledged(&self.socket).unwrap_or(0)
    }

    /// When what has arrived is to be read; `None` if the poll tells.
    pub(crate) fn tick_at(&self) -> Option<Instant> {
        self.tick_at
    }

    /// What is there by now: as long as it fills what there is room for, more of it at once.
    fn read_at_tick(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        room: usize,
        places: Places<'_>,
    ) -> Poll<io::Result<Payload>> {
        let (wanted, read) = self.receive(room, places);
        let read = match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read?),
        };
        let len = read.as_ref().map(Payload::len);
        self.ended = len == Some(0);
        if len == Some(wanted)
            && let Some(read) = read
        {
            return Poll::Ready(Ok(read));
        }
        self.tick_at = Some(self.pace.next_tick(self.epoch, now));
        if !self.pace.note_tick(len.unwrap_or(0)) {
            self.tick_at = None;
            set_polled(&self.socket, true)?;
        }
        match read {
            Some(read) => Poll::Ready(Ok(read)),
            None if self.tick_at.is_some() => Poll::Pending,
            None => self.poll_read(cx, now, room, places),
        }
    }

    /// What is there, and how many bytes it could have been.
    fn receive(&mut self, room: usize, places: Places<'_>) -> (usize, io::Result<Payload>) {
        if let Some((pipes, block)) = places.pipes.filter(|_| room >= pipes::LEAST) {
            let wanted = room.min(block);
            if let Some(read) = pipes.receive(&self.socket, wanted) {
                return (wanted, read);
            }
        }
        self.make_space(places.buffers);
        let wanted = room.min(self.buffer.capacity());
        let read = receive_now(&self.socket, &mut self.buffer, wanted);
        (wanted, read.map(|_| self.buffer.split().freeze().into()))
    }

    /// What the runtime says is there.
    fn read(&mut self, cx: &mut Context<'_>, room: usize, buffers: &Buffers) -> Poll<io::Result<usize>> {
        let (wanted, read) = loop {
            // Memory is found only once there is something to read, so that silent hosts hold none.
            ready!(self.socket.poll_read_ready(cx))?;
            self.make_space(buffers);
            // The buffer is empty between reads: what is read is split off at once.
            let wanted = room.min(self.buffer.capacity());
            // Only when there is nothing is there nothing more: a read ends before an urgent byte, too.
            let receive = || receive_now(&self.socket, &mut self.buffer, wanted);
            match self.socket.try_io(Interest::READABLE, receive) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => break (wanted, read?),
            }
        };
        self.busy = if self.busy { read > MIN_READ } else { read == wanted && read >= MIN_READ };
        self.ended = read == 0;
        Poll::Ready(Ok(read))
    }

    fn make_space(&mut self, buffers: &Buffers) {
        let least = if self.tick_at.is_some() { MIN_TICK_READ } else { MIN_READ };
        if self.buffer.capacity() >= least {
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
        pieces: impl Iterator<Item = &'a Payload>,
    ) -> Poll<io::Result<usize>> {
        // What it answers has to pass.
        self.set_gate(Gate::Open);
        let mut pieces = pieces.peekable();
        if let Some(Payload::Kept(kept)) = pieces.peek() {
            let _ = pieces.next();
            return self.poll_give(cx, kept, pieces.peek().is_some());
        }
        let (mut slices, mut count) = ([IoSlice::new(&[]); MAX_SLICES], 0);
        for (slice, piece) in slices.iter_mut().zip(pieces.map_while(Payload::bytes)) {
            *slice = IoSlice::new(piece);
            count += 1;
        }
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            match self.socket.try_write_vectored(&slices[..count]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_give(&self, cx: &mut Context<'_>, kept: &Kept, more: bool) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket.poll_write_ready(cx))?;
            let given = self.socket.try_io(Interest::WRITABLE, || pipes::give(kept, &self.socket, more));
            match given {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                given => return Poll::Ready(given),
            }
        }
    }

    /// Tells the host that there is no more.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.set_gate(Gate::Open);
        SockRef::from(&*self.socket).shutdown(Shutdown::Write)
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
    pub(crate) async fn end_cleanly(mut self) {
        self.set_gate(Gate::Open);
        let mut pause = LOOK_AGAIN;
        while !is_taken(&self.socket) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MAX);
        }
        // If this fails the host sees a reset after all its data, which is the best that is left.
        let _ = SockRef::from(&*self.socket).set_linger(None);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::future::poll_fn;

    use bytes::Bytes;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[derive(Default)]
    struct Shelves(Buffers, Arc<Pipes>);

    impl Shelves {
        fn places(&self) -> Places<'_> {
            Places { buffers: &self.0, pipes: Some((&self.1, 200_000)) }
        }
    }

    fn bytes(payload: &Payload) -> Bytes {
        match payload {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Kept(kept) => pipes::read(kept).unwrap(),
        }
    }

    /// A host's end of its connection, and ours.
    async fn pair(epoch: Instant) -> (TcpStream, Host) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (
            near,
            Host::new(Leg { socket: listener.accept().await.unwrap().0, routers: 0 }, None, epoch).unwrap(),
        )
    }

    /// Says `message` and reads it by poll.
    async fn exchange(near: &mut TcpStream, host: &mut Host, message: &[u8], now: Instant) {
        near.write_all(message).await.unwrap();
        let mut left = message.len();
        while left > 0 && host.tick_at().is_none() {
            left -=
                poll_fn(|cx| host.poll_read(cx, now, left, Shelves::default().places())).await.unwrap().len();
        }
    }

    #[tokio::test]
    async fn a_host_that_says_much_is_read_at_ticks_until_it_says_little() {
        let epoch = Instant::now();
        let (mut near, mut host) = pair(epoch).await;
        let shelves = Shelves::default();
        while host.tick_at().is_none() {
            exchange(&mut near, &mut host, &[7; 20_000], epoch).await;
        }
        let mut now = host.tick_at().unwrap();
        near.write_all(&[8; 300_000]).await.unwrap();
        let early =
            poll_fn(|cx| Poll::Ready(host.poll_read(cx, now - MS, 1 << 20, shelves.places()).is_pending()))
                .await;
        assert!(early, "not before the tick");
        let mut count = 0;
        while count < 300_000 {
            now = now.max(host.tick_at().unwrap());
            let got = poll_fn(|cx| Poll::Ready(host.poll_read(cx, now, 1 << 20, shelves.places()))).await;
            if let Poll::Ready(read) = got {
                count += bytes(&read.unwrap()).iter().filter(|byte| **byte == 8).count();
            }
        }
        for _ in 0..10 {
            now = host.tick_at().unwrap_or(now);
            let got = poll_fn(|cx| Poll::Ready(host.poll_read(cx, now, 1 << 20, shelves.places()))).await;
            assert!(got.is_pending(), "nothing is there");
        }
        assert_eq!(host.tick_at(), None, "the poll tells again");
        near.write_all(b"more").await.unwrap();
        let more = poll_fn(|cx| host.poll_read(cx, now, 1 << 20, shelves.places())).await.unwrap();
        assert_eq!(bytes(&more), "more");
    }

    /// Everything that a host says until its end, from `now` on.
    async fn all(host: &mut Host, mut now: Instant) -> Vec<u8> {
        let (shelves, mut all) = (Shelves::default(), Vec::new());
        while !host.has_ended() {
            now = host.tick_at().unwrap_or(now);
            let got = poll_fn(|cx| Poll::Ready(host.poll_read(cx, now, 1 << 20, shelves.places()))).await;
            match got {
                Poll::Ready(read) => all.extend_from_slice(&bytes(&read.unwrap())),
                Poll::Pending => tokio::time::sleep(MS).await,
            }
        }
        all
    }

    #[tokio::test]
    async fn an_urgent_byte_is_one_of_the_others() {
        for much in [false, true] {
            let epoch = Instant::now();
            let (mut near, mut host) = pair(epoch).await;
            while much && host.tick_at().is_none() {
                exchange(&mut near, &mut host, &[7; 20_000], epoch).await;
            }
            // All of it is there, and the end, before it is read.
            let (before, after) = (vec![1; 20_000], vec![3; 20_000]);
            near.write_all(&before).await.unwrap();
            assert_eq!(SockRef::from(&near).send_out_of_band(&[2]).unwrap(), 1);
            near.write_all(&after).await.unwrap();
            near.shutdown().await.unwrap();
            let mut all = all(&mut host, epoch).await;
            all.retain(|byte| *byte != 7);
            assert!(all == [before, vec![2], after].concat(), "{} bytes, at ticks: {much}", all.len());
        }
    }

    #[tokio::test]
    async fn an_urgent_byte_that_nothing_follows_is_read() {
        let (mut near, mut host) = pair(Instant::now()).await;
        near.write_all(&[1; 10]).await.unwrap();
        assert_eq!(SockRef::from(&near).send_out_of_band(&[2]).unwrap(), 1);
        let (shelves, mut read) = (Shelves::default(), 0);
        while read < 11 {
            let more = poll_fn(|cx| host.poll_read(cx, Instant::now(), 1 << 20, shelves.places()));
            read += tokio::time::timeout(10 * Duration::from_secs(1), more).await.unwrap().unwrap().len();
        }
    }

    #[tokio::test]
    async fn the_end_is_seen_at_a_tick() {
        let epoch = Instant::now();
        let (mut near, mut host) = pair(epoch).await;
        while host.tick_at().is_none() {
            exchange(&mut near, &mut host, &[7; 20_000], epoch).await;
        }
        near.shutdown().await.unwrap();
        let mut now = epoch;
        while !host.has_ended() {
            now = host.tick_at().unwrap_or(now);
            let got =
                poll_fn(|cx| Poll::Ready(host.poll_read(cx, now, 1 << 20, Shelves::default().places())))
                    .await;
            assert!(!matches!(got, Poll::Ready(Err(_))));
        }
    }
}
