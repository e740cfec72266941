//! Signed orders of a simulated controller, sent over the network.

use std::io::{ErrorKind, Read as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

use sos_wire::{
    Accept, BootId, Congestion, ControllerId, EndReason, KeyId, Order, OrderBody, OrderHeader, Prepare,
    RefuseReason, Role, SessionUuid, UnverifiedBeacon, UnverifiedOrder,
};

use crate::lab::wire::{content, digest, fetch_from, serve};
use crate::lab::{CLIENT, DISCOVERY, FAR, Lab, NEAR, PATIENCE, SERVER, SERVICE_PORT, Side, sh};

const CONTROLLER: ControllerId = ControllerId(1);

struct Controller {
    socket: UdpSocket,
    sequence: u64,
}

impl Controller {
    fn new(lab: &Lab) -> Self {
        let socket = lab.at("ctl", || UdpSocket::bind((DISCOVERY, 9876)).unwrap());
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        Self { socket, sequence: 0 }
    }

    fn tell(&mut self, side: Side, body: OrderBody) {
        self.sequence += 1;
        let header = OrderHeader {
            key_id: KeyId::new(1).unwrap(),
            controller: CONTROLLER,
            agent: side.agent(),
            boot: BootId(1),
            sequence: self.sequence,
            time_ms: sos_agent::context::unix_ms(),
            reply_to: 0,
        };
        let key = side.site_key().order_to_agent(side.agent());
        let datagram = Order { header, body }.encode(&key).unwrap();
        self.socket.send_to(&datagram, (side.address, 9876)).unwrap();
    }

    /// Receives orders from a side until `wanted` selects one.
    fn hear<T>(&self, side: Side, wanted: impl Fn(&Order) -> Option<T>) -> T {
        let key = side.site_key().order_to_controller(side.agent());
        let deadline = std::time::Instant::now() + PATIENCE;
        let mut buffer = [0; 1500];
        while std::time::Instant::now() < deadline {
            let Ok((length, from)) = self.socket.recv_from(&mut buffer) else { continue };
            if from != SocketAddr::from((side.address, 9876)) {
                continue;
            }
            let order = UnverifiedOrder::parse(&buffer[..length]).unwrap().verify(&key).unwrap();
            if let Some(found) = wanted(&order) {
                return found;
            }
        }
        panic!("the agent has not sent the wanted order");
    }
}

fn prepare(side: Side, session: SessionUuid, client_port: u16) -> Prepare {
    Prepare {
        session,
        role: if side.host == "near" { Role::Ingress } else { Role::Egress },
        streams: 0,
        block_bytes: 0,
        queue_bytes: 0,
        lease_ms: 10_000,
        client: std::net::SocketAddrV4::new(CLIENT, client_port),
        server: std::net::SocketAddrV4::new(SERVER, SERVICE_PORT),
        labels: 1,
        congestion: Congestion::Auto,
        accept: Accept::Early,
        marks: sos_wire::Marks::default(),
        peer: side.peer().agent(),
        peer_address: side.peer().address,
        peer_stream_port: 10_000,
    }
}

#[test]
fn a_prepared_session_is_reported_from_begin_to_end() {
    const PORT: u16 = 41_922;
    let lab = Lab::new();
    let (_near, _far) = lab.agents();
    let mut controller = Controller::new(&lab);
    let session = SessionUuid(*b"a prepared flow!");
    for side in [NEAR, FAR] {
        controller.tell(side, OrderBody::Prepare(prepare(side, session, PORT)));
        let ready =
            |order: &Order| (order.body == OrderBody::Ready(session)).then_some(order.header.reply_to);
        let sequence = controller.sequence;
        assert_eq!(controller.hear(side, ready), sequence);
    }
    let reply = content(2, 200_000);
    let expected = digest(&reply);
    let _seen = serve(&lab, reply);
    let got = lab.at("client", || fetch_from(PORT, &content(1, 100_000))).unwrap();
    assert_eq!((got.error, got.digest), (None, expected));
    for side in [NEAR, FAR] {
        let ended = controller.hear(side, |order| match &order.body {
            OrderBody::Ended(ended) if ended.session == session => Some(*ended),
            _ => None,
        });
        assert_eq!(ended.reason, EndReason::Finished);
        assert_eq!((ended.bytes_up, ended.bytes_down), (100_000, 200_000));
        controller.tell(side, OrderBody::EndedAck(session));
        let empty = |order: &Order| match &order.body {
            OrderBody::SessionReport(report) => report.sessions.is_empty().then_some(()),
            _ => None,
        };
        controller.hear(side, empty);
    }
}

/// Orders the egress agent to connect to the server ahead of the session; returns the answer.
fn ask(controller: &mut Controller, session: SessionUuid, port: u16) -> OrderBody {
    let order = Prepare {
        accept: Accept::Confirmed,
        marks: sos_wire::Marks { dscp: 46, ttl: 77 },
        ..prepare(FAR, session, port)
    };
    controller.tell(FAR, OrderBody::Prepare(order));
    controller.hear(FAR, |order| match order.body {
        OrderBody::Accepted(of) | OrderBody::Refused(of, _) if of == session => Some(order.body.clone()),
        _ => None,
    })
}

#[test]
fn a_session_uses_the_server_connection_opened_ahead() {
    const PORT: u16 = 41_923;
    let lab = Lab::new();
    let (_near, far) = lab.agents();
    let mut controller = Controller::new(&lab);
    let session = SessionUuid(*b"asked beforehand");
    let reply = content(2, 20_000);
    let expected = digest(&reply);
    let seen = serve(&lab, reply);
    assert_eq!(ask(&mut controller, session, PORT), OrderBody::Accepted(session));
    controller.tell(NEAR, OrderBody::Prepare(prepare(NEAR, session, PORT)));
    controller.hear(NEAR, |order| (order.body == OrderBody::Ready(session)).then_some(()));
    let got = lab.at("client", || fetch_from(PORT, b"request")).unwrap();
    assert_eq!((got.error, got.digest), (None, expected));
    assert_eq!(seen.recv_timeout(PATIENCE).unwrap().client, (CLIENT, PORT).into());
    assert!(seen.recv_timeout(Duration::from_millis(100)).is_err(), "the server has seen one connection");
    far.wait_metric("sos_agent_sessions_begun_total", |begun| begun == 1);
}

#[test]
fn a_released_server_connection_opened_ahead_is_reset() {
    let lab = Lab::new();
    let (_near, _far) = lab.agents();
    let mut controller = Controller::new(&lab);
    let listener = lab.at("server", || TcpListener::bind((SERVER, SERVICE_PORT)).unwrap());
    let released = SessionUuid([6; 16]);
    assert_eq!(ask(&mut controller, released, 41_001), OrderBody::Accepted(released));
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    controller.tell(FAR, OrderBody::Release(released));
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn the_controller_gets_the_servers_answer() {
    let lab = Lab::new();
    let (_near, _far) = lab.agents();
    let mut controller = Controller::new(&lab);
    let nft = |rule: &str| sh(&format!("ip netns exec {} nft '{rule}'", lab.ns("server")));
    nft("add table ip f; add chain ip f i { type filter hook input priority 0; }");
    let mut expect = |number: u8, reason| {
        let session = SessionUuid([number; 16]);
        let said = ask(&mut controller, session, 42_000 + u16::from(number));
        assert_eq!(said, OrderBody::Refused(session, reason));
    };
    expect(1, RefuseReason::ServerRefused);
    nft("add rule ip f i tcp dport 5003 drop");
    expect(2, RefuseReason::ServerSilent);
}

#[test]
fn an_order_is_refused_with_a_reason() {
    let lab = Lab::new();
    let (near, _far) = lab.agents();
    let mut controller = Controller::new(&lab);
    let session = SessionUuid([5; 16]);
    let mut foreign = prepare(NEAR, session, 1);
    foreign.server.set_port(23);
    controller.tell(NEAR, OrderBody::Prepare(foreign));
    let refused = |order: &Order| match order.body {
        OrderBody::Refused(of, reason) if of == session => Some(reason),
        _ => None,
    };
    assert_eq!(controller.hear(NEAR, refused), RefuseReason::NotPermitted);
    // An order signed with the other site's key is dropped and counted, but not answered.
    let mut forged = FAR;
    forged.address = NEAR.address;
    controller.tell(forged, OrderBody::Release(session));
    near.wait_metric("sos_agent_orders_dropped_total{reason=\"agent\"}", |dropped| dropped == 1);
}

#[test]
fn beacons_arrive_at_the_discovery_address() {
    let lab = Lab::new();
    let socket = lab.at("ctl", || UdpSocket::bind((DISCOVERY, 9875)).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let _near = lab.agent(NEAR);
    let mut buffer = [0; 600];
    let mut earlier = 0;
    for _ in 0..2 {
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(from.ip(), NEAR.address);
        let beacon = UnverifiedBeacon::parse(&buffer[..length]).unwrap();
        let beacon = beacon.verify(&NEAR.site_key().beacon(NEAR.agent())).unwrap();
        assert_eq!((beacon.agent, beacon.site.0), (NEAR.agent(), NEAR.site_id));
        assert_eq!((beacon.name.as_str(), beacon.service_types[0].as_str()), ("near", "tcp-parallel"));
        assert_eq!(beacon.mac.to_string(), "02:53:00:00:01:01");
        assert!(beacon.willing && !beacon.draining);
        assert!(beacon.sequence > earlier);
        earlier = beacon.sequence;
    }
}
