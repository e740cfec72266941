//! Cuts frames into runs of delivered packets, and joins runs of one flow (pure, over bytes).
//!
//! A run of consecutive surviving packets of a super-frame leaves as one frame, with the header fields that the
//! kernel's own segmentation would have produced. Payload is never copied: a delivery is a small rewritten header and
//! slices of the original frames.

use crate::frames::checksum;
use crate::frames::frame::{Frame, Ip, Layout, PROTOCOL_TCP};
use crate::frames::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, NEEDS_CSUM, VnetHeader};
use std::ops::Range;
use std::rc::Rc;

/// Largest IP packet of a super-frame.
const MAX_IP_PACKET: usize = 65_535;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const URG: u8 = 0x20;
const CWR: u8 = 0x80;

/// A slice of a frame's bytes.
#[derive(Debug, Clone)]
pub struct Chunk {
    frame: Rc<Frame>,
    range: Range<usize>,
}

impl Chunk {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.frame.bytes()[self.range.clone()]
    }
}

/// One frame to send: `vnet`, then `head`, then the chunks in order.
#[derive(Debug, Clone)]
pub struct Delivery {
    vnet: VnetHeader,
    head: Vec<u8>,
    chunks: Vec<Chunk>,
    layout: Option<Layout>,
    packets: usize,
    wire_bytes: u64,
}

impl Delivery {
    /// Its virtio-net header.
    pub fn vnet(&self) -> &VnetHeader {
        &self.vnet
    }

    /// The rewritten headers; empty if the first chunk starts with them.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// The rest of the frame, as chunks.
    pub fn chunks(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Number of wire packets.
    pub fn packets(&self) -> usize {
        self.packets
    }

    /// Wire bytes of these packets, framing included.
    pub fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Length of the frame.
    pub fn frame_len(&self) -> usize {
        self.head.len() + self.chunks.iter().map(|c| c.range.len()).sum::<usize>()
    }

    /// The frame in one piece.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.head.clone();
        for chunk in &self.chunks {
            bytes.extend_from_slice(chunk.bytes());
        }
        bytes
    }

    fn header(&self) -> &[u8] {
        match (&self.layout, self.head.is_empty()) {
            (Some(layout), true) => &self.chunks[0].bytes()[..layout.payload],
            _ => &self.head,
        }
    }

    /// Move the headers into `head`, so that they can be changed.
    fn detach_header(&mut self, layout: &Layout) {
        if self.head.is_empty() {
            self.head = self.chunks[0].bytes()[..layout.payload].to_vec();
            self.chunks[0].range.start += layout.payload;
        }
    }
}

/// Cut `count` packets of `frame`, from packet `first` on, as one delivery. The range must lie within the frame.
pub fn cut(frame: &Rc<Frame>, first: usize, count: usize) -> Delivery {
    let wire_bytes = (first..first + count)
        .map(|i| frame.packet_wire_bytes(i))
        .sum();
    let whole = |layout| Delivery {
        vnet: *frame.vnet(),
        head: Vec::new(),
        chunks: vec![Chunk {
            frame: Rc::clone(frame),
            range: 0..frame.bytes().len(),
        }],
        layout,
        packets: count,
        wire_bytes,
    };
    match frame.layout() {
        Some(l) if count < l.packets() => {
            let start = first * l.mss;
            let end = ((first + count) * l.mss).min(l.payload_len);
            let mut delivery = whole(Some(Layout {
                payload_len: end - start,
                mss: l.mss.min(end - start),
                ..*l
            }));
            delivery.detach_header(l);
            delivery.chunks[0].range = l.payload + start..l.payload + end;
            edit_piece(&mut delivery, l, first, count);
            delivery
        }
        layout => whole(layout.copied()),
    }
}

/// Adapt the header of a piece as segmentation would (the kernel's `tcp_gso_segment`).
fn edit_piece(piece: &mut Delivery, whole: &Layout, first: usize, count: usize) {
    let ecn = piece.vnet.gso_type & GSO_ECN;
    if whole.protocol == PROTOCOL_TCP {
        let seq = tcp_seq(&piece.head, whole).wrapping_add((first * whole.mss) as u32);
        piece.head[whole.l4 + 4..whole.l4 + 8].copy_from_slice(&seq.to_be_bytes());
        let flags = &mut piece.head[whole.l4 + 13];
        if first + count < whole.packets() {
            *flags &= !(FIN | PSH);
        }
        // Without GSO_ECN, CWR is one of the ACE bits of accurate ECN, and every segment keeps it.
        if first > 0 && ecn != 0 {
            *flags &= !CWR;
        }
    }
    if whole.ip == Ip::V4 {
        let id = ip_id(&piece.head, whole).wrapping_add(first as u16);
        piece.head[whole.l3 + 4..whole.l3 + 6].copy_from_slice(&id.to_be_bytes());
    }
    if first > 0 {
        piece.vnet.gso_type &= !GSO_ECN;
    }
    if count == 1 {
        piece.vnet.gso_type = GSO_NONE;
        piece.vnet.gso_size = 0;
    }
    if let Some(layout) = piece.layout {
        edit_lengths(&mut piece.head, &layout);
    }
}

/// Write the length fields for `layout.payload_len`, the IPv4 checksum and the partial transport checksum.
fn edit_lengths(head: &mut [u8], layout: &Layout) {
    let l4_len = layout.payload - layout.l4 + layout.payload_len;
    let (l3, l4) = (layout.l3, layout.l4);
    match layout.ip {
        Ip::V4 => {
            let total = (Ip::V4.header_len() + l4_len) as u16;
            head[l3 + 2..l3 + 4].copy_from_slice(&total.to_be_bytes());
            let sum = checksum::ipv4_header(&head[l3..l3 + Ip::V4.header_len()]);
            head[l3 + 10..l3 + 12].copy_from_slice(&sum.to_be_bytes());
        }
        Ip::V6 => head[l3 + 4..l3 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes()),
    }
    if layout.protocol != PROTOCOL_TCP {
        head[l4 + 4..l4 + 6].copy_from_slice(&(l4_len as u16).to_be_bytes());
    }
    let partial = checksum::partial(layout.addresses(head), layout.protocol, l4_len);
    let at = l4 + layout.csum_offset();
    head[at..at + 2].copy_from_slice(&partial.to_be_bytes());
}

fn tcp_seq(header: &[u8], layout: &Layout) -> u32 {
    let at = layout.l4 + 4;
    u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
}

fn ip_id(header: &[u8], layout: &Layout) -> u16 {
    u16::from_be_bytes([header[layout.l3 + 4], header[layout.l3 + 5]])
}

/// Join adjacent deliveries of one TCP flow that differ only by position (the rules of the kernel's GRO).
///
/// Deliveries keep their order, and only adjacent deliveries are joined. No result exceeds `max_wire_bytes`, unless a
/// single input exceeds it.
pub fn coalesce(deliveries: Vec<Delivery>, max_wire_bytes: u64) -> Vec<Delivery> {
    let mut joined: Vec<Delivery> = Vec::with_capacity(deliveries.len());
    for next in deliveries {
        match joined.last_mut() {
            Some(last) if may_join(last, &next, max_wire_bytes) => join(last, next),
            _ => joined.push(next),
        }
    }
    joined
}

fn may_join(a: &Delivery, b: &Delivery, max_wire_bytes: u64) -> bool {
    let (Some(la), Some(lb)) = (&a.layout, &b.layout) else {
        return false;
    };
    let same_shape =
        (la.ip, la.protocol, la.l3, la.payload) == (lb.ip, PROTOCOL_TCP, lb.l3, lb.payload);
    let only_full_before = la.payload_len % la.mss == 0;
    let follows_on = lb.mss == la.mss || (lb.packets() == 1 && lb.payload_len <= la.mss);
    let ip_packet = la.payload - la.l3 + la.payload_len + lb.payload_len;
    same_shape
        && only_full_before
        && follows_on
        && ip_packet <= MAX_IP_PACKET
        && a.wire_bytes + b.wire_bytes <= max_wire_bytes
        && headers_continue(a, b, la)
        && [a, b].iter().all(|d| checksum_is_good(d))
}

/// True if the checksum may be replaced by a partial checksum. Joined deliveries have already been checked.
fn checksum_is_good(delivery: &Delivery) -> bool {
    delivery.chunks.len() > 1 || delivery.chunks[0].frame.checksum_is_good()
}

/// True if the headers of `b` continue those of the last packet of `a`.
fn headers_continue(a: &Delivery, b: &Delivery, layout: &Layout) -> bool {
    let (ha, hb) = (a.header(), b.header());
    let (l3, l4, end) = (layout.l3, layout.l4, layout.payload);
    let same = |range: Range<usize>| ha[range.clone()] == hb[range];
    let ip_continues = match layout.ip {
        Ip::V4 => {
            let next_id = ip_id(ha, layout).wrapping_add(a.packets as u16);
            // Compare all fields except total length, identification and checksum.
            same(l3..l3 + 2)
                && same(l3 + 6..l3 + 10)
                && same(l3 + 12..l4)
                && ip_id(hb, layout) == next_id
        }
        Ip::V6 => same(l3..l3 + 4) && same(l3 + 6..l4),
    };
    let next_seq = tcp_seq(ha, layout).wrapping_add(layout.payload_len as u32);
    let (fa, fb) = (ha[l4 + 13], hb[l4 + 13]);
    let flags_continue = fa & (FIN | PSH | SYN | RST | URG | CWR) == 0
        && fb & (SYN | RST | URG | CWR) == 0
        && (fa ^ fb) & !(FIN | PSH) == 0;
    // Compare ports, acknowledgement, data offset, window, urgent pointer and options, but not the checksum.
    let tcp_same =
        same(l4..l4 + 4) && same(l4 + 8..l4 + 13) && same(l4 + 14..l4 + 16) && same(l4 + 18..end);
    same(0..l3) && ip_continues && flags_continue && tcp_same && tcp_seq(hb, layout) == next_seq
}

/// Append `b` to `a`, after [`may_join`] has returned true.
fn join(a: &mut Delivery, mut b: Delivery) {
    let (Some(la), Some(lb)) = (a.layout, b.layout) else {
        return;
    };
    a.detach_header(&la);
    b.detach_header(&lb);
    let layout = Layout {
        payload_len: la.payload_len + lb.payload_len,
        ..la
    };
    a.head[la.l4 + 13] |= b.head[lb.l4 + 13] & (FIN | PSH);
    edit_lengths(&mut a.head, &layout);
    let gso = match la.ip {
        Ip::V4 => GSO_TCPV4,
        Ip::V6 => GSO_TCPV6,
    };
    a.vnet = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: gso,
        hdr_len: la.payload as u16,
        gso_size: la.mss as u16,
        csum_start: la.l4 as u16,
        csum_offset: la.csum_offset() as u16,
    };
    a.chunks.append(&mut b.chunks);
    a.layout = Some(layout);
    a.packets += b.packets;
    a.wire_bytes += b.wire_bytes;
}
