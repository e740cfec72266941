//! One stream: its short queue, the task that writes it and the one that reads it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use sos_relay::{StreamId, StreamView};
use sos_wire::frame::HEADER_LEN;
use sos_wire::{Body, Decoder, Frame, SessionNumber, WireError};
use thiserror::Error;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::channel::WriteHalf;
use crate::config::Timing;
use crate::counters::Meter;
use crate::lock;
use crate::path::Path;
use crate::reader::Reader;

/// Bytes that may be queued on a stream before it counts as full: one block, and the next is put behind what is left of it, so that the
/// choice of stream is made late.
pub(crate) const ROOM: usize = 64 << 10;
/// Sessions that wait for room are told when the queue has fallen below this.
const LOW: usize = 32 << 10;
/// Control frames that may wait on a stream. Beyond it the stream is full for them too; answers nobody waits for are dropped.
const MAX_CONTROL: usize = 4096;
/// Most pieces of one write (the kernel takes 1,024).
const MAX_SLICES: usize = 64;
/// Frames from this size on are written by whoever sends them, if nobody else is writing: waking the writing task costs as much as the
/// write. Smaller ones are worth waiting for one another.
const DIRECT: usize = 16 << 10;
/// What the kernel says as long as it has seen no round trip (`tcp_min_rtt`: all bits set).
const UNKNOWN_RTT: Duration = Duration::from_micros(u32::MAX as u64);
/// Why a stream ended.
#[derive(Debug, Error)]
pub(crate) enum StreamEnd {
    #[error("closed by the peer")]
    Eof,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("protocol: {0}")]
    Wire(#[from] WireError),
    #[error("protocol: session number of the wrong side")]
    WrongSide,
    #[error("silent for too long")]
    Silent,
    #[error("closed")]
    Closed,
}

#[derive(Debug, Default)]
struct Queue {
    /// Goes first: small, and what lets the other side go on.
    control: VecDeque<Frame>,
    data: VecDeque<Frame>,
    /// Of what has been taken, what the socket had no room for when it was written without waiting: goes before everything else.
    rest: VecDeque<Bytes>,
    /// Somebody writes what has been taken; others only queue.
    writing: bool,
    /// For those who do not wait; gone once the stream is closed.
    socket: Option<Arc<OwnedWriteHalf>>,
    heads: BytesMut,
    waker: Option<Waker>,
    closed: bool,
}

impl Queue {
    /// Everything that is queued, for whoever writes it now; `None` if somebody else writes, or there is nothing.
    fn take(&mut self) -> Option<VecDeque<Bytes>> {
        if self.writing || (self.rest.is_empty() && self.control.is_empty() && self.data.is_empty()) {
            return None;
        }
        self.writing = true;
        let mut batch = std::mem::take(&mut self.control);
        batch.append(&mut self.data);
        let mut taken = std::mem::take(&mut self.rest);
        taken.append(&mut pieces(batch, &mut self.heads));
        Some(taken)
    }

    fn clear(&mut self) {
        self.control.clear();
        self.data.clear();
        self.rest.clear();
        self.socket = None;
    }
}

/// A stream as sessions see it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) label: u8,
    pub(crate) encrypted: bool,
    queue: Mutex<Queue>,
    queued: AtomicUsize,
    rtt_us: AtomicU64,
    /// The lowest round trip since [`Self::round_trips`] was last asked; all bits set = none.
    lowest_us: AtomicU64,
    /// Milliseconds after `born` when something was last read.
    heard_ms: AtomicU64,
    born: Instant,
    path: Mutex<Path>,
    /// To ask the kernel about the path; gone once the stream is closed, or the socket would stay open.
    socket: Mutex<Option<OwnedFd>>,
    closing: Notify,
    meter: Arc<Meter>,
}

impl Stream {
    pub(crate) fn new(
        (id, encrypted): (StreamId, bool),
        (label, meter): (u8, Arc<Meter>),
        rtt: Duration,
        socket: Option<OwnedFd>,
        now: Instant,
    ) -> Self {
        Self {
            id,
            label,
            encrypted,
            meter,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            rtt_us: AtomicU64::new(micros(rtt)),
            lowest_us: AtomicU64::new(u64::MAX),
            heard_ms: AtomicU64::new(0),
            born: now,
            path: Mutex::new(Path::new(rtt, now)),
            socket: Mutex::new(socket),
            closing: Notify::new(),
        }
    }

    /// Bytes queued and not yet written.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// The stream as the scheduler sees it; doubtful and spare as far as it can tell for itself.
    pub(crate) fn view(&self, now: Instant) -> StreamView {
        let mut path = lock(&self.path);
        if let Some(socket) = &*lock(&self.socket) {
            path.ask(socket, now);
        }
        let info = path.info();
        self.note_rtt(micros(info.rtt));
        let queued = self.queued();
        StreamView {
            id: self.id,
            has_room: queued < ROOM,
            queued: queued + usize::try_from(path.unsent()).unwrap_or(usize::MAX),
            rtt: info.rtt,
            window: info.window,
            grows: info.grows,
            stalled: path.is_stalled(now),
            doubtful: path.is_unproved(now),
            spare: path.is_modelled(),
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < ROOM
    }

    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.load(Ordering::Relaxed))
    }

    /// The lowest round trip since the last time this was asked, and the lowest the kernel knows of; zero = unknown. Of the two ways to
    /// know one each errs upwards only: a ping waits for the tasks at both ends, the kernel's mean includes acknowledgements that were
    /// delayed. So the lowest is nearest.
    pub(crate) fn round_trips(&self, now: Instant) -> (Duration, Duration) {
        let mut path = lock(&self.path);
        if let Some(socket) = &*lock(&self.socket) {
            path.ask(socket, now);
        }
        let info = path.info();
        self.note_rtt(micros(info.rtt));
        let lowest = self.lowest_us.swap(u64::MAX, Ordering::Relaxed);
        let rtt = if lowest == u64::MAX { self.rtt() } else { Duration::from_micros(lowest) };
        (rtt, if info.min_rtt < UNKNOWN_RTT { info.min_rtt } else { Duration::ZERO })
    }

    fn note_rtt(&self, micros: u64) {
        if micros > 0 {
            self.lowest_us.fetch_min(micros, Ordering::Relaxed);
        }
    }

    /// Queues a frame. On a closed stream it is dropped; the sessions are about to hear that the stream is gone.
    pub(crate) fn push(&self, frame: Frame) {
        let mut queue = lock(&self.queue);
        self.add(&mut queue, frame);
        wake(queue);
    }

    /// Sends a frame: queues it and, if it is large and nobody else writes, writes what is queued as far as the socket takes it.
    pub(crate) fn send(&self, frame: Frame, on_room: impl Fn()) {
        let large = frame.wire_len() >= DIRECT;
        let mut queue = lock(&self.queue);
        self.add(&mut queue, frame);
        let socket = queue.socket.clone().filter(|_| large);
        let Some((socket, mut pieces)) = socket.and_then(|socket| Some((socket, queue.take()?))) else {
            return wake(queue);
        };
        drop(queue);
        // An error meets the writing task as well, which ends the stream.
        let _ = self.write_now(&socket, &mut pieces, &on_room);
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.rest = pieces;
        }
        queue.writing = false;
        wake(queue);
    }

    fn add(&self, queue: &mut Queue, frame: Frame) {
        if queue.closed {
            return;
        }
        self.queued.fetch_add(frame.wire_len(), Ordering::AcqRel);
        let line = match frame.data() {
            Some(data) => {
                self.meter.sent.add(data.len() as u64);
                &mut queue.data
            }
            None => &mut queue.control,
        };
        line.push_back(frame);
    }

    /// Queues a frame that may as well be dropped.
    pub(crate) fn push_if_room(&self, frame: Frame) {
        if lock(&self.queue).control.len() < MAX_CONTROL {
            self.push(frame);
        }
    }

    /// Ends the stream; its tasks come to an end by themselves.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.clear();
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
        *lock(&self.socket) = None;
        self.closing.notify_one();
    }

    /// Everything that is queued, once something is and nobody else writes.
    async fn next_pieces(&self) -> Result<VecDeque<Bytes>, StreamEnd> {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Poll::Ready(Err(StreamEnd::Closed));
            }
            queue.take().map_or_else(
                || {
                    queue.waker = Some(cx.waker().clone());
                    Poll::Pending
                },
                |pieces| Poll::Ready(Ok(pieces)),
            )
        })
        .await
    }

    /// Writes what sessions queue, until the stream is closed or fails. `on_room` is called when the queue has become short.
    pub(crate) async fn write(&self, mut socket: WriteHalf, on_room: impl Fn()) -> StreamEnd {
        {
            let mut queue = lock(&self.queue);
            queue.socket = socket.direct().filter(|_| !queue.closed);
        }
        loop {
            let written = match self.next_pieces().await {
                Ok(pieces) => self.write_all(&mut socket, pieces, &on_room).await,
                Err(end) => return end,
            };
            if let Err(error) = written {
                return error.into();
            }
            lock(&self.queue).writing = false;
        }
    }

    async fn write_all(
        &self,
        socket: &mut WriteHalf,
        mut pieces: VecDeque<Bytes>,
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            let (slices, count) = slices(&pieces);
            let written = socket.write_vectored(&slices[..count]).await?;
            self.note_written(&mut pieces, written, on_room)?;
        }
        Ok(())
    }

    /// Writes until the socket takes no more, which is an error, or everything is written.
    fn write_now(
        &self,
        socket: &OwnedWriteHalf,
        pieces: &mut VecDeque<Bytes>,
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            let (slices, count) = slices(pieces);
            let written = socket.try_write_vectored(&slices[..count])?;
            self.note_written(pieces, written, on_room)?;
        }
        Ok(())
    }

    fn note_written(
        &self,
        pieces: &mut VecDeque<Bytes>,
        written: usize,
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        advance(pieces, written);
        lock(&self.path).handle_written(written);
        let before = self.queued.fetch_sub(written, Ordering::AcqRel);
        if before >= LOW && before - written < LOW {
            on_room();
        }
        Ok(())
    }

    /// Reads frames and hands them over in batches, until the stream ends.
    pub(crate) async fn read(
        &self,
        mut reader: Reader<'_>,
        mut deliver: impl FnMut(Vec<Frame>) -> Result<(), StreamEnd>,
    ) -> StreamEnd {
        let mut decoder = Decoder::default();
        loop {
            let missing = decoder.missing(reader.buffer.len());
            let read = tokio::select! {
                read = reader.read(missing, self.rtt()) => read,
                () = self.closing.notified() => return StreamEnd::Closed,
            };
            match read {
                Ok(true) => self.heard_ms.store(millis(self.born.elapsed()), Ordering::Relaxed),
                Ok(false) => return StreamEnd::Eof,
                Err(error) => return error.into(),
            }
            if let Err(end) = self.decode(&mut decoder, &mut reader, &mut deliver) {
                return end;
            }
        }
    }

    fn decode(
        &self,
        decoder: &mut Decoder,
        reader: &mut Reader<'_>,
        deliver: &mut impl FnMut(Vec<Frame>) -> Result<(), StreamEnd>,
    ) -> Result<(), StreamEnd> {
        let mut frames = Vec::new();
        while let Some(frame) = decoder.decode(&mut reader.buffer)? {
            match frame.body {
                Body::Ping { opaque } => self.push_if_room(of_stream(Body::Pong { opaque })),
                Body::Pong { opaque } => self.handle_pong(opaque),
                _ => frames.push(frame),
            }
        }
        if !reader.has_room(decoder.missing(reader.buffer.len())) {
            frames.extend(decoder.take_part(&mut reader.buffer));
        }
        let received = frames.iter().filter_map(Frame::data).map(Bytes::len).sum::<usize>();
        self.meter.received.add(received as u64);
        if frames.is_empty() { Ok(()) } else { deliver(frames) }
    }

    fn handle_pong(&self, opaque: u64) {
        let now = micros(self.born.elapsed());
        if let Some(rtt) = now.checked_sub(opaque) {
            self.rtt_us.store(rtt, Ordering::Relaxed);
            self.note_rtt(rtt);
        }
    }

    /// Pings, and comes to an end when nothing has been heard for too long.
    pub(crate) async fn watch(&self, timing: &Timing) -> StreamEnd {
        let mut ticks = tokio::time::interval(timing.ping);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let heard = Duration::from_millis(self.heard_ms.load(Ordering::Relaxed));
            if self.born.elapsed().saturating_sub(heard) >= timing.silence {
                return StreamEnd::Silent;
            }
            self.push_if_room(of_stream(Body::Ping { opaque: micros(self.born.elapsed()) }));
        }
    }
}

/// Wakes the writing task, if there is something for it.
fn wake(mut queue: MutexGuard<'_, Queue>) {
    let idle = queue.rest.is_empty() && queue.control.is_empty() && queue.data.is_empty();
    let waker = if idle || queue.writing { None } else { queue.waker.take() };
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// A frame of the stream itself.
pub(crate) fn of_stream(body: Body) -> Frame {
    Frame { session: SessionNumber::NONE, body }
}

/// Frames as pieces to write: heads together in a few small buffers, payloads as they are.
fn pieces(batch: VecDeque<Frame>, heads: &mut BytesMut) -> VecDeque<Bytes> {
    let mut pieces = VecDeque::with_capacity(2 * batch.len());
    heads.reserve(batch.len() * 2 * HEADER_LEN);
    for frame in batch {
        frame.encode_head(heads);
        if let Body::Data { payload, .. } = frame.body {
            pieces.push_back(heads.split().freeze());
            pieces.push_back(payload);
        }
    }
    if !heads.is_empty() {
        pieces.push_back(heads.split().freeze());
    }
    pieces
}

/// The first pieces as slices, and how many.
fn slices(pieces: &VecDeque<Bytes>) -> ([IoSlice<'_>; MAX_SLICES], usize) {
    let mut slices = [IoSlice::new(&[]); MAX_SLICES];
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
    }
    (slices, pieces.len().min(MAX_SLICES))
}

fn advance(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = pieces.front_mut() {
        if front.len() > written {
            front.advance(written);
            return;
        }
        written -= front.len();
        pieces.pop_front();
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::channel::Channel;

    /// What one sender says: small frames and large ones, in turns that differ.
    fn script(sender: u64) -> Vec<Frame> {
        let (mut offset, mut frames) = (0, Vec::new());
        for i in 0..60u64 {
            let len =
                if (i * 7 + sender).is_multiple_of(3) { 100 } else { 1000 * (1 + (i * 31 + sender) % 200) };
            let payload: Bytes = (0..len).map(|at| (offset + at + sender) as u8).collect();
            frames.push(Frame { session: SessionNumber(sender + 1), body: Body::Data { offset, payload } });
            offset += len;
        }
        frames
    }

    async fn written(near: TcpStream) -> Vec<Frame> {
        let (mut decoder, mut buffer, mut frames) = (Decoder::default(), BytesMut::new(), Vec::new());
        let mut near = near;
        while near.read_buf(&mut buffer).await.unwrap() > 0 {
            while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
                frames.push(frame);
            }
            // So slow that the senders meet a full socket.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        frames
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn frames_of_several_senders_stay_whole_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_read, write) = Channel::plain(listener.accept().await.unwrap().0).into_split();
        let meter = Arc::new(Meter::default());
        let stream =
            Arc::new(Stream::new((StreamId(1), false), (0, meter), Duration::ZERO, None, Instant::now()));
        let reader = tokio::spawn(written(near));
        let writer = tokio::spawn({
            let stream = Arc::clone(&stream);
            async move { stream.write(write, || ()).await }
        });
        let senders: Vec<_> = (0..4)
            .map(|sender| {
                let stream = Arc::clone(&stream);
                std::thread::spawn(move || {
                    script(sender).into_iter().for_each(|frame| stream.send(frame, || ()));
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        while stream.queued() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stream.close();
        assert!(matches!(writer.await.unwrap(), StreamEnd::Closed));
        let frames = reader.await.unwrap();
        for sender in 0..4 {
            let said: Vec<_> =
                frames.iter().filter(|f| f.session == SessionNumber(sender + 1)).cloned().collect();
            assert_eq!(said, script(sender));
        }
    }
}
