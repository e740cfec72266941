//! Socket options of host legs and of the datagram sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use sos_pathctl::CongestionControl;
use sos_tunnel::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
use sos_wire::Marks;
use tracing::debug;

use crate::documents::config::RouteOwner;
use crate::netns::nft::OPENING;

/// Backlog of listeners: enough for a burst of clients. The kernel caps the backlog at net.core.somaxconn.
const BACKLOG: i32 = 4_096;
/// Maximum time for which a peer may leave data unacknowledged before its stream is closed; pings detect silence earlier.
const STREAM_USER_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum RTO of a stream (Linux 6.15 and later). After a failover, a stream uses the new path within this time; the kernel's default RTO
/// would by then have doubled to several seconds.
const STREAM_RETRANSMIT_MAX: Duration = Duration::from_secs(1);
/// Socket buffer for a stream port's datagrams, per direction: 34 ms at 1 Gbit/s, enough time for the runtime to schedule every task of the
/// agent.
const DATAGRAM_BUFFER: usize = 4 << 20;
/// Initial receive window of a stream: 34 ms at 1 Gbit/s; the kernel tunes it from there.
const STREAM_FIRST_WINDOW: u32 = 4 << 20;
/// Maximum number of unsent bytes in a stream's socket: two of the largest frames. Bytes in the socket can no longer be moved to a faster
/// stream.
pub(crate) const STREAM_NOTSENT_LOWAT: u32 = 512 * 1024;

/// Maximum size of a stream's send buffer on a machine whose settings the agent does not change: 64 MiB, of which the kernel uses half for
/// payload.
const MAX_STREAM_BUFFER: usize = 64 << 20;

/// Listener for SYNs that nft redirects; accepts connections to any address (IP_TRANSPARENT needs NET_ADMIN).
///
/// # Errors
/// Error of the kernel.
pub fn transparent_listener() -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_ip_transparent_v4(true)?;
    // Accepted sockets inherit the option, so a client is also reset if the agent dies before it has accepted the client.
    socket.set_linger(Some(Duration::ZERO))?;
    sos_tunnel::keep_first_marks(&socket)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listener at the agent's own address, at a site that rewrites, for clients that switches redirect.
///
/// # Errors
/// Error of the kernel.
pub fn redirect_listener(address: SocketAddrV4) -> io::Result<std::net::TcpListener> {
    let listener = listener(address)?;
    SockRef::from(&listener).set_linger(Some(Duration::ZERO))?;
    sos_tunnel::keep_first_marks(&listener)?;
    Ok(listener)
}

/// Listener on one of the agent's own ports.
///
/// # Errors
/// Error of the kernel.
pub fn listener(address: SocketAddrV4) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    listen(socket, address)
}

fn listen(socket: Socket, address: SocketAddrV4) -> io::Result<std::net::TcpListener> {
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listener that shares its port with the connections that the agent opens from clients' addresses ([`towards_server`]). Otherwise a listener
/// on the wildcard address would block its port for all these connections (Linux lets sockets of one user share a port if all sockets have
/// `SO_REUSEPORT`).
///
/// # Errors
/// Error of the kernel.
pub fn shared_listener(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Listener of a stream port. Accepted streams have this congestion control from their first segment, as dialed streams do. The kernel's
/// default may be bbr, and a socket that has once used bbr keeps its pacing timer for each segment, even under cubic.
///
/// # Errors
/// Error of the kernel, except about congestion control.
pub fn stream_listener(
    address: SocketAddrV4,
    congestion: CongestionControl,
    routes: RouteOwner,
) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    set_first_window(&socket);
    opening(&SockRef::from(&socket), routes);
    let listener = listen(socket, address)?;
    set_congestion(&SockRef::from(&listener), congestion);
    Ok(listener)
}

/// UDP socket on one of the agent's own ports.
///
/// # Errors
/// Error of the kernel.
pub fn datagrams(address: SocketAddrV4) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM.nonblocking(), Some(Protocol::UDP))?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// UDP socket of a stream port, with buffers for streams over QUIC: the kernel tunes only TCP's buffers by itself.
///
/// # Errors
/// Error of the kernel, except about the buffers: with smaller buffers, the socket works but loses packets of bursts.
pub fn stream_datagrams(address: SocketAddrV4) -> io::Result<std::net::UdpSocket> {
    let socket = datagrams(address)?;
    // A buffer larger than net.core.rmem_max needs NET_ADMIN, which the agent has.
    let set = set_socket_recv_buffer_size_force(&socket, DATAGRAM_BUFFER)
        .and_then(|()| set_socket_send_buffer_size_force(&socket, DATAGRAM_BUFFER));
    if let Err(error) = set {
        debug!(%address, %error, "the kernel does not enlarge the UDP buffers of a stream port");
    }
    Ok(socket)
}

/// Sets the options of a host leg. Until both directions have ended cleanly, the leg is reset if the process dies (linger 0). A dead host
/// is detected after the same time as with plain TCP. TCP_USER_TIMEOUT is not set, because it would also expire while a live host keeps its
/// window closed.
///
/// # Errors
/// Error of the kernel.
pub fn prepare_host_leg(socket: &SockRef<'_>) -> io::Result<()> {
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Socket for a connection to a server, with the client's marks. Its source is the client's address and port, or, with `own`, the agent's own
/// address and the client's port, if a switch rewrites the address.
///
/// # Errors
/// Error of the kernel: `AddrInUse` if a listener of another process uses the client's port, or if the port is in use at the agent's own
/// address.
pub fn towards_server(
    client: SocketAddrV4,
    own: Option<Ipv4Addr>,
    marks: Marks,
) -> io::Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    if own.is_none() {
        socket.set_ip_transparent_v4(true)?;
    }
    socket.set_reuse_address(true)?;
    // A client may choose any port, including one on which this process listens at the wildcard address ([`shared_listener`]).
    socket.set_reuse_port(true)?;
    sos_tunnel::set_marks(&SockRef::from(&socket), marks)?;
    prepare_host_leg(&SockRef::from(&socket))?;
    let local = SocketAddrV4::new(own.unwrap_or(*client.ip()), client.port());
    socket.bind(&local.into())?;
    Ok(socket.into())
}

/// Socket that will connect to a server from the agent's own address, chosen by the route, with the client's marks.
///
/// # Errors
/// Error of the kernel.
pub fn from_agent(marks: Marks) -> io::Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), Some(Protocol::TCP))?;
    sos_tunnel::set_marks(&SockRef::from(&socket), marks)?;
    prepare_host_leg(&SockRef::from(&socket))?;
    Ok(socket.into())
}

/// True if [`towards_server`] can bind now. Checked before the client is answered: after that, only a reset is possible.
#[must_use]
pub fn can_bind(client: SocketAddrV4, own: Option<Ipv4Addr>) -> bool {
    towards_server(client, own, Marks::default())
        .map_or_else(|error| error.kind() != io::ErrorKind::AddrInUse, |_| true)
}

/// Options of a stream between agents, set before it connects or when it is accepted. The kernel tunes the stream's buffers within the
/// namespace's tcp_rmem and tcp_wmem.
///
/// # Errors
/// Error of the kernel, except about congestion control: if the kernel does not know the algorithm, its default stays.
pub fn prepare_stream(socket: &SockRef<'_>, congestion: CongestionControl) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(Some(STREAM_USER_TIMEOUT))?;
    socket.set_tcp_notsent_lowat(STREAM_NOTSENT_LOWAT)?;
    if let Err(error) = sos_tunnel::set_retransmit_max(&**socket, STREAM_RETRANSMIT_MAX) {
        debug!(%error, "the kernel does not limit the RTO of a stream");
    }
    set_congestion(socket, congestion);
    Ok(())
}

/// Enlarges a stream's send buffer for the packets in flight on a long path, regardless of the machine's tcp_wmem. The buffer fills only as
/// far as the congestion window requires, because [`STREAM_NOTSENT_LOWAT`] limits the unsent bytes. Needs NET_ADMIN.
pub(crate) fn enlarge_send_buffer(socket: &SockRef<'_>) {
    if let Err(error) = set_socket_send_buffer_size_force(&**socket, MAX_STREAM_BUFFER) {
        debug!(%error, "the kernel does not enlarge the send buffer of a stream");
    }
}

/// Sets a stream's initial receive window: growing from the default, which fits a LAN, would delay the stream's first session. Set before
/// connecting; accepted sockets inherit the window from their listener.
pub(crate) fn set_first_window(socket: &Socket) {
    if let Err(error) = sos_tunnel::set_first_window(socket, STREAM_FIRST_WINDOW) {
        debug!(%error, "the kernel does not enlarge the initial receive window of a stream");
    }
}

/// Marks a stream's socket, so that the packets of its handshake take the copied routes ([`crate::netns::stream_routes`]). Set before
/// connecting; the handshakes of accepted streams have their listener's mark. Needs NET_ADMIN.
pub(crate) fn opening(socket: &SockRef<'_>, routes: RouteOwner) {
    mark(socket, routes, OPENING);
}

/// Removes the mark of an established stream, whose packets then take the machine's routes.
pub(crate) fn opened(socket: &SockRef<'_>, routes: RouteOwner) {
    mark(socket, routes, 0);
}

fn mark(socket: &SockRef<'_>, routes: RouteOwner, mark: u32) {
    if routes == RouteOwner::Machine
        && let Err(error) = socket.set_mark(mark)
    {
        debug!(%error, "a stream keeps its mark");
    }
}

/// Sets the congestion control of a stream. If the kernel does not know the algorithm, the algorithm in force stays.
fn set_congestion(socket: &SockRef<'_>, congestion: CongestionControl) {
    if let Err(error) = socket.set_tcp_congestion(kernel_name(congestion).as_bytes()) {
        debug!(?congestion, %error, "the kernel refuses this congestion control");
    }
}

/// The kernel's name of a congestion control.
#[must_use]
pub fn kernel_name(congestion: CongestionControl) -> &'static str {
    match congestion {
        CongestionControl::Cubic => "cubic",
        CongestionControl::Bbr => "bbr",
        CongestionControl::Reno => "reno",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streams_send_buffer_exceeds_the_machines_limit() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        enlarge_send_buffer(&SockRef::from(&socket));
        assert!(socket.send_buffer_size().unwrap() >= MAX_STREAM_BUFFER, "needs NET_ADMIN");
    }

    #[test]
    fn a_dropped_host_leg_resets_the_host() {
        use std::io::Read as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut host = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (leg, _) = listener.accept().unwrap();
        prepare_host_leg(&SockRef::from(&leg)).unwrap();
        drop(leg);
        let error = host.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn a_host_leg_has_the_timeouts_of_plain_tcp() {
        let leg = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        prepare_host_leg(&SockRef::from(&leg)).unwrap();
        assert_eq!(leg.tcp_user_timeout().unwrap(), None, "a closed window is no reason to reset");
        assert!(leg.keepalive().unwrap());
        assert!(leg.tcp_keepalive_time().unwrap() >= Duration::from_secs(2 * 3600));
        assert!(
            leg.tcp_keepalive_interval().unwrap() * leg.tcp_keepalive_retries().unwrap()
                >= Duration::from_secs(675)
        );
    }

    #[test]
    fn a_stream_is_accepted_with_the_congestion_control_of_its_listener() {
        let listener =
            stream_listener("127.0.0.1:0".parse().unwrap(), CongestionControl::Reno, RouteOwner::Agent)
                .unwrap();
        listener.set_nonblocking(false).unwrap();
        let _dialed = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        assert!(SockRef::from(&stream).tcp_congestion().unwrap().starts_with(b"reno"));
    }

    #[test]
    fn a_client_may_use_the_port_of_a_shared_listener() {
        let context = shared_listener("0.0.0.0:0".parse().unwrap()).unwrap();
        let client = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), context.local_addr().unwrap().port());
        let leg = towards_server(client, Some(*client.ip()), Marks::default()).unwrap();
        assert_eq!(leg.local_addr().unwrap(), SocketAddr::V4(client));
        let other = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
        let taken = SocketAddrV4::new(*client.ip(), other.local_addr().unwrap().port());
        assert!(!can_bind(taken, Some(*taken.ip())));
    }

    #[test]
    fn a_stream_starts_with_a_large_window_that_the_kernel_may_still_tune() {
        let listener =
            stream_listener("127.0.0.1:0".parse().unwrap(), CongestionControl::Cubic, RouteOwner::Agent)
                .unwrap();
        listener.set_nonblocking(false).unwrap();
        let _dialed = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let buffer = SockRef::from(&stream).recv_buffer_size().unwrap();
        assert!(buffer >= STREAM_FIRST_WINDOW as usize, "{buffer} bytes");
    }

    #[test]
    fn a_listener_binds_one_address_only() {
        let first = listener("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = first.local_addr().unwrap().port();
        assert!(listener(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)).is_err());
        assert!(listener(SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), port)).is_ok());
    }
}
