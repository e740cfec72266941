//! A set of file descriptors that all threads may query.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of tracked descriptors. A node's bridge has far fewer ports, and the kernel assigns the lowest free number. A port with a higher
/// descriptor works as without this library.
const MAX_FDS: usize = 65_536;

pub(crate) struct Ports([AtomicU64; MAX_FDS / 64]);

impl Ports {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_FDS / 64])
    }

    pub(crate) fn set(&self, fd: c_int, member: bool) {
        let Some((word, bit)) = self.place(fd) else { return };
        if member {
            word.fetch_or(bit, Ordering::Relaxed);
        } else if word.load(Ordering::Relaxed) & bit != 0 {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.place(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn place(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }
}
