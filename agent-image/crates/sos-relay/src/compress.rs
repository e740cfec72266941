//! Whether a session's bytes are compressed: while that makes it faster, as measured.
//!
//! Compressing pays where a session has more to send than its streams take, its blocks become shorter, and the processor is quicker at making
//! them so than the streams are at sending them. All three are measured as bytes go by, and may change at any time.
//!
//! While a session does not compress it tries one block now and then, once it has had to wait for its streams; if that is in vain, the pause
//! until the next grows. While it compresses, every block is a measurement. To begin takes a clearer case than to go on.

use std::time::{Duration, Instant};

use sos_wire::Body;

use crate::codec::{self, MIN_BLOCK};

/// A smaller block is not tried: it may be the odd end of something, and says little of how long larger ones take.
const LEAST_TRIED: usize = 16 << 10;
/// Rates are measured over this time.
const WINDOW: Duration = Duration::from_millis(50);
/// Share of what is left of a block, below which compressing begins, and above which it ends.
const BEGIN_SHARE: f64 = 0.875;
const END_SHARE: f64 = 0.94;
/// How many times faster than the streams the processor has to be at compressing: to begin, and to go on.
const BEGIN_SPEED: f64 = 2.0;
const GO_ON_SPEED: f64 = 1.25;
/// The streams would be enough without compressing: less than this share of what they take is sent for so many windows.
const CALM_SHARE: f64 = 0.9;
const CALM_WINDOWS: u32 = 4;
/// How much is sent, or how much time passes, until the next block is tried in vain; doubles up to the bound. A block of 256 KiB in 32 MiB is
/// less than a hundredth of the work, and so is one each two seconds.
const FIRST_PAUSE: Pause = Pause { bytes: 32 << 20, time: Duration::from_secs(2) };
const MAX_DOUBLINGS: u32 = 4;
/// Weight of the newest measurement.
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
    /// Until so many bytes have been sent or this time has come, and the session waits for its streams.
    Off {
        bytes: u64,
        until: Option<Instant>,
    },
    On,
}

/// What became of a block that was to be compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Its bytes.
    pub original: usize,
    /// Its bytes on the wire: as many, if it did not become shorter.
    pub wire: usize,
    /// What that took of the processor.
    pub cpu: Duration,
}

/// What has been sent since a point in time.
#[derive(Debug, Clone, Copy)]
struct Window {
    since: Instant,
    original: u64,
    wire: u64,
    /// There was more to send than the streams took.
    waited: bool,
}

impl Window {
    fn new(since: Instant) -> Self {
        Self { since, original: 0, wire: 0, waited: false }
    }
}

/// Decides for one direction of a session.
#[derive(Debug)]
pub struct Adaptive {
    mode: Mode,
    window: Window,
    /// Bytes a second that the streams took when they were what the session waited for; `None` until that was so.
    capacity: Option<f64>,
    /// They were in the last window.
    waited: bool,
    calm: u32,
    /// What is left of a block, as a share of it.
    share: f64,
    /// Bytes a second of the processor.
    speed: f64,
    failures: u32,
}

impl Adaptive {
    /// Begins without compressing.
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

    /// Whether a block of `len` bytes that is about to be sent should be compressed, be it to try. If so, [`Self::handle_outcome`] is next,
    /// else [`Self::handle_plain`].
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

    /// A block was sent as it is.
    pub fn handle_plain(&mut self, len: usize) {
        self.count(len, len);
    }

    /// A block was compressed, or could not be.
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

    /// There is something to send and no stream for it now: none has room, or none that it would not rather wait for.
    pub fn handle_waiting(&mut self) {
        self.window.waited = true;
    }

    /// Whether blocks are being compressed.
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
            // It was not in vain: the next wait is reason enough to begin again.
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

/// What compressing has brought and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compressed {
    /// Bytes of the host in blocks that were sent compressed.
    pub original: u64,
    /// The bytes they were sent as.
    pub wire: u64,
    /// Time of the processor, blocks that did not become shorter included.
    pub cpu: Duration,
}

/// Compresses what a session sends where that pays.
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

    /// What to send in place of `body`: a Data frame may become a Compressed one if the other end of the stream takes that (`taken`). `cpu`
    /// is the clock of the processor's time, since any beginning.
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

    /// Whether blocks are being compressed.
    pub fn is_on(&self) -> bool {
        self.adaptive.is_on()
    }

    /// There is something to send and no stream for it now.
    pub fn handle_waiting(&mut self) {
        self.adaptive.handle_waiting();
    }

    /// What it has done since the last time this was asked.
    pub fn take_done(&mut self) -> Compressed {
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests;
