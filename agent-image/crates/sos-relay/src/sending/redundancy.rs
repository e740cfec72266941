//! Redundancy: limits on the data that a session may send twice.
//!
//! A lost segment is detected by later segments. No segments follow the end of a request or an answer, so the transport takes two round
//! trips and 200 ms more to retransmit a lost end. On a lossy path, the slowest of a hundred short exchanges has this latency. So the last
//! bytes are also sent over a second stream: losing both copies is rare. An allowance limits the copies, because they would add up for a
//! host that pauses often and sends much.

use std::time::Instant;

/// Size of the tail, whose loss no later segment reveals: ten segments, the initial window of an idle stream.
pub(crate) const TAIL: u64 = 14_480;
/// Burst of the allowance: several short exchanges in succession.
const BURST: f64 = 65_536.0;
/// Rate of the allowance in bytes per second: an eighth of a megabit per second, more than people type or sensors report.
const RATE: f64 = 16_384.0;

/// Allowance for sending twice.
#[derive(Debug)]
pub(crate) struct Allowance {
    bytes: f64,
    at: Option<Instant>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self { bytes: BURST, at: None }
    }
}

impl Allowance {
    /// Takes this number of bytes if they are available.
    pub(crate) fn take(&mut self, bytes: u64, now: Instant) -> bool {
        let passed = self.at.map_or(0.0, |at| now.saturating_duration_since(at).as_secs_f64());
        self.bytes = (self.bytes + passed * RATE).min(BURST);
        self.at = Some(now);
        let there = self.bytes >= bytes as f64;
        if there {
            self.bytes -= bytes as f64;
        }
        there
    }
}

/// Number of bytes copied from a slow path to a faster path although the gap does not stop the session: the session only waits for more
/// data from its host.
///
/// A bursty host fills the quick path in each burst and then leaves it idle: without a limit all data on the slow path would be sent twice. So
/// the limit is a mebibyte plus a sixteenth of the bytes sent.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    bytes: u64,
}

impl Copies {
    /// Limit of copied bytes after `sent` bytes.
    pub(crate) fn most(sent: u64) -> u64 {
        (1 << 20) + sent / 16
    }

    /// Takes this number of bytes if the limit allows.
    pub(crate) fn take(&mut self, bytes: u64, sent: u64) -> bool {
        let there = self.bytes + bytes <= Self::most(sent);
        if there {
            self.bytes += bytes;
        }
        there
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_allowance_is_exhausted_and_refills() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        assert!(allowance.take(65_536, now));
        assert!(!allowance.take(1, now), "used up");
        assert!(!allowance.take(16_385, now + Duration::from_secs(1)), "not yet");
        assert!(allowance.take(16_384, now + Duration::from_secs(1)));
        assert!(
            !allowance.take(65_537, now + Duration::from_secs(1000)),
            "the allowance refills to one burst at most"
        );
        assert!(allowance.take(65_536, now + Duration::from_secs(1000)));
    }
}
