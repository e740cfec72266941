//! The bytes of a transfer. Both ends know them, so each byte is checked on arrival and no byte is stored.

/// Length of the pattern. A prime, so that data shifted by a round number of bytes does not match.
pub const PERIOD: usize = 1_048_573;

/// The pattern, repeated for as long as a transfer lasts.
#[derive(Debug, Clone)]
pub struct Pattern {
    /// Twice the period, so that every slice of up to one period is contiguous.
    bytes: Vec<u8>,
}

impl Default for Pattern {
    fn default() -> Self {
        let mut bytes = Vec::with_capacity(2 * PERIOD);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        while bytes.len() < PERIOD {
            // xorshift64: incompressible
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.extend_from_slice(&state.to_le_bytes());
        }
        bytes.truncate(PERIOD);
        bytes.extend_from_within(..);
        Self { bytes }
    }
}

impl Pattern {
    /// The `length` bytes at `offset` of a transfer; `length` is at most [`PERIOD`].
    #[must_use]
    pub fn at(&self, offset: u64, length: usize) -> &[u8] {
        let start = usize::try_from(offset % PERIOD as u64).expect("less than the period");
        &self.bytes[start..start + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_join(offset in 0..u64::MAX / 2, first in 0..5000_usize, second in 0..5000_usize) {
            let pattern = Pattern::default();
            let joined = [pattern.at(offset, first), pattern.at(offset + first as u64, second)].concat();
            prop_assert_eq!(joined, pattern.at(offset, first + second));
        }

        #[test]
        fn a_shifted_slice_differs(offset in 0..1_000_000_000_u64, by in 1..PERIOD as u64) {
            let pattern = Pattern::default();
            prop_assert_ne!(pattern.at(offset, 64), pattern.at(offset + by, 64));
        }
    }
}
