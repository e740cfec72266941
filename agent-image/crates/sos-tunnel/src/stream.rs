//! One stream: its path as the scheduler sees it, what was last heard on it, and the task that reads it.

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sos_relay::{StreamId, StreamView};
use sos_wire::{Body, Capabilities, Decoder, Frame, SessionNumber, Willingness, WireError};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;

use crate::channel::{Kind, WriteHalf};
use crate::config::{PeerConfig, Timing};
use crate::counters::Meter;
use crate::exchange::Established;
use crate::line::Line;
use crate::lock;
use crate::outgoing::Outgoing;
use crate::path::Path;
use crate::reader::{Brought, Reader};

/// Bytes that may be queued on a stream before it counts as full: one block, and the next is put behind what is left of it, so that the
/// choice of stream is made late.
pub(crate) const ROOM: usize = 64 << 10;
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

/// A stream as sessions see it.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) id: StreamId,
    pub(crate) label: u8,
    pub(crate) kind: Kind,
    /// The other end takes Compressed frames.
    pub(crate) takes_compressed: bool,
    /// The other end takes Probe and HostState frames.
    pub(crate) takes_liveness: bool,
    /// The other end takes Marks frames.
    pub(crate) takes_marks: bool,
    /// The other end takes Connect frames and those that belong to them.
    pub(crate) takes_connect: bool,
    /// The other end takes Willing frames.
    takes_willing: bool,
    outgoing: Outgoing,
    rtt_us: AtomicU64,
    /// The lowest round trip since [`Self::round_trips`] was last asked; all bits set = none.
    lowest_us: AtomicU64,
    /// Milliseconds after `born` when something was last read.
    heard_ms: AtomicU64,
    born: Instant,
    path: Mutex<Path>,
    /// To ask about the path; gone once the stream is closed, or the connection would stay open.
    line: Mutex<Option<Line>>,
    /// How many streams over its path bulk sessions use at most, as far as whoever looks after it says.
    carriers: Arc<AtomicUsize>,
    closing: Notify,
    meter: Arc<Meter>,
}

impl Stream {
    pub(crate) fn new(
        (id, kind): (StreamId, Kind),
        (label, meter): (u8, Arc<Meter>),
        established: Established,
        line: Option<Line>,
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
            line: Mutex::new(line),
            carriers: Arc::new(AtomicUsize::new(usize::MAX)),
            closing: Notify::new(),
        }
    }

    /// Tells the other end whether sessions are welcome here, if it can be told.
    pub(crate) fn say_willing(&self, changes: Willingness) {
        if self.takes_willing {
            self.push(of_stream(Body::Willing { changes }));
        }
    }

    /// Bytes queued and not yet written.
    pub(crate) fn queued(&self) -> usize {
        self.outgoing.queued()
    }

    /// Where it is said how many streams over its path bulk sessions use.
    pub(crate) fn carriers(&self) -> &Arc<AtomicUsize> {
        &self.carriers
    }

    /// The stream as the scheduler sees it; doubtful as far as it can tell for itself, and spare as long as nobody says so.
    pub(crate) fn view(&self, now: Instant) -> StreamView {
        let mut path = lock(&self.path);
        if let Some(line) = &*lock(&self.line) {
            path.ask(line, now);
        }
        let lossy = self.meter.note_segments(path.take_segments(), now);
        let modelled = if path.is_modelled() { PeerConfig::MODELLED_STREAMS } else { usize::MAX };
        let info = path.info();
        self.note_rtt(micros(info.rtt));
        // Asked before the queue, which may become shorter meanwhile and not longer: what has passed is never overrated.
        let given = self.outgoing.given();
        let queued = self.queued();
        StreamView {
            id: self.id,
            label: self.label,
            has_room: queued < ROOM,
            queued: queued + usize::try_from(path.unsent()).unwrap_or(usize::MAX),
            given,
            passed: given.saturating_sub(queued as u64 + path.under_way()),
            rtt: info.rtt,
            window: info.window,
            grows: info.grows,
            stalled: path.is_stalled(now),
            doubtful: path.is_unproved(now),
            carriers: modelled.min(self.carriers.load(Ordering::Relaxed)),
            spare: false,
            lossy,
        }
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < ROOM
    }

    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_micros(self.rtt_us.load(Ordering::Relaxed))
    }

    /// The lowest round trip that the transport knows of; the last one measured here if it knows none.
    pub(crate) fn lowest_rtt(&self) -> Duration {
        let lowest = lock(&self.path).info().min_rtt;
        if lowest.is_zero() || lowest >= UNKNOWN_RTT { self.rtt() } else { lowest }
    }

    /// The lowest round trip since the last time this was asked, and the lowest the kernel knows of; zero = unknown. Of the two ways to
    /// know one each errs upwards only: a ping waits for the tasks at both ends, the kernel's mean includes acknowledgements that were
    /// delayed. So the lowest is nearest.
    pub(crate) fn round_trips(&self, now: Instant) -> (Duration, Duration) {
        let mut path = lock(&self.path);
        if let Some(line) = &*lock(&self.line) {
            path.ask(line, now);
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
        self.count(self.outgoing.push(frame));
    }

    /// Queues a frame that may as well be dropped.
    pub(crate) fn push_if_room(&self, frame: Frame) {
        self.try_push(frame);
    }

    /// The same; says whether there was room.
    pub(crate) fn try_push(&self, frame: Frame) -> bool {
        let room = self.outgoing.takes_control();
        if room {
            self.push(frame);
        }
        room
    }

    /// Sends a frame: at once if it is large, nobody else writes and the socket takes it.
    pub(crate) fn send(&self, frame: Frame, on_room: impl Fn()) {
        self.count(self.outgoing.send(frame, &|n| lock(&self.path).handle_written(n), &on_room));
    }

    fn count(&self, data: usize) {
        self.meter.sent.add(data as u64);
    }

    /// Writes what sessions queue, until the stream is closed or fails. `on_room` is called when the queue has become short.
    pub(crate) async fn write(&self, socket: WriteHalf, on_room: impl Fn()) -> StreamEnd {
        let end = self.outgoing.write(socket, &|n| lock(&self.path).handle_written(n), &on_room).await;
        end.map_or(StreamEnd::Closed, StreamEnd::Io)
    }

    /// Ends the stream; its tasks come to an end by themselves.
    pub(crate) fn close(&self) {
        self.outgoing.close();
        *lock(&self.line) = None;
        self.closing.notify_one();
    }

    /// Reads frames and hands them over in batches, until the stream ends.
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
                Ok(Brought::Buffered) => None,
                Ok(Brought::Elsewhere(payload)) => decoder.take_elsewhere(payload),
                Ok(Brought::End) => return StreamEnd::Eof,
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

/// A frame of the stream itself.
pub(crate) fn of_stream(body: Body) -> Frame {
    Frame { session: SessionNumber::NONE, body }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
