//! Packets of checks (docs/adr/0059): the SYN of a check, and the server's answer. Also the segments that detect, and that reset, half-open
//! connections.

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::segments::syn_hold::plain_path::{Answer, Check, Path};
use crate::segments::syn_hold::syn::{IP_HEADER, TCP, TCP_HEADER, fold, sum};

/// A maximum segment size of 536 bytes (RFC 1122, 4.2.2.6), so that the server takes the check for an ordinary SYN.
const OPTIONS: [u8; 4] = [2, 4, 0x02, 0x18];
const ICMP: u8 = 1;
/// Destination unreachable (RFC 792); its codes include "administratively prohibited".
const UNREACHABLE: u8 = 3;
/// Bytes of an ICMP error before the packet that it quotes.
const ICMP_HEADER: usize = 8;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The SYN of a check, as an IPv4 packet from this port of the client's address.
#[must_use]
pub fn syn(check: &Check, port: u16) -> Vec<u8> {
    let client = SocketAddrV4::new(check.path.client, port);
    segment((client, check.path.server), check.sequence, SYN, &OPTIONS)
}

/// An empty acknowledgement, as an IPv4 packet ([`crate::segments::half_open`]).
#[must_use]
pub fn acknowledgement(from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
    segment((from, to), sequence, ACK, &[])
}

/// A reset, as an IPv4 packet ([`super::handshakes`]).
#[must_use]
pub fn reset(from: SocketAddrV4, to: SocketAddrV4, sequence: u32) -> Vec<u8> {
    segment((from, to), sequence, RST, &[])
}

/// A TCP segment without data. The kernel fills in the checksum of the IP header (raw(7)).
fn segment((from, to): (SocketAddrV4, SocketAddrV4), sequence: u32, flags: u8, options: &[u8]) -> Vec<u8> {
    let header = TCP_HEADER + options.len();
    let total = u16::try_from(IP_HEADER + header).expect("44 bytes at most");
    let data_offset = u8::try_from(header / 4).expect("6 at most") << 4;
    let mut packet = vec![0x45, 0];
    packet.extend(total.to_be_bytes());
    // Don't Fragment, TTL 64.
    packet.extend([0, 0, 0x40, 0, 64, TCP, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(sequence.to_be_bytes());
    packet.extend([0, 0, 0, 0, data_offset, flags, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(options);
    let checksum = !fold(sum_with_pseudo_header(&packet));
    packet[IP_HEADER + 16..IP_HEADER + 18].copy_from_slice(&checksum.to_be_bytes());
    packet
}

/// Sum of a segment and its pseudo-header (RFC 9293, 3.1).
fn sum_with_pseudo_header(packet: &[u8]) -> u32 {
    let segment = &packet[IP_HEADER..];
    let length = u32::try_from(segment.len()).expect("24 bytes at most");
    sum(&packet[12..20]) + u32::from(TCP) + length + sum(segment)
}

/// True if the checksum of a segment is right.
#[cfg(test)]
pub(crate) fn is_intact(packet: &[u8]) -> bool {
    fold(sum_with_pseudo_header(packet)) == 0xffff
}

/// Parses a packet that arrived for this address and port; `None` unless it is a SYN with ACK, a reset, or an ICMP error about a check.
#[must_use]
pub fn parse_answer(packet: &[u8], address: Ipv4Addr, port: u16) -> Option<Answer> {
    let arrived = Packet::parse(packet)?;
    if arrived.to != address {
        return None;
    }
    if arrived.protocol == ICMP {
        return refused_by_icmp(arrived.payload, address, port);
    }
    let segment = arrived.payload;
    if arrived.protocol != TCP || half(segment, 2)? != port {
        return None;
    }
    let server = SocketAddrV4::new(arrived.from, half(segment, 0)?);
    let acknowledged = word(segment, 8)?;
    let flags = segment.get(13)? & (SYN | RST | ACK);
    let refused = flags & RST != 0;
    let is_answer = flags & ACK != 0 && (refused || flags & SYN != 0);
    is_answer.then_some(Answer { path: Path { client: address, server }, acknowledged, refused })
}

/// The check that an ICMP error quotes: its IP header and at least 8 bytes of its TCP header (RFC 792).
fn refused_by_icmp(message: &[u8], address: Ipv4Addr, port: u16) -> Option<Answer> {
    let quoted = Packet::parse(message.get(ICMP_HEADER..)?)?;
    let segment = quoted.payload;
    if *message.first()? != UNREACHABLE
        || quoted.protocol != TCP
        || quoted.from != address
        || half(segment, 0)? != port
    {
        return None;
    }
    let server = SocketAddrV4::new(quoted.to, half(segment, 2)?);
    let acknowledged = word(segment, 4)?.wrapping_add(1);
    Some(Answer { path: Path { client: address, server }, acknowledged, refused: true })
}

/// An unfragmented IPv4 packet, perhaps without its end.
struct Packet<'a> {
    protocol: u8,
    from: Ipv4Addr,
    to: Ipv4Addr,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let header = usize::from(bytes.first()? & 0x0f) * 4;
        let fragment = half(bytes, 6)? & 0x3fff != 0;
        if bytes[0] >> 4 != 4 || header < IP_HEADER || fragment {
            return None;
        }
        let (from, to) = (Ipv4Addr::from(word(bytes, 12)?), Ipv4Addr::from(word(bytes, 16)?));
        Some(Self { protocol: *bytes.get(9)?, from, to, payload: bytes.get(header..)? })
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::segments::syn_hold::syn::Syn;

    const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);

    fn check() -> Check {
        let server = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 139), 80);
        Check { path: Path { client: CLIENT, server }, sequence: 0x0102_0304 }
    }

    /// The server's answer to the check, with these flags.
    fn answer(flags: u8) -> Vec<u8> {
        let mut packet = syn(&check(), 40_000);
        let (client, server) = (packet[12..16].to_vec(), packet[16..20].to_vec());
        packet[12..16].copy_from_slice(&server);
        packet[16..20].copy_from_slice(&client);
        packet[20..24].copy_from_slice(&[0, 80, 0x9c, 0x40]);
        packet[28..32].copy_from_slice(&[1, 2, 3, 5]);
        packet[33] = flags;
        packet
    }

    #[test]
    fn a_check_is_a_valid_bare_syn() {
        let parsed = Syn::parse(&syn(&check(), 40_000)).expect("checksum and flags are right");
        assert_eq!(parsed.flow.client, SocketAddrV4::new(CLIENT, 40_000));
        assert_eq!(parsed.flow.server, check().path.server);
        assert_eq!(parsed.packet, syn(&check(), 40_000));
    }

    #[test]
    fn syn_ack_and_reset_are_answers_and_nothing_else_is() {
        let parsed = |flags| parse_answer(&answer(flags), CLIENT, 40_000);
        let expected = |refused| Some(Answer { path: check().path, acknowledged: 0x0102_0305, refused });
        assert_eq!(parsed(SYN | ACK), expected(false));
        assert_eq!(parsed(RST | ACK), expected(true));
        assert_eq!([parsed(SYN), parsed(ACK), parsed(RST), parsed(0)], [None; 4]);
        assert_eq!(parse_answer(&answer(SYN | ACK), CLIENT, 40_001), None, "another port");
        assert_eq!(
            parse_answer(&answer(SYN | ACK), Ipv4Addr::new(10, 0, 0, 12), 40_000),
            None,
            "another pod"
        );
    }

    /// An ICMP error about the check, with as much of the check as RFC 792 demands.
    fn icmp(kind: u8) -> Vec<u8> {
        let mut packet = answer(0)[..IP_HEADER].to_vec();
        packet[9] = ICMP;
        packet.extend([kind, 13, 0, 0, 0, 0, 0, 0]);
        packet.extend(&syn(&check(), 40_000)[..IP_HEADER + 8]);
        packet
    }

    #[test]
    fn an_icmp_error_about_a_check_is_a_refusal() {
        let expected = Answer { path: check().path, acknowledged: 0x0102_0305, refused: true };
        assert_eq!(parse_answer(&icmp(UNREACHABLE), CLIENT, 40_000), Some(expected));
        assert_eq!(parse_answer(&icmp(11), CLIENT, 40_000), None, "time exceeded");
        assert_eq!(parse_answer(&icmp(UNREACHABLE), CLIENT, 40_001), None, "about another connection");
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_none(bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..44, value: u8) {
            let mut near = answer(SYN | ACK);
            near[at] = value;
            let _ = (parse_answer(&near, CLIENT, 40_000), parse_answer(&bytes, CLIENT, 40_000));
            let mut quoting = icmp(UNREACHABLE);
            quoting[at] = value;
            for length in 0..quoting.len() {
                let _ = parse_answer(&quoting[..length], CLIENT, 40_000);
            }
            for length in 0..34 {
                prop_assert_eq!(parse_answer(&near[..length.min(33)], CLIENT, 40_000), None);
            }
        }
    }
}
