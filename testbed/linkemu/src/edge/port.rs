//! One end of a link: an interface that may disappear and reappear.

use crate::edge::sys::{PacketSocket, Received, RxBatch, interface_index};
use crate::frames::delivery::Delivery;
use crate::frames::frame::{ETHERNET_HEADER, Frame};
use crate::frames::vnet::VnetHeader;
use crate::units::{MILLISECOND, Nanos};
use rustix::event::epoll;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// Interval of attempts to attach to a missing interface; short, so that a repaired link works immediately.
pub const RETRY_INTERVAL: Nanos = 200 * MILLISECOND;
/// MTU of Ethernet, until the interface's MTU is known.
const DEFAULT_MTU: usize = 1500;
/// Maximum number of batches read from one port before other ports are read.
const MAX_BATCHES: usize = 8;

/// An interface and, while the interface exists and is up, a socket on it.
#[derive(Debug)]
pub struct Port {
    name: String,
    token: u64,
    socket: Option<PacketSocket>,
    retry_at: Nanos,
    mtu: usize,
    last_arrival: Nanos,
    drops: u64,
    /// Frames that the interface refused.
    pub send_errors: u64,
    /// Frames that could not be read.
    pub unreadable: u64,
}

/// Wall clock and monotonic clock at one moment, to convert the kernel's arrival times.
#[derive(Debug, Clone, Copy)]
pub struct Clocks {
    /// Monotonic nanoseconds.
    pub now: Nanos,
    /// Nanoseconds since 1970.
    pub wall_ns: u64,
}

impl Clocks {
    /// Monotonic time of a wall-clock stamp, limited to the range from `not_before` to `now`. Returns `now` if the
    /// stamp is missing or in the future (the wall clock was set back).
    fn arrival(&self, stamp: Option<u64>, not_before: Nanos) -> Nanos {
        stamp
            .and_then(|s| self.wall_ns.checked_sub(s))
            .and_then(|age| self.now.checked_sub(age))
            .unwrap_or(self.now)
            .clamp(not_before.min(self.now), self.now)
    }
}

impl Port {
    /// Create a port on interface `name`, not yet attached. `token` identifies its events.
    pub fn new(name: &str, token: u64) -> Port {
        Port {
            name: name.to_owned(),
            token,
            socket: None,
            retry_at: 0,
            mtu: DEFAULT_MTU,
            last_arrival: 0,
            drops: 0,
            send_errors: 0,
            unreadable: 0,
        }
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True if the interface exists and is up.
    pub fn is_attached(&self) -> bool {
        self.socket.is_some()
    }

    /// Time of the next attempt to attach.
    pub fn retry_at(&self) -> Option<Nanos> {
        self.socket.is_none().then_some(self.retry_at)
    }

    /// Attach to the interface. Returns `false` if the interface does not exist or is down.
    pub fn try_attach(&mut self, now: Nanos, poll: &OwnedFd) -> io::Result<bool> {
        if self.socket.is_some() {
            return Ok(true);
        }
        self.retry_at = now + RETRY_INTERVAL;
        let Some(index) = interface_index(&self.name) else {
            return Ok(false);
        };
        let socket = match self.open(index) {
            Ok(Some(socket)) => socket,
            Ok(None) => return Ok(false),
            Err(error) if is_absence(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let data = epoll::EventData::new_u64(self.token);
        epoll::add(poll, &socket, data, epoll::EventFlags::IN)?;
        self.mtu = socket.mtu(&self.name)?;
        self.socket = Some(socket);
        Ok(true)
    }

    /// The interface's MTU, or its last known MTU.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Read the MTU again, after a frame no longer fits: the MTU may change at any time.
    fn learn_mtu(&mut self) {
        let now = self.socket.as_ref().and_then(|s| s.mtu(&self.name).ok());
        self.mtu = now.unwrap_or(self.mtu);
    }

    fn open(&self, index: libc::c_int) -> io::Result<Option<PacketSocket>> {
        let socket = PacketSocket::open(index)?;
        if !socket.is_up(&self.name)? {
            return Ok(None);
        }
        socket.silence_arp(&self.name)?;
        // Ignore errors: the kernel may have no IPv6, or /proc may be read-only.
        let _ = fs::write(
            format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.name),
            "1",
        );
        Ok(Some(socket))
    }

    /// Detach from an interface that disappeared; closing the socket removes it from the poll set.
    fn detach(&mut self, now: Nanos) {
        self.take_drops();
        self.socket = None;
        self.retry_at = now + RETRY_INTERVAL;
    }

    fn take_drops(&mut self) {
        let new = self.socket.as_ref().and_then(|s| s.take_drops().ok());
        self.drops += new.unwrap_or(0);
    }

    /// Frames that the kernel dropped because they were not read in time.
    pub fn dropped_by_socket(&mut self) -> u64 {
        self.take_drops();
        self.drops
    }

    /// Read frames for an outgoing interface with this MTU. If the interface disappears, the port is detached without
    /// an error.
    pub fn receive(
        &mut self,
        clocks: Clocks,
        mtu: usize,
        batch: &mut RxBatch,
    ) -> io::Result<Vec<(Nanos, Frame)>> {
        let mut frames = Vec::new();
        for _ in 0..MAX_BATCHES {
            let Some(socket) = &self.socket else {
                break;
            };
            match batch.receive(socket) {
                Ok(count) => {
                    self.take_in(clocks, mtu, batch, &mut frames);
                    if count < RxBatch::FULL {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.note_tunnel(),
                Err(error) if is_absence(&error) => self.detach(clocks.now),
                Err(error) => return Err(error),
            }
        }
        Ok(frames)
    }

    /// Count a frame that cannot be forwarded, and print the remedy for the first such frame.
    fn note_tunnel(&mut self) {
        if self.unreadable == 0 {
            eprintln!(
                "sos-linkemu: warning: {}: frames with tunnel offload are dropped; disable it on the sending interface: \
                 ethtool -K IF tx-udp_tnl-segmentation off tx-udp_tnl-csum-segmentation off",
                self.name
            );
        }
        self.unreadable += 1;
    }

    fn take_in(
        &mut self,
        clocks: Clocks,
        mtu: usize,
        batch: &RxBatch,
        frames: &mut Vec<(Nanos, Frame)>,
    ) {
        for received in batch.frames() {
            self.last_arrival = clocks.arrival(received.wall_ns, self.last_arrival);
            match frame_of(&received, mtu) {
                Some(frame) if frame.is_tunnelled() => self.note_tunnel(),
                Some(frame) => frames.push((self.last_arrival, frame)),
                None => self.unreadable += 1,
            }
        }
    }

    /// Send deliveries in order. Frames that the interface refuses are counted and skipped; without an interface all
    /// frames are lost, as in a cut fiber.
    pub fn send(&mut self, now: Nanos, mut deliveries: &[Delivery]) -> io::Result<()> {
        while !deliveries.is_empty() {
            let Some(socket) = &self.socket else {
                self.send_errors += deliveries.len() as u64;
                return Ok(());
            };
            match socket.send(deliveries) {
                Ok(sent) => deliveries = &deliveries[sent..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_absence(&error) => self.detach(now),
                Err(error) if is_refusal(&error) => {
                    self.learn_mtu();
                    self.send_errors += 1;
                    deliveries = &deliveries[1..];
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// True if the error means that the interface is down or gone.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETDOWN | libc::ENODEV | libc::ENXIO)
    )
}

/// True if the error concerns one frame: it is longer than the MTU, its header is rejected by the kernel, or there is
/// no buffer.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMSGSIZE | libc::EINVAL | libc::ENOBUFS | libc::EAGAIN | libc::ENOMEM)
    )
}

/// The frame as on the wire, with its VLAN tag.
fn frame_of(received: &Received<'_>, mtu: usize) -> Option<Frame> {
    if received.truncated {
        return None;
    }
    let vnet = VnetHeader::decode(received.vnet);
    let Some((protocol, tag)) = received.vlan else {
        return Frame::new(vnet, received.bytes.into(), mtu);
    };
    let addresses = received.bytes.get(..ETHERNET_HEADER - 2)?;
    let rest = &received.bytes[ETHERNET_HEADER - 2..];
    let mut bytes = Vec::with_capacity(received.bytes.len() + 4);
    bytes.extend_from_slice(addresses);
    bytes.extend_from_slice(&protocol.to_be_bytes());
    bytes.extend_from_slice(&tag.to_be_bytes());
    bytes.extend_from_slice(rest);
    Frame::new(vnet.shifted(4), bytes.into_boxed_slice(), mtu)
}
