//! Heartbeat of a pod's nft table, sent over netlink (nf_tables). An `nft` process for each pod and beat would cost a node several percent of a
//! CPU.

use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};

use rustix::fd::OwnedFd;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::netns::nflog::{acknowledgements, add_attribute};

/// NFNL_MSG_BATCH_BEGIN and NFNL_MSG_BATCH_END (linux/netfilter/nfnetlink.h).
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
/// NFNL_SUBSYS_NFTABLES, and its messages NFT_MSG_NEWSETELEM and NFT_MSG_DELSETELEM (linux/netfilter/nf_tables.h).
const NFTABLES: u16 = 10;
const NEW_ELEMENT: u16 = NFTABLES << 8 | 12;
const DELETE_ELEMENT: u16 = NFTABLES << 8 | 14;
/// NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE.
const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const CREATE: u16 = 0x400;
/// NLA_F_NESTED.
const NESTED: u16 = 1 << 15;
/// NFTA_SET_ELEM_LIST_TABLE, _SET and _ELEMENTS; NFTA_LIST_ELEM; NFTA_SET_ELEM_KEY; NFTA_DATA_VALUE.
const TABLE: u16 = 1;
const SET: u16 = 2;
const ELEMENTS: u16 = 3;
const ELEMENT: u16 = 1;
const KEY: u16 = 1;
const VALUE: u16 = 1;
/// NFPROTO_INET, NFPROTO_UNSPEC.
const INET: u8 = 1;
const UNSPECIFIED: u8 = 0;
/// IPPROTO_TCP: key of the heartbeat element.
const TCP: u8 = 6;

/// A netlink socket that renews or removes the heartbeat of the table in the socket's namespace.
#[derive(Debug)]
pub struct Heartbeat(Mutex<OwnedFd>);

impl Heartbeat {
    /// Opens a socket in the current namespace. Needs NET_ADMIN there.
    ///
    /// # Errors
    /// Error of the kernel.
    pub fn open() -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let netfilter = Some(netlink::NETFILTER);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, netfilter)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self(Mutex::new(socket)))
    }

    /// Recreates the element with its full lifetime, or removes the element, in one transaction.
    ///
    /// # Errors
    /// Error of the kernel; `NotFound` if there is no table.
    pub fn set(&self, beats: bool) -> io::Result<()> {
        // Locked, so that each caller reads the answers to its own request.
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rustix::net::send(&*socket, &batch(beats), SendFlags::empty())?;
        // The kernel queues its answers before `send` returns: an acknowledgement of each message, or an error.
        let mut answer = [0; 1024];
        let mut seen = 0;
        loop {
            let length = match rustix::net::recv(&*socket, &mut answer[..], RecvFlags::empty()) {
                Ok((length, _)) => length,
                Err(error) if seen > 0 && io::Error::from(error).kind() == ErrorKind::WouldBlock => {
                    return Ok(());
                }
                Err(error) => return Err(error.into()),
            };
            for error in acknowledgements(&answer[..length]) {
                seen += 1;
                if error != 0 {
                    discard(&socket);
                    return Err(io::Error::from_raw_os_error(error));
                }
            }
        }
    }
}

/// Discards the remaining answers, so that the next request does not read them as its own.
fn discard(socket: &OwnedFd) {
    let mut rest = [0; 1024];
    while rustix::net::recv(socket, &mut rest[..], RecvFlags::empty()).is_ok() {}
}

/// The transaction: flushes the set, then adds the element if `beats` is true.
fn batch(beats: bool) -> Vec<u8> {
    let mut bytes = message(BEGIN, REQUEST, UNSPECIFIED, NFTABLES, &[]);
    bytes.extend(message(DELETE_ELEMENT, REQUEST | ACKNOWLEDGE, INET, 0, &set(&[])));
    if beats {
        let key = nested(KEY, &attribute(VALUE, &[TCP]));
        let elements = nested(ELEMENTS, &nested(ELEMENT, &key));
        bytes.extend(message(NEW_ELEMENT, REQUEST | ACKNOWLEDGE | CREATE, INET, 0, &set(&elements)));
    }
    bytes.extend(message(END, REQUEST, UNSPECIFIED, NFTABLES, &[]));
    bytes
}

/// Attributes: names of table and set, and the elements.
fn set(elements: &[u8]) -> Vec<u8> {
    [attribute(TABLE, b"sos\0"), attribute(SET, b"heartbeat\0"), elements.to_vec()].concat()
}

/// A message with the header of netfilter's families (struct nfgenmsg).
fn message(kind: u16, flags: u16, family: u8, resource: u16, attributes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(16 + 4 + attributes.len()).expect("a few bytes");
    let mut bytes = length.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([family, 0]);
    bytes.extend(resource.to_be_bytes());
    bytes.extend(attributes);
    bytes
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    add_attribute(&mut bytes, kind, value);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_aligned_and_contain_their_length() {
        for beats in [false, true] {
            let bytes = batch(beats);
            let (mut rest, mut kinds) = (&bytes[..], Vec::new());
            while !rest.is_empty() {
                let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
                assert_eq!(length % 4, 0);
                kinds.push(u16::from_ne_bytes(rest[4..6].try_into().unwrap()));
                rest = &rest[length..];
            }
            let middle = if beats { vec![DELETE_ELEMENT, NEW_ELEMENT] } else { vec![DELETE_ELEMENT] };
            assert_eq!(kinds, [vec![BEGIN], middle, vec![END]].concat());
        }
    }
}
