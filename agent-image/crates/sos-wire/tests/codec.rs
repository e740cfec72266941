//! Properties of the codecs: decoding reverses encoding for any split of the bytes; arbitrary bytes give an error and never a panic.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};

use bytes::{Bytes, BytesMut};
use proptest::collection::vec;
use proptest::prelude::*;
use sos_wire::stream::frame::{HEADER_LEN, MAX_PAYLOAD};
use sos_wire::stream::handshake::verify_confirm;
use sos_wire::*;

const KEY: Key = Key::new([7; 32]);

fn socket() -> impl Strategy<Value = SocketAddrV4> {
    (any::<u32>(), 1..=u16::MAX).prop_map(|(ip, port)| SocketAddrV4::new(Ipv4Addr::from_bits(ip), port))
}

fn key_id() -> impl Strategy<Value = KeyId> {
    (1..=u16::MAX).prop_map(|id| KeyId::new(id).unwrap())
}

fn reason() -> impl Strategy<Value = EndReason> {
    (0u16..8).prop_map(|code| EndReason::from_code(code).unwrap())
}

fn open() -> impl Strategy<Value = Open> {
    (any::<[u8; 16]>(), socket(), socket(), marks(), any::<(u32, u32)>()).prop_map(
        |(uuid, client, server, marks, (block_bytes, queue_bytes))| Open {
            session: SessionUuid(uuid),
            client,
            server,
            marks,
            block_bytes,
            queue_bytes,
        },
    )
}

fn marks() -> impl Strategy<Value = Marks> {
    (0u8..64, any::<u8>()).prop_map(|(dscp, ttl)| Marks { dscp, ttl })
}

fn session_body() -> impl Strategy<Value = Body> {
    let offset = 0..u64::MAX - MAX_PAYLOAD as u64;
    prop_oneof![
        (any::<u64>(), open()).prop_map(|(credit, open)| Body::Open { credit, open }),
        any::<u64>().prop_map(|credit| Body::Opened { credit }),
        (offset.clone(), vec(any::<u8>(), 1..9000))
            .prop_map(|(offset, p)| Body::Data { offset, payload: p.into() }),
        (offset.clone(), vec(any::<u8>(), 1..9000), 1u32..100_000).prop_map(|(offset, p, more)| {
            Body::Compressed { offset, length: p.len() as u32 + more, payload: Bytes::from(p) }
        }),
        (offset.clone(), any::<u64>(), any::<u16>()).prop_map(|(offset, credit, backlog)| Body::Ack {
            offset,
            credit,
            backlog: Backlog(backlog)
        }),
        any::<u64>().prop_map(|opaque| Body::Probe { opaque }),
        (any::<u64>(), any::<bool>()).prop_map(|(opaque, silent)| Body::HostState { opaque, silent }),
        (offset.clone(), 1u64..1 << 48, marks()).prop_map(|(offset, change, marks)| Body::Marks {
            offset,
            change,
            marks
        }),
        offset.prop_map(|offset| Body::Fin { offset }),
        reason().prop_map(|reason| Body::Reset { reason }),
    ]
}

fn frame() -> impl Strategy<Value = Frame> {
    let of_session = (1..=u64::MAX, session_body())
        .prop_map(|(number, body)| Frame { session: SessionNumber(number), body });
    let of_stream = prop_oneof![
        any::<u64>().prop_map(|opaque| Body::Ping { opaque }),
        any::<u64>().prop_map(|opaque| Body::Pong { opaque }),
        Just(Body::GoAway),
        (0..u64::MAX).prop_map(|changes| Body::Willing { changes: Willingness(changes) }),
        open().prop_map(|open| Body::Connect { open }),
        (any::<[u8; 16]>(), prop_oneof![Just(None), (1u16..=11).prop_map(Some)]).prop_map(
            |(session, refused)| Body::Connected {
                session: SessionUuid(session),
                refused: refused.map(|code| RefuseReason::from_code(code).unwrap()),
            }
        ),
        any::<[u8; 16]>().prop_map(|session| Body::Release { session: SessionUuid(session) }),
    ];
    prop_oneof![5 => of_session, 1 => of_stream.prop_map(|body| Frame { session: SessionNumber::NONE, body })]
}

/// Feeds the bytes in pieces of the given sizes (repeated) and collects frames until the end or an error.
fn decode_in_pieces(bytes: &[u8], sizes: &[usize]) -> (Vec<Frame>, Option<WireError>) {
    let (mut decoder, mut buffer, mut frames, mut rest) =
        (Decoder::default(), BytesMut::new(), Vec::new(), bytes);
    for &size in sizes.iter().cycle() {
        let (piece, tail) = rest.split_at(size.min(rest.len()));
        buffer.extend_from_slice(piece);
        rest = tail;
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        assert!(decoder.missing(buffer.len()) <= MAX_PAYLOAD);
        assert!(buffer.len() < HEADER_LEN + MAX_PAYLOAD, "a whole frame is never left in the buffer");
        if rest.is_empty() {
            break;
        }
    }
    (frames, None)
}

fn path_row() -> impl Strategy<Value = PathRow> {
    any::<([u8; 16], u8, u16, [u32; 2], [u64; 2])>().prop_map(|(peer, label, streams, rtt, bytes)| PathRow {
        peer: AgentId(peer),
        label,
        streams,
        rtt_us: rtt[0],
        min_rtt_us: rtt[1],
        sent: bytes[0],
        received: bytes[1],
    })
}

fn service_row() -> impl Strategy<Value = ServiceRow> {
    any::<([u8; 8], u32, [u64; 2])>().prop_map(|(mark, sessions, bytes)| ServiceRow {
        service: ServiceMark(mark),
        sessions,
        up: bytes[0],
        down: bytes[1],
    })
}

fn order() -> impl Strategy<Value = Order> {
    let uuid = || any::<[u8; 16]>().prop_map(SessionUuid);
    let prepare = (
        uuid(),
        any::<[u32; 5]>(),
        (socket(), socket()),
        (1u8..=2, 0u8..=3, 0u8..=1, marks()),
        any::<([u8; 16], u32, u16)>(),
    );
    let role = any::<bool>().prop_map(|near| if near { Role::Ingress } else { Role::Egress });
    let flow = (uuid(), role, socket(), socket(), any::<[u8; 16]>()).prop_map(
        |(session, role, client, server, peer)| ReportedFlow {
            session,
            role,
            client,
            server,
            peer: AgentId(peer),
        },
    );
    let body = prop_oneof![
        prepare.prop_map(|(session, n, (client, server), (role, congestion, accept, marks), peer)| {
            OrderBody::Prepare(Prepare {
                session,
                role: Role::from_code(role).unwrap(),
                streams: n[0] as u16,
                block_bytes: n[1],
                queue_bytes: n[2],
                lease_ms: n[3],
                client,
                server,
                labels: n[4],
                congestion: Congestion::from_code(congestion).unwrap(),
                accept: Accept::from_code(accept).unwrap(),
                marks,
                peer: AgentId(peer.0),
                peer_address: Ipv4Addr::from_bits(peer.1),
                peer_stream_port: peer.2,
            })
        }),
        uuid().prop_map(OrderBody::Ready),
        uuid().prop_map(OrderBody::Accepted),
        (uuid(), 1u16..=11).prop_map(|(s, r)| OrderBody::Refused(s, RefuseReason::from_code(r).unwrap())),
        uuid().prop_map(OrderBody::Release),
        (uuid(), reason(), any::<[u64; 3]>()).prop_map(|(session, reason, n)| OrderBody::Ended(Ended {
            session,
            reason,
            bytes_up: n[0],
            bytes_down: n[1],
            duration_ms: n[2],
        })),
        uuid().prop_map(OrderBody::EndedAck),
        (any::<u32>(), 0u16..u16::MAX, vec(uuid(), 0..=64)).prop_map(|(report, chunk, sessions)| {
            OrderBody::SessionReport(SessionReport { report, chunk, chunks: chunk + 1, sessions })
        }),
        Just(OrderBody::Watch),
        uuid().prop_map(OrderBody::Abort),
        (any::<u32>(), 0u16..u16::MAX, vec(flow, 0..=16)).prop_map(|(report, chunk, flows)| {
            OrderBody::FlowReport(FlowReport { report, chunk, chunks: chunk + 1, flows })
        }),
        (any::<u64>(), vec(path_row(), 0..=16), vec(service_row(), 0..=16)).prop_map(
            |(sampled_ms, paths, services)| OrderBody::PathReport(PathReport { sampled_ms, paths, services })
        ),
        (vec(plain_row(), 0..=16), vec(plain_sample(), 0..=16))
            .prop_map(|(rows, samples)| OrderBody::PlainReport(PlainReport { rows, samples })),
    ];
    (key_id(), any::<(u32, [u8; 16])>(), any::<[u64; 4]>(), body).prop_map(
        |(key_id, (controller, agent), n, body)| Order {
            header: OrderHeader {
                key_id,
                controller: ControllerId(controller),
                agent: AgentId(agent),
                boot: BootId(n[0]),
                sequence: n[1],
                time_ms: n[2],
                reply_to: n[3],
            },
            body,
        },
    )
}

fn plain_row() -> impl Strategy<Value = PlainRow> {
    any::<([u8; 8], u16, u64)>().prop_map(|(service, reason, count)| PlainRow {
        service: ServiceMark(service),
        reason: PlainReason(reason),
        count,
    })
}

fn plain_sample() -> impl Strategy<Value = PlainSample> {
    any::<([u8; 8], u16, [(u32, u16); 2])>().prop_map(|(service, reason, [client, server])| {
        let end = |(address, port): (u32, u16)| SocketAddrV4::new(Ipv4Addr::from_bits(address), port);
        PlainSample {
            service: ServiceMark(service),
            reason: PlainReason(reason),
            client: end(client),
            server: end(server),
        }
    })
}

fn beacon() -> impl Strategy<Value = Beacon> {
    (
        key_id(),
        any::<([u8; 16], [u64; 5], [u32; 3], [u16; 6], [u8; 6], bool, bool)>(),
        "[a-zé]{1,30}",
        vec("[a-z-]{1,31}", 1..=8),
    )
        .prop_map(|(key_id, (agent, q, d, w, mac, draining, willing), name, service_types)| Beacon {
            key_id,
            site: SiteId(w[0]),
            draining,
            willing,
            agent: AgentId(agent),
            boot: BootId(q[0]),
            sequence: q[1],
            time_ms: q[2],
            sessions: d[0],
            session_limit: d[1],
            bytes_per_second: q[3],
            cpu_permille: w[1],
            streams: w[2],
            order_port: w[3],
            first_stream_port: w[4],
            stream_ports: w[5],
            address: Ipv4Addr::from_bits(d[2]),
            mac: MacAddress(mac),
            capacity_bps: q[4],
            name,
            service_types,
        })
}

proptest! {
    #[test]
    fn frames_decode_the_same_for_any_split_of_the_bytes(
        frames in vec(frame(), 1..20),
        sizes in vec(1usize..5000, 1..20),
    ) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let (decoded, error) = decode_in_pieces(&bytes, &sizes);
        prop_assert_eq!(error, None);
        prop_assert_eq!(decoded, frames);
    }

    /// The parts of a frame that a reader without buffer space takes join, by their offsets, to the frame's payload.
    #[test]
    fn parts_of_a_data_frame_join_to_its_payload(
        at in 0u64..1 << 40,
        len in 20_000usize..MAX_PAYLOAD,
        sizes in vec(1000usize..60_000, 1..20),
    ) {
        let payload: Bytes = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let frame = Frame { session: SessionNumber(9), body: Body::Data { offset: at, payload: payload.clone().into() } };
        let after = Frame { session: SessionNumber(9), body: Body::Fin { offset: at + len as u64 } };
        let mut bytes = BytesMut::new();
        [&frame, &after].iter().for_each(|frame| frame.encode(&mut bytes));
        let (mut decoder, mut buffer, mut found) = (Decoder::default(), BytesMut::new(), Vec::new());
        let mut sizes = sizes.iter().cycle();
        while !bytes.is_empty() {
            buffer.extend_from_slice(&bytes.split_to((*sizes.next().unwrap()).min(bytes.len())));
            while let Some(frame) = decoder.decode(&mut buffer).unwrap() {
                found.push(frame);
            }
            let before = decoder.missing(buffer.len());
            let part = decoder.take_part(&mut buffer);
            prop_assert_eq!(decoder.missing(buffer.len()), before, "as many bytes are missing as before");
            prop_assert!(part.as_ref().is_none_or(|part| part.session == frame.session));
            found.extend(part);
        }
        prop_assert_eq!(found.pop(), Some(after));
        let mut joined = Vec::new();
        for part in &found {
            let Body::Data { offset, payload } = &part.body else { panic!("{part:?}") };
            prop_assert_eq!(*offset, at + joined.len() as u64);
            joined.extend_from_slice(payload.bytes().unwrap());
        }
        prop_assert_eq!(joined, payload);
    }

    #[test]
    fn garbage_gives_the_same_error_for_any_split_of_the_bytes(
        frames in vec(frame(), 0..4),
        garbage in vec(any::<u8>(), 0..600),
        sizes in vec(1usize..200, 1..20),
    ) {
        let mut bytes = BytesMut::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        bytes.extend_from_slice(&garbage);
        let whole = decode_in_pieces(&bytes, &[bytes.len().max(1)]);
        prop_assert!(whole.0.len() >= frames.len());
        prop_assert_eq!(decode_in_pieces(&bytes, &sizes), whole);
    }

    #[test]
    fn orders_decode_and_any_flipped_bit_is_rejected(order in order(), flip in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = order.encode(&KEY).unwrap();
        prop_assert_eq!(&UnverifiedOrder::parse(&bytes).unwrap().verify(&KEY).unwrap(), &order);
        let at = flip.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(UnverifiedOrder::parse(&bytes).and_then(|o| o.verify(&KEY)).is_err());
    }

    #[test]
    fn beacons_decode_and_any_flipped_bit_is_rejected(beacon in beacon(), flip in any::<prop::sample::Index>(), bit in 0..8) {
        let mut bytes = beacon.encode(&KEY).unwrap();
        prop_assert_eq!(&UnverifiedBeacon::parse(&bytes).unwrap().verify(&KEY).unwrap(), &beacon);
        let at = flip.index(bytes.len());
        bytes[at] ^= 1u8 << bit;
        prop_assert!(UnverifiedBeacon::parse(&bytes).and_then(|b| b.verify(&KEY)).is_err());
    }

    /// Arbitrary bytes after a valid magic and version.
    #[test]
    fn garbage_after_a_valid_magic_never_panics(
        code in 0u8..9,
        mut body in vec(any::<u8>(), 0..300),
        magic in prop::sample::select(vec![*b"SOSB", *b"SOSO"]),
    ) {
        let mut bytes = magic.to_vec();
        bytes.extend_from_slice(&[1, code]);
        bytes.append(&mut body);
        let _ = UnverifiedBeacon::parse(&bytes).and_then(|b| b.verify(&KEY));
        let _ = UnverifiedOrder::parse(&bytes).and_then(|o| o.verify(&KEY));
    }

    #[test]
    fn handshake_bytes_never_panic(hello in any::<[u8; 32]>(), welcome in any::<[u8; 32]>(), kind in 0u8..4) {
        let head = [b'S', b'O', b'S', b'F', 1, kind];
        let (mut h, mut w, mut c) = ([0u8; 64], [0u8; 96], [0u8; 40]);
        h[6..38].copy_from_slice(&hello);
        w[6..38].copy_from_slice(&welcome);
        h[..6].copy_from_slice(&head);
        w[..6].copy_from_slice(&head);
        c[..6].copy_from_slice(&head);
        let _ = Hello::decode(&h);
        prop_assert!(Welcome::verify(&w, &KEY, &h).is_err());
        prop_assert!(verify_confirm(&c, &KEY, &h, &w).is_err());
    }
}

fn header(kind: u8, len: u32, session: u64, offset: u64) -> BytesMut {
    header_with(kind, len, session, offset, 0)
}

fn header_with(kind: u8, len: u32, session: u64, offset: u64, credit: u64) -> BytesMut {
    let mut bytes = BytesMut::new();
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(&session.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&credit.to_be_bytes());
    bytes
}

#[test]
fn invalid_headers_break_the_stream_permanently() {
    let cases = [
        (header(18, 0, 1, 0), WireError::Type(18)),
        (header(14, 0, 1, 0), WireError::Field("change")),
        (header(14, 1, 1, 0), WireError::Length),
        (header_with(14, 0, 1, 0, 1 << 16 | 64 << 8 | 64), WireError::Field("dscp")),
        (header_with(14, 0, 0, 0, 1 << 16), WireError::Field("session number")),
        (header_with(14, 0, 1, u64::MAX, 1 << 16), WireError::Field("offset")),
        (header(12, 0, 0, 0), WireError::Field("session number")),
        (header(12, 1, 1, 0), WireError::Length),
        (header_with(13, 0, 1, 0, 2), WireError::Field("host state")),
        (header(11, 0, 1, 1), WireError::Field("session number")),
        (header(11, 1, 0, 1), WireError::Length),
        (header(11, 0, 0, u64::MAX), WireError::Field("offset")),
        (header_with(10, 0, 1, 0, 10), WireError::Length),
        (header_with(10, 262_144, 1, 0, 262_145), WireError::Length),
        (header_with(10, 10, 1, 0, 10), WireError::Field("length")),
        (header_with(10, 10, 1, 0, 262_145), WireError::Field("length")),
        (header_with(10, 10, 1, u64::MAX - 5, 11), WireError::Field("offset")),
        (header(3, 262_145, 1, 0), WireError::Length),
        (header(3, u32::MAX, 1, 0), WireError::Length),
        (header(3, 0, 1, 0), WireError::Length),
        (header(4, 1, 1, 0), WireError::Length),
        (header(3, 10, 0, 0), WireError::Field("session number")),
        (header(7, 0, 1, 0), WireError::Field("session number")),
        (header(3, 10, 1, u64::MAX - 5), WireError::Field("offset")),
        (header(5, 0, 1, u64::MAX), WireError::Field("offset")),
    ];
    for (mut bytes, error) in cases {
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(&mut bytes), Err(error));
        let mut good = header(5, 0, 1, 0);
        assert_eq!(decoder.decode(&mut good), Err(error), "a broken stream stays broken");
    }
}

#[test]
fn take_part_needs_16_kib_of_a_data_frame() {
    let (mut decoder, mut none) = (Decoder::default(), BytesMut::new());
    assert_eq!(decoder.take_part(&mut none), None, "no frame has begun");
    let mut bytes = header(3, 100_000, 1, 0);
    bytes.extend_from_slice(&[7; 16_000]);
    assert_eq!(decoder.decode(&mut bytes), Ok(None));
    assert_eq!(decoder.take_part(&mut bytes), None, "a small part is copied instead");
    assert_eq!(bytes.len(), 16_000);
    bytes.extend_from_slice(&[7; 1000]);
    let part = decoder.take_part(&mut bytes).and_then(|part| part.data_len());
    assert_eq!((part, bytes.len(), decoder.missing(0)), (Some(17_000), 0, 83_000));
    let mut compressed = header_with(10, 100_000, 1, 0, 200_000);
    compressed.extend_from_slice(&[7; 60_000]);
    let mut decoder = Decoder::default();
    assert_eq!((decoder.decode(&mut compressed), decoder.take_part(&mut compressed)), (Ok(None), None));
    let mut open = header(1, 64, 1, 0);
    open.extend_from_slice(&[7; 63]);
    let mut decoder = Decoder::default();
    assert_eq!((decoder.decode(&mut open), decoder.take_part(&mut open)), (Ok(None), None));
}

#[test]
fn payload_of_the_maximum_length_decodes() {
    let body = Body::Data { offset: 3, payload: vec![1; MAX_PAYLOAD].into() };
    let frame = Frame { session: SessionNumber(1), body };
    let mut bytes = BytesMut::new();
    frame.encode(&mut bytes);
    assert_eq!(decode_in_pieces(&bytes, &[1000]), (vec![frame], None));
}
