//! Frames of the emulated network: SYNs of clients, ARP announcements of hosts, datagrams of agents.

use std::net::Ipv4Addr;

use crate::openflow::wire::{u16_at, u32_at};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Source and destination address and port of a TCP connection, in the byte order of the packet.
pub type FlowKey = [u8; 12];

/// Addresses of a host or an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Party {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub address: Ipv4Addr,
}

/// Offset of the TCP or UDP header in these frames: after an IPv4 header without options.
const L4: usize = 34;

/// Bare SYN with the options of a Linux client, identified by its initial sequence number `number`.
pub fn syn(client: Party, server: Party, ports: (u16, u16), number: u32) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(40);
    tcp.extend_from_slice(&ports.0.to_be_bytes());
    tcp.extend_from_slice(&ports.1.to_be_bytes());
    tcp.extend_from_slice(&number.to_be_bytes());
    tcp.extend_from_slice(&[0, 0, 0, 0, 0xA0, 0x02, 0xFA, 0xF0, 0, 0, 0, 0]);
    // maximum segment size 1460, selective acknowledgements, timestamps, window scale 7
    tcp.extend_from_slice(&[2, 4, 5, 0xB4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7]);
    let sum = checksum(&[&client.address.octets(), &server.address.octets(), &[0, 6, 0, 40], &tcp]);
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    ipv4(client, server, 6, &tcp)
}

/// UDP datagram with checksum 0, which means "not computed" (RFC 768).
pub fn datagram(from: Party, to: Party, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let mut udp = Vec::with_capacity(8 + payload.len());
    for field in
        [ports.0, ports.1, u16::try_from(8 + payload.len()).expect("orders and beacons are short"), 0]
    {
        udp.extend_from_slice(&field.to_be_bytes());
    }
    udp.extend_from_slice(payload);
    ipv4(from, to, 17, &udp)
}

/// Gratuitous ARP request (RFC 5227, 3) that announces a host.
pub fn announcement(host: Party) -> Vec<u8> {
    let mut frame = [[0xFF; 6], host.mac].concat();
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
    frame.extend_from_slice(&host.mac);
    frame.extend_from_slice(&host.address.octets());
    frame.extend_from_slice(&[0; 6]);
    frame.extend_from_slice(&host.address.octets());
    frame
}

fn ipv4(from: Party, to: Party, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = [to.mac, from.mac].concat();
    frame.extend_from_slice(&[8, 0]);
    let total = u16::try_from(20 + payload.len()).expect("frames built here are short");
    let mut header = [0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[12..16].copy_from_slice(&from.address.octets());
    header[16..20].copy_from_slice(&to.address.octets());
    let sum = checksum(&[&header]);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&header);
    frame.extend_from_slice(payload);
    frame
}

/// One's complement sum (RFC 1071) of parts of even length.
fn checksum(parts: &[&[u8]]) -> u16 {
    let sum: u32 =
        parts.iter().flat_map(|p| p.chunks(2)).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let folded = (sum & 0xFFFF) + (sum >> 16);
    !u16::try_from((folded & 0xFFFF) + (folded >> 16)).expect("folded twice")
}

/// Ethertype of a frame; 0 for a frame that is too short.
pub fn ethertype(frame: &[u8]) -> u16 {
    if frame.len() < 14 { 0 } else { u16_at(frame, 12) }
}

fn protocol(frame: &[u8]) -> Option<u8> {
    (ethertype(frame) == 0x0800 && frame.len() >= L4 + 8 && frame[14] == 0x45).then(|| frame[23])
}

/// Number (initial sequence number) of a SYN; None for any other frame.
pub fn syn_number(frame: &[u8]) -> Option<u32> {
    (protocol(frame)? == 6 && frame.len() >= L4 + 20 && frame[L4 + 13] & 0x17 == 2)
        .then(|| u32_at(frame, L4 + 4))
}

/// Addresses and ports of a TCP segment; None for any other frame.
pub fn flow_key(frame: &[u8]) -> Option<FlowKey> {
    (protocol(frame)? == 6).then(|| frame[26..38].try_into().expect("12 bytes"))
}

/// Destination port and payload of a UDP datagram; None for any other frame.
pub fn parse_datagram(frame: &[u8]) -> Option<(u16, &[u8])> {
    if protocol(frame)? != 17 {
        return None;
    }
    let end = L4 + usize::from(u16_at(frame, L4 + 4));
    (end >= L4 + 8 && end <= frame.len()).then(|| (u16_at(frame, L4 + 2), &frame[L4 + 8..end]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLIENT: Party = Party { mac: [2, 0, 0, 0, 0, 1], address: Ipv4Addr::new(10, 0, 0, 1) };
    const SERVER: Party = Party { mac: [2, 0, 0, 0, 0, 2], address: Ipv4Addr::new(10, 0, 1, 2) };

    #[test]
    fn syn_is_identified_by_its_number() {
        let frame = syn(CLIENT, SERVER, (40_000, 5001), 77);
        assert_eq!(syn_number(&frame), Some(77));
        assert_eq!(flow_key(&frame), Some([10, 0, 0, 1, 10, 0, 1, 2, 0x9C, 0x40, 0x13, 0x89]));
        assert_eq!(frame.len(), 74);
    }

    #[test]
    fn checksums_are_correct() {
        let frame = syn(CLIENT, SERVER, (40_000, 5001), 0x1234_5678);
        assert_eq!(checksum(&[&frame[14..34]]), 0);
        assert_eq!(checksum(&[&frame[26..34], &[0, 6, 0, 40], &frame[34..]]), 0);
    }

    #[test]
    fn datagram_is_parsed_to_its_port_and_payload() {
        let frame = datagram(CLIENT, SERVER, (1, 9876), b"order");
        assert_eq!(parse_datagram(&frame), Some((9876, b"order".as_slice())));
        assert_eq!(syn_number(&frame), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(frame in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = (syn_number(&frame), flow_key(&frame), parse_datagram(&frame).is_some());
        }
    }
}
