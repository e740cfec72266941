//! Raw sockets that write held SYNs back (docs/adr/0053): to the transparent listener by a mark, or to the server through the agent's
//! interface.

use std::io;
use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};

use socket2::{Domain, Protocol, Socket, Type};
use sos_wire::PlainReason;
use tracing::{debug, warn};

use crate::netns::nflog::Copies;
use crate::netns::nft;
use crate::syn_hold::SynHold;

/// IPPROTO_RAW: packets already have their IP header (raw(7)).
const WITH_HEADER: i32 = 255;
/// Held SYNs, and the sockets that write them back.
#[derive(Debug, Default)]
pub struct Hold {
    syns: Mutex<SynHold>,
    writers: Option<Writers>,
}

/// Sockets that write held SYNs back. They need NET_RAW.
#[derive(Debug)]
pub struct Writers {
    to_listener: Socket,
    /// Bound to the agent's interface, because a pod's other interfaces do not lead to the sites' hosts.
    to_server: Mutex<Socket>,
}

impl Writers {
    /// # Errors
    /// Error of the kernel.
    pub fn new(interface: &str) -> io::Result<Self> {
        let raw = || Socket::new(Domain::IPV4, Type::RAW.nonblocking(), Some(Protocol::from(WITH_HEADER)));
        let (to_listener, to_server) = (raw()?, raw()?);
        to_listener.set_mark(nft::TAKE)?;
        to_server.bind_device(Some(interface.as_bytes()))?;
        Ok(Self { to_listener, to_server: Mutex::new(to_server) })
    }

    pub(crate) fn take(&self, packet: &[u8]) -> io::Result<usize> {
        self.to_listener.send_to(packet, &destination(packet)?.into())
    }

    pub(crate) fn leave(&self, packet: &[u8], reason: PlainReason) -> io::Result<usize> {
        let socket = self.to_server.lock().unwrap_or_else(PoisonError::into_inner);
        socket.set_mark(nft::LEAVE | u32::from(reason.0))?;
        socket.send_to(packet, &destination(packet)?.into())
    }
}

impl Hold {
    /// An empty hold; without writers no SYN can be held.
    #[must_use]
    pub fn new(writers: Option<Writers>) -> Self {
        Self { syns: Mutex::default(), writers }
    }

    /// True if SYNs can be held; otherwise services that need this stay plain.
    #[must_use]
    pub fn is_able(&self) -> bool {
        self.writers.is_some()
    }

    /// Calls `act` with the held SYNs.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut SynHold) -> T) -> T {
        act(&mut self.syns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn write(&self, write: impl FnOnce(&Writers) -> io::Result<usize>) {
        // A failure has the effect of a lost SYN: the client retransmits the SYN.
        if let Some(Err(error)) = self.writers.as_ref().map(write) {
            debug!(%error, "a held SYN was not written back");
        }
    }
}

/// Sockets for holding SYNs; `None` on a kernel without nfnetlink_log, or in a process without NET_RAW.
#[must_use]
pub fn open(interface: &str) -> Option<(Writers, Copies)> {
    let copies = Copies::open(nft::COPIES);
    match Writers::new(interface).and_then(|writers| Ok((writers, copies?))) {
        Ok(opened) => Some(opened),
        Err(error) => {
            warn!(%error, "SYNs cannot be held: proactive services with accept Learned or Confirmed stay plain");
            None
        }
    }
}

fn destination(packet: &[u8]) -> io::Result<SocketAddrV4> {
    let octets = packet.get(16..20).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
    octets.map(|octets| SocketAddrV4::new(octets.into(), 0)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
