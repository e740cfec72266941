//! Adaptive compression: compresses a session's bytes while measurements show that this makes the session faster.
//!
//! Compression pays if a session has more to send than its streams carry, its blocks become shorter, and the CPU compresses faster than the
//! streams send. All three are measured continuously, and may change at any time.
//!
//! While compression is off, a session that has to wait for its streams compresses a single block from time to time as a trial; each failed
//! trial doubles the pause until the next. While compression is on, every block is a measurement. Starting compression requires a larger
//! gain than continuing it.

use std::time::{Duration, Instant};

use sos_wire::Body;

use crate::compression::codec::{self, MIN_BLOCK};

/// Minimum size of a block for a trial. A smaller block may be the end of a message, and does not show how long larger blocks take.
const LEAST_TRIED: usize = 16 << 10;
/// Time over which rates are measured.
const WINDOW: Duration = Duration::from_millis(50);
/// Maximum ratio of compressed to original size, to start compression and to continue it.
const BEGIN_SHARE: f64 = 0.875;
const END_SHARE: f64 = 0.94;
/// Minimum ratio of the CPU's compression rate to the rate of the streams, to start compression and to continue it.
const BEGIN_SPEED: f64 = 2.0;
const GO_ON_SPEED: f64 = 1.25;
/// Compression stops once the streams suffice without it: for `CALM_WINDOWS` successive windows without a backlog, the host's rate, before
/// compression, was less than the fraction `CALM_SHARE` of the streams' rate.
const CALM_SHARE: f64 = 0.9;
const CALM_WINDOWS: u32 = 4;
/// Pause after the first failed trial, in bytes sent or in time, whichever ends first. Each further failed trial doubles the pause, at most
/// `MAX_DOUBLINGS` times. A trial block of 256 KiB in 32 MiB, or every two seconds, is less than a hundredth of the work.
const FIRST_PAUSE: Pause = Pause { bytes: 32 << 20, time: Duration::from_secs(2) };
const MAX_DOUBLINGS: u32 = 4;
/// Weight of the newest measurement in the moving averages.
const WEIGHT: f64 = 0.25;

#[derive(Debug, Clone, Copy)]
struct Pause {
    bytes: u64,
    time: Duration,
}

impl Pause {
    fn doubled(self, times: u32) -> Self {
        Self { bytes: self.bytes << times, time: self.time * (1 << times) }
    }
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    /// Compression is off. The next trial is allowed after `bytes` more bytes or at the time `until`, whichever is earlier, and happens
    /// once the session waits for its streams.
    Off {
        bytes: u64,
        until: Option<Instant>,
    },
    On,
}

/// Result of compressing a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Original bytes.
    pub original: usize,
    /// Bytes on the wire; equal to `original` if the block did not become shorter.
    pub wire: usize,
    /// CPU time.
    pub cpu: Duration,
}

/// Traffic since a point in time.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: Instant,
    original: u64,
    wire: u64,
    /// There was a backlog.
    waited: bool,
}

impl Window {
    fn new(since: Instant) -> Self {
        Self { since, original: 0, wire: 0, waited: false }
    }
}

/// Decides on compression for one direction of a session.
#[derive(Debug)]
pub struct Adaptive {
    mode: Mode,
    window: Window,
    /// Rate of the streams during backlogs, in bytes per second; `None` before the first backlog.
    capacity: Option<f64>,
    /// There was a backlog in the last window.
    waited: bool,
    calm: u32,
    /// Ratio of compressed to original size.
    share: f64,
    /// Rate at which the CPU compresses, in bytes per second.
    speed: f64,
    failures: u32,
}

impl Adaptive {
    /// Starts without compression.
    pub fn new(now: Instant) -> Self {
        Self {
            mode: Mode::Off { bytes: 0, until: None },
            window: Window::new(now),
            capacity: None,
            waited: false,
            calm: 0,
            share: 1.0,
            speed: 0.0,
            failures: 0,
        }
    }

    /// True if the next block, of `len` bytes, should be compressed, possibly as a trial. Then call [`Self::handle_outcome`], otherwise
    /// [`Self::handle_plain`].
    pub fn wants(&mut self, len: usize, now: Instant) -> bool {
        self.close_window(now);
        if len < MIN_BLOCK {
            return false;
        }
        match self.mode {
            Mode::On => true,
            Mode::Off { bytes, until } => {
                let due = bytes == 0 || until.is_some_and(|at| at <= now);
                len >= LEAST_TRIED && self.waited && due
            }
        }
    }

    /// Notes a block sent uncompressed.
    pub fn handle_plain(&mut self, len: usize) {
        self.count(len, len);
    }

    /// Notes the result of compressing a block.
    pub fn handle_outcome(&mut self, outcome: Outcome, now: Instant) {
        self.count(outcome.original, outcome.wire);
        let share = outcome.wire as f64 / outcome.original.max(1) as f64;
        let speed = outcome.original as f64 / outcome.cpu.as_secs_f64().max(1e-9);
        if let Mode::On = self.mode {
            self.share += WEIGHT * (share - self.share);
            self.speed += WEIGHT * (speed - self.speed);
            if self.share > END_SHARE {
                self.pause(now);
            }
            return;
        }
        (self.share, self.speed) = (share, speed);
        if share <= BEGIN_SHARE && self.is_quick(BEGIN_SPEED) {
            (self.mode, self.calm, self.failures) = (Mode::On, 0, 0);
        } else {
            self.pause(now);
        }
    }

    /// Notes that the session waits for its streams: no stream has buffer space, or the scheduler prefers to wait for a faster stream.
    pub fn handle_waiting(&mut self) {
        self.window.waited = true;
    }

    /// True while blocks are compressed.
    pub fn is_on(&self) -> bool {
        matches!(self.mode, Mode::On)
    }

    fn count(&mut self, original: usize, wire: usize) {
        self.window.original += original as u64;
        self.window.wire += wire as u64;
        if let Mode::Off { bytes, .. } = &mut self.mode {
            *bytes = bytes.saturating_sub(original as u64);
        }
    }

    fn close_window(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.window.since);
        if elapsed < WINDOW {
            return;
        }
        let Window { original, wire, waited, .. } = std::mem::replace(&mut self.window, Window::new(now));
        let seconds = elapsed.as_secs_f64();
        self.waited = waited;
        if waited {
            self.note_capacity(wire as f64 / seconds);
        }
        let enough = self.capacity.is_none_or(|capacity| original as f64 / seconds < CALM_SHARE * capacity);
        self.calm = if enough && !waited { self.calm + 1 } else { 0 };
        if self.is_on() && self.calm >= CALM_WINDOWS {
            // Compression has helped, so it restarts at the next backlog without a pause.
            self.mode = Mode::Off { bytes: 0, until: None };
        } else if self.is_on() && !self.is_quick(GO_ON_SPEED) {
            self.pause(now);
        }
    }

    fn note_capacity(&mut self, rate: f64) {
        let known = self.capacity.unwrap_or(rate);
        self.capacity = Some(known + WEIGHT * (rate - known));
    }

    fn is_quick(&self, times: f64) -> bool {
        self.capacity.is_some_and(|capacity| self.speed >= times * capacity)
    }

    fn pause(&mut self, now: Instant) {
        let Pause { bytes, time } = FIRST_PAUSE.doubled(self.failures);
        self.failures = (self.failures + 1).min(MAX_DOUBLINGS);
        self.mode = Mode::Off { bytes, until: Some(now + time) };
    }
}

/// Gain and cost of compression.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compressed {
    /// The host's bytes in blocks that were sent compressed.
    pub original: u64,
    /// Size of these blocks on the wire.
    pub wire: u64,
    /// CPU time, including blocks that did not become shorter.
    pub cpu: Duration,
}

/// Compresses a session's blocks while that makes the session faster.
#[derive(Debug)]
pub struct Compression {
    adaptive: Adaptive,
    done: Compressed,
}

impl Compression {
    /// Begins without compressing.
    pub fn new(now: Instant) -> Self {
        Self { adaptive: Adaptive::new(now), done: Compressed::default() }
    }

    /// Returns the frame to send for `body`: a Data frame may become a Compressed frame if the peer accepts Compressed frames (`taken`).
    /// `cpu` is a clock of CPU time with any origin.
    pub fn pack(&mut self, body: Body, taken: bool, now: Instant, cpu: impl Fn() -> Duration) -> Body {
        let Body::Data { offset, payload } = body else { return body };
        let len = payload.len();
        if !self.adaptive.wants(len, now) || !taken {
            self.adaptive.handle_plain(len);
            return Body::Data { offset, payload };
        }
        let Some(bytes) = payload.bytes() else { return Body::Data { offset, payload } };
        codec::prepare();
        let begun = cpu();
        let small = codec::compress(bytes);
        let cpu = cpu().saturating_sub(begun);
        let wire = small.as_ref().map_or(len, bytes::Bytes::len);
        self.adaptive.handle_outcome(Outcome { original: len, wire, cpu }, now);
        self.done.cpu += cpu;
        match (small, u32::try_from(len)) {
            (Some(payload), Ok(length)) => {
                self.done.original += len as u64;
                self.done.wire += wire as u64;
                Body::Compressed { offset, length, payload }
            }
            _ => Body::Data { offset, payload },
        }
    }

    /// True while blocks are compressed.
    pub fn is_on(&self) -> bool {
        self.adaptive.is_on()
    }

    /// Notes that the session waits for its streams.
    pub fn handle_waiting(&mut self) {
        self.adaptive.handle_waiting();
    }

    /// Gain and cost since the last call.
    pub fn take_done(&mut self) -> Compressed {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests;
