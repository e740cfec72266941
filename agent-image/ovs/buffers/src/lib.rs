//! Fixes for ports of the user-space datapath of Open vSwitch 3.1, preloaded into ovs-vswitchd (`LD_PRELOAD`).
//!
//! *Receive buffers.* Open vSwitch reads its ports through packet sockets (packet(7)) with the kernel's default buffer: 212,992
//! bytes, which are ninety packets of 1,500 bytes or two or three segments of 64 KiB. TCP sends larger bursts on any fast path,
//! and the excess is lost, also of plain traffic (docs/adr/0038). Open vSwitch has no setting for this buffer, and a larger
//! default of the kernel (net.core.rmem_default) would apply to every socket of the machine. So [`socket`] enlarges the buffers
//! of packet sockets.
//!
//! *Segment sizes.* With segmentation offload, Open vSwitch cuts segments by the MTU of the outgoing port, not by the
//! connection's MSS (docs/adr/0043). `offload` stores the size in the frame; this file contains the functions by which ports read
//! and send.
//!
//! The library has no dependencies, so that one compiler call builds it for the image of Open vSwitch.
#![allow(unsafe_code)]

mod frame;
mod offload;
mod ports;
#[allow(unreachable_pub, reason = "exported functions have these types")]
mod real;
#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_uint, c_ulong, c_void};

use crate::ports::Ports;
use crate::real::{IoVec, MMsgHdr};

/// Receive buffer of a port: 4 MiB, doubled by the kernel to account for its own structures (socket(7)). This holds 130 ms at 500
/// Mbit/s, longer than a busy machine suspends a switch, or 3,600 packets of 1,500 bytes.
static ROOM: c_int = 4 << 20;

// Values of Linux on x86-64, aarch64 and most other architectures.
const AF_PACKET: c_int = 17;
const SOL_SOCKET: c_int = 1;
/// Ignores net.core.rmem_max; needs NET_ADMIN, as Open vSwitch does.
const SO_RCVBUFFORCE: c_int = 33;
const SOL_PACKET: c_int = 263;
/// Error of a send call: the kernel rejects the frame's `virtio_net_hdr`.
const EINVAL: c_int = 22;
/// Error of a send call: the frame exceeds the device's MTU.
const EMSGSIZE: c_int = 90;
/// A `virtio_net_hdr` precedes each frame (packet(7)).
const PACKET_VNET_HDR: c_int = 15;
/// Turns a descriptor into a tun or tap device. The flags are at the offset `IFREQ_FLAGS` of `struct ifreq` (netdevice(7)).
const TUNSETIFF: c_ulong = 0x4004_54ca;
const IFREQ_FLAGS: usize = 16;
/// Like [`PACKET_VNET_HDR`], for a tap device.
const IFF_VNET_HDR: u16 = 0x4000;

/// Packet sockets and tap devices whose frames have a `virtio_net_hdr`.
static PORTS: Ports = Ports::new();

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

/// socket(2), with a larger receive buffer for packet sockets.
///
/// # Safety
/// Any arguments are allowed, as for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: as this function itself.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if domain == AF_PACKET && fd >= 0 {
        give_room(fd);
    }
    fd
}

/// Enlarge the receive buffer. Without the privilege to do so, socket and errno stay unchanged.
fn give_room(fd: c_int) {
    let length = size_of_val(&ROOM) as u32;
    // SAFETY: errno is the thread's own; the value has the stated length.
    unsafe {
        let errno = __errno_location();
        let before = *errno;
        real::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, (&raw const ROOM).cast(), length);
        *errno = before;
    }
}

/// setsockopt(2).
///
/// # Safety
/// As for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: u32,
) -> c_int {
    // SAFETY: as this function itself.
    let result = unsafe { real::setsockopt(fd, level, name, value, length) };
    if result == 0 && level == SOL_PACKET && name == PACKET_VNET_HDR {
        // SAFETY: the kernel has just read an int from there.
        PORTS.set(fd, unsafe { value.cast::<c_int>().read_unaligned() } != 0);
    }
    result
}

/// ioctl(2); Linux takes one variable argument.
///
/// # Safety
/// As for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: as this function itself.
    let result = unsafe { real::ioctl(fd, request, argument) };
    if result == 0 && request == TUNSETIFF {
        // SAFETY: the kernel has just read a struct ifreq from there.
        let flags = unsafe { argument.cast::<u8>().add(IFREQ_FLAGS).cast::<u16>().read_unaligned() };
        PORTS.set(fd, flags & IFF_VNET_HDR != 0);
    }
    result
}

/// close(2).
///
/// # Safety
/// Any argument is allowed, as for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    // Forget the descriptor before the call, because another thread may get the same number immediately afterwards.
    PORTS.set(fd, false);
    // SAFETY: as this function itself.
    unsafe { real::close(fd) }
}

/// recvmmsg(2), by which packet sockets are read.
///
/// # Safety
/// As for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut MMsgHdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut c_void,
) -> c_int {
    // SAFETY: as this function itself.
    let received = unsafe { real::recvmmsg(fd, messages, count, flags, timeout) };
    if PORTS.has(fd) {
        for index in 0..usize::try_from(received).unwrap_or(0) {
            // SAFETY: the kernel has filled this many messages, each by its vectors and up to its length.
            unsafe {
                let message = &*messages.add(index);
                keep(message.hdr.iov, message.hdr.iov_len, message.len as usize);
            }
        }
    }
    received
}

/// readv(2), by which tap devices are read.
///
/// # Safety
/// As for the function of the C library.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn readv(fd: c_int, vectors: *const IoVec, count: c_int) -> isize {
    // SAFETY: as this function itself.
    let length = unsafe { real::readv(fd, vectors, count) };
    if PORTS.has(fd) {
        let (Ok(length), Ok(count)) = (usize::try_from(length), usize::try_from(count)) else {
            return length;
        };
        // SAFETY: the kernel has filled the vectors up to that length.
        unsafe { keep(vectors, count, length) };
    }
    length
}

/// sendmmsg(2), by which packet sockets send.
///
/// # Safety
/// As for the function of the C library. In addition, the messages may be modified: Open vSwitch sends from its own buffers and
/// discards them afterwards.
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut MMsgHdr, count: c_uint, flags: c_int) -> c_int {
    if PORTS.has(fd) {
        for index in 0..count as usize {
            // SAFETY: the caller guarantees this many messages, and exclusive vectors.
            unsafe {
                let hdr = &(*messages.add(index)).hdr;
                let total = (0..hdr.iov_len).map(|i| (*hdr.iov.add(i)).len).sum::<usize>();
                if hdr.iov_len > 0 {
                    fence(|| offload::restore(bytes(hdr.iov, total), total.saturating_sub(offload::VNET)));
                }
            }
        }
    }
    // SAFETY: as this function itself.
    let sent = unsafe { real::sendmmsg(fd, messages, count, flags) };
    // Report a frame that the kernel rejects as sent, so that Open vSwitch continues with the next frame: at an error, Open vSwitch would
    // drop the whole rest of the batch.
    if sent < 0 && count > 1 && PORTS.has(fd) && [EINVAL, EMSGSIZE].contains(&errno()) { 1 } else { sent }
}

fn errno() -> c_int {
    // SAFETY: errno is the thread's own.
    unsafe { *__errno_location() }
}

/// write(2), by which tap devices send.
///
/// # Safety
/// As for the function of the C library, and for [`sendmmsg`].
#[cfg_attr(not(any(test, feature = "fuzzing")), unsafe(no_mangle))]
pub unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: usize) -> isize {
    if PORTS.has(fd) && !buffer.is_null() {
        // SAFETY: a write to a port is a packet in Open vSwitch's own memory.
        let head = unsafe { std::slice::from_raw_parts_mut(buffer.cast_mut().cast::<u8>(), count) };
        fence(|| offload::restore(head, count.saturating_sub(offload::VNET)));
    }
    // SAFETY: as this function itself.
    unsafe { real::write(fd, buffer, count) }
}

/// # Safety
/// The vectors have been filled with `length` bytes.
unsafe fn keep(vectors: *const IoVec, count: usize, length: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: the first two vectors, up to the filled length. The reader discards a frame that its buffers truncate.
    unsafe {
        let head = bytes(vectors, length);
        let left = length - head.len();
        let rest = if count > 1 { bytes(vectors.add(1), left) } else { &mut [] };
        fence(|| offload::keep(head, rest));
    }
}

/// Contain a panic, which would otherwise end ovs-vswitchd: the frame passes unchanged.
fn fence(act: impl FnOnce()) {
    _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act));
}

/// Receive a frame with its `virtio_net_hdr` into two buffers and send it. For any content, no function panics, only the two
/// checksum fields that may have been incomplete change, and a second send changes nothing.
///
/// # Panics
/// One of these invariants is violated.
#[cfg(feature = "fuzzing")]
pub fn fuzz_frame(data: &[u8]) {
    let Some((cut, frame)) = data.split_first_chunk::<2>() else { return };
    let mut message = frame.to_vec();
    let cut = usize::from(u16::from_be_bytes(*cut)).min(message.len());
    let (head, rest) = message.split_at_mut(cut);
    offload::keep(head, rest);
    let length = message.len().saturating_sub(offload::VNET);
    offload::restore(&mut message, length);
    let sent = message.clone();
    offload::restore(&mut message, length);
    assert_eq!(message, sent, "sending again changes nothing");
    let changed =
        frame.iter().zip(&message).skip(offload::VNET).filter(|(before, after)| before != after).count();
    assert!(changed <= 4, "{changed} bytes of the frame have changed");
}

/// The bytes of a vector, up to `length`.
///
/// # Safety
/// The vector points to memory of its length, exclusive for the time of use.
unsafe fn bytes<'a>(vector: *const IoVec, length: usize) -> &'a mut [u8] {
    // SAFETY: as this function itself.
    unsafe {
        let IoVec { base, len } = &*vector;
        if base.is_null() {
            return &mut [];
        }
        std::slice::from_raw_parts_mut(base.cast::<u8>(), (*len).min(length))
    }
}
