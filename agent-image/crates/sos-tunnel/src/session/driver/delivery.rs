//! Delivery to the host, and polling of the host's acknowledgement (frame.md clause 8).

use std::time::{Duration, Instant};

use super::Driver;
use crate::session::host::Host;

/// Interval between polls of the host's acknowledgement after new bytes or progress; doubles up to `LOOK_MAX` while the host acknowledges
/// nothing.
const LOOK: Duration = Duration::from_millis(2);
/// Below this number of unacknowledged bytes, polls start at the longer interval `LOOK_LITTLE`: the read-ahead limit exceeds this number at
/// any rate, and most hosts send little at a time.
const LITTLE: u64 = 64 << 10;
const LOOK_LITTLE: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Delivery {
    look_at: Option<Instant>,
    pause: Duration,
    /// Bytes that the host had not acknowledged at the last poll.
    pub(super) unacknowledged: u64,
    /// Delivery rate last stored at the peer for later sessions.
    told_rate: f64,
}

impl Delivery {
    /// Time of the next poll.
    pub(super) fn next(&self) -> Option<Instant> {
        self.look_at
    }
}

impl Driver {
    /// Notes bytes sent to the host.
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

    /// Polls the host's acknowledgement, and schedules the next poll.
    fn look(&mut self, now: Instant) {
        let left = self.host.as_ref().map_or(0, Host::unacknowledged);
        let moved = left != std::mem::replace(&mut self.delivery.unacknowledged, left);
        let first = if left < LITTLE { LOOK_LITTLE } else { LOOK };
        self.delivery.pause = if moved { first } else { (2 * self.delivery.pause).clamp(LOOK, LOOK_MAX) };
        self.delivery.look_at = (left > 0).then(|| now + self.delivery.pause);
        self.session.handle_unacknowledged(left, now);
    }

    /// Shares the measured rate with later sessions towards the peer.
    pub(super) fn tell_rate(&mut self) {
        let rate = self.session.rate();
        if rate > self.delivery.told_rate {
            self.delivery.told_rate = rate;
            self.peer.note_rate(rate, Instant::now());
        }
    }
}
