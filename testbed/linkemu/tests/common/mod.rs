//! Builds packets and super-frames byte by byte, independently of the code under test.
#![allow(dead_code)] // each test binary uses a part

use sos_linkemu::frames::frame::Frame;
use sos_linkemu::frames::vnet::{
    GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, NEEDS_CSUM, VnetHeader,
};

pub const FIN: u8 = 0x01;
pub const PSH: u8 = 0x08;
pub const ACK: u8 = 0x10;

/// A range of a TCP stream or a sequence of datagrams, before framing.
#[derive(Debug, Clone)]
pub struct Stream {
    pub vlan: bool,
    pub v6: bool,
    pub udp: bool,
    pub source_port: u16,
    pub seq: u32,
    pub ack: u32,
    pub id: u16,
    pub flags: u8,
    pub options: Vec<u8>,
    pub mss: usize,
    pub payload: Vec<u8>,
}

impl Stream {
    /// An ordinary IPv4 TCP stream with timestamps, as in bulk transfers.
    pub fn tcp4(payload: Vec<u8>, mss: usize) -> Stream {
        Stream {
            vlan: false,
            v6: false,
            udp: false,
            source_port: 40_000,
            seq: 0xffff_f000,
            ack: 77,
            id: 0xfff0,
            flags: ACK,
            options: vec![1, 1, 8, 10, 0, 0, 0, 9, 0, 0, 0, 8],
            mss,
            payload,
        }
    }

    fn l3(&self) -> usize {
        if self.vlan { 18 } else { 14 }
    }

    fn l4(&self) -> usize {
        self.l3() + if self.v6 { 40 } else { 20 }
    }

    pub fn header_len(&self) -> usize {
        self.l4() + if self.udp { 8 } else { 20 + self.options.len() }
    }

    pub fn packets(&self) -> usize {
        self.payload.len().div_ceil(self.mss)
    }

    fn csum_offset(&self) -> usize {
        if self.udp { 6 } else { 16 }
    }

    /// The whole range as one super-frame, or as an ordinary frame if it has only one packet.
    pub fn super_frame(&self) -> (VnetHeader, Vec<u8>) {
        let gso = match (self.packets() > 1, self.udp, self.v6) {
            (false, ..) => GSO_NONE,
            (_, true, _) => GSO_UDP_L4,
            (_, _, false) => GSO_TCPV4,
            (_, _, true) => GSO_TCPV6,
        };
        let vnet = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: gso,
            hdr_len: self.header_len() as u16,
            gso_size: if gso == GSO_NONE { 0 } else { self.mss as u16 },
            csum_start: self.l4() as u16,
            csum_offset: self.csum_offset() as u16,
        };
        (
            vnet,
            self.bytes(self.seq, self.id, self.flags, &self.payload),
        )
    }

    /// Packet `index` as a network card with segmentation offload would send it, but with a partial checksum.
    pub fn packet(&self, index: usize) -> Vec<u8> {
        let start = index * self.mss;
        let end = (start + self.mss).min(self.payload.len());
        let last = end == self.payload.len();
        let flags = if last {
            self.flags
        } else {
            self.flags & !(FIN | PSH)
        };
        let seq = self.seq.wrapping_add(start as u32);
        let id = self.id.wrapping_add(index as u16);
        self.bytes(seq, id, flags, &self.payload[start..end])
    }

    fn bytes(&self, seq: u32, id: u16, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut b = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if self.vlan {
            b.extend([0x81, 0, 0x20, 5]);
        }
        let l4_len = self.header_len() - self.l4() + payload.len();
        let protocol = if self.udp { 17 } else { 6 };
        if self.v6 {
            self.ipv6(&mut b, l4_len, protocol);
        } else {
            self.ipv4(&mut b, l4_len, protocol, id);
        }
        b.extend(self.source_port.to_be_bytes());
        b.extend(5001u16.to_be_bytes());
        if self.udp {
            b.extend((l4_len as u16).to_be_bytes());
            b.extend([0, 0]);
        } else {
            b.extend(seq.to_be_bytes());
            b.extend(self.ack.to_be_bytes());
            b.extend([(((20 + self.options.len()) / 4) << 4) as u8, flags]);
            b.extend([0x10, 0x00, 0, 0, 0, 0]);
            b.extend(&self.options);
        }
        let partial = self.pseudo_sum(&b, l4_len, protocol);
        let at = self.l4() + self.csum_offset();
        b[at..at + 2].copy_from_slice(&partial.to_be_bytes());
        b.extend(payload);
        b
    }

    fn ipv4(&self, b: &mut Vec<u8>, l4_len: usize, protocol: u8, id: u16) {
        b.extend([8, 0]);
        let start = b.len();
        b.extend([0x45, 0]);
        b.extend(((20 + l4_len) as u16).to_be_bytes());
        b.extend(id.to_be_bytes());
        b.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 11, 10, 0, 0, 139]);
        let sum = !ones_complement(&b[start..]);
        b[start + 10..start + 12].copy_from_slice(&sum.to_be_bytes());
    }

    fn ipv6(&self, b: &mut Vec<u8>, l4_len: usize, protocol: u8) {
        b.extend([0x86, 0xdd, 0x60, 0, 0x12, 0x34]);
        b.extend((l4_len as u16).to_be_bytes());
        b.extend([protocol, 64]);
        b.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        b.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    }

    fn pseudo_sum(&self, b: &[u8], l4_len: usize, protocol: u8) -> u16 {
        let l3 = self.l3();
        let addresses = if self.v6 {
            l3 + 8..l3 + 40
        } else {
            l3 + 12..l3 + 20
        };
        let mut pseudo = b[addresses].to_vec();
        pseudo.extend((l4_len as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, protocol]);
        ones_complement(&pseudo)
    }

    /// `packet(index)` with a complete checksum, as without offload.
    pub fn completed_packet(&self, index: usize) -> Vec<u8> {
        let mut b = self.packet(index);
        let sum = !ones_complement(&b[self.l4()..]);
        let at = self.l4() + self.csum_offset();
        b[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        b
    }
}

/// The sum of RFC 1071, computed word by word.
pub fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        let low = pair.get(1).copied().unwrap_or(0);
        sum += u32::from(pair[0]) * 256 + u32::from(low);
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

pub fn frame(parts: (VnetHeader, Vec<u8>)) -> Frame {
    Frame::new(parts.0, parts.1.into_boxed_slice(), usize::MAX)
        .expect("built frames have an Ethernet header")
}

/// A frame of exactly `len` bytes that is not IP, with `mark` in place of the addresses.
pub fn opaque(mark: u64, len: usize) -> Frame {
    let mut bytes = vec![0; len];
    bytes[..8].copy_from_slice(&mark.to_be_bytes());
    bytes[12..14].copy_from_slice(&[0x88, 0xb5]);
    frame((VnetHeader::default(), bytes))
}
