//! Replay protection for signed datagrams (README.md clause 9).

use crate::error::Replay;
use crate::id::BootId;

/// Size of the replay window: number of sequences remembered behind the highest.
pub const WINDOW: u64 = 128;
/// Maximum difference between the clock in a message with a new boot id and the receiver's clock, in milliseconds.
pub const CLOCK_TOLERANCE_MS: u64 = 30_000;

/// Replay state of one sender, for messages whose tag is valid.
#[derive(Debug, Clone, Default)]
pub struct ReplayGuard {
    boot: Option<BootId>,
    highest: u64,
    /// Bit `i`: `highest - i` was received.
    seen: u128,
}

impl ReplayGuard {
    /// Admit a message once.
    ///
    /// `time_ms` is the time in the message and `now_ms` the receiver's time, both in milliseconds since 1970.
    ///
    /// # Errors
    /// The reason for rejecting the message; the state is then unchanged.
    pub fn admit(&mut self, boot: BootId, sequence: u64, time_ms: u64, now_ms: u64) -> Result<(), Replay> {
        match self.boot {
            Some(known) if boot < known => Err(Replay::OldBoot),
            Some(known) if boot == known => self.admit_sequence(sequence),
            _ => {
                let distance = time_ms.abs_diff(now_ms);
                if distance > CLOCK_TOLERANCE_MS {
                    return Err(Replay::Clock(distance));
                }
                *self = Self { boot: Some(boot), highest: sequence, seen: 1 };
                Ok(())
            }
        }
    }

    fn admit_sequence(&mut self, sequence: u64) -> Result<(), Replay> {
        if sequence > self.highest {
            let shift = sequence - self.highest;
            self.seen = if shift < WINDOW { self.seen << shift } else { 0 } | 1;
            self.highest = sequence;
            return Ok(());
        }
        let age = self.highest - sequence;
        if age >= WINDOW {
            return Err(Replay::TooOld);
        }
        if self.seen >> age & 1 == 1 {
            return Err(Replay::Seen);
        }
        self.seen |= 1 << age;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn boots_are_ordered_and_a_new_boot_needs_a_clock_within_tolerance() {
        let mut guard = ReplayGuard::default();
        assert_eq!(guard.admit(BootId(5), 9, 100_000, 130_000), Ok(()));
        assert_eq!(guard.admit(BootId(5), 9, 100_000, 130_000), Err(Replay::Seen));
        assert_eq!(guard.admit(BootId(4), 10, 130_000, 130_000), Err(Replay::OldBoot));
        assert_eq!(guard.admit(BootId(6), 1, 160_001, 130_000), Err(Replay::Clock(30_001)));
        assert_eq!(guard.admit(BootId(5), 10, 0, 130_000), Ok(()), "a known boot needs no clock");
        assert_eq!(guard.admit(BootId(6), 1, 160_000, 130_000), Ok(()));
        assert_eq!(guard.admit(BootId(5), 11, 160_000, 130_000), Err(Replay::OldBoot));
    }

    proptest! {
        /// Compare with a model of unlimited memory: a sequence inside the window is admitted on its first arrival only, an older sequence
        /// never.
        #[test]
        fn a_sequence_is_admitted_at_most_once(sequences in prop::collection::vec(0u64..400, 1..600)) {
            let (mut guard, mut seen) = (ReplayGuard::default(), BTreeSet::new());
            for sequence in sequences {
                let highest = seen.last().copied();
                let fresh = !seen.contains(&sequence) && highest.is_none_or(|h| sequence + WINDOW > h);
                prop_assert_eq!(guard.admit(BootId(1), sequence, 0, 0).is_ok(), fresh);
                if fresh {
                    seen.insert(sequence);
                }
            }
        }
    }
}
