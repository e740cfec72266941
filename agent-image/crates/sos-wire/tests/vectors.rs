//! The golden vectors of `spec/vectors`, shared with Python: both directions, byte for byte.
#![allow(clippy::unwrap_used, missing_docs)]

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use sos_wire::stream::handshake::{encode_confirm, verify_confirm};
use sos_wire::*;

fn vectors(folder: &str) -> Vec<Value> {
    vectors_of(&format!("{folder}/v1.json"))
}

fn vectors_of(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../spec/vectors").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let rows: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert!(!rows.is_empty());
    rows
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} in {value}"))
}

fn number<T: TryFrom<u64>>(value: &Value, field: &str) -> T {
    let number = value[field].as_u64().unwrap_or_else(|| panic!("{field} in {value}"));
    T::try_from(number).ok().expect("fits")
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn bytes_of<const N: usize>(value: &Value, field: &str) -> [u8; N] {
    hex(text(value, field)).try_into().unwrap()
}

fn key_id(value: &Value) -> KeyId {
    KeyId::new(number(value, "key_id")).unwrap()
}

fn key(row: &Value) -> Key {
    Key::parse_hex(text(row, "key")).unwrap()
}

fn address(value: &Value, field: &str) -> Ipv4Addr {
    text(value, field).parse().unwrap()
}

fn socket(value: &Value, host: &str, port: &str) -> SocketAddrV4 {
    SocketAddrV4::new(address(value, host), number(value, port))
}

#[test]
fn keys() {
    for row in vectors("keys") {
        let (fields, expected) = (&row["fields"], hex(text(&row, "hex")));
        if row["name"] == "agent id" {
            let id = AgentId::derive(text(fields, "site"), text(fields, "pool"), text(fields, "node"));
            assert_eq!(id.0.as_slice(), expected);
            continue;
        }
        let key = Key::parse_hex(text(fields, "key")).unwrap();
        let expected = Key::new(expected.try_into().unwrap());
        assert_eq!(key.expand(&hex(text(fields, "info"))), expected, "{}", row["name"]);
        let agent = AgentId::derive("west", "default", "edge1");
        let derived = match text(&row, "name") {
            "site 1" => key.site(SiteId(1)),
            "pair 1,2" => key.pair(SiteId(2), SiteId(1)),
            "tls/dialer" => Key::new(*key.stream_identity(StreamEndpoint::Dialer)),
            "tls/acceptor" => Key::new(*key.stream_identity(StreamEndpoint::Acceptor)),
            "beacon" => key.beacon(agent),
            "order/c2a" => key.order_to_agent(agent),
            "order/a2c" => key.order_to_controller(agent),
            other => panic!("no derivation for {other}"),
        };
        assert_eq!(derived, expected, "{}", row["name"]);
    }
}

#[test]
fn beacons() {
    for row in vectors("beacon") {
        let (f, bytes) = (&row["fields"], hex(text(&row, "hex")));
        let flags: u16 = number(f, "flags");
        let beacon = Beacon {
            key_id: key_id(f),
            site: SiteId(number(f, "site_id")),
            draining: flags & 1 != 0,
            willing: flags & 2 != 0,
            agent: text(f, "agent_id").parse().unwrap(),
            boot: BootId(number(f, "boot_id")),
            sequence: number(f, "sequence"),
            time_ms: number(f, "time_ms"),
            sessions: number(f, "sessions"),
            session_limit: number(f, "session_limit"),
            bytes_per_second: number(f, "bytes_per_second"),
            cpu_permille: number(f, "cpu_permille"),
            streams: number(f, "streams"),
            order_port: number(f, "order_port"),
            first_stream_port: number(f, "first_stream_port"),
            stream_ports: number(f, "stream_ports"),
            address: address(f, "address"),
            mac: text(f, "mac").parse().unwrap(),
            capacity_bps: number(f, "capacity_bps"),
            name: text(f, "name").to_owned(),
            service_types: f["service_types"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t.as_str().unwrap().to_owned())
                .collect(),
        };
        assert_eq!(beacon.encode(&key(&row)).unwrap(), bytes, "{}", row["name"]);
        let unverified = UnverifiedBeacon::parse(&bytes).unwrap();
        assert_eq!(
            (unverified.agent, unverified.site, unverified.key_id),
            (beacon.agent, beacon.site, beacon.key_id)
        );
        assert_eq!(unverified.verify(&key(&row)), Ok(beacon));
        assert_eq!(unverified.verify(&Key::new([0; 32])), Err(WireError::Tag));
    }
}

fn marks_of(f: &Value) -> Marks {
    Marks { dscp: number(f, "dscp"), ttl: number(f, "ttl") }
}

fn order_body(code: u64, f: &Value) -> OrderBody {
    let session = || SessionUuid(bytes_of(f, "uuid"));
    match code {
        1 => OrderBody::Prepare(Prepare {
            session: session(),
            role: Role::from_code(number(f, "role")).unwrap(),
            streams: number(f, "streams"),
            block_bytes: number(f, "block_bytes"),
            queue_bytes: number(f, "queue_bytes"),
            lease_ms: number(f, "lease_ms"),
            client: socket(f, "client", "client_port"),
            server: socket(f, "server", "server_port"),
            labels: number(f, "labels"),
            congestion: Congestion::from_code(number(f, "congestion")).unwrap(),
            accept: Accept::from_code(number(f, "accept")).unwrap(),
            marks: marks_of(f),
            peer: text(f, "peer_id").parse().unwrap(),
            peer_address: address(f, "peer_address"),
            peer_stream_port: number(f, "peer_stream_port"),
        }),
        2 if number::<u8>(f, "accepted") == 1 => OrderBody::Accepted(session()),
        2 => OrderBody::Ready(session()),
        3 => OrderBody::Refused(session(), RefuseReason::from_code(number(f, "reason")).unwrap()),
        4 => OrderBody::Release(session()),
        5 => OrderBody::Ended(Ended {
            session: session(),
            reason: EndReason::from_code(number(f, "reason")).unwrap(),
            bytes_up: number(f, "bytes_up"),
            bytes_down: number(f, "bytes_down"),
            duration_ms: number(f, "duration_ms"),
        }),
        6 => OrderBody::EndedAck(session()),
        7 => OrderBody::SessionReport(SessionReport {
            report: number(f, "report"),
            chunk: number(f, "chunk"),
            chunks: number(f, "chunks"),
            sessions: f["uuids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|u| u.as_str().unwrap().parse().unwrap())
                .collect(),
        }),
        8 => OrderBody::Watch,
        9 => OrderBody::FlowReport(FlowReport {
            report: number(f, "report"),
            chunk: number(f, "chunk"),
            chunks: number(f, "chunks"),
            flows: f["flows"].as_array().unwrap().iter().map(reported_flow).collect(),
        }),
        10 => OrderBody::PathReport(PathReport {
            sampled_ms: number(f, "sampled_ms"),
            paths: f["paths"].as_array().unwrap().iter().map(path_row).collect(),
            services: f["services"].as_array().unwrap().iter().map(service_row).collect(),
        }),
        11 => OrderBody::PlainReport(PlainReport {
            rows: f["rows"].as_array().unwrap().iter().map(plain_row).collect(),
            samples: f["samples"].as_array().unwrap().iter().map(plain_sample).collect(),
        }),
        12 => OrderBody::Abort(session()),
        other => panic!("no order type {other}"),
    }
}

fn plain_row(f: &Value) -> PlainRow {
    PlainRow {
        service: ServiceMark::of(text(f, "id")),
        reason: PlainReason(number(f, "reason")),
        count: number(f, "count"),
    }
}

fn plain_sample(f: &Value) -> PlainSample {
    PlainSample {
        service: ServiceMark::of(text(f, "id")),
        reason: PlainReason(number(f, "reason")),
        client: socket(f, "client", "client_port"),
        server: socket(f, "server", "server_port"),
    }
}

fn path_row(f: &Value) -> PathRow {
    PathRow {
        peer: text(f, "peer_id").parse().unwrap(),
        label: number(f, "label"),
        streams: number(f, "streams"),
        rtt_us: number(f, "rtt_us"),
        min_rtt_us: number(f, "min_rtt_us"),
        sent: number(f, "sent"),
        received: number(f, "received"),
    }
}

fn service_row(f: &Value) -> ServiceRow {
    ServiceRow {
        service: ServiceMark::of(text(f, "id")),
        sessions: number(f, "sessions"),
        up: number(f, "up"),
        down: number(f, "down"),
    }
}

fn reported_flow(f: &Value) -> ReportedFlow {
    ReportedFlow {
        session: text(f, "uuid").parse().unwrap(),
        role: Role::from_code(number(f, "role")).unwrap(),
        client: socket(f, "client", "client_port"),
        server: socket(f, "server", "server_port"),
        peer: text(f, "peer_id").parse().unwrap(),
    }
}

#[test]
fn orders() {
    let mut codes = Vec::new();
    for row in vectors("order") {
        let (f, bytes) = (&row["fields"], hex(text(&row, "hex")));
        let head = &f["header"];
        let code: u64 = number(f, "type");
        codes.push(code);
        let order = Order {
            header: OrderHeader {
                key_id: key_id(head),
                controller: ControllerId(number(head, "controller_id")),
                agent: text(head, "agent_id").parse().unwrap(),
                boot: BootId(number(head, "boot_id")),
                sequence: number(head, "sequence"),
                time_ms: number(head, "time_ms"),
                reply_to: number(head, "reply_to"),
            },
            body: order_body(code, &f["body"]),
        };
        assert_eq!(order.encode(&key(&row)).unwrap(), bytes, "{}", row["name"]);
        let unverified = UnverifiedOrder::parse(&bytes).unwrap();
        assert_eq!((unverified.agent, unverified.controller), (order.header.agent, order.header.controller));
        assert_eq!(unverified.is_to_agent(), matches!(code, 1 | 4 | 6 | 8 | 12));
        assert_eq!(unverified.verify(&key(&row)), Ok(order));
    }
    codes.dedup();
    assert_eq!(codes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "a vector for every type");
}

#[test]
fn opening_a_stream() {
    let rows = vectors("frame");
    let bytes = |i: usize| hex(text(&rows[i], "hex"));
    let (hello_bytes, welcome_bytes, confirm_bytes) =
        (bytes(0).try_into().unwrap(), bytes(1).try_into().unwrap(), bytes(2).try_into().unwrap());
    let (f, key) = (&rows[0]["fields"], key(&rows[0]));
    let hello = Hello {
        key_id: key_id(f),
        site: SiteId(number(f, "site_id")),
        label: number(f, "path_label"),
        stream_no: number(f, "stream_no"),
        agent: text(f, "agent_id").parse().unwrap(),
        boot: BootId(number(f, "boot_id")),
        nonce: bytes_of(f, "nonce"),
        capabilities: Capabilities(number(f, "capabilities")),
    };
    assert_eq!(hello.encode(), hello_bytes);
    assert_eq!(Hello::decode(&hello_bytes), Ok(hello));

    let f = &rows[1]["fields"];
    let welcome = Welcome {
        key_id: key_id(f),
        site: SiteId(number(f, "site_id")),
        status: WelcomeStatus::Accepted,
        stream_no: number(f, "stream_no"),
        agent: text(f, "agent_id").parse().unwrap(),
        boot: BootId(number(f, "boot_id")),
        nonce: bytes_of(f, "nonce"),
        capabilities: Capabilities(number(f, "capabilities")),
    };
    assert_eq!(welcome.encode(Some(&key), &hello_bytes), welcome_bytes);
    assert_eq!(Welcome::verify(&welcome_bytes, &key, &hello_bytes), Ok(welcome));

    assert_eq!(encode_confirm(hello.key_id, &key, &hello_bytes, &welcome_bytes), confirm_bytes);
    assert_eq!(verify_confirm(&confirm_bytes, &key, &hello_bytes, &welcome_bytes), Ok(()));
    let mut other_hello = hello_bytes;
    other_hello[40] ^= 1;
    assert_eq!(verify_confirm(&confirm_bytes, &key, &other_hello, &welcome_bytes), Err(WireError::Tag));
    assert_eq!(Welcome::verify(&welcome_bytes, &key, &other_hello), Err(WireError::Tag));
}

fn frame_body(f: &Value) -> Body {
    let (offset, credit) = (number(f, "offset"), number(f, "credit"));
    match number::<u64>(f, "type") {
        1 => {
            let o = &f["open"];
            let open = Open {
                session: SessionUuid(bytes_of(o, "uuid")),
                client: socket(o, "client", "client_port"),
                server: socket(o, "server", "server_port"),
                marks: marks_of(o),
                block_bytes: number(o, "block_bytes"),
                queue_bytes: number(o, "queue_bytes"),
            };
            Body::Open { credit, open }
        }
        2 => Body::Opened { credit },
        3 => Body::Data { offset, payload: hex(text(f, "payload")).into() },
        4 => Body::Ack {
            offset,
            credit,
            backlog: Backlog(f.get("backlog").map_or(0, |_| number(f, "backlog"))),
        },
        5 => Body::Fin { offset },
        6 => Body::Reset { reason: EndReason::from_code(number(f, "reason")).unwrap() },
        7 => Body::Ping { opaque: offset },
        8 => Body::Pong { opaque: offset },
        9 => Body::GoAway,
        10 => {
            let length = u32::try_from(credit).unwrap();
            Body::Compressed { offset, length, payload: Bytes::from(hex(text(f, "payload"))) }
        }
        11 => Body::Willing { changes: Willingness(offset) },
        12 => Body::Probe { opaque: offset },
        13 => Body::HostState { opaque: offset, silent: credit == 1 },
        14 => Body::Marks { offset, change: number(f, "change"), marks: marks_of(f) },
        15 => {
            let mut like_open = f.clone();
            like_open["type"] = 1.into();
            let Body::Open { open, .. } = frame_body(&like_open) else {
                panic!("the payload of Connect equals that of Open")
            };
            Body::Connect { open }
        }
        16 => Body::Connected {
            session: SessionUuid(bytes_of(f, "uuid")),
            refused: Some(credit)
                .filter(|code| *code > 0)
                .map(|code| RefuseReason::from_code(u16::try_from(code).unwrap()).unwrap()),
        },
        17 => Body::Release { session: SessionUuid(bytes_of(f, "uuid")) },
        other => panic!("no frame type {other}"),
    }
}

#[test]
fn frames() {
    let rows = vectors("frame");
    let rows: Vec<_> = rows.iter().filter(|row| row.get("key").is_none()).collect();
    assert_eq!(rows.len(), 18, "a vector for every type, and two for Connected");
    for row in rows {
        let (f, bytes) = (&row["fields"], hex(text(row, "hex")));
        let frame = Frame { session: SessionNumber(number(f, "session")), body: frame_body(f) };
        let mut encoded = BytesMut::new();
        frame.encode(&mut encoded);
        assert_eq!(encoded, bytes, "{}", row["name"]);
        assert_eq!(frame.wire_len(), bytes.len());
        assert_eq!(Decoder::default().decode(&mut encoded), Ok(Some(frame)), "{}", row["name"]);
        assert!(encoded.is_empty());
    }
}

#[test]
fn cards() {
    for row in vectors("card") {
        let (f, bytes) = (&row["fields"], hex(text(&row, "hex")));
        let key = key(&row);
        assert_eq!(Key::parse_hex(text(&row, "secret")).unwrap().expand(b"sos/card"), key);
        let (sequence, card) = (number(f, "sequence"), text(f, "card").as_bytes());
        let installation: InstallationId = text(f, "installation").parse().unwrap();
        if number::<u8>(f, "type") == 1 {
            let (pairing, nonce) = (text(f, "pairing").parse().unwrap(), bytes_of(f, "nonce"));
            let offer = CardOffer { key_id: key_id(f), pairing, installation, nonce, sequence, card };
            assert_eq!(offer.encode(&key).unwrap(), bytes, "{}", row["name"]);
            let unverified = UnverifiedOffer::parse(&bytes).unwrap();
            assert_eq!((unverified.header.pairing, unverified.header.key_id), (pairing, key_id(f)));
            assert_eq!(unverified.verify(&key), Ok(offer));
            assert_eq!(unverified.verify(&Key::new([0; 32])), Err(WireError::Tag));
        } else {
            let offer = hex(text(&row, "offer"));
            let offer = UnverifiedOffer::parse(&offer).unwrap();
            let status = CardStatus::from_code(number(f, "status")).unwrap();
            let answer = CardAnswer { installation, sequence, status, card };
            assert_eq!(answer.encode(&key, &offer).unwrap(), bytes, "{}", row["name"]);
            assert_eq!(CardAnswer::verify(&bytes, &key, &offer), Ok(answer));
        }
    }
}

#[test]
fn bad_cards() {
    for row in vectors_of("card/bad.json") {
        let (bytes, key, offer) = (hex(text(&row, "hex")), key(&row), hex(text(&row, "offer")));
        let offer = UnverifiedOffer::parse(&offer).unwrap();
        let error = if number::<u8>(&row, "type") == 1 {
            UnverifiedOffer::parse(&bytes).and_then(|offer| offer.verify(&key)).unwrap_err()
        } else {
            CardAnswer::verify(&bytes, &key, &offer).unwrap_err()
        };
        let wrong = match error {
            WireError::Truncated | WireError::Length => "length",
            WireError::Magic => "magic",
            WireError::Version(_) => "version",
            WireError::Type(_) => "type",
            WireError::UnknownKey(0) => "key id",
            WireError::Tag => "tag",
            WireError::Field(field) => field,
            other => panic!("{other}: {}", row["name"]),
        };
        assert_eq!(wrong, text(&row, "wrong"), "{}", row["name"]);
    }
}
