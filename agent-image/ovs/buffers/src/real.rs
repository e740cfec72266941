//! The functions of the C library that the preloaded functions call.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::sync::OnceLock;

/// dlsym(3): the next object with that name.
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// `struct iovec` (readv(2)).
#[repr(C)]
pub struct IoVec {
    pub(crate) base: *mut c_void,
    pub(crate) len: usize,
}

/// `struct msghdr` (recvmsg(2)) of the GNU C library on 64 bits.
#[repr(C)]
pub struct MsgHdr {
    name: *mut c_void,
    name_len: u32,
    pub(crate) iov: *mut IoVec,
    pub(crate) iov_len: usize,
    control: *mut c_void,
    control_len: usize,
    flags: c_int,
}

/// `struct mmsghdr` (recvmmsg(2)).
#[repr(C)]
pub struct MMsgHdr {
    pub(crate) hdr: MsgHdr,
    pub(crate) len: c_uint,
}

/// Look a function up once; every process with the GNU C library has these functions.
fn find(found: &OnceLock<usize>, name: &CStr) -> *mut c_void {
    let address = *found.get_or_init(|| {
        // SAFETY: the name is a C string.
        let address = unsafe { dlsym(RTLD_NEXT, name.as_ptr()) };
        assert!(!address.is_null(), "the C library has {name:?}");
        address as usize
    });
    address as *mut c_void
}

macro_rules! real {
    ($(fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// # Safety
        /// As for the C library's function of that name.
        pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
            static FOUND: OnceLock<usize> = OnceLock::new();
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a zero"),
            };
            type Function = unsafe extern "C" fn($($type),*) -> $result;
            // SAFETY: the declaration of the C library.
            let function = unsafe { std::mem::transmute::<*mut c_void, Function>(find(&FOUND, NAME)) };
            // SAFETY: as this function itself.
            unsafe { function($($argument),*) }
        }
    )*};
}

real! {
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fn recvmmsg(fd: c_int, messages: *mut MMsgHdr, count: c_uint, flags: c_int, timeout: *mut c_void) -> c_int;
    fn sendmmsg(fd: c_int, messages: *mut MMsgHdr, count: c_uint, flags: c_int) -> c_int;
    fn readv(fd: c_int, vectors: *const IoVec, count: c_int) -> isize;
    fn write(fd: c_int, bytes: *const c_void, count: usize) -> isize;
}
