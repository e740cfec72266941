//! Host leg: the connection between this agent and a host.

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

use crate::transport::batched_read::{BatchedRead, ReadClock};
use crate::transport::buffers::Buffers;
use crate::transport::segment_marks::{SegmentMarks, Watched, set_marks};
use crate::transport::sockopt::{
    Gate, LegInfo, is_taken, leg_info, probe_at_once, receive_now, set_gate, set_keepalive, set_polled,
    set_window, unacknowledged,
};
use crate::transport::splice::{self, PipePool};

/// Maximum number of pieces of one write.
const MAX_SLICES: usize = 32;
/// Buffer size for a host that has not yet filled a buffer: most hosts send little.
const SMALL: usize = 16 << 10;
/// Before a connection is closed, the agent polls whether the host has acknowledged the last bytes. This interval between polls grows from
/// the first value, because most hosts are quick, to the second for slow hosts.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Free space below which a read buffer is replaced: for reads by poll, and for reads at ticks, which return more bytes at a time.
const MIN_READ: usize = 4 << 10;
const MIN_TICK_READ: usize = 32 << 10;

/// Idle time after which the agent itself probes a host: Linux's default, and the minimum that RFC 9293 3.8.4 allows. A connection that survives
/// an outage over plain TCP must survive it here too.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(2 * 3600);
/// Interval of such probes (tcp_keepalive_intvl).
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(75);
/// Unanswered probes after which a host is dead (tcp_keepalive_probes).
pub const KEEPALIVE_PROBES: u32 = 9;

/// Targets of a read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadTargets<'a> {
    pub(crate) buffers: &'a Buffers,
    /// Pipes for reads at ticks, and the maximum number of bytes of one read; none if the bytes are needed in memory.
    pub(crate) pipes: Option<(&'a Arc<PipePool>, usize)>,
}

/// A new connection to a host.
#[derive(Debug)]
pub(crate) struct Leg {
    pub(crate) socket: TcpStream,
    /// Number of routers between the two hosts' sites, by which the TTL of plain packets decreases.
    pub(crate) routers: u8,
}

/// A connection to a host. Until [`Self::end_cleanly`], dropping the value in any way resets the connection: a killed process must not look
/// like the end of the data.
#[derive(Debug)]
pub(crate) struct Host {
    socket: Arc<TcpStream>,
    gate: Gate,
    watched: Option<Watched>,
    routers: u8,
    buffer: BytesMut,
    /// The host sends large amounts at a time.
    busy: bool,
    /// `buffer` belongs to the pool of read buffers.
    pooled: bool,
    ended: bool,
    /// Maximum window offered to the host, and the minimum of this value once it is known.
    window: u64,
    least_window: Option<u64>,
    batching: BatchedRead,
    /// Start of the ticks, common to the process.
    epoch: Instant,
    /// Next tick if the host is busy and read at ticks (see [`crate::transport::batched_read`]).
    tick_at: Option<Instant>,
}

impl Host {
    pub(crate) fn new(leg: Leg, filters: Option<&Arc<SegmentMarks>>, epoch: Instant) -> io::Result<Self> {
        let Leg { socket, routers } = leg;
        SockRef::from(&socket).set_linger(Some(Duration::ZERO))?;
        // An urgent byte (the interrupt of telnet and FTP) is delivered in line, as RFC 6093 requires. By default the kernel would remove
        // it from the data.
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
            least_window: None,
            batching: BatchedRead::default(),
            epoch,
            tick_at: None,
        })
    }

    /// Reads at most `room` bytes from the host. Returns an empty payload at the end of the host's data, and must not be called after that.
    /// If the host is read at ticks, the result is pending until the next tick ([`Self::tick_at`]).
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        room: usize,
        places: ReadTargets<'_>,
    ) -> Poll<io::Result<Payload>> {
        if let Some(tick) = self.tick_at {
            return if tick <= now { self.read_at_tick(cx, now, room, places) } else { Poll::Pending };
        }
        let read = ready!(self.read(cx, room, places.buffers))?;
        if self.batching.note_poll(read, ReadClock::HOST, now) {
            set_polled(&self.socket, false)?;
            self.busy = true;
            self.tick_at = Some(self.batching.next_tick(self.epoch, now));
        }
        Poll::Ready(Ok(self.buffer.split().freeze().into()))
    }

    /// The socket, for the liveness sweeps.
    pub(crate) fn socket(&self) -> &Arc<TcpStream> {
        &self.socket
    }

    /// Filters the host's segments. A kernel without filters lets all segments pass.
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

    /// DSCP and TTL of the host's last segment.
    pub(crate) fn marks(&self) -> Option<Marks> {
        self.watched.as_ref()?.marks()
    }

    /// Sets the marks of further segments to the host, with the TTL lowered by the routers. If the kernel refuses, the marks stay
    /// unchanged.
    pub(crate) fn set_marks(&self, marks: Marks) {
        if let Err(error) = set_marks(&SockRef::from(&*self.socket), marks.behind(self.routers)) {
            debug!(%error, ?marks, "cannot set DSCP and TTL of segments to a host");
        }
    }

    pub(crate) fn gate(&self) -> Gate {
        self.gate
    }

    /// Makes the kernel probe the host from now on, or restores the usual keepalive times.
    pub(crate) fn probe(&self, probing: bool) {
        let set = if probing {
            probe_at_once(&self.socket)
        } else {
            set_keepalive(&self.socket, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES)
        };
        if let Err(error) = set {
            debug!(%error, "cannot set the keepalive times of a host");
        }
    }

    /// The kernel's statistics of the host leg.
    pub(crate) fn info(&self) -> Option<LegInfo> {
        leg_info(&self.socket).ok()
    }

    /// Offers the host this window or the minimum, unless a similar one is in force. If the kernel refuses, its own tuning stays in force.
    pub(crate) fn fit_window(&mut self, window: u64) {
        let window = window.max(*self.least_window.get_or_insert_with(|| least_window(&self.socket)));
        if window >= 2 * self.window || window <= self.window / 4 {
            self.window = window;
            let _ = set_window(&self.socket, u32::try_from(window).unwrap_or(u32::MAX));
        }
    }

    /// Bytes sent to the host and not acknowledged; 0 once the connection is lost.
    pub(crate) fn unacknowledged(&self) -> u64 {
        unacknowledged(&self.socket).unwrap_or(0)
    }

    /// Time of the next read at a tick; `None` while the socket's poll reports data.
    pub(crate) fn tick_at(&self) -> Option<Instant> {
        self.tick_at
    }

    /// Reads at a tick. After a read of the full requested size, the next read follows immediately.
    fn read_at_tick(
        &mut self,
        cx: &mut Context<'_>,
        now: Instant,
        room: usize,
        places: ReadTargets<'_>,
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
        self.tick_at = Some(self.batching.next_tick(self.epoch, now));
        if !self.batching.note_tick(len.unwrap_or(0)) {
            self.tick_at = None;
            set_polled(&self.socket, true)?;
        }
        match read {
            Some(read) => Poll::Ready(Ok(read)),
            None if self.tick_at.is_some() => Poll::Pending,
            None => self.poll_read(cx, now, room, places),
        }
    }

    /// Reads available bytes; also returns the maximum size of the read.
    fn receive(&mut self, room: usize, places: ReadTargets<'_>) -> (usize, io::Result<Payload>) {
        if let Some((pipes, block)) = places.pipes.filter(|_| room >= splice::MIN_SPLICE) {
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

    /// Reads when the socket's poll reports data.
    fn read(&mut self, cx: &mut Context<'_>, room: usize, buffers: &Buffers) -> Poll<io::Result<usize>> {
        let (wanted, read) = loop {
            // Allocate memory only once there is something to read, so that silent hosts hold none.
            ready!(self.socket.poll_read_ready(cx))?;
            self.make_space(buffers);
            // The buffer is empty between reads: its bytes are split off immediately.
            let wanted = room.min(self.buffer.capacity());
            // Only a read that would block clears the readiness of the socket: a short read may have ended before an urgent byte, with
            // further bytes left.
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

    /// Writes to the host; returns the number of bytes accepted.
    pub(crate) fn poll_write<'a>(
        &mut self,
        cx: &mut Context<'_>,
        pieces: impl Iterator<Item = &'a Payload>,
    ) -> Poll<io::Result<usize>> {
        // The host's acknowledgement must pass.
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
            let given = self.socket.try_io(Interest::WRITABLE, || splice::give(kept, &self.socket, more));
            match given {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                given => return Poll::Ready(given),
            }
        }
    }

    /// Sends the host a FIN.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.set_gate(Gate::Open);
        SockRef::from(&*self.socket).shutdown(Shutdown::Write)
    }

    /// Pending error of a connection that is not being read.
    pub(crate) fn take_error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    /// The host has sent its FIN.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Closes the connection without a reset, once both directions have ended and the host has acknowledged all data. Unacknowledged bytes
    /// are in this machine's kernel and would be lost, because switches stop redirecting the connection soon after the session's end is
    /// reported.
    pub(crate) async fn end_cleanly(mut self) {
        self.set_gate(Gate::Open);
        let mut pause = LOOK_AGAIN;
        while !is_taken(&self.socket) {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MAX);
        }
        // On failure the host gets a reset after all its data, which is the best option left.
        let _ = SockRef::from(&*self.socket).set_linger(None);
    }
}

/// Minimum window of a host in bytes: two segments. A host holds back a segment that does not fit into the window until a timer expires
/// (RFC 9293 3.8.6.2.1), and the segments of a pod's loopback device have 64 KiB.
fn least_window(socket: &TcpStream) -> u64 {
    leg_info(socket).map_or(0, |info| 2 * u64::from(info.segment))
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
    struct Shelves(Buffers, Arc<PipePool>);

    impl Shelves {
        fn places(&self) -> ReadTargets<'_> {
            ReadTargets { buffers: &self.0, pipes: Some((&self.1, 200_000)) }
        }
    }

    fn bytes(payload: &Payload) -> Bytes {
        match payload {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Kept(kept) => splice::read(kept).unwrap(),
        }
    }

    /// Both ends of a connection: the host's socket, and the agent's [`Host`].
    async fn pair(epoch: Instant) -> (TcpStream, Host) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (
            near,
            Host::new(Leg { socket: listener.accept().await.unwrap().0, routers: 0 }, None, epoch).unwrap(),
        )
    }

    /// Sends `message` and reads it by poll.
    async fn exchange(near: &mut TcpStream, host: &mut Host, message: &[u8], now: Instant) {
        near.write_all(message).await.unwrap();
        let mut left = message.len();
        while left > 0 && host.tick_at().is_none() {
            left -=
                poll_fn(|cx| host.poll_read(cx, now, left, Shelves::default().places())).await.unwrap().len();
        }
    }

    #[tokio::test]
    async fn a_busy_host_is_read_at_ticks_until_it_is_quiet() {
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
            assert!(got.is_pending(), "no data is left");
        }
        assert_eq!(host.tick_at(), None, "the socket's poll reports data again");
        near.write_all(b"more").await.unwrap();
        let more = poll_fn(|cx| host.poll_read(cx, now, 1 << 20, shelves.places())).await.unwrap();
        assert_eq!(bytes(&more), "more");
    }

    /// Reads all bytes of a host until its end, from `now` on.
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
    async fn an_urgent_byte_is_delivered_in_line() {
        for much in [false, true] {
            let epoch = Instant::now();
            let (mut near, mut host) = pair(epoch).await;
            while much && host.tick_at().is_none() {
                exchange(&mut near, &mut host, &[7; 20_000], epoch).await;
            }
            // Let all bytes and the FIN arrive before the first read.
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
    async fn a_trailing_urgent_byte_is_read() {
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
    async fn the_offered_window_has_space_for_two_segments() {
        let (_near, mut host) = pair(Instant::now()).await;
        host.fit_window(1000);
        assert!(host.window > 2 * 60_000, "{}, over loopback", host.window);
        host.fit_window(1 << 20);
        assert_eq!(host.window, 1 << 20);
    }

    #[tokio::test]
    async fn the_end_of_data_is_detected_at_a_tick() {
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
