//! Received frames, and their division into wire packets.

use crate::frames::checksum;
use crate::frames::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4, VnetHeader};

/// Length of an Ethernet header without tags.
pub const ETHERNET_HEADER: usize = 14;
/// Smallest Ethernet frame without its check sequence; a real link pads shorter frames (IEEE 802.3, 3.2.8).
const MIN_ETHERNET_FRAME: usize = 60;
/// Preamble and start delimiter 8, frame check sequence 4, inter-packet gap 12.
pub const WIRE_OVERHEAD: usize = 24;
/// Maximum number of skipped VLAN tags (IEEE 802.1ad stacks two).
const MAX_VLAN_TAGS: usize = 2;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const ETHERTYPE_QINQ: u16 = 0x88a8;

/// Protocol number of TCP.
pub const PROTOCOL_TCP: u8 = 6;
/// Protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Wire bytes of a frame of `len` bytes (Ethernet header included).
pub fn wire_bytes(len: usize) -> u64 {
    (len.max(MIN_ETHERNET_FRAME) + WIRE_OVERHEAD) as u64
}

/// Version of the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ip {
    /// IPv4 with a header of 20 bytes.
    V4,
    /// IPv6 without extension headers.
    V6,
}

impl Ip {
    /// Length of the header in bytes.
    pub const fn header_len(self) -> usize {
        match self {
            Ip::V4 => 20,
            Ip::V6 => 40,
        }
    }
}

/// Layout of a frame whose payload can be divided or joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// IP version.
    pub ip: Ip,
    /// [`PROTOCOL_TCP`] or [`PROTOCOL_UDP`].
    pub protocol: u8,
    /// Offset of the IP header.
    pub l3: usize,
    /// Offset of the TCP or UDP header.
    pub l4: usize,
    /// Offset of the payload, that is the length of all headers.
    pub payload: usize,
    /// Payload bytes; never 0.
    pub payload_len: usize,
    /// Payload bytes per wire packet, except that the last packet may have fewer. Never 0.
    pub mss: usize,
}

impl Layout {
    /// Number of wire packets.
    pub fn packets(&self) -> usize {
        self.payload_len.div_ceil(self.mss)
    }

    /// Offset of the checksum within the transport header.
    pub fn csum_offset(&self) -> usize {
        if self.protocol == PROTOCOL_TCP { 16 } else { 6 }
    }

    /// Source and destination address as in the IP header.
    pub fn addresses<'a>(&self, header: &'a [u8]) -> &'a [u8] {
        match self.ip {
            Ip::V4 => &header[self.l3 + 12..self.l3 + 20],
            Ip::V6 => &header[self.l3 + 8..self.l3 + 40],
        }
    }
}

/// A frame as read from an interface: at least an Ethernet header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    vnet: VnetHeader,
    bytes: Box<[u8]>,
    layout: Option<Layout>,
}

impl Frame {
    /// Build a frame for an outgoing interface of this MTU; `None` if it is shorter than an Ethernet header.
    ///
    /// A super-frame whose segments exceed the MTU is divided into smaller segments. Open vSwitch 3.1 produces such
    /// frames: it computes the segment size without TCP options, so packets of a sender with timestamps (1448 bytes)
    /// would be twelve bytes too long.
    pub fn new(mut vnet: VnetHeader, bytes: Box<[u8]>, mtu: usize) -> Option<Frame> {
        if bytes.len() < ETHERNET_HEADER {
            return None;
        }
        let layout = layout(&vnet, &bytes, mtu);
        if let Some(l) = layout.filter(|_| vnet.gso_type != GSO_NONE) {
            vnet.gso_size = l.mss as u16;
            vnet.hdr_len = l.payload as u16;
        }
        Some(Frame {
            vnet,
            bytes,
            layout,
        })
    }

    /// The virtio-net header.
    pub fn vnet(&self) -> &VnetHeader {
        &self.vnet
    }

    /// The frame from its Ethernet header on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The frame's layout; `None` for a frame that passes undivided.
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// Number of wire packets.
    pub fn packets(&self) -> usize {
        self.layout.map_or(1, |l| l.packets())
    }

    /// Wire bytes of packet `index`.
    ///
    /// A super-frame that cannot be divided (tunnelled, or with IP options) counts as one packet, but with the framing of
    /// all its packets.
    pub fn packet_wire_bytes(&self, index: usize) -> u64 {
        match &self.layout {
            Some(l) => {
                let payload = l.mss.min(l.payload_len - index * l.mss);
                wire_bytes(l.payload + payload)
            }
            None if self.vnet.gso_size > 0 => {
                let packets = self.bytes.len().div_ceil(usize::from(self.vnet.gso_size));
                (self.bytes.len() + packets * WIRE_OVERHEAD) as u64
            }
            None => wire_bytes(self.bytes.len()),
        }
    }

    /// True for a super-frame inside a tunnel. The kernel rejects such a frame, because a virtio-net header cannot
    /// express it.
    pub fn is_tunnelled(&self) -> bool {
        let outer = || {
            let (l3, ethertype) = network_header(&self.bytes)?;
            let (_, _, l4) = transport_header(&self.bytes, l3, ethertype)?;
            Some(l4)
        };
        self.vnet.gso_type != GSO_NONE
            && outer().is_some_and(|l4| usize::from(self.vnet.csum_start) > l4)
    }

    /// True if the transport checksum may be replaced: it is partial, already verified, or found valid.
    pub fn checksum_is_good(&self) -> bool {
        let trusted = self.vnet.flags
            & (crate::frames::vnet::NEEDS_CSUM | crate::frames::vnet::DATA_VALID)
            != 0;
        let verify = |l: &Layout| {
            let l4 = &self.bytes[l.l4..l.payload + l.payload_len];
            checksum::transport_is_right(l.addresses(&self.bytes), l.protocol, l4)
        };
        trusted || self.layout.as_ref().is_some_and(verify)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let pair = bytes.get(at..at + 2)?;
    Some(usize::from(u16::from_be_bytes([pair[0], pair[1]])))
}

/// Offset of the network header and the ethertype before it.
fn network_header(bytes: &[u8]) -> Option<(usize, u16)> {
    let mut at = 12;
    for _ in 0..=MAX_VLAN_TAGS {
        let ethertype = word(bytes, at)? as u16;
        match ethertype {
            ETHERTYPE_VLAN | ETHERTYPE_QINQ => at += 4,
            _ => return Some((at + 2, ethertype)),
        }
    }
    None
}

/// IP version, protocol and offset of the transport header, for packets whose length field matches the frame.
fn transport_header(bytes: &[u8], l3: usize, ethertype: u16) -> Option<(Ip, u8, usize)> {
    let len = bytes.len();
    match ethertype {
        ETHERTYPE_IPV4 => {
            let header = bytes.get(l3..l3 + Ip::V4.header_len())?;
            let fragment = word(header, 6)? & 0x3fff != 0;
            let whole = word(header, 2)? == len - l3;
            (header[0] == 0x45 && !fragment && whole).then_some((Ip::V4, header[9], l3 + 20))
        }
        ETHERTYPE_IPV6 => {
            let header = bytes.get(l3..l3 + Ip::V6.header_len())?;
            let whole = word(header, 4)? == len - l3 - 40;
            (header[0] >> 4 == 6 && whole).then_some((Ip::V6, header[6], l3 + 40))
        }
        _ => None,
    }
}

fn payload_offset(bytes: &[u8], protocol: u8, l4: usize) -> Option<usize> {
    let header_len = match protocol {
        PROTOCOL_TCP => usize::from(bytes.get(l4 + 12)? >> 4) * 4,
        PROTOCOL_UDP => 8,
        _ => return None,
    };
    let least = if protocol == PROTOCOL_TCP { 20 } else { 8 };
    (header_len >= least && l4 + header_len < bytes.len()).then_some(l4 + header_len)
}

/// The layout of the frame, if all fields that determine it are consistent. `None` is always safe, because the frame
/// then passes undivided.
fn layout(vnet: &VnetHeader, bytes: &[u8], mtu: usize) -> Option<Layout> {
    let (l3, ethertype) = network_header(bytes)?;
    let (ip, protocol, l4) = transport_header(bytes, l3, ethertype)?;
    let payload = payload_offset(bytes, protocol, l4)?;
    let payload_len = bytes.len() - payload;
    let gso = vnet.gso_type & !GSO_ECN;
    let kind_matches = matches!(
        (gso, ip, protocol),
        (GSO_NONE, _, PROTOCOL_TCP)
            | (GSO_UDP_L4, _, PROTOCOL_UDP)
            | (GSO_TCPV4, Ip::V4, PROTOCOL_TCP)
            | (GSO_TCPV6, Ip::V6, PROTOCOL_TCP)
    );
    let mss = match gso {
        GSO_NONE => payload_len,
        _ => usize::from(vnet.gso_size).min(mtu.saturating_sub(payload - l3)),
    };
    let found = Layout {
        ip,
        protocol,
        l3,
        l4,
        payload,
        payload_len,
        mss,
    };
    let partial_here =
        usize::from(vnet.csum_start) == l4 && usize::from(vnet.csum_offset) == found.csum_offset();
    let checksum_known = if vnet.needs_csum() {
        partial_here
    } else {
        gso == GSO_NONE
    };
    (kind_matches && checksum_known && mss > 0).then_some(found)
}
