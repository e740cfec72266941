//! How much of a session may be sent twice.
//!
//! A lost segment is noticed by those behind it. Of the last ones of a request or an answer nobody notices for a long time: the transport
//! waits for two round trips and 200 ms more before it sends them again. Where segments are lost that is what the slowest of a hundred short
//! exchanges wait for, so their last bytes go by a second stream at once: that both are lost is rare. It must not add up where a host
//! that pauses often sends much, so it comes out of an allowance.

use std::time::Instant;

/// The last bytes that nobody notices the loss of: ten segments, which is what a stream that was idle may send at once.
pub(crate) const TAIL: u64 = 14_480;
/// What may be sent twice at once: short exchanges one after the other.
const BURST: f64 = 65_536.0;
/// And in the long run, bytes a second: more than people type or sensors say, an eighth of a megabit.
const RATE: f64 = 16_384.0;

/// What a session may still send twice.
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
    /// Takes so many bytes if they are there.
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

/// What a session has copied to another path because it would be there sooner, although only its host was waited for.
///
/// A host that speaks in bursts fills the quick path in each and leaves it idle after: without a bound all that went by the slow one would go
/// twice. So it is a mebibyte and a sixteenth of what is sent.
#[derive(Debug, Default)]
pub(crate) struct Copies {
    bytes: u64,
}

impl Copies {
    /// Bytes that may be copied of so many sent.
    pub(crate) fn most(sent: u64) -> u64 {
        (1 << 20) + sent / 16
    }

    /// Takes so many bytes if they are within that.
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
    fn an_allowance_is_used_up_and_comes_back() {
        let (mut allowance, now) = (Allowance::default(), Instant::now());
        assert!(allowance.take(65_536, now));
        assert!(!allowance.take(1, now), "used up");
        assert!(!allowance.take(16_385, now + Duration::from_secs(1)), "not yet");
        assert!(allowance.take(16_384, now + Duration::from_secs(1)));
        assert!(!allowance.take(65_537, now + Duration::from_secs(1000)), "no more than a burst comes back");
        assert!(allowance.take(65_536, now + Duration::from_secs(1000)));
    }
}
