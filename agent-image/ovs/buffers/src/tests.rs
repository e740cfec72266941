//! Tests of [`crate::offload`], with a model of Open vSwitch 3.1's handling of a header between two ports.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::frame::{Headers, TCP, UDP, fold, sum};
use crate::offload::{VNET, Vnet, keep, restore};
use crate::ports::Ports;

const NEEDS_CSUM: u8 = 1;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// A frame to be segmented, as a packet socket delivers it.
#[derive(Debug, Clone)]
struct Segments {
    tag: bool,
    ipv6: bool,
    udp: bool,
    options: usize,
    size: u16,
    ecn: bool,
    payload: Vec<u8>,
    addresses: [u8; 32],
}

impl Segments {
    fn ip_header(&self, transport: usize) -> Vec<u8> {
        let protocol = if self.udp { UDP } else { TCP };
        let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
        if self.ipv6 {
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length(transport));
            header.extend([protocol, 64]);
            header.extend(self.addresses);
            return header;
        }
        let mut header = vec![0x45, 0];
        header.extend(length(20 + transport));
        header.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
        header.extend(&self.addresses[..8]);
        header
    }

    fn frame(&self) -> Vec<u8> {
        let mut transport = if self.udp { vec![0; 8] } else { vec![0; 20 + self.options * 4] };
        if !self.udp {
            transport[12] = ((5 + self.options) << 4) as u8;
        }
        transport.extend(&self.payload);
        let mut frame = vec![2; 12];
        if self.tag {
            frame.extend([0x81, 0, 0, 7]);
        }
        frame.extend(if self.ipv6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(self.ip_header(transport.len()));
        frame.extend(transport);
        let headers = Headers::of(&frame).unwrap();
        let at = headers.l4 + headers.checksum_offset().unwrap();
        let pseudo = headers.pseudo_sum(&frame, frame.len()).unwrap();
        frame[at..at + 2].copy_from_slice(&pseudo.to_be_bytes());
        frame
    }

    fn message(&self) -> Vec<u8> {
        let frame = self.frame();
        let headers = Headers::of(&frame).unwrap();
        let gso_type = match (self.udp, self.ipv6) {
            (true, _) => GSO_UDP_L4,
            (false, true) => GSO_TCPV6,
            (false, false) => GSO_TCPV4,
        };
        let vnet = Vnet {
            flags: NEEDS_CSUM,
            gso_type: gso_type | if self.ecn && !self.udp { GSO_ECN } else { 0 },
            hdr_len: u16::try_from(headers.l4 + headers.transport_len(&frame).unwrap()).unwrap(),
            gso_size: self.size,
            csum_start: headers.l4 as u16,
            csum_offset: headers.checksum_offset().unwrap() as u16,
        };
        [&vnet.encode()[..], &frame].concat()
    }
}

prop_compose! {
    fn segments()(
        tag: bool, ipv6: bool, udp: bool, ecn: bool, options in 0usize..11, size in 1u16..9000,
        payload in 1usize..3000, filler: u8, addresses: [u8; 32],
    ) -> Segments {
        Segments { tag, ipv6, udp, options, size, ecn, payload: vec![filler; payload], addresses }
    }
}

/// `netdev_linux_parse_vnet_hdr` and `netdev_linux_prepend_vnet_hdr` of Open vSwitch 3.1.0, for a port of this MTU.
fn switched(message: &[u8], mtu: u16) -> Vec<u8> {
    let (raw, frame) = message.split_first_chunk::<VNET>().unwrap();
    let vnet = Vnet::decode(raw);
    let mut made = Vnet::default();
    let headers = Headers::of(frame).unwrap();
    if matches!(vnet.gso_type & 7, GSO_TCPV4 | GSO_TCPV6) {
        made.hdr_len = headers.l4 as u16 + 20;
        made.gso_size = mtu - made.hdr_len;
        made.gso_type = if headers.ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
    }
    if vnet.flags == NEEDS_CSUM && !headers.extended {
        made.flags = NEEDS_CSUM;
        made.csum_start = headers.l4 as u16;
        made.csum_offset = headers.checksum_offset().unwrap() as u16;
    }
    [&made.encode()[..], frame].concat()
}

fn header(message: &[u8]) -> Vnet {
    Vnet::decode(message.first_chunk().unwrap())
}

/// Passes a message to a port of this MTU; the first buffer holds `buffer` bytes of the message.
fn across(mut message: Vec<u8>, mtu: u16, buffer: usize) -> Vec<u8> {
    let first = buffer.min(message.len());
    let (head, rest) = message.split_at_mut(first);
    keep(head, rest);
    let mut sent = switched(&message, mtu);
    let length = sent.len() - VNET;
    restore(&mut sent, length);
    sent
}

proptest! {
    #[test]
    fn frames_leave_unchanged(segments in segments(), buffer in 150usize..4000) {
        let message = segments.message();
        // The port's MTU allows segments of this size.
        let sent = across(message.clone(), 9100, buffer);
        let (before, after) = (header(&message), header(&sent));
        prop_assert_eq!(&sent[VNET..], &message[VNET..]);
        prop_assert!(after.gso_size == before.gso_size || after.gso_size == before.gso_size - 1);
        prop_assert_eq!(Vnet { gso_size: 0, ..after }, Vnet { gso_size: 0, ..before });
    }

    #[test]
    fn segments_fit_the_port(segments in segments(), mtu in 576u16..1500) {
        let sent = across(segments.message(), mtu, 4000);
        let after = header(&sent);
        let packet = usize::from(after.hdr_len) - if segments.tag { 18 } else { 14 } + usize::from(after.gso_size);
        prop_assert!(segments.udp || packet <= usize::from(mtu));
        prop_assert!(after.gso_size > 0 && after.gso_size <= segments.size);
    }

    #[test]
    fn sending_again_changes_nothing(segments in segments()) {
        let mut sent = across(segments.message(), 1500, 4000);
        let before = sent.clone();
        let length = sent.len() - VNET;
        restore(&mut sent, length);
        prop_assert_eq!(sent, before);
    }

    #[test]
    fn a_size_that_looks_like_a_pseudo_header_is_kept_one_smaller(segments in segments()) {
        // With these addresses, only length and protocol contribute to the sum.
        let segments = Segments { addresses: [0; 32], udp: false, ecn: false, ..segments };
        let frame = segments.frame();
        let pseudo = Headers::of(&frame).unwrap().pseudo_sum(&frame, frame.len()).unwrap();
        let segments = Segments { size: pseudo, ..segments };
        prop_assert_eq!(header(&across(segments.message(), 9100, 4000)).gso_size, segments.size - 1);
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200), at in any::<prop::sample::Index>()) {
        let mut message = bytes.clone();
        let (head, rest) = message.split_at_mut(at.index(bytes.len() + 1));
        keep(head, rest);
        restore(&mut message, bytes.len().saturating_sub(VNET));
    }

    #[test]
    fn damaged_headers_do_not_panic(
        segments in segments(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6), cut in any::<prop::sample::Index>(),
    ) {
        let mut message = segments.message();
        for (at, value) in changes {
            let at = at.index(message.len().min(90));
            message[at] = value;
        }
        message.truncate(cut.index(message.len()) + 1);
        keep(&mut message, &[]);
        let length = message.len().saturating_sub(VNET);
        restore(&mut message, length);
    }

    #[test]
    fn a_checksum_inside_a_tunnel_is_completed(inner in vec(any::<u8>(), 40..400), buffer in 70usize..400, udp: bool) {
        // The inner packet is in VXLAN, after an outer UDP header, and the switch does not parse the inner header.
        let segments = Segments {
            tag: false, ipv6: false, udp: true, options: 0, size: 0, ecn: false, payload: inner, addresses: [9; 32],
        };
        let mut frame = segments.frame();
        let start = 14 + 20 + 8 + 8;
        let offset = if udp { 6 } else { 16 };
        let vnet = Vnet { flags: NEEDS_CSUM, csum_start: start as u16, csum_offset: offset as u16, ..Vnet::default() };
        let mut message = [&vnet.encode()[..], &frame].concat();
        let (head, rest) = message.split_at_mut((VNET + buffer).min(VNET + frame.len()));
        keep(head, rest);
        let expected = !fold(sum(&frame[start..]));
        let expected = if expected == 0 { 0xffff } else { expected };
        frame[start + offset..start + offset + 2].copy_from_slice(&expected.to_be_bytes());
        prop_assert_eq!(header(&message), Vnet::default());
        prop_assert_eq!(&message[VNET..], &frame[..]);
    }

    #[test]
    fn a_checksum_that_the_switch_completes_is_not_changed(segments in segments()) {
        let mut message = segments.message();
        message[1] = 0; // An ordinary frame.
        let before = message.clone();
        keep(&mut message, &[]);
        prop_assert_eq!(message, before);
    }
}

#[test]
fn segments_in_a_tunnel_are_not_changed() {
    let segments = Segments {
        tag: false,
        ipv6: false,
        udp: true,
        options: 0,
        size: 1400,
        ecn: false,
        payload: vec![1; 3000],
        addresses: [9; 32],
    };
    let mut message = segments.message();
    message[1] = GSO_TCPV4;
    let before = message.clone();
    keep(&mut message, &[]);
    assert_eq!(message, before);
}

#[test]
fn descriptors_are_remembered_until_they_are_closed() {
    let ports = Ports::new();
    for fd in [0, 63, 64, 65_535] {
        assert!(!ports.has(fd));
        ports.set(fd, true);
        assert!(ports.has(fd) && !ports.has(fd + 1));
        ports.set(fd, false);
        assert!(!ports.has(fd));
    }
    for fd in [-1, 65_536, i32::MAX] {
        ports.set(fd, true);
        assert!(!ports.has(fd));
    }
}

#[test]
fn a_panic_affects_only_its_own_frame() {
    let mut frames = Vec::new();
    for frame in 0..3 {
        crate::fence(|| {
            assert_ne!(frame, 1, "a bug that the test asks for");
            frames.push(frame);
        });
    }
    assert_eq!(frames, [0, 2]);
}
