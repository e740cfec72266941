//! One stream: its path as seen by the scheduler, its liveness, and the tasks that read and write it.

pub(crate) mod handshake;
pub(crate) mod outgoing;
pub(crate) mod path;
pub(crate) mod path_loss;
pub(crate) mod reader;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_relay::{StreamId, StreamView};
use sos_wire::{Body, Capabilities, Decoder, Frame, SessionNumber, Willingness, WireError};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::config::{PeerConfig, Timing};
use crate::counters::Meter;
use crate::lock;
use crate::stream::handshake::Established;
use crate::stream::outgoing::Outgoing;
use crate::stream::path::Path;
use crate::stream::reader::{ReadOutcome, Reader};
use crate::transport::channel::{Kind, WriteHalf};
use crate::transport::handle::TransportHandle;

/// Queue length at which a stream is full. A block may be queued behind the rest of the previous block, but no further block, so that a
/// block's stream is chosen late.
pub(crate) const ROOM: usize = 64 << 10;
/// The kernel's value before the first round trip (`tcp_min_rtt`: all bits set).
const UNKNOWN_RTT: Duration = Duration::from_micros(u32::MAX as u64);
/// Reason for the end of a stream.
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

/// A stream as seen by sessions.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) label: u8,
    pub(crate) kind: Kind,
    /// The peer accepts Compressed frames.
    pub(crate) takes_compressed: bool,
    /// The peer accepts Probe and HostState frames.
    pub(crate) takes_liveness: bool,
    /// The peer accepts Marks frames.
    pub(crate) takes_marks: bool,
    /// The peer accepts Connect, Connected and Release frames.
    pub(crate) takes_connect: bool,
    /// The peer accepts Willing frames.
    takes_willing: bool,
    outgoing: Outgoing,
    rtt_us: AtomicU64,
    /// Minimum round trip since the last call of [`Self::round_trips`]; all bits set = none.
    lowest_us: AtomicU64,
    /// Time of the last read, in milliseconds after `born`.
    heard_ms: AtomicU64,
    born: Instant,
    path: Mutex<Path>,
    /// Dropped once the stream is closed: the handle keeps the connection open.
    handle: Mutex<Option<TransportHandle>>,
    /// Maximum number of the path's streams that carry bulk, as set by path control.
    parallelism: Arc<AtomicUsize>,
    closing: Notify,
    meter: Arc<Meter>,
}

impl Stream {
    pub(crate) fn new(
        (id, kind): (StreamId, Kind),
        (label, meter): (u8, Arc<Meter>),
        established: Established,
        handle: Option<TransportHandle>,
        now: Instant,
    ) -> Self {
        let Established { rtt, capabilities, .. } = established;
        Self {
            takes_compressed: capabilities.contains(Capabilities::COMPRESSED),
            takes_liveness: capabilities.contains(Capabilities::LIVENESS),
            takes_marks: capabilities.contains(Capabilities::MARKS),
            takes_connect: capabilities.contains(Capabilities::CONNECT),
            takes_willing: capabilities.contains(Capabilities::WILLING),
            id,
            label,
            kind,
            meter,
            outgoing: Outgoing::default(),
            rtt_us: AtomicU64::new(micros(rtt)),
            lowest_us: AtomicU64::new(u64::MAX),
            heard_ms: AtomicU64::new(0),
            born: now,
            path: Mutex::new(Path::new(rtt, now)),
            handle: Mutex::new(handle),
            parallelism: Arc::new(AtomicUsize::new(usize::MAX)),
            closing: Notify::new(),
        }
    }

    /// Notifies the peer whether this agent accepts new sessions, if the peer supports the frame.
    pub(crate) fn say_willing(&self, changes: Willingness) {
        if self.takes_willing {
            self.push(of_stream(Body::Willing { changes }));
        }
    }

    /// Bytes queued and not yet written.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.queued()
    }

    /// Maximum number of the path's streams that carry bulk, to be set by path control.
    pub(crate) fn parallelism(&self) -> &Arc<AtomicUsize> {
        &self.parallelism
    }

    /// The stream as seen by the scheduler. `suspect` depends only on this stream's own acknowledgements, and `reserved` is not set yet.
    pub(crate) fn view(&self, now: Instant) -> StreamView {
        let mut path = lock(&self.path);
        if let Some(handle) = &*lock(&self.handle) {
            path.refresh(handle, now);
        }
        let lossy = self.meter.note_segments(path.take_segments(), now);
        let bbr_limit = if path.uses_bbr() { PeerConfig::BBR_STREAMS } else { usize::MAX };
        let info = path.info();
        self.note_rtt(micros(info.rtt));
        // Read before the queue length: bytes queued in between count as unacknowledged, so the acknowledged bytes are never overestimated.
        let queued_total = self.outgoing.queued_total();
        let queued = self.queued();
        StreamView {
            id: self.id,
            label: self.label,
            has_room: queued < ROOM,
            queued: queued + usize::try_from(path.unsent()).unwrap_or(usize::MAX),
            queued_total,
            acked: queued_total.saturating_sub(queued as u64 + path.unacknowledged()),
            rtt: info.rtt,
            window: info.window,
            slow_start: info.slow_start,
            stalled: path.is_stalled(now),
            suspect: path.is_suspect(now),
            parallelism: bbr_limit.min(self.parallelism.load(Ordering::Relaxed)),
            reserved: false,
            lossy,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < ROOM
    }

    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.load(Ordering::Relaxed))
    }

    /// Minimum round trip of the transport, or else the last round trip measured by a ping.
    pub(crate) fn lowest_rtt(&self) -> Duration {
        let lowest = lock(&self.path).info().min_rtt;
        if lowest.is_zero() || lowest >= UNKNOWN_RTT { self.rtt() } else { lowest }
    }

    /// Minimum round trip since the last call, and the kernel's minimum; zero = unknown. Both sources err only upwards, so the lower value is
    /// more accurate: a ping waits for the tasks at both ends, and the kernel's mean includes delayed acknowledgements.
    pub(crate) fn round_trips(&self, now: Instant) -> (Duration, Duration) {
        let mut path = lock(&self.path);
        if let Some(handle) = &*lock(&self.handle) {
            path.refresh(handle, now);
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

    /// Queues a frame. A closed stream drops the frame; its sessions are about to be notified.
    pub(crate) fn push(&self, frame: Frame) {
        self.count(self.outgoing.push(frame));
    }

    /// Queues a frame that may be dropped.
    pub(crate) fn push_if_room(&self, frame: Frame) {
        self.try_push(frame);
    }

    /// Queues a frame if there is buffer space; returns true if it was queued.
    pub(crate) fn try_push(&self, frame: Frame) -> bool {
        let room = self.outgoing.takes_control();
        if room {
            self.push(frame);
        }
        room
    }

    /// Sends a frame: immediately if the frame is large, no other task is writing and the socket accepts it.
    pub(crate) fn send(&self, frame: Frame, on_room: impl Fn()) {
        self.count(self.outgoing.send(frame, &|n| lock(&self.path).handle_written(n), &on_room));
    }

    fn count(&self, data: usize) {
        self.meter.sent.add(data as u64);
    }

    /// Writes queued frames until the stream is closed or fails. `on_room` is called when the queue has become short.
    pub(crate) async fn write(&self, socket: WriteHalf, on_room: impl Fn()) -> StreamEnd {
        let end = self.outgoing.write(socket, &|n| lock(&self.path).handle_written(n), &on_room).await;
        end.map_or(StreamEnd::Closed, StreamEnd::Io)
    }

    /// Closes the stream; its tasks end by themselves.
    pub(crate) fn close(&self) {
        self.outgoing.close();
        *lock(&self.handle) = None;
        self.closing.notify_one();
    }

    /// Reads frames and delivers them in batches, until the stream ends.
    pub(crate) async fn read(
        &self,
        mut reader: Reader<'_>,
        mut deliver: impl FnMut(Vec<Frame>) -> Result<(), StreamEnd>,
    ) -> StreamEnd {
        let mut decoder = Decoder::default();
        loop {
            let read = tokio::select! {
                read = reader.read(&decoder, self.rtt()) => read,
                () = self.closing.notified() => return StreamEnd::Closed,
            };
            let first = match read {
                Ok(ReadOutcome::Buffered) => None,
                Ok(ReadOutcome::Elsewhere(payload)) => decoder.take_elsewhere(payload),
                Ok(ReadOutcome::End) => return StreamEnd::Eof,
                Err(error) => return error.into(),
            };
            self.heard_ms.store(millis(self.born.elapsed()), Ordering::Relaxed);
            if let Err(end) = self.decode(first, (&mut decoder, &mut reader), &mut deliver) {
                return end;
            }
        }
    }

    fn decode(
        &self,
        first: Option<Frame>,
        (decoder, reader): (&mut Decoder, &mut Reader<'_>),
        deliver: &mut impl FnMut(Vec<Frame>) -> Result<(), StreamEnd>,
    ) -> Result<(), StreamEnd> {
        let mut frames = Vec::from_iter(first);
        while let Some(frame) = decoder.decode(&mut reader.buffer)? {
            match frame.body {
                Body::Ping { opaque } => self.push_if_room(of_stream(Body::Pong { opaque })),
                Body::Pong { opaque } => self.handle_pong(opaque),
                _ => frames.push(frame),
            }
        }
        frames.extend(reader.take_part(decoder));
        let received = frames.iter().filter_map(Frame::data_len).sum::<usize>();
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

    /// Pings the peer; returns once the peer has been silent for too long.
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

/// A frame of the stream itself, not of a session.
pub(crate) fn of_stream(body: Body) -> Frame {
    Frame { session: SessionNumber::NONE, body }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
