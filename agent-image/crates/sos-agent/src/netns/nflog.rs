//! Copies of packets from nft's `log group` (nfnetlink_log): held SYNs, which the same rule drops, and answers to checks, which continue.

use std::io::{self, ErrorKind};

use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use tokio::net::UdpSocket;

/// Messages of nfnetlink_log: NFNL_SUBSYS_ULOG and NFULNL_MSG_PACKET or NFULNL_MSG_CONFIG (linux/netfilter/nfnetlink_log.h).
const PACKET: u16 = 4 << 8;
const CONFIG: u16 = 4 << 8 | 1;
/// NLMSG_ERROR, also used as acknowledgement with error 0.
const ERROR: u16 = 2;
/// NLM_F_REQUEST and NLM_F_ACK.
const REQUEST: u16 = 1 | 4;
/// NFULA_HWADDR and NFULA_PAYLOAD of a packet; NFULA_CFG_CMD and NFULA_CFG_MODE of a configuration.
const SENDER: u16 = 8;
const PAYLOAD: u16 = 9;
const COMMAND: u16 = 1;
const MODE: u16 = 2;
/// NFULNL_CFG_CMD_BIND; NFULNL_COPY_PACKET.
const BIND: u8 = 1;
const COPY_PACKET: u8 = 2;
/// Maximum number of bytes copied of a packet: the whole packet.
const COPY_RANGE: u32 = 65_535;
/// Type bits of an attribute (NLA_TYPE_MASK).
const TYPE_MASK: u16 = 0x3fff;
const MESSAGE_HEADER: usize = 16;
const FAMILY_HEADER: usize = 4;
const ATTRIBUTE_HEADER: usize = 4;
/// Buffer for copies in bytes: 4,000 SYNs with the kernel's overhead. If the copy of a SYN does not fit, the client retransmits the SYN.
const BUFFER: usize = 4 << 20;

/// A netlink socket that receives the copies of one group. Tokio has no type for netlink; receiving from a datagram socket works in the same
/// way.
#[derive(Debug)]
pub struct Copies(UdpSocket);

impl Copies {
    /// Joins a group in this network namespace. Needs NET_ADMIN, and must be called within a Tokio runtime.
    ///
    /// # Errors
    /// Error of the kernel, for example without nfnetlink_log.
    pub fn open(group: u16) -> io::Result<Self> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let netfilter = Some(netlink::NETFILTER);
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, netfilter)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        set_socket_recv_buffer_size_force(&socket, BUFFER)?;
        rustix::net::send(&socket, &join(group), SendFlags::empty())?;
        let mut answer = [0; 1024];
        // The kernel has queued its answer when `send` returns.
        let (length, _) = rustix::net::recv(&socket, &mut answer[..], RecvFlags::empty())?;
        match acknowledgements(&answer[..length]).next() {
            Some(0) => UdpSocket::from_std(socket.into()).map(Self),
            Some(error) => Err(io::Error::from_raw_os_error(error)),
            None => Err(ErrorKind::InvalidData.into()),
        }
    }

    /// Receives one datagram; skips an overflow error.
    ///
    /// # Errors
    /// Error of the kernel.
    pub async fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.0.recv(buffer).await {
                Err(error) if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) => {}
                received => return received,
            }
        }
    }
}

/// Request to copy the whole packets of a group.
fn join(group: u16) -> Vec<u8> {
    let mut body = vec![0, 0];
    body.extend(group.to_be_bytes());
    add_attribute(&mut body, COMMAND, &[BIND]);
    let [a, b, c, d] = COPY_RANGE.to_be_bytes();
    add_attribute(&mut body, MODE, &[a, b, c, d, COPY_PACKET, 0]);
    let length = u32::try_from(MESSAGE_HEADER + body.len()).expect("a few bytes");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend(CONFIG.to_ne_bytes());
    message.extend(REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    message.extend(body);
    message
}

pub(crate) fn add_attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(ATTRIBUTE_HEADER + value.len()).expect("a few bytes");
    body.extend(length.to_ne_bytes());
    body.extend(kind.to_ne_bytes());
    body.extend(value);
    body.resize(aligned(body.len()), 0);
}

/// Errors of acknowledgements, as positive numbers; 0 is success.
pub(crate) fn acknowledgements(bytes: &[u8]) -> impl Iterator<Item = i32> {
    let acknowledged = messages(bytes).filter(|(kind, _)| *kind == ERROR);
    acknowledged
        .filter_map(|(_, body)| body.first_chunk())
        .map(|error| i32::from_ne_bytes(*error).saturating_neg())
}

/// Copy of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Copied<'a> {
    /// Source MAC address; zeros if the packet did not arrive at an Ethernet device.
    pub sender: [u8; 6],
    /// The packet from its IP header on.
    pub packet: &'a [u8],
}

/// Packets in a datagram that the group has received.
pub fn packets(bytes: &[u8]) -> impl Iterator<Item = Copied<'_>> {
    let of_group = messages(bytes).filter(|(kind, _)| *kind == PACKET);
    of_group.filter_map(|(_, body)| body.get(FAMILY_HEADER..)).filter_map(copied)
}

fn copied(body: &[u8]) -> Option<Copied<'_>> {
    let find = |wanted| attributes(body).find(|(kind, _)| *kind == wanted).map(|(_, value)| value);
    // struct nfulnl_msg_packet_hw: length, padding, address.
    let ethernet = find(SENDER).filter(|field| field.first_chunk() == Some(&[0, 6]));
    let sender = ethernet.and_then(|field| field.get(4..10)?.try_into().ok()).unwrap_or_default();
    Some(Copied { sender, packet: find(PAYLOAD)? })
}

/// Type and body of each netlink message.
pub(crate) fn messages(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let length = rest.first_chunk().map(|length| u32::from_ne_bytes(*length))?;
        let message = rest.get(..usize::try_from(length).ok()?)?;
        let body = message.get(MESSAGE_HEADER..)?;
        rest = rest.get(aligned(message.len())..).unwrap_or_default();
        Some((u16::from_ne_bytes([message[4], message[5]]), body))
    })
}

/// Type and value of each attribute.
fn attributes(bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let head: &[u8; ATTRIBUTE_HEADER] = rest.first_chunk()?;
        let (length, kind) = (u16::from_ne_bytes([head[0], head[1]]), u16::from_ne_bytes([head[2], head[3]]));
        let value = rest.get(ATTRIBUTE_HEADER..length.into())?;
        rest = rest.get(aligned(length.into())..).unwrap_or_default();
        Some((kind & TYPE_MASK, value))
    })
}

/// Rounds a length up: messages and attributes are aligned to four bytes.
fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = u32::try_from(MESSAGE_HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
        message.extend(kind.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(body);
        message.resize(aligned(message.len()), 0);
        message
    }

    const SENDER_MAC: [u8; 6] = [2, 0x53, 0, 0, 0, 0x11];

    fn copy(packet: &[u8]) -> Vec<u8> {
        let mut body = vec![2, 0, 0x14, 0xe1];
        add_attribute(&mut body, 1, &[8, 0, 0, 0]);
        add_attribute(&mut body, SENDER, &[&[0, 6, 0, 0][..], &SENDER_MAC, &[0, 0]].concat());
        add_attribute(&mut body, PAYLOAD, packet);
        message(PACKET, &body)
    }

    #[test]
    fn finds_the_packets_of_several_messages() {
        let bytes = [copy(b"first"), message(3, b""), copy(b"second one")].concat();
        let copied = |packet| Copied { sender: SENDER_MAC, packet };
        assert_eq!(packets(&bytes).collect::<Vec<_>>(), [copied(b"first"), copied(b"second one")]);
        assert_eq!(packets(&bytes[..bytes.len() - 4]).count(), 1, "the last message is truncated");
    }

    #[test]
    fn a_packet_without_an_ethernet_sender_has_none() {
        for hardware in [None, Some(&[0, 4, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0][..]), Some(&[0, 6, 0, 0, 1])] {
            let mut body = vec![2, 0, 0x14, 0xe1];
            hardware.into_iter().for_each(|field| add_attribute(&mut body, SENDER, field));
            add_attribute(&mut body, PAYLOAD, b"packet");
            let expected = Copied { sender: [0; 6], packet: b"packet" };
            assert_eq!(packets(&message(PACKET, &body)).collect::<Vec<_>>(), [expected]);
        }
    }

    #[test]
    fn reads_acknowledgements() {
        let answers =
            [message(ERROR, &0i32.to_ne_bytes()), copy(b"packet"), message(ERROR, &(-16i32).to_ne_bytes())];
        assert_eq!(acknowledgements(&answers.concat()).collect::<Vec<_>>(), [0, 16]);
    }

    proptest! {
        #[test]
        fn parsing_of_arbitrary_bytes_terminates(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0usize..60, value: u8) {
            let mut near = copy(b"a packet in the middle of a message");
            near[at] = value;
            prop_assert!(packets(&bytes).count() + packets(&near).count() <= 60);
        }
    }
}
