//! Compresses or expands one block with zstd (RFC 8878), independently of other blocks, because blocks use several streams and arrive in
//! any order.
//!
//! Working memory belongs to each thread, not to each session: about half a MiB for a thread that compresses.

use std::cell::RefCell;

use bytes::Bytes;
use sos_wire::stream::frame::MAX_PAYLOAD;
use zstd_safe::{CCtx, CParameter, DCtx};

/// The fastest of zstd's ordinary levels.
const LEVEL: i32 = 1;
/// Minimum saving, as a divisor of the block size; a block that saves less is sent uncompressed.
const LEAST_GAIN: usize = 16;
/// Minimum size of a block that is worth compressing: a smaller block saves less than a packet's headers cost.
pub(crate) const MIN_BLOCK: usize = 512;

thread_local! {
    static COMPRESSOR: RefCell<Option<Compressor>> = const { RefCell::new(None) };
    static EXPANDER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
}

struct Compressor {
    context: CCtx<'static>,
    /// Buffer for the longest result. The result is copied out of this buffer, so that a queue holds no more than the actual length.
    out: Box<[u8]>,
}

impl Compressor {
    fn new() -> Option<Self> {
        let mut context = CCtx::try_create()?;
        context.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
        let mut out: Box<[u8]> = vec![0; MAX_PAYLOAD].into();
        // zstd allocates its working memory at the first block.
        context.compress2(&mut *out, &[0; MAX_PAYLOAD]).ok()?;
        Some(Self { context, out })
    }

    fn compress(&mut self, block: &[u8]) -> Option<Bytes> {
        let room = self.out.get_mut(..block.len() - block.len() / LEAST_GAIN)?;
        let len = self.context.compress2(room, block).ok()?;
        Some(Bytes::copy_from_slice(&room[..len]))
    }
}

/// Allocates this thread's working memory in advance, so that the first block takes no longer than later ones.
pub(crate) fn prepare() {
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = Compressor::new();
        }
    });
}

/// Compresses a block into a zstd frame; `None` if the frame is not at least a sixteenth shorter, or the block has less than [`MIN_BLOCK`] bytes
/// or more than fit a frame.
pub fn compress(block: &[u8]) -> Option<Bytes> {
    if !(MIN_BLOCK..=MAX_PAYLOAD).contains(&block.len()) {
        return None;
    }
    prepare();
    COMPRESSOR.with_borrow_mut(|kept| kept.as_mut()?.compress(block))
}

/// Expands `payload` to a block of `length` bytes; `None` if it does not expand to exactly that length. Memory use is bounded by `length`,
/// whatever the payload claims.
pub fn expand(payload: &[u8], length: u32) -> Option<Bytes> {
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_PAYLOAD)?;
    let mut block = Vec::with_capacity(length);
    EXPANDER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = DCtx::try_create();
        }
        // zstd writes up to the capacity, which may be more than requested.
        kept.as_mut()?.decompress(&mut block, payload).ok()
    })?;
    (block.len() == length).then(|| block.into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_compression_bomb_expands_to_the_declared_length_at_most() {
        let zeros = vec![0; MAX_PAYLOAD];
        let small = compress(&zeros).unwrap();
        assert!(small.len() < 100);
        assert_eq!(expand(&small, 1000), None);
        assert_eq!(expand(&small, MAX_PAYLOAD as u32 + 1), None);
        assert_eq!(expand(&small, MAX_PAYLOAD as u32 - 1), None, "the length must match exactly");
        assert_eq!(expand(&small, MAX_PAYLOAD as u32).unwrap(), zeros);
    }

    #[test]
    fn small_and_incompressible_blocks_are_sent_uncompressed() {
        let mut seed = 1u64;
        let random = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        });
        let random: Vec<u8> = random.take(65_536).collect();
        assert_eq!(compress(&random), None);
        assert_eq!(compress(&[7; MIN_BLOCK - 1]), None);
        assert_eq!(compress(&vec![7; MAX_PAYLOAD + 1]), None);
    }

    proptest! {
        #[test]
        fn expanding_undoes_compressing(
            words in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 1..20),
            picks in prop::collection::vec(any::<prop::sample::Index>(), 1..8000),
        ) {
            let text: Vec<u8> = picks.iter().flat_map(|pick| pick.get(&words)).copied().take(MAX_PAYLOAD).collect();
            if let Some(small) = compress(&text) {
                prop_assert!(small.len() <= text.len() - text.len() / LEAST_GAIN);
                prop_assert_eq!(expand(&small, text.len() as u32).unwrap(), text);
            }
        }

        #[test]
        fn an_expanded_block_has_the_declared_length_or_is_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300), length in 0u32..300_000) {
            let mut framed = vec![0x28, 0xb5, 0x2f, 0xfd];
            framed.extend(&bytes);
            for payload in [&bytes, &framed] {
                prop_assert!(expand(payload, length).is_none_or(|block| block.len() == length as usize));
            }
        }
    }
}
