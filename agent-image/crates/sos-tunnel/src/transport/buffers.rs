//! Pool of read buffers.
//!
//! Reads are cut into slices that share the memory of their buffer and remain in use, in a queue or until acknowledged. Fresh memory for
//! each read would cost a page fault for every 4 KiB, more than copying the bytes. So buffers are kept here until their slices are freed.

use std::collections::VecDeque;
use std::sync::Mutex;

use bytes::BytesMut;

use crate::lock;

/// Buffer size in bytes: with smaller reads the system calls become costly, larger reads gain little (measured on relays of this kind).
pub(crate) const BUFFER: usize = 256 << 10;
/// Maximum number of waiting buffers. Beyond this number, the oldest buffer is removed from the pool; its memory is freed with its last
/// slice.
const MAX_WAITING: usize = 256;
/// Number of waiting buffers examined before a new one is allocated: the oldest are the most likely to be free.
const TRIES: usize = 4;

#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<VecDeque<BytesMut>>);

impl Buffers {
    /// An empty buffer with space for [`BUFFER`] bytes.
    pub(crate) fn take(&self) -> BytesMut {
        let mut waiting = lock(&self.0);
        for _ in 0..TRIES.min(waiting.len()) {
            if let Some(mut buffer) = waiting.pop_front() {
                if buffer.try_reclaim(BUFFER) {
                    return buffer;
                }
                waiting.push_back(buffer);
            }
        }
        BytesMut::with_capacity(BUFFER)
    }

    /// Takes back a buffer whose content has been split off.
    pub(crate) fn put(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut waiting = lock(&self.0);
        if waiting.len() == MAX_WAITING {
            waiting.pop_front();
        }
        waiting.push_back(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_reused_once_its_slices_are_gone() {
        let buffers = Buffers::default();
        let mut buffer = buffers.take();
        buffer.extend_from_slice(&[1; 1000]);
        let (at, slice) = (buffer.as_ptr(), buffer.split_to(1000).freeze());
        buffers.put(buffer);
        assert_ne!(buffers.take().as_ptr(), at, "a slice is still in use");
        drop(slice);
        let again = buffers.take();
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert!(again.capacity() >= BUFFER);
    }
}
