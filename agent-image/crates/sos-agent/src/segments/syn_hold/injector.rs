//! Raw sockets that reinject held SYNs (docs/adr/0053): with a mark, to the transparent listener; with another mark, to the server through
//! the agent's interface.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::{Arc, Mutex, PoisonError};

use socket2::{Domain, Protocol, Socket, Type};
use sos_wire::PlainReason;
use tracing::{debug, warn};

use crate::netns::nflog::Copies;
use crate::netns::nft;
use crate::netns::sock_diag::SocketStates;
use crate::policy::flow_key::FlowKey;
use crate::segments::syn_hold::plain_path::Check;
use crate::segments::syn_hold::{SynHold, check_packet};

/// IPPROTO_RAW: packets already have their IP header (raw(7)).
const WITH_HEADER: i32 = 255;

/// Held SYNs, and the sockets that reinject them.
#[derive(Debug, Default)]
pub struct Hold {
    syns: Mutex<SynHold>,
    able: bool,
    writers: Mutex<BTreeMap<Place, Arc<Writers>>>,
}

/// Network namespace in which a client's SYN is reinjected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// The agent's own namespace.
    Agent,
    /// Namespace of the pod with this address.
    Pod(Ipv4Addr),
}

/// Sockets that reinject held SYNs. They need NET_RAW.
#[derive(Debug)]
pub struct Writers {
    to_listener: Socket,
    /// Bound to the agent's interface on the bridge, if the agent has one: through other interfaces of the agent's namespace, servers are
    /// not reachable.
    to_server: Mutex<Socket>,
    /// `None` on a kernel without sock_diag.
    states: Option<SocketStates>,
    checks: Option<Checks>,
}

/// Sockets of the checks of a pod's plain paths (docs/adr/0059).
#[derive(Debug)]
struct Checks {
    writer: Socket,
    /// Bound and never connected: no program of the pod can get this port, and the kernel resets each half-open connection of a server.
    _reserved: Socket,
    port: u16,
}

impl Writers {
    /// Sockets in this network namespace. `interface` is the interface towards the servers; `None` permits every interface.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn new(interface: Option<&str>) -> io::Result<Self> {
        let raw = || Socket::new(Domain::IPV4, Type::RAW.nonblocking(), Some(Protocol::from(WITH_HEADER)));
        let (to_listener, to_server) = (raw()?, raw()?);
        to_listener.set_mark(nft::TAKE)?;
        if let Some(interface) = interface {
            to_server.bind_device(Some(interface.as_bytes()))?;
        }
        let states = SocketStates::open();
        if let Err(error) = &states {
            warn!(%error, "no sock_diag: a client that gives up a connection counts as silent");
        }
        Ok(Self { to_listener, to_server: Mutex::new(to_server), states: states.ok(), checks: None })
    }

    /// Sockets in a pod's network namespace, which can also check the plain paths of the pod, and the port from which checks are sent.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn in_pod(address: Ipv4Addr) -> io::Result<(Self, u16)> {
        let writer = Socket::new(Domain::IPV4, Type::RAW.nonblocking(), Some(Protocol::from(WITH_HEADER)))?;
        writer.set_mark(nft::CHECK)?;
        let reserved = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
        reserved.bind(&SocketAddrV4::new(address, 0).into())?;
        let bound = reserved.local_addr()?.as_socket_ipv4().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let checks = Some(Checks { writer, _reserved: reserved, port: bound.port() });
        Ok((Self { checks, ..Self::new(None)? }, bound.port()))
    }

    pub(crate) fn check(&self, check: &Check) -> io::Result<usize> {
        let checks = self.checks.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        checks.writer.send_to(
            &check_packet::syn(check, checks.port),
            &SocketAddrV4::new(*check.path.server.ip(), 0).into(),
        )
    }

    pub(crate) fn take(&self, packet: &[u8]) -> io::Result<usize> {
        self.to_listener.send_to(packet, &destination(packet)?.into())
    }

    pub(crate) fn leave(&self, packet: &[u8], reason: PlainReason) -> io::Result<usize> {
        let socket = self.to_server.lock().unwrap_or_else(PoisonError::into_inner);
        socket.set_mark(nft::LEAVE | u32::from(reason.0))?;
        socket.send_to(packet, &destination(packet)?.into())
    }

    /// Sends a packet on its plain path, also if a pod's table still redirects packets of the same connection: like checks, the packet is
    /// not tracked there.
    pub(crate) fn forward(&self, packet: &[u8]) -> io::Result<usize> {
        if let Some(checks) = &self.checks {
            return checks.writer.send_to(packet, &destination(packet)?.into());
        }
        let socket = self.to_server.lock().unwrap_or_else(PoisonError::into_inner);
        socket.set_mark(0)?;
        socket.send_to(packet, &destination(packet)?.into())
    }
}

impl Hold {
    /// An empty hold. Without writers, no SYN can be held.
    #[must_use]
    pub fn new(writers: Option<Writers>) -> Self {
        let able = writers.is_some();
        let writers = writers.map(|writers| (Place::Agent, Arc::new(writers)));
        Self { syns: Mutex::default(), able, writers: Mutex::new(writers.into_iter().collect()) }
    }

    /// An empty hold for pods. Each pod has its own writers.
    #[must_use]
    pub fn for_pods() -> Self {
        Self { able: true, ..Self::default() }
    }

    /// True if SYNs can be held; otherwise connections of services that need held SYNs stay plain.
    #[must_use]
    pub fn is_able(&self) -> bool {
        self.able
    }

    /// Adds the writers of a pod, or removes them.
    pub fn set_pod(&self, address: Ipv4Addr, writers: Option<Arc<Writers>>) {
        let mut all = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        match writers {
            Some(writers) => _ = all.insert(Place::Pod(address), writers),
            None => _ = all.remove(&Place::Pod(address)),
        }
    }

    /// Calls `act` with the held SYNs.
    pub(crate) fn with<T>(&self, act: impl FnOnce(&mut SynHold) -> T) -> T {
        act(&mut self.syns.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if the kernel waits for the client of a connection to complete its handshake, or if the kernel does not tell.
    pub(crate) fn is_half_open(&self, flow: FlowKey) -> bool {
        let found = self.writers(*flow.client.ip());
        let state =
            found.as_deref().and_then(|writers| writers.states.as_ref()).map(|s| s.is_half_open(flow));
        match state {
            Some(Ok(half_open)) => half_open,
            Some(Err(error)) => {
                debug!(%error, "the kernel does not tell a connection's state");
                true
            }
            None => true,
        }
    }

    /// Writers for a host's packets.
    fn writers(&self, host: Ipv4Addr) -> Option<Arc<Writers>> {
        let all = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&Place::Pod(host)).or_else(|| all.get(&Place::Agent)).cloned()
    }

    /// Sends a packet of a host, such as a client's SYN, in the namespace of the host's pod or in the agent's own namespace.
    pub(crate) fn write(&self, host: Ipv4Addr, write: impl FnOnce(&Writers) -> io::Result<usize>) {
        let writers = self.writers(host);
        // A failed write has the same effect as the loss of the SYN on the wire: the client retransmits it.
        if let Some(Err(error)) = writers.as_deref().map(write) {
            debug!(%error, "a held SYN was not reinjected");
        }
    }
}

/// Sockets for holding SYNs; `None` on a kernel without nfnetlink_log, or in a process without NET_RAW.
#[must_use]
pub fn open(interface: Option<&str>) -> Option<(Writers, Copies)> {
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
