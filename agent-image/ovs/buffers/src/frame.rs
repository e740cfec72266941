//! The headers of a frame that segmentation and checksum offload depend on.

/// Ethernet header without VLAN tags, in bytes.
const ETHERNET: usize = 14;
/// IEEE 802.1Q and 802.1ad tags.
const TAGS: [u16; 2] = [0x8100, 0x88a8];
/// Maximum number of skipped tags: a frame may carry two, and a switch may push two.
const MAX_TAGS: usize = 4;
/// Maximum number of skipped IPv6 extension headers; RFC 8200 section 4.1 lists fewer headers.
const MAX_EXTENSIONS: usize = 8;

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;

/// Position of a frame's transport header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Headers {
    pub(crate) tags: usize,
    pub(crate) ipv6: bool,
    /// Offset of the IP header.
    pub(crate) l3: usize,
    /// Offset of the transport header, behind IP options and extension headers.
    pub(crate) l4: usize,
    /// Protocol of the transport header.
    pub(crate) protocol: u8,
    /// True if there are IPv6 extension headers between the IP header and the transport header.
    pub(crate) extended: bool,
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl Headers {
    /// Find the headers of a frame. `None` if the frame is not IP, or `frame` does not contain all headers.
    pub(crate) fn of(frame: &[u8]) -> Option<Self> {
        let mut ethertype = word(frame, ETHERNET - 2)?;
        let (mut l3, mut tags) = (ETHERNET, 0);
        while TAGS.contains(&ethertype) && tags < MAX_TAGS {
            ethertype = word(frame, l3 + 2)?;
            l3 += 4;
            tags += 1;
        }
        match ethertype {
            0x0800 => Self::ipv4(frame, l3, tags),
            0x86dd => Self::ipv6(frame, l3, tags),
            _ => None,
        }
    }

    fn ipv4(frame: &[u8], l3: usize, tags: usize) -> Option<Self> {
        let length = usize::from(frame.get(l3)? & 0x0f) * 4;
        let protocol = *frame.get(l3 + 9)?;
        (length >= 20).then_some(Self { tags, ipv6: false, l3, l4: l3 + length, protocol, extended: false })
    }

    fn ipv6(frame: &[u8], l3: usize, tags: usize) -> Option<Self> {
        let (mut l4, mut protocol, mut extended) = (l3 + 40, *frame.get(l3 + 6)?, false);
        for _ in 0..MAX_EXTENSIONS {
            // Hop-by-hop options, routing, destination options: the headers that an unfragmented packet may have before its
            // transport header.
            if !matches!(protocol, 0 | 43 | 60) {
                return Some(Self { tags, ipv6: true, l3, l4, protocol, extended });
            }
            protocol = *frame.get(l4)?;
            l4 += (usize::from(*frame.get(l4 + 1)?) + 1) * 8;
            extended = true;
        }
        None
    }

    /// Length of a TCP or UDP header.
    pub(crate) fn transport_len(&self, frame: &[u8]) -> Option<usize> {
        match self.protocol {
            TCP => Some(usize::from(*frame.get(self.l4 + 12)? >> 4) * 4).filter(|length| *length >= 20),
            UDP => Some(8),
            _ => None,
        }
    }

    /// Offset of the checksum within a TCP, UDP or SCTP header.
    pub(crate) fn checksum_offset(&self) -> Option<usize> {
        match self.protocol {
            TCP => Some(16),
            UDP => Some(6),
            132 => Some(8),
            _ => None,
        }
    }

    /// The sum of the pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1): the content of a segment's checksum field as
    /// long as the rest of the sum is left to offload. `frame_len` includes bytes outside `frame`.
    pub(crate) fn pseudo_sum(&self, frame: &[u8], frame_len: usize) -> Option<u16> {
        let addresses = if self.ipv6 {
            frame.get(self.l3 + 8..self.l3 + 40)?
        } else {
            frame.get(self.l3 + 12..self.l3 + 20)?
        };
        let length = u64::try_from(frame_len.checked_sub(self.l4)?).ok()?;
        Some(fold(sum(addresses) + u64::from(self.protocol) + length))
    }
}

/// The sum of 16-bit words (RFC 1071), not folded; an odd last byte counts as if followed by a zero.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.chunks(2).map(|pair| u64::from(pair[0]) << 8 | pair.get(1).map_or(0, |low| u64::from(*low))).sum()
}

pub(crate) fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
