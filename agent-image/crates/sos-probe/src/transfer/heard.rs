//! Acknowledgements of the receiver, as the sender reads them. The receiver is not trusted: its acknowledgements are bounded and
//! checked.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Acknowledgement by which a receiver reports corrupt data.
pub const WRONG: u64 = u64::MAX;
/// Bytes allowed in flight before the first acknowledgement: a path of 100 kbit/s carries them in about twenty seconds.
pub const FIRST_UNDER_WAY: u64 = 256 << 10;
/// Limit of the window's initial growth, before the rate is known: the bandwidth-delay product of 400 Mbit/s and 168 ms.
const USUAL_UNDER_WAY: u64 = 8 << 20;
/// Period over which the rate is measured, and minimum time between the acknowledgements kept for it, which bounds the memory.
const BACK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(50);

/// Acknowledgements of a receiver.
#[derive(Debug)]
pub struct Heard(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    /// The latest acknowledgement, and the time at which it grew.
    latest: (Instant, u64),
    /// Acknowledgements of the last second, with their times.
    marks: VecDeque<(Instant, u64)>,
    /// The received bytes of an incomplete acknowledgement, and their number.
    word: [u8; 8],
    filled: usize,
    failed: Option<ErrorKind>,
}

impl Default for Heard {
    fn default() -> Self {
        let start = (Instant::now(), 0);
        let marks = VecDeque::from([start]);
        Self(Mutex::new(Progress { latest: start, marks, word: [0; 8], filled: 0, failed: None }))
    }
}

impl Heard {
    /// Read the reverse direction of a connection until the direction ends, or the result is no longer used.
    pub fn listen(mut from: impl Read + Send + 'static) -> Arc<Self> {
        let heard = Arc::new(Self::default());
        let mine = Arc::clone(&heard);
        thread::spawn(move || {
            let mut bytes = [0; 512];
            while Arc::strong_count(&mine) > 1 {
                match from.read(&mut bytes) {
                    Ok(0) => return mine.fail(ErrorKind::UnexpectedEof),
                    Ok(length) => mine.hear(Instant::now(), &bytes[..length]),
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                        kind => return mine.fail(kind),
                    },
                }
            }
        });
        heard
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, kind: ErrorKind) {
        self.lock().failed.get_or_insert(kind);
    }

    /// Take bytes of acknowledgements, which may be split at any position between calls.
    pub fn hear(&self, now: Instant, bytes: &[u8]) {
        let mut progress = self.lock();
        for byte in bytes {
            let at = progress.filled;
            progress.word[at] = *byte;
            progress.filled = (at + 1) % 8;
            if progress.filled == 0 {
                let word = u64::from_be_bytes(progress.word);
                progress.note(now, word);
            }
        }
    }

    /// Number of acknowledged bytes, of `sent` bytes in all.
    ///
    /// # Errors
    /// `InvalidData` if the receiver got other bytes, or acknowledged bytes that were not sent; the connection's error, unless
    /// everything is acknowledged; `TimedOut` after `stall` without progress.
    pub fn check(&self, sent: u64, stall: Duration) -> Result<u64> {
        let progress = self.lock();
        let (at, confirmed) = progress.latest;
        match (confirmed, progress.failed) {
            (WRONG, _) => Err(Error::new(ErrorKind::InvalidData, "received data differs from the sent data")),
            (more, _) if more > sent => {
                Err(Error::new(ErrorKind::InvalidData, format!("{more} bytes confirmed, {sent} sent")))
            }
            (all, _) if all == sent => Ok(all),
            (_, Some(kind)) => Err(Error::from(kind)),
            _ if at.elapsed() > stall => Err(Error::from(ErrorKind::TimedOut)),
            (some, None) => Ok(some),
        }
    }

    /// Bytes allowed in flight: twice the receiver's progress of the last second, so that the rate can grow. Before this rate
    /// is known, the window starts small and grows with the acknowledgements, because the bytes in flight at the end must
    /// arrive in time even on a slow path.
    #[must_use]
    pub fn window(&self) -> u64 {
        let progress = self.lock();
        let confirmed = progress.latest.1;
        let recent = confirmed.saturating_sub(progress.marks.front().map_or(0, |mark| mark.1));
        let growing = FIRST_UNDER_WAY.saturating_add(confirmed.saturating_mul(2)).min(USUAL_UNDER_WAY);
        growing.max(recent.saturating_mul(2))
    }
}

impl Progress {
    fn note(&mut self, now: Instant, confirmed: u64) {
        if confirmed <= self.latest.1 {
            return;
        }
        self.latest = (now, confirmed);
        if self.marks.back().is_none_or(|last| now.saturating_duration_since(last.0) >= STEP) {
            self.marks.push_back((now, confirmed));
        }
        while self.marks.len() > 2 && now.saturating_duration_since(self.marks[0].0) > BACK {
            self.marks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn says(heard: &Heard, after: Duration, word: u64) {
        heard.hear(Instant::now() + after, &word.to_be_bytes());
    }

    #[test]
    fn acknowledgements_of_unsent_bytes_fail_and_corruption_is_not_a_reset() {
        let heard = Heard::default();
        says(&heard, Duration::ZERO, 10);
        assert_eq!(heard.check(10, LONG).unwrap(), 10);
        assert_eq!(heard.check(9, LONG).unwrap_err().kind(), ErrorKind::InvalidData);
        heard.fail(ErrorKind::ConnectionReset);
        assert_eq!(heard.check(10, LONG).unwrap(), 10, "all bytes were acknowledged before the reset");
        assert_eq!(heard.check(11, LONG).unwrap_err().kind(), ErrorKind::ConnectionReset);
        says(&heard, Duration::ZERO, WRONG);
        assert_eq!(
            heard.check(11, LONG).unwrap_err().kind(),
            ErrorKind::InvalidData,
            "corruption takes precedence over a reset"
        );
    }

    #[test]
    fn a_word_may_arrive_in_pieces() {
        let heard = Heard::default();
        let words = [1_u64.to_be_bytes(), 0x0102_0304_0506_u64.to_be_bytes()].concat();
        for piece in words.chunks(3) {
            heard.hear(Instant::now(), piece);
        }
        assert_eq!(heard.check(u64::MAX - 1, LONG).unwrap(), 0x0102_0304_0506);
    }

    #[test]
    fn the_window_starts_small_and_grows_with_acknowledgements() {
        let heard = Heard::default();
        assert_eq!(heard.window(), FIRST_UNDER_WAY);
        says(&heard, STEP, FIRST_UNDER_WAY);
        assert_eq!(heard.window(), 3 * FIRST_UNDER_WAY);
        says(&heard, STEP * 2, 40 << 20);
        assert_eq!(heard.window(), 80 << 20);
    }

    #[test]
    fn memory_is_bounded_for_any_acknowledgements() {
        let heard = Heard::default();
        for word in 1..100_000 {
            says(&heard, Duration::from_micros(word * 30), word);
        }
        assert!(heard.lock().marks.len() <= 22, "{}", heard.lock().marks.len());
        says(&heard, LONG, WRONG - 1);
        assert_eq!(heard.window(), u64::MAX, "no arithmetic overflows");
    }
}
