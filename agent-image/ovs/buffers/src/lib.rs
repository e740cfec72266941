//! Room for what arrives at a port of Open vSwitch while it looks at the others. To be preloaded into ovs-vswitchd (`LD_PRELOAD`).
//!
//! The datapath in user space reads its ports by packet sockets (packet(7)), whose buffers Open vSwitch leaves as the kernel makes them:
//! 212,992 bytes, which are ninety packets of 1,500 bytes or two or three segments of 64 KiB. TCP sends more than that at once on any fast
//! path, and what does not fit is lost, for plain traffic as well (docs/adr/0038). Open vSwitch has no setting for it, and the kernel's
//! default (net.core.rmem_default) would be that of every socket of the machine. So packet sockets get it here, where they are made.
//!
//! No dependencies, so that one compiler call makes it for the image of Open vSwitch.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;

/// What a port's buffer may hold: 4 MiB, which the kernel doubles as it counts its own structures with it (socket(7)). That is 130 ms of
/// 500 Mbit/s, longer than a busy machine keeps a switch waiting, or 3,600 packets of 1,500 bytes.
static ROOM: c_int = 4 << 20;

// Of Linux on x86-64, aarch64 and most others.
const AF_PACKET: c_int = 17;
const SOL_SOCKET: c_int = 1;
/// Past net.core.rmem_max; needs NET_ADMIN, as Open vSwitch does.
const SO_RCVBUFFORCE: c_int = 33;
/// dlsym(3): the next object that has the name.
const RTLD_NEXT: *mut c_void = usize::MAX as *mut c_void;

type Socket = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int;
    fn __errno_location() -> *mut c_int;
}

/// The C library's own.
fn of_libc() -> Socket {
    static FOUND: OnceLock<Socket> = OnceLock::new();
    const NAME: &CStr = c"socket";
    *FOUND.get_or_init(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { dlsym(RTLD_NEXT, NAME.as_ptr()) };
        assert!(!found.is_null(), "a process without socket() has no sockets");
        // SAFETY: every C library declares it so.
        unsafe { std::mem::transmute::<*mut c_void, Socket>(found) }
    })
}

/// socket(2), for packet sockets with more room.
///
/// # Safety
/// None is needed: any arguments may be given, as to the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: as this function itself.
    let fd = unsafe { of_libc()(domain, kind, protocol) };
    if domain == AF_PACKET && fd >= 0 {
        give_room(fd);
    }
    fd
}

/// Without the right to it the socket stays as it is; the caller's errno, too.
fn give_room(fd: c_int) {
    let length = size_of_val(&ROOM) as u32;
    // SAFETY: errno is the thread's own; the value is as long as is said.
    unsafe {
        let errno = __errno_location();
        let before = *errno;
        setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, (&raw const ROOM).cast(), length);
        *errno = before;
    }
}
