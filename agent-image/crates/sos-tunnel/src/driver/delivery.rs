//! What the host has acknowledged of what it was given (frame.md clause 8).

use std::time::{Duration, Instant};

use super::Driver;
use crate::host::Host;

/// How soon it is looked again whether a host has acknowledged what it was given: soon after it was given more or has acknowledged some, more
/// and more rarely where it takes its time.
const LOOK: Duration = Duration::from_millis(2);
/// With less than that there is no hurry: the other agent's host may be further ahead anyway, and most hosts say little at once.
const LITTLE: u64 = 64 << 10;
const LOOK_LITTLE: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Delivery {
    look_at: Option<Instant>,
    pause: Duration,
    /// What the host had not acknowledged when last looked.
    pub(super) unacknowledged: u64,
    /// The delivery rate that the peer's other sessions know of.
    told_rate: f64,
}

impl Delivery {
    /// When to look again.
    pub(super) fn next(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Driver {
    /// The host was given so many bytes.
    pub(super) fn note_given(&mut self, bytes: u64, now: Instant) {
        self.delivery.unacknowledged += bytes;
        self.note_given_gate();
        self.look(now);
    }

    pub(super) fn look_if_due(&mut self, now: Instant) {
        if self.delivery.look_at.is_some_and(|at| at <= now) {
            self.look(now);
        }
    }

    /// Looks what the host has acknowledged, and when to look again.
    fn look(&mut self, now: Instant) {
        let left = self.host.as_ref().map_or(0, Host::unacknowledged);
        let moved = left != std::mem::replace(&mut self.delivery.unacknowledged, left);
        let first = if left < LITTLE { LOOK_LITTLE } else { LOOK };
        self.delivery.pause = if moved { first } else { (2 * self.delivery.pause).clamp(LOOK, LOOK_MAX) };
        self.delivery.look_at = (left > 0).then(|| now + self.delivery.pause);
        self.session.handle_unacknowledged(left, now);
    }

    /// Lets the next session towards the peer begin with what this one has measured.
    pub(super) fn tell_rate(&mut self) {
        let rate = self.session.rate();
        if rate > self.delivery.told_rate {
            self.delivery.told_rate = rate;
            self.peer.note_rate(rate, Instant::now());
        }
    }
}
