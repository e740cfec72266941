//! Batch receive: frames with their virtio-net header, arrival time and VLAN tag.

use super::{PacketSocket, check, message};
use crate::frames::vnet::VNET_LEN;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};

/// Frames per receive call: a compromise between few calls and cache use, with 2 MiB of buffers.
const RX_BATCH: usize = 32;
/// Longest frame from the kernel: 64 KiB of IP packet, Ethernet header and tags.
const MAX_FRAME: usize = 65_536 + 64;
/// Size of a buffer for a timestamp and the auxiliary data, in 8-byte words (both messages take 32 to 40 bytes).
const CONTROL_WORDS: usize = 16;

/// A frame from the kernel.
#[derive(Debug)]
pub struct Received<'a> {
    /// The virtio-net header.
    pub vnet: &'a [u8; VNET_LEN],
    /// The frame, without the VLAN tag if `vlan` is set.
    pub bytes: &'a [u8],
    /// Arrival time by the wall clock, in nanoseconds since 1970.
    pub wall_ns: Option<u64>,
    /// VLAN tag that the kernel removed: protocol and control information.
    pub vlan: Option<(u16, u16)>,
    /// The frame exceeded the emulator's limit.
    pub truncated: bool,
}

#[derive(Clone, Copy, Default)]
struct Arrived {
    len: usize,
    control_len: usize,
    truncated: bool,
}

/// Buffers for one batch of received frames; shared by all sockets of the thread.
pub struct RxBatch {
    vnet: Vec<[u8; VNET_LEN]>,
    bytes: Vec<u8>,
    control: Vec<[u64; CONTROL_WORDS]>,
    arrived: Vec<Arrived>,
}

impl Default for RxBatch {
    fn default() -> Self {
        RxBatch {
            vnet: vec![[0; VNET_LEN]; RX_BATCH],
            bytes: vec![0; RX_BATCH * MAX_FRAME],
            control: vec![[0; CONTROL_WORDS]; RX_BATCH],
            arrived: Vec::with_capacity(RX_BATCH),
        }
    }
}

impl RxBatch {
    /// Size of a full batch, after which further frames may be waiting.
    pub const FULL: usize = RX_BATCH;

    /// Read one batch of frames; `WouldBlock` if there are none.
    pub fn receive(&mut self, socket: &PacketSocket) -> io::Result<usize> {
        self.arrived.clear();
        let mut vectors = Vec::with_capacity(RX_BATCH);
        for (vnet, bytes) in self
            .vnet
            .iter_mut()
            .zip(self.bytes.chunks_exact_mut(MAX_FRAME))
        {
            let vnet = libc::iovec {
                iov_base: vnet.as_mut_ptr().cast(),
                iov_len: VNET_LEN,
            };
            let data = libc::iovec {
                iov_base: bytes.as_mut_ptr().cast(),
                iov_len: MAX_FRAME,
            };
            vectors.push([vnet, data]);
        }
        let mut messages: Vec<libc::mmsghdr> = vectors
            .iter_mut()
            .zip(&mut self.control)
            .map(|(pair, control)| {
                let mut message = message(pair.as_mut_ptr(), 2);
                message.msg_hdr.msg_control = control.as_mut_ptr().cast();
                message.msg_hdr.msg_controllen = size_of::<[u64; CONTROL_WORDS]>();
                message
            })
            .collect();
        let (fd, length) = (socket.as_fd().as_raw_fd(), messages.len() as libc::c_uint);
        let no_wait = std::ptr::null_mut();
        // SAFETY: every message points to buffers of `self` and `vectors` that outlive the call, with their true sizes.
        let got = unsafe {
            libc::recvmmsg(
                fd,
                messages.as_mut_ptr(),
                length,
                libc::MSG_DONTWAIT,
                no_wait,
            )
        };
        let count = check(got)? as usize;
        self.arrived
            .extend(messages.iter().take(count).map(|m| Arrived {
                len: (m.msg_len as usize).saturating_sub(VNET_LEN).min(MAX_FRAME),
                control_len: m.msg_hdr.msg_controllen,
                truncated: m.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
            }));
        Ok(count)
    }

    /// The frames of the last [`RxBatch::receive`], in order of arrival.
    pub fn frames(&self) -> impl Iterator<Item = Received<'_>> {
        self.arrived.iter().enumerate().map(|(i, arrived)| {
            let start = i * MAX_FRAME;
            let mut received = Received {
                vnet: &self.vnet[i],
                bytes: &self.bytes[start..start + arrived.len],
                wall_ns: None,
                vlan: None,
                truncated: arrived.truncated,
            };
            read_control(&self.control[i], arrived.control_len, &mut received);
            received
        })
    }
}

/// Parse arrival time and VLAN tag from the control messages.
fn read_control(words: &[u64; CONTROL_WORDS], length: usize, received: &mut Received<'_>) {
    // SAFETY: msghdr is plain data for which zeroes are valid.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_control = words.as_ptr().cast_mut().cast();
    header.msg_controllen = length.min(size_of::<[u64; CONTROL_WORDS]>());
    // SAFETY: the CMSG macros walk within msg_controllen bytes of an aligned buffer that the kernel has filled;
    // payloads are read unaligned and only if the message says that it is long enough.
    unsafe {
        let mut message = libc::CMSG_FIRSTHDR(&header);
        while let Some(found) = message.as_ref() {
            let payload = libc::CMSG_DATA(message);
            let room = found.cmsg_len - libc::CMSG_LEN(0) as usize;
            match (found.cmsg_level, found.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS)
                    if room >= size_of::<libc::timespec>() =>
                {
                    let time: libc::timespec = payload.cast::<libc::timespec>().read_unaligned();
                    received.wall_ns = wall_ns(&time);
                }
                (libc::SOL_PACKET, libc::PACKET_AUXDATA)
                    if room >= size_of::<libc::tpacket_auxdata>() =>
                {
                    let data: libc::tpacket_auxdata =
                        payload.cast::<libc::tpacket_auxdata>().read_unaligned();
                    received.vlan = vlan_tag(&data);
                }
                _ => {}
            }
            message = libc::CMSG_NXTHDR(&header, message);
        }
    }
}

fn wall_ns(time: &libc::timespec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec).ok()?;
    seconds.checked_mul(1_000_000_000)?.checked_add(rest)
}

fn vlan_tag(data: &libc::tpacket_auxdata) -> Option<(u16, u16)> {
    let valid = data.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
    let protocol = if data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
        data.tp_vlan_tpid
    } else {
        0x8100
    };
    valid.then_some((protocol, data.tp_vlan_tci))
}
