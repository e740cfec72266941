//! State of one TCP connection in the kernel (sock_diag(7)).

use std::io::{self, ErrorKind};
use std::net::SocketAddrV4;
use std::sync::{Mutex, PoisonError};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netns::nflog::{acknowledgements, messages};
use crate::policy::flow_key::FlowKey;

/// SOCK_DIAG_BY_FAMILY (linux/sock_diag.h).
const BY_FAMILY: u16 = 20;
/// NLM_F_REQUEST.
const REQUEST: u16 = 1;
/// AF_INET, IPPROTO_TCP.
const INET: u8 = 2;
const TCP: u8 = 6;
/// TCP_SYN_RECV (net/tcp_states.h): the kernel has answered a SYN and waits for the client.
const SYN_RECV: u8 = 3;

/// A netlink socket that reads the state of connections in the socket's network namespace. Needs no privilege.
#[derive(Debug)]
pub struct SocketStates(Mutex<OwnedFd>);

impl SocketStates {
    /// Opens a socket in the current namespace.
    ///
    /// # Errors
    /// Error of the kernel, for example without CONFIG_INET_DIAG.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let diag = Some(netlink::SOCK_DIAG);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, diag)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(Mutex::new(socket)))
    }

    /// True if the kernel has answered a client's SYN and waits for the handshake; false if the connection is established or does not exist.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn is_half_open(&self, flow: FlowKey) -> io::Result<bool> {
        // Locked, so that each caller reads the answer to its own request.
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::net::send(&*socket, &request(flow), SendFlags::empty())?;
        let mut answer = [0; 1024];
        // The kernel has queued its answer when `send` returns.
        let (length, _) = rustix::net::recv(&*socket, &mut answer[..], RecvFlags::empty())?;
        parse(&answer[..length])
    }
}

fn parse(answer: &[u8]) -> io::Result<bool> {
    if let Some(error) = acknowledgements(answer).next() {
        let missing = error == Errno::NOENT.raw_os_error();
        return if missing { Ok(false) } else { Err(io::Error::from_raw_os_error(error)) };
    }
    // struct inet_diag_msg: family, state.
    let state = messages(answer).find(|(kind, _)| *kind == BY_FAMILY).and_then(|(_, body)| body.get(1));
    state.map(|state| *state == SYN_RECV).ok_or_else(|| ErrorKind::InvalidData.into())
}

/// Request for the connection of a client at this machine, whose local address is the server's (struct inet_diag_req_v2).
fn request(flow: FlowKey) -> Vec<u8> {
    const LENGTH: u32 = 16 + 56;
    let mut message = LENGTH.to_ne_bytes().to_vec();
    message.extend(BY_FAMILY.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // Family, protocol, no extensions, padding, every state.
    message.extend([INET, TCP, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend(flow.server.port().to_be_bytes());
    message.extend(flow.client.port().to_be_bytes());
    for end in [flow.server, flow.client] {
        message.extend(address(end));
    }
    // Any interface, and INET_DIAG_NOCOOKIE.
    message.extend([0; 4]);
    message.extend([0xff; 8]);
    message
}

/// An address in a field for IPv6 addresses.
fn address(end: SocketAddrV4) -> [u8; 16] {
    let mut field = [0; 16];
    field[..4].copy_from_slice(&end.ip().octets());
    field
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_request_has_the_length_that_it_declares() {
        let flow = FlowKey {
            client: "10.0.0.11:40000".parse().unwrap(),
            server: "10.0.0.139:5000".parse().unwrap(),
        };
        let bytes = request(flow);
        assert_eq!(bytes[..4], 72u32.to_ne_bytes());
        assert_eq!((bytes.len(), &bytes[28..32]), (72, &[10, 0, 0, 139][..]));
    }

    #[test]
    fn established_and_unknown_connections_are_not_half_open() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let v4 = |address: SocketAddr| match address {
            SocketAddr::V4(address) => address,
            SocketAddr::V6(_) => unreachable!("an IPv4 socket"),
        };
        let flow =
            FlowKey { client: v4(client.local_addr().unwrap()), server: v4(listener.local_addr().unwrap()) };
        let states = SocketStates::open().unwrap();
        assert!(!states.is_half_open(flow).unwrap());
        let unknown = FlowKey { client: "192.0.2.1:1".parse().unwrap(), ..flow };
        assert!(!states.is_half_open(unknown).unwrap());
        assert!(!states.is_half_open(flow).unwrap(), "each request has its own answer");
    }

    #[test]
    fn other_answers_are_errors() {
        assert!(parse(&[]).is_err());
        let mut denied = 36u32.to_ne_bytes().to_vec();
        denied.extend([2, 0, 0, 0]);
        denied.extend([0; 8]);
        denied.extend((-1i32).to_ne_bytes());
        denied.extend([0; 16]);
        assert_eq!(parse(&denied).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
}
