//! bpf(2): one map, socket filters that write to it, and its memory in this process. Apart from `sockopt`, the only unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Commands and constants of linux/bpf.h.
const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
const MAP_TYPE_ARRAY: u32 = 2;
const F_MMAPABLE: u32 = 1 << 10;
const PROG_TYPE_SOCKET_FILTER: u32 = 1;

/// One instruction of eBPF (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    code: u8,
    registers: u8,
    pub(crate) offset: i16,
    immediate: i32,
}

impl Instruction {
    pub(crate) const fn new(code: u8, (to, from): (u8, u8), offset: i16, immediate: i32) -> Self {
        let registers = if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        Self { code, registers, offset, immediate }
    }
}

/// Words of a map's array, which the kernel writes.
#[derive(Debug)]
pub(crate) struct Words {
    map: OwnedFd,
    first: *const AtomicU64,
    count: usize,
}

// SAFETY: the memory stays mapped for as long as the value lives, and is only read, atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Creates a map of `count` words of 64 bits, all zero.
    ///
    /// # Errors
    /// `PermissionDenied` without BPF or SYS_ADMIN, or if locked memory is bounded (before Linux 5.11).
    pub(crate) fn new(count: u32) -> io::Result<Self> {
        #[repr(C)]
        struct Attributes {
            kind: u32,
            key_len: u32,
            value_len: u32,
            entries: u32,
            flags: u32,
        }
        let (key_len, value_len) = (size_of::<u32>() as u32, size_of::<u64>() as u32);
        let attributes =
            Attributes { kind: MAP_TYPE_ARRAY, key_len, value_len, entries: count, flags: F_MMAPABLE };
        // SAFETY: the command reads these fields and keeps none of them.
        let map = unsafe { bpf(MAP_CREATE, &attributes) }?;
        let count = usize::try_from(count).map_err(io::Error::other)?;
        let (len, fd) = (count * size_of::<u64>(), map.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { map, first: at.cast_const().cast(), count })
    }

    /// Current value of the word at an index.
    pub(crate) fn get(&self, index: usize) -> u64 {
        assert!(index < self.count, "word {index} of {}", self.count);
        // SAFETY: inside the mapping, aligned, and written by the kernel in one piece.
        unsafe { (*self.first.add(index)).load(Ordering::Relaxed) }
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn map(&self) -> i32 {
        self.map.as_raw_fd()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.first.cast_mut().cast(), self.count * size_of::<u64>()) };
    }
}

/// Loads a socket filter.
///
/// # Errors
/// Error of the kernel.
pub(crate) fn load_filter(program: &[Instruction]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u64; 2],
        rest: [u64; 8],
    }
    let attributes = Attributes {
        kind: PROG_TYPE_SOCKET_FILTER,
        count: u32::try_from(program.len()).map_err(io::Error::other)?,
        instructions: program.as_ptr() as u64,
        // The filter's helpers do not require a license compatible with the GPL.
        license: c"Apache-2.0".as_ptr() as u64,
        log: [0; 2],
        rest: [0; 8],
    };
    // SAFETY: both pointers are to memory that outlives the call, of the length stated or ended by a zero byte; the kernel copies it.
    unsafe { bpf(PROG_LOAD, &attributes) }
}

/// # Safety
/// `attributes` must have the layout that the command expects, without padding.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<OwnedFd> {
    let (at, len) = (std::ptr::from_ref(attributes), size_of::<T>());
    // SAFETY: the kernel reads `len` bytes at `at`; see above for the rest.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, at, len) };
    let fd = i32::try_from(result).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and closed on exec by itself.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
