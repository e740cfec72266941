//! The only unsafe code: AF_PACKET sockets with virtio-net headers, batch receive and send, interface flags.
//!
//! See packet(7). Every pointer passed to the kernel is built from buffers borrowed for the duration of that call.
#![allow(unsafe_code)]

mod receive;

pub use receive::{Received, RxBatch};

use crate::frames::delivery::Delivery;
use crate::frames::vnet::VNET_LEN;
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Frames per send call.
const TX_BATCH: usize = 64;
/// Kernel buffer per socket and direction: 130 ms at 2 Gbit/s, for periods in which the process gets no CPU.
const SOCKET_BUFFER: libc::c_int = 32 << 20;
/// `SOL_PACKET` option that excludes frames sent by this host; not in every libc.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn set_option<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: the kernel reads size_of::<T>() bytes of a live reference.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Give this thread priority over all ordinary processes, like the kernel's own packet processing. Children do not inherit
/// the priority. The kernel still reserves a twentieth of the time for other processes (sched(7)).
pub fn become_realtime() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the parameters outlive the call.
    check(unsafe { libc::sched_setscheduler(0, policy, &parameters) }).map(drop)
}

/// Index of the interface of that name in this network namespace, if it exists.
pub fn interface_index(name: &str) -> Option<libc::c_int> {
    let name = CString::new(name).ok()?;
    // SAFETY: a terminated string that lives across the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    libc::c_int::try_from(index).ok().filter(|i| *i > 0)
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    if name.len() >= libc::IFNAMSIZ {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: ifreq is plain data for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

/// An AF_PACKET socket on one interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
    index: libc::c_int,
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl PacketSocket {
    /// Open a socket on the interface of that index, in promiscuous mode, with virtio-net headers, arrival times, VLAN
    /// tags as auxiliary data, and without the frames that this host sends. Needs CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn open(index: libc::c_int) -> io::Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers. Protocol 0 receives nothing until bound.
        let raw = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: a new descriptor without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let on: libc::c_int = 1;
        for option in [
            libc::PACKET_VNET_HDR,
            libc::PACKET_AUXDATA,
            PACKET_IGNORE_OUTGOING,
        ] {
            set_option(fd.as_fd(), libc::SOL_PACKET, option, &on)?;
        }
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
        for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
            set_option(fd.as_fd(), libc::SOL_SOCKET, option, &SOCKET_BUFFER)?;
        }
        let socket = PacketSocket { fd, index };
        socket.bind()?;
        socket.join_promiscuous()?;
        Ok(socket)
    }

    fn bind(&self) -> io::Result<()> {
        // SAFETY: sockaddr_ll is plain data for which zeroes are valid.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as libc::c_ushort;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = self.index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        let pointer = std::ptr::from_ref(&address).cast();
        // SAFETY: the address outlives the call and its length is right.
        check(unsafe { libc::bind(self.fd.as_raw_fd(), pointer, length) }).map(drop)
    }

    fn join_promiscuous(&self) -> io::Result<()> {
        // SAFETY: packet_mreq is plain data for which zeroes are valid.
        let mut request: libc::packet_mreq = unsafe { zeroed() };
        request.mr_ifindex = self.index;
        request.mr_type = libc::PACKET_MR_PROMISC as libc::c_ushort;
        set_option(
            self.fd.as_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &request,
        )
    }

    fn control(&self, operation: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: every operation used here reads and writes one ifreq.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), operation, request) }).map(drop)
    }

    /// True if the interface `name` is administratively up.
    pub fn is_up(&self, name: &str) -> io::Result<bool> {
        let mut request = interface_request(name)?;
        self.control(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has filled this member of the union.
        let flags = libc::c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        Ok(flags & libc::IFF_UP != 0)
    }

    /// The interface's MTU.
    pub fn mtu(&self, name: &str) -> io::Result<usize> {
        let mut request = interface_request(name)?;
        self.control(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU has filled this member of the union.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        Ok(usize::try_from(mtu).unwrap_or(0))
    }

    /// Disable ARP on `name`, because the end of a cable sends no answers.
    pub fn silence_arp(&self, name: &str) -> io::Result<()> {
        let mut request = interface_request(name)?;
        self.control(libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: SIOCGIFFLAGS has filled this member of the union; SIOCSIFFLAGS reads it.
        unsafe { request.ifr_ifru.ifru_flags |= libc::IFF_NOARP as libc::c_short };
        self.control(libc::SIOCSIFFLAGS, &mut request)
    }

    /// Frames that the kernel dropped for lack of buffer space since the last call.
    pub fn take_drops(&self) -> io::Result<u64> {
        // SAFETY: tpacket_stats is plain data for which zeroes are valid.
        let mut stats: libc::tpacket_stats = unsafe { zeroed() };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        let pointer = std::ptr::from_mut(&mut stats).cast();
        // SAFETY: the kernel writes at most `length` bytes into `stats`.
        check(unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                pointer,
                &mut length,
            )
        })?;
        Ok(u64::from(stats.tp_drops))
    }

    /// Send deliveries in order; returns the number that the kernel accepted. An error concerns the first delivery,
    /// which was not accepted.
    pub fn send(&self, deliveries: &[Delivery]) -> io::Result<usize> {
        let batch = &deliveries[..deliveries.len().min(TX_BATCH)];
        let headers: Vec<[u8; VNET_LEN]> = batch.iter().map(|d| d.vnet().encode()).collect();
        let mut vectors: Vec<libc::iovec> = Vec::with_capacity(batch.len() * 4);
        let mut counts = Vec::with_capacity(batch.len());
        for (delivery, header) in batch.iter().zip(&headers) {
            let before = vectors.len();
            vectors.push(io_vector(header));
            if !delivery.head().is_empty() {
                vectors.push(io_vector(delivery.head()));
            }
            vectors.extend(delivery.chunks().iter().map(|c| io_vector(c.bytes())));
            counts.push(vectors.len() - before);
        }
        let mut at = vectors.as_mut_ptr();
        let mut messages = Vec::with_capacity(batch.len());
        for count in counts {
            messages.push(message(at, count));
            // SAFETY: the counts add up to the length of `vectors`, so `at` points into `vectors` or one past its end.
            at = unsafe { at.add(count) };
        }
        let length = messages.len() as libc::c_uint;
        // SAFETY: `messages` point into `vectors`, which point into `headers` and `batch`; all outlive the call. The
        // kernel only reads the bytes.
        let sent = unsafe { libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), length, 0) };
        check(sent).map(|n| n as usize)
    }
}

fn io_vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast(),
        iov_len: bytes.len(),
    }
}

fn message(vectors: *mut libc::iovec, count: usize) -> libc::mmsghdr {
    // SAFETY: mmsghdr is plain data for which zeroes are valid.
    let mut message: libc::mmsghdr = unsafe { zeroed() };
    message.msg_hdr.msg_iov = vectors;
    message.msg_hdr.msg_iovlen = count;
    message
}
