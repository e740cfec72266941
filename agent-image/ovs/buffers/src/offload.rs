//! Keeps the offload state that Open vSwitch 3.1 drops between a frame's incoming and outgoing port.
//!
//! With `userspace-tso-enable` a port supplies a `virtio_net_hdr` (virtio 1.2, 5.1.6) before each frame. Open vSwitch keeps two
//! bits of it, "TCP to be segmented" and "checksum to be completed", and builds a new header for the outgoing port: segments as
//! large as that port's MTU allows, regardless of the connection's MSS, and a checksum to be completed in the outermost TCP or UDP header,
//! even if the incomplete checksum is in an inner header. Segments larger than the MSS cannot pass a hop with a smaller MTU.
//!
//! So [`keep`] writes the segment size into the checksum field, which stays with the frame. At that time the field contains the sum of the
//! pseudo header. This sum follows from other fields, and [`restore`] computes it again. No state is kept outside the frame.
//!
//! Frames come from hosts: their contents are not trusted, and a frame with an unknown header stays unchanged.

use crate::frame::{Headers, TCP, UDP, fold, sum};

/// Length of a `virtio_net_hdr`. Its 16-bit fields are in the machine's byte order, as packet and tap sockets use the legacy form.
pub(crate) const VNET: usize = 10;
const NEEDS_CSUM: u8 = 1;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Bit of `gso_type`: only the first segment gets CWR (RFC 3168 section 6.1.2). Without this bit all segments get the flag, as accurate ECN
/// requires.
const GSO_ECN: u8 = 0x80;

/// Parts of a checksum field: the segment size, and the [`GSO_ECN`] bit of `gso_type`. A size above `MAX_SIZE` is stored as `MAX_SIZE`, so
/// that segments are never larger than the sender's segments.
const MAX_SIZE: u16 = 0x7fff;
const ECN: u16 = 0x8000;

/// The fields of a `virtio_net_hdr`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Vnet {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) hdr_len: u16,
    pub(crate) gso_size: u16,
    pub(crate) csum_start: u16,
    pub(crate) csum_offset: u16,
}

impl Vnet {
    pub(crate) fn decode(raw: &[u8; VNET]) -> Self {
        let word = |at: usize| u16::from_ne_bytes([raw[at], raw[at + 1]]);
        Self {
            flags: raw[0],
            gso_type: raw[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        }
    }

    pub(crate) fn encode(self) -> [u8; VNET] {
        let mut raw = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0];
        for (at, word) in [(2, self.hdr_len), (4, self.gso_size), (6, self.csum_start), (8, self.csum_offset)]
        {
            raw[at..at + 2].copy_from_slice(&word.to_ne_bytes());
        }
        raw
    }
}

/// Store the segment size of a frame that a port has received, or complete its checksum if Open vSwitch would write the checksum
/// into the wrong header. `head` is the `virtio_net_hdr` and the rest of the first buffer, `rest` the next buffer.
pub(crate) fn keep(head: &mut [u8], rest: &[u8]) {
    let Some((raw, frame)) = head.split_first_chunk_mut::<VNET>() else { return };
    let mut vnet = Vnet::decode(raw);
    let kept = if vnet.gso_type == GSO_NONE {
        complete(&mut vnet, frame, rest)
    } else {
        note(&mut vnet, frame, frame.len() + rest.len())
    };
    if kept.is_some() {
        *raw = vnet.encode();
    }
}

/// In a frame that leaves by a port, restore the segment size that [`keep`] has stored. A frame without a stored size stays unchanged,
/// because its checksum field is valid. So a second call changes nothing. `frame_len` includes bytes after `head`'s buffer.
pub(crate) fn restore(head: &mut [u8], frame_len: usize) {
    let Some((raw, frame)) = head.split_first_chunk_mut::<VNET>() else { return };
    if let Some(vnet) = restored(Vnet::decode(raw), frame, frame_len) {
        *raw = vnet.encode();
    }
}

fn note(vnet: &mut Vnet, frame: &mut [u8], frame_len: usize) -> Option<()> {
    let wanted = match vnet.gso_type & !GSO_ECN {
        GSO_TCPV4 | GSO_TCPV6 => TCP,
        GSO_UDP_L4 => UDP,
        _ => return None,
    };
    let headers = Headers::of(frame).filter(|headers| headers.protocol == wanted)?;
    if vnet.flags & NEEDS_CSUM != 0 && usize::from(vnet.csum_start) != headers.l4 {
        return None; // Segments in a tunnel: the checksum belongs to an inner header.
    }
    headers.transport_len(frame)?;
    let ecn = if vnet.gso_type & GSO_ECN == 0 { 0 } else { ECN };
    let mut value = vnet.gso_size.min(MAX_SIZE) | ecn;
    if value == headers.pseudo_sum(frame, frame_len)? {
        value -= 1; // This value would mean that no size is stored; a segment one byte smaller fits as well.
    }
    *field(frame, &headers)? = value.to_be_bytes();
    // Mark UDP segments as TCP segments, because Open vSwitch supports no others.
    vnet.gso_type = if headers.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
    Some(())
}

fn restored(made: Vnet, frame: &mut [u8], frame_len: usize) -> Option<Vnet> {
    if !matches!(made.gso_type, GSO_TCPV4 | GSO_TCPV6) {
        return None;
    }
    let headers = Headers::of(frame).filter(|headers| matches!(headers.protocol, TCP | UDP))?;
    let pseudo = headers.pseudo_sum(frame, frame_len)?;
    let length = headers.transport_len(frame)?;
    let checksum = field(frame, &headers)?;
    let noted = u16::from_be_bytes(*checksum);
    if noted == pseudo {
        return None;
    }
    *checksum = pseudo.to_be_bytes();
    let gso_type = match (headers.protocol, headers.ipv6) {
        (UDP, _) => GSO_UDP_L4,
        (_, true) => GSO_TCPV6,
        (_, false) => GSO_TCPV4,
    };
    Some(Vnet {
        flags: NEEDS_CSUM,
        gso_type: gso_type | if noted & ECN == 0 { 0 } else { GSO_ECN },
        hdr_len: u16::try_from(headers.l4 + length).ok()?,
        gso_size: size(noted & MAX_SIZE, &made, &headers, length),
        csum_start: u16::try_from(headers.l4).ok()?,
        csum_offset: u16::try_from(headers.checksum_offset()?).ok()?,
    })
}

/// The stored size, limited to the port's MTU: Open vSwitch has set header and segment size so that their sum is the MTU. The
/// size of UDP segments stays, because they are datagrams.
fn size(noted: u16, made: &Vnet, headers: &Headers, transport_len: usize) -> u16 {
    let mtu = usize::from(made.hdr_len) + usize::from(made.gso_size);
    let fits = mtu.saturating_sub(headers.l4 - headers.l3 + transport_len);
    match (noted, u16::try_from(fits)) {
        (0, _) => made.gso_size,
        (_, Ok(fits)) if fits > 0 && headers.protocol == TCP => noted.min(fits),
        _ => noted,
    }
}

/// Complete the checksum of a frame that need not be segmented, unless the kernel will complete it as requested by Open vSwitch: for TCP,
/// UDP or SCTP directly after an IP header, with at most one VLAN tag before that header. In a tunnel or after extension headers, Open
/// vSwitch would request the checksum of another header.
fn complete(vnet: &mut Vnet, frame: &mut [u8], rest: &[u8]) -> Option<()> {
    if vnet.flags & NEEDS_CSUM == 0 {
        return None;
    }
    let (start, offset) = (usize::from(vnet.csum_start), usize::from(vnet.csum_offset));
    let understood = |headers: &Headers| {
        headers.tags <= 1
            && !headers.extended
            && headers.l4 == start
            && headers.checksum_offset() == Some(offset)
    };
    if Headers::of(frame).is_some_and(|headers| understood(&headers)) {
        return None;
    }
    let covered = frame.get(start..)?;
    // If the rest starts at an odd byte, its bytes are in the other half of each word.
    let tail = fold(sum(rest));
    let tail = if covered.len() % 2 == 0 { tail } else { tail.swap_bytes() };
    let value = match !fold(sum(covered) + u64::from(tail)) {
        0 => 0xffff, // In UDP, 0 means no checksum (RFC 768); elsewhere 0 and 0xffff are equivalent.
        value => value,
    };
    let at = start + offset;
    frame.get_mut(at..at + 2)?.copy_from_slice(&value.to_be_bytes());
    (vnet.flags, vnet.csum_start, vnet.csum_offset) = (vnet.flags & !NEEDS_CSUM, 0, 0);
    Some(())
}

fn field<'a>(frame: &'a mut [u8], headers: &Headers) -> Option<&'a mut [u8; 2]> {
    let at = headers.l4 + headers.checksum_offset()?;
    frame.get_mut(at..at + 2)?.try_into().ok()
}
