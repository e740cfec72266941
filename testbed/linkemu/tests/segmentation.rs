//! Cutting and joining super-frames, compared with independently built packets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{ACK, FIN, PSH, Stream, frame};
use proptest::collection::vec;
use proptest::prelude::*;
use sos_linkemu::frames::delivery::{Delivery, coalesce, cut};
use sos_linkemu::frames::frame::Frame;
use sos_linkemu::frames::vnet::{GSO_ECN, GSO_TCPV4, VNET_LEN, VnetHeader};
use std::rc::Rc;

const CWR: u8 = 0x80;

prop_compose! {
    fn streams()(
        vlan: bool, v6: bool, udp: bool, seq: u32, ack: u32, id: u16, fin: bool, psh: bool,
        words in 0usize..10,
        mss in 1usize..1500,
        packets in 1usize..40,
        tail in 1usize..1500,
        filler: u8,
    ) -> Stream {
        let len = ((packets - 1) * mss + tail.min(mss)).min(64_000);
        let flags = ACK | if fin { FIN } else { 0 } | if psh { PSH } else { 0 };
        Stream {
            vlan, v6, udp, source_port: 4000, seq, ack, id, flags,
            options: vec![1; words * 4],
            mss,
            payload: (0..len).map(|i| (i / 7) as u8 ^ filler).collect(),
        }
    }
}

fn rebuilt(delivery: &Delivery) -> Rc<Frame> {
    Rc::new(frame((*delivery.vnet(), delivery.to_bytes())))
}

fn all_packets(deliveries: &[Delivery]) -> Vec<Vec<u8>> {
    let frames: Vec<Rc<Frame>> = deliveries.iter().map(rebuilt).collect();
    let singles = |f: &Rc<Frame>| -> Vec<Vec<u8>> {
        (0..f.packets()).map(|i| cut(f, i, 1).to_bytes()).collect()
    };
    frames.iter().flat_map(singles).collect()
}

proptest! {
    #[test]
    fn each_packet_of_a_super_frame_equals_that_of_a_network_card(stream in streams()) {
        let whole = Rc::new(frame(stream.super_frame()));
        prop_assume!(!(stream.udp && stream.packets() == 1));
        prop_assert_eq!(whole.packets(), stream.packets());
        for index in 0..stream.packets() {
            let piece = cut(&whole, index, 1);
            prop_assert_eq!(piece.to_bytes(), stream.packet(index));
            prop_assert_eq!(piece.vnet().gso_size, 0);
            prop_assert_eq!(usize::from(piece.vnet().csum_start), stream.header_len()
                - if stream.udp { 8 } else { 20 + stream.options.len() });
        }
    }

    #[test]
    fn pieces_of_any_size_join_to_the_original(stream in streams(), sizes in vec(1usize..20, 1..40)) {
        prop_assume!(!stream.udp);
        let (vnet, bytes) = stream.super_frame();
        let whole = Rc::new(frame((vnet, bytes.clone())));
        let mut pieces = Vec::new();
        let mut first = 0;
        for size in sizes.iter().cycle() {
            let count = (*size).min(stream.packets() - first);
            if count == 0 {
                break;
            }
            pieces.push(cut(&whole, first, count));
            first += count;
        }
        let wire: u64 = pieces.iter().map(Delivery::wire_bytes).sum();
        let joined = coalesce(pieces, u64::MAX);
        prop_assert_eq!(joined.len(), 1);
        prop_assert_eq!(joined[0].to_bytes(), bytes);
        prop_assert_eq!(*joined[0].vnet(), vnet);
        prop_assert_eq!(joined[0].packets(), stream.packets());
        prop_assert_eq!(joined[0].wire_bytes(), wire);
    }

    #[test]
    fn joining_preserves_packets_and_order(
        streams in vec(streams(), 1..4),
        picks in vec((0usize..4, any::<prop::sample::Index>(), any::<bool>()), 1..60),
        max in prop_oneof![Just(u64::MAX), 0u64..60_000],
    ) {
        let mut at = vec![0usize; streams.len()];
        let mut deliveries = Vec::new();
        for (which, jump, go_on) in picks {
            let which = which % streams.len();
            let stream = &streams[which];
            let index = if go_on { at[which] % stream.packets() } else { jump.index(stream.packets()) };
            at[which] = index + 1;
            let vnet = VnetHeader { gso_type: 0, gso_size: 0, ..stream.super_frame().0 };
            let single = Rc::new(frame((vnet, stream.packet(index))));
            deliveries.push(cut(&single, 0, 1));
        }
        let before: Vec<Vec<u8>> = deliveries.iter().map(Delivery::to_bytes).collect();
        let joined = coalesce(deliveries, max);
        for delivery in joined.iter().filter(|d| d.packets() > 1) {
            prop_assert!(delivery.wire_bytes() <= max);
            prop_assert!(delivery.frame_len() <= 65_535 + 18);
        }
        prop_assert_eq!(all_packets(&joined), before);
    }

    #[test]
    fn arbitrary_bytes_never_panic(vnet: [u8; VNET_LEN], bytes in vec(any::<u8>(), 0..400)) {
        exercise(VnetHeader::decode(&vnet), bytes);
    }

    #[test]
    fn damaged_super_frames_never_panic(
        stream in streams(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        vnet_damage in prop::option::of((0usize..VNET_LEN, any::<u8>())),
        cut_to in any::<prop::sample::Index>(),
    ) {
        let (vnet, mut bytes) = stream.super_frame();
        let headers = stream.header_len().min(bytes.len());
        for (at, value) in damage {
            bytes[at.index(headers)] = value;
        }
        bytes.truncate(cut_to.index(bytes.len()) + 1);
        let mut raw = vnet.encode();
        if let Some((at, value)) = vnet_damage {
            raw[at] = value;
        }
        exercise(VnetHeader::decode(&raw), bytes);
    }

    #[test]
    fn vnet_header_survives_encoding(raw: [u8; VNET_LEN]) {
        prop_assert_eq!(VnetHeader::decode(&raw).encode(), raw);
    }
}

fn exercise(vnet: VnetHeader, bytes: Vec<u8>) {
    let Some(frame) = Frame::new(vnet, bytes.clone().into_boxed_slice(), 1500) else {
        assert!(bytes.len() < 14);
        return;
    };
    let frame = Rc::new(frame);
    let packets = frame.packets();
    let middle = packets / 2;
    let mut pieces = vec![cut(&frame, 0, packets)];
    if middle > 0 {
        pieces.push(cut(&frame, 0, middle));
        pieces.push(cut(&frame, middle, packets - middle));
    }
    assert_eq!(
        pieces[0].to_bytes(),
        bytes,
        "a whole frame passes unchanged"
    );
    coalesce(pieces, u64::MAX);
}

#[test]
fn a_wrong_checksum_is_delivered_unchanged() {
    let stream = Stream::tcp4(vec![9; 3000], 1000);
    let single = |bytes: Vec<u8>| {
        let plain = VnetHeader::default();
        cut(&Rc::new(frame((plain, bytes))), 0, 1)
    };
    let good: Vec<Delivery> = (0..3).map(|i| single(stream.completed_packet(i))).collect();
    assert_eq!(coalesce(good, u64::MAX).len(), 1);
    let mut bad = stream.completed_packet(1);
    *bad.last_mut().unwrap() ^= 1;
    let mixed = vec![
        single(stream.completed_packet(0)),
        single(bad.clone()),
        single(stream.completed_packet(2)),
    ];
    let kept = coalesce(mixed, u64::MAX);
    assert_eq!(kept.len(), 3);
    assert_eq!(kept[1].to_bytes(), bad);
}

#[test]
fn segments_longer_than_the_mtu_are_cut_to_the_senders_size() {
    let stream = Stream::tcp4(vec![7; 10 * 1448], 1448);
    let (vnet, bytes) = stream.super_frame();
    // A header as from Open vSwitch 3.1: header and segment size are computed without TCP options.
    let overlong = VnetHeader {
        gso_size: 1460,
        hdr_len: 54,
        ..vnet
    };
    let whole = Rc::new(Frame::new(overlong, bytes.into_boxed_slice(), 1500).unwrap());
    assert_eq!(whole.packets(), 10);
    assert_eq!(cut(&whole, 3, 1).to_bytes(), stream.packet(3));
    assert_eq!(*cut(&whole, 0, 10).vnet(), vnet);
}

#[test]
fn only_the_first_segment_has_cwr() {
    let mut stream = Stream::tcp4(vec![1; 5000], 1000);
    stream.flags = ACK | CWR;
    let (mut vnet, bytes) = stream.super_frame();
    vnet.gso_type = GSO_TCPV4 | GSO_ECN;
    let whole = Rc::new(frame((vnet, bytes)));
    let flags = |d: &Delivery| d.to_bytes()[47];
    let (first, rest) = (cut(&whole, 0, 2), cut(&whole, 2, 3));
    assert_eq!(
        (flags(&first), first.vnet().gso_type),
        (ACK | CWR, GSO_TCPV4 | GSO_ECN)
    );
    assert_eq!((flags(&rest), rest.vnet().gso_type), (ACK, GSO_TCPV4));
}

#[test]
fn packets_of_different_flows_or_header_fields_are_not_joined() {
    let base = Stream::tcp4(vec![1; 2000], 1000);
    let vnet = VnetHeader {
        gso_type: 0,
        gso_size: 0,
        ..base.super_frame().0
    };
    let packet =
        |stream: &Stream, index: usize| cut(&Rc::new(frame((vnet, stream.packet(index)))), 0, 1);
    let other = |change: fn(&mut Stream)| {
        let mut stream = base.clone();
        change(&mut stream);
        stream
    };
    assert_eq!(
        coalesce(vec![packet(&base, 0), packet(&base, 1)], u64::MAX).len(),
        1
    );
    for second in [
        other(|s| s.source_port += 1),
        other(|s| s.ack += 1),
        other(|s| s.seq += 1),
        other(|s| s.id += 1),
        other(|s| s.id -= 1),
        other(|s| s.options[7] += 1),
    ] {
        assert_eq!(
            coalesce(vec![packet(&base, 0), packet(&second, 1)], u64::MAX).len(),
            2
        );
    }
}
