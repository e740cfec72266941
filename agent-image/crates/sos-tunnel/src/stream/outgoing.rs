//! Send queue of a stream. A task that queues a large frame also writes the queue to the socket, unless another task is writing. The
//! stream's writing task writes everything else.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bytes::BytesMut;
use sos_wire::stream::frame::HEADER_LEN;
use sos_wire::{Body, Frame, Payload};
use tokio::net::tcp::OwnedWriteHalf;

use crate::lock;
use crate::transport::channel::WriteHalf;
use crate::transport::write_queue_iovecs::{IovecQueue, write_now};

/// Queue length below which sessions that wait for buffer space are woken.
const LOW: usize = 32 << 10;
/// Maximum number of control frames in the queue. Beyond that, the stream is full for control frames, too, and answers that may be lost are
/// dropped.
const MAX_CONTROL: usize = 4096;
/// Minimum size of frames that their sender writes directly, if no other task is writing: waking the writing task costs as much as the
/// write. Smaller frames are worth batching.
const DIRECT: usize = 16 << 10;

#[derive(Debug, Default)]
struct Queue {
    /// Small frames that let the peer continue; sent first.
    control: VecDeque<Frame>,
    data: VecDeque<Frame>,
    /// Rest of a direct write that the socket did not accept; sent before everything else.
    rest: IovecQueue,
    /// A task is writing pieces taken from the queue; other tasks only queue frames.
    writing: bool,
    /// Socket for direct writes; dropped once the stream is closed.
    socket: Option<Arc<OwnedWriteHalf>>,
    heads: BytesMut,
    waker: Option<Waker>,
    closed: bool,
}

impl Queue {
    /// Takes all queued frames, for the caller to write; `None` if another task is writing or the queue is empty.
    fn take(&mut self) -> Option<IovecQueue> {
        if self.writing || self.is_empty() {
            return None;
        }
        self.writing = true;
        let mut batch = std::mem::take(&mut self.control);
        batch.append(&mut self.data);
        let mut taken = std::mem::take(&mut self.rest);
        add_pieces(&mut taken, batch, &mut self.heads);
        Some(taken)
    }

    fn is_empty(&self) -> bool {
        self.rest.is_empty() && self.control.is_empty() && self.data.is_empty()
    }

    fn clear(&mut self) {
        self.control.clear();
        self.data.clear();
        self.rest = IovecQueue::default();
        self.socket = None;
    }
}

/// Frames of a stream on their way to its socket.
///
/// `on_written` receives the number of bytes that the socket has accepted, `on_room` is called when the queue has become short.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    queue: Mutex<Queue>,
    queued: AtomicUsize,
    queued_total: AtomicU64,
}

impl Outgoing {
    /// Bytes queued and not yet written.
    pub(crate) fn queued(&self) -> usize {
        self.queued.load(Ordering::Acquire)
    }

    /// Total number of bytes queued so far.
    pub(crate) fn queued_total(&self) -> u64 {
        self.queued_total.load(Ordering::Acquire)
    }

    /// True if the queue has space for a frame that may be dropped.
    pub(crate) fn takes_control(&self) -> bool {
        lock(&self.queue).control.len() < MAX_CONTROL
    }

    /// Queues a frame, unless the stream is closed; returns its bytes of data.
    pub(crate) fn push(&self, frame: Frame) -> usize {
        let mut queue = lock(&self.queue);
        let data = self.add(&mut queue, frame);
        wake(queue);
        data
    }

    /// Queues a frame. If it is large and no other task is writing, also writes the queue as far as the socket accepts it.
    pub(crate) fn send(&self, frame: Frame, on_written: &impl Fn(usize), on_room: &impl Fn()) -> usize {
        let large = frame.wire_len() >= DIRECT;
        let mut queue = lock(&self.queue);
        let data = self.add(&mut queue, frame);
        let socket = queue.socket.clone().filter(|_| large);
        let Some((socket, mut pieces)) = socket.and_then(|socket| Some((socket, queue.take()?))) else {
            wake(queue);
            return data;
        };
        drop(queue);
        // If the socket is full, the writing task writes the rest. After any other error, the writing task gets the same error and ends the
        // stream.
        let _ = self.write_now(&socket, &mut pieces, on_written, on_room);
        wake(self.put_back(pieces));
        data
    }

    /// Puts back the unwritten pieces, possibly none; other tasks may then write.
    fn put_back(&self, pieces: IovecQueue) -> MutexGuard<'_, Queue> {
        let mut queue = lock(&self.queue);
        if !queue.closed {
            queue.rest = pieces;
        }
        queue.writing = false;
        queue
    }

    fn add(&self, queue: &mut Queue, frame: Frame) -> usize {
        if queue.closed {
            return 0;
        }
        self.queued.fetch_add(frame.wire_len(), Ordering::AcqRel);
        self.queued_total.fetch_add(frame.wire_len() as u64, Ordering::AcqRel);
        let data = frame.data_len();
        let waiting = if data.is_some() { &mut queue.data } else { &mut queue.control };
        waiting.push_back(frame);
        data.unwrap_or(0)
    }

    /// Drops the queue, accepts no more frames, and ends the writing task.
    pub(crate) fn close(&self) {
        let mut queue = lock(&self.queue);
        queue.closed = true;
        queue.clear();
        let waker = queue.waker.take();
        drop(queue);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes all queued frames, once there are any and no other task is writing; `None` once the stream is closed.
    async fn next_pieces(&self) -> Option<IovecQueue> {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if queue.closed {
                return Poll::Ready(None);
            }
            let taken = queue.take();
            if taken.is_none() {
                queue.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            Poll::Ready(taken)
        })
        .await
    }

    /// Writes queued frames until the stream is closed, or fails with an error.
    pub(crate) async fn write(
        &self,
        mut socket: WriteHalf,
        on_written: &impl Fn(usize),
        on_room: &impl Fn(),
    ) -> Option<io::Error> {
        {
            let mut queue = lock(&self.queue);
            queue.socket = socket.direct().filter(|_| !queue.closed);
        }
        while let Some(mut pieces) = self.next_pieces().await {
            if let Err(error) = self.write_all(&mut socket, &mut pieces, on_written, on_room).await {
                return Some(error);
            }
            drop(self.put_back(pieces));
        }
        None
    }

    async fn write_all(
        &self,
        socket: &mut WriteHalf,
        pieces: &mut IovecQueue,
        on_written: &impl Fn(usize),
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            let written = socket.write_some(pieces).await?;
            self.note_written(pieces, written, on_written, on_room)?;
        }
        Ok(())
    }

    /// Writes until all pieces are written. A full socket is an error (`WouldBlock`).
    fn write_now(
        &self,
        socket: &OwnedWriteHalf,
        pieces: &mut IovecQueue,
        on_written: &impl Fn(usize),
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        while !pieces.is_empty() {
            let written = write_now(socket, pieces)?;
            self.note_written(pieces, written, on_written, on_room)?;
        }
        Ok(())
    }

    fn note_written(
        &self,
        pieces: &mut IovecQueue,
        written: usize,
        on_written: &impl Fn(usize),
        on_room: &impl Fn(),
    ) -> io::Result<()> {
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        pieces.advance(written);
        on_written(written);
        let before = self.queued.fetch_sub(written, Ordering::AcqRel);
        if before >= LOW && before - written < LOW {
            on_room();
        }
        Ok(())
    }
}

/// Wakes the writing task, if there is something to write.
fn wake(mut queue: MutexGuard<'_, Queue>) {
    let waker = if queue.is_empty() || queue.writing { None } else { queue.waker.take() };
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Turns frames into pieces: headers together in a few small buffers, payloads unchanged.
fn add_pieces(pieces: &mut IovecQueue, batch: VecDeque<Frame>, heads: &mut BytesMut) {
    heads.reserve(batch.len() * 2 * HEADER_LEN);
    for frame in batch {
        frame.encode_head(heads);
        let payload: Payload = match frame.body {
            Body::Data { payload, .. } => payload,
            Body::Compressed { payload, .. } => payload.into(),
            _ => continue,
        };
        pieces.push(heads.split().freeze().into());
        pieces.push(payload);
    }
    pieces.push(heads.split().freeze().into());
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::Duration;

    use sos_wire::{Decoder, SessionNumber};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::transport::channel::Channel;

    /// Small and large frames of one sender, in varying order.
    fn script(sender: u64) -> Vec<Frame> {
        let (mut offset, mut frames) = (0, Vec::new());
        for i in 0..60u64 {
            let len =
                if (i * 7 + sender).is_multiple_of(3) { 100 } else { 1000 * (1 + (i * 31 + sender) % 200) };
            let payload: Payload = (0..len).map(|at| (offset + at + sender) as u8).collect();
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
            // Read slowly, so that the senders meet a full socket.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
        frames
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn frames_of_several_senders_stay_whole_and_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (_read, write) = Channel::plain(listener.accept().await.unwrap().0).into_split();
        let stream = Arc::new(Outgoing::default());
        let reader = tokio::spawn(written(near));
        let writer = tokio::spawn({
            let stream = Arc::clone(&stream);
            async move { stream.write(write, &|_| (), &|| ()).await }
        });
        let senders: Vec<_> = (0..4)
            .map(|sender| {
                let stream = Arc::clone(&stream);
                std::thread::spawn(move || {
                    for frame in script(sender) {
                        stream.send(frame, &|_| (), &|| ());
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        while stream.queued() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        stream.close();
        assert!(writer.await.unwrap().is_none());
        let frames = reader.await.unwrap();
        for sender in 0..4 {
            let said: Vec<_> =
                frames.iter().filter(|f| f.session == SessionNumber(sender + 1)).cloned().collect();
            assert_eq!(said, script(sender));
        }
    }
}
