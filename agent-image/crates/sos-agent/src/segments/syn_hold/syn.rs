//! A bare SYN as an IPv4 packet: read when its copy arrives, and reinjected with a complete checksum.

use std::net::{Ipv4Addr, SocketAddrV4};

use sos_wire::Marks;

use crate::policy::flow_key::FlowKey;

pub(super) const IP_HEADER: usize = 20;
pub(super) const TCP_HEADER: usize = 20;
pub(super) const TCP: u8 = 6;
/// FIN, SYN, RST and ACK: a bare SYN has only SYN. ECN's flags may be set (RFC 3168, 6.1.1).
const FLAGS: u8 = 0x17;
const SYN: u8 = 0x02;
/// More fragments, and the fragment offset (RFC 791, 3.1).
const FRAGMENT: u16 = 0x3fff;

/// A client's SYN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Syn {
    /// The connection.
    pub flow: FlowKey,
    /// The client's DSCP and TTL.
    pub marks: Marks,
    /// The packet from its IP header on.
    pub packet: Vec<u8>,
}

/// Reason why bytes are not a bare SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SynError {
    /// A header or the packet ends too early.
    #[error("truncated")]
    Truncated,
    /// Not an unfragmented IPv4 packet with TCP in it.
    #[error("no unfragmented TCP over IPv4")]
    Protocol,
    /// Flags other than a bare SYN's.
    #[error("no bare SYN")]
    Flags,
    /// Port 0.
    #[error("port 0")]
    Port,
    /// Damaged in transit: the kernel would drop it as well.
    #[error("wrong checksum")]
    Checksum,
}

impl Syn {
    /// Parses a packet, and completes a checksum that the sender's kernel has left to a network card.
    ///
    /// # Errors
    /// The reason why the packet is not a bare SYN.
    pub fn parse(bytes: &[u8]) -> Result<Self, SynError> {
        let (first, total) = (*bytes.first().ok_or(SynError::Truncated)?, half_word(bytes, 2)?);
        let header = usize::from(first & 0x0f) * 4;
        let mut packet = bytes.get(..total.into()).ok_or(SynError::Truncated)?.to_vec();
        if first >> 4 != 4 || header < IP_HEADER || packet.get(9) != Some(&TCP) {
            return Err(SynError::Protocol);
        }
        if half_word(&packet, 6)? & FRAGMENT != 0 {
            return Err(SynError::Protocol);
        }
        let segment = packet.get_mut(header..).filter(|segment| segment.len() >= TCP_HEADER);
        let segment = segment.ok_or(SynError::Truncated)?;
        let offset = usize::from(segment[12] >> 4) * 4;
        if offset < TCP_HEADER || segment.len() < offset {
            return Err(SynError::Truncated);
        }
        if segment[13] & FLAGS != SYN {
            return Err(SynError::Flags);
        }
        let ports = (half_word(segment, 0)?, half_word(segment, 2)?);
        if ports.0 == 0 || ports.1 == 0 {
            return Err(SynError::Port);
        }
        let end = |at: usize, port| {
            let octets = bytes.get(at..at + 4).and_then(|octets| <[u8; 4]>::try_from(octets).ok());
            Some(SocketAddrV4::new(Ipv4Addr::from(octets?), port))
        };
        let (client, server) = (end(12, ports.0), end(16, ports.1));
        let flow = client.zip(server).map(|(client, server)| FlowKey { client, server });
        let flow = flow.ok_or(SynError::Truncated)?;
        complete_checksum(flow, segment)?;
        Ok(Self { flow, marks: Marks { dscp: bytes[1] >> 2, ttl: packet[8] }, packet })
    }

    /// Initial sequence number.
    #[must_use]
    pub fn sequence(&self) -> u32 {
        let at = usize::from(self.packet[0] & 0x0f) * 4 + 4;
        let octets = self.packet.get(at..at + 4).and_then(|octets| octets.try_into().ok());
        octets.map(u32::from_be_bytes).expect("a parsed SYN has a whole TCP header")
    }
}

/// Keeps a correct checksum, completes a checksum over the pseudo-header alone (the kernel's CHECKSUM_PARTIAL), and rejects any other
/// checksum.
fn complete_checksum(flow: FlowKey, segment: &mut [u8]) -> Result<(), SynError> {
    let length = u16::try_from(segment.len()).map_err(|_| SynError::Truncated)?;
    let (client, server) = (flow.client.ip().octets(), flow.server.ip().octets());
    let pseudo = sum(&client) + sum(&server) + u32::from(TCP) + u32::from(length);
    if fold(pseudo + sum(segment)) == 0xffff {
        return Ok(());
    }
    if half_word(segment, 16)? != fold(pseudo) {
        return Err(SynError::Checksum);
    }
    segment[16..18].fill(0);
    let checksum = !fold(pseudo + sum(segment));
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    Ok(())
}

/// One's complement sum of 16-bit words (RFC 1071), not folded. The sum of one packet cannot overflow.
pub(super) fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u32::from(*low));
    bytes.chunks(2).map(word).sum()
}

pub(super) fn fold(mut sum: u32) -> u16 {
    while let high @ 1.. = sum >> 16 {
        sum = (sum & 0xffff) + high;
    }
    u16::try_from(sum).expect("folded into 16 bits")
}

fn half_word(bytes: &[u8], at: usize) -> Result<u16, SynError> {
    let pair = bytes.get(at..at + 2).and_then(|pair| pair.try_into().ok());
    pair.map(u16::from_be_bytes).ok_or(SynError::Truncated)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A SYN with these addresses and ports, and a correct checksum.
    pub(crate) fn packet(flow: FlowKey) -> Vec<u8> {
        let mut packet = vec![0x45, 0x28, 0, 44, 0x12, 0x34, 0x40, 0, 64, TCP, 0, 0];
        packet.extend(flow.client.ip().octets());
        packet.extend(flow.server.ip().octets());
        packet.extend(flow.client.port().to_be_bytes());
        packet.extend(flow.server.port().to_be_bytes());
        packet.extend([0, 0, 0, 7, 0, 0, 0, 0, 0x60, SYN, 0xfa, 0xf0, 0, 0, 0, 0, 2, 4, 5, 0xb4]);
        let segment = &mut packet[IP_HEADER..];
        let pseudo = sum(&flow.client.ip().octets()) + sum(&flow.server.ip().octets()) + 6 + 24;
        let checksum = !fold(pseudo + sum(segment));
        segment[16..18].copy_from_slice(&checksum.to_be_bytes());
        packet
    }

    pub(crate) fn flow(client_port: u16, server_port: u16) -> FlowKey {
        FlowKey {
            client: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 11), client_port),
            server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 139), server_port),
        }
    }

    #[test]
    fn reads_addresses_ports_and_dscp() {
        let packet = packet(flow(40_000, 5_000));
        let syn = Syn::parse(&packet).unwrap();
        assert_eq!((syn.flow, syn.marks), (flow(40_000, 5_000), Marks { dscp: 10, ttl: 64 }));
        assert_eq!(syn.sequence(), 7);
        assert_eq!(syn.packet, packet, "a complete checksum is not changed");
    }

    #[test]
    fn completes_an_offloaded_checksum() {
        let whole = packet(flow(40_000, 5_000));
        let mut partial = whole.clone();
        let pseudo = sum(&partial[12..20]) + 6 + 24;
        partial[36..38].copy_from_slice(&fold(pseudo).to_be_bytes());
        assert_eq!(Syn::parse(&partial).unwrap().packet, whole);
        partial[36] ^= 0x40;
        assert_eq!(Syn::parse(&partial), Err(SynError::Checksum));
    }

    #[test]
    fn refuses_packets_that_are_not_bare_syns() {
        let whole = packet(flow(40_000, 5_000));
        let with = |at: usize, value: u8| {
            let mut packet = whole.clone();
            packet[at] = value;
            Syn::parse(&packet)
        };
        assert_eq!(with(0, 0x65), Err(SynError::Protocol), "IPv6");
        assert_eq!(with(0, 0x44), Err(SynError::Protocol), "an IP header that is too short");
        assert_eq!(with(9, 17), Err(SynError::Protocol), "UDP");
        assert_eq!(with(6, 0x20), Err(SynError::Protocol), "more fragments");
        assert_eq!(with(33, 0x12), Err(SynError::Flags), "SYN and ACK");
        assert_eq!(with(32, 0x40), Err(SynError::Truncated), "a TCP header that is too short");
        assert_eq!(with(32, 0xf0), Err(SynError::Truncated), "options beyond the packet's end");
        assert_eq!(with(3, 43), Err(SynError::Truncated), "an IP length that truncates the options");
        assert_eq!(with(40, 3), Err(SynError::Checksum));
        for length in 0..whole.len() {
            assert_eq!(Syn::parse(&whole[..length]), Err(SynError::Truncated), "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn a_parsed_syn_round_trips(bytes in prop::collection::vec(any::<u8>(), 0..80), at in 0usize..44, value: u8) {
            let mut near = packet(flow(40_000, 5_000));
            near[at] = value;
            for bytes in [bytes, near] {
                if let Ok(syn) = Syn::parse(&bytes) {
                    prop_assert_eq!(Syn::parse(&syn.packet), Ok(syn));
                }
            }
        }
    }
}
