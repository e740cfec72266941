use std::collections::BTreeSet;

use sos_wire::{Congestion, Key, KeyFile, KeyId};

use super::*;
use crate::documents::config::Role as ServiceRole;
use crate::documents::config::tests::config;

mod accept;
mod properties;
mod rewrite;
mod watch;

const CONTROLLER: ControllerId = ControllerId(7);

struct World {
    config: AgentConfig,
    keys: AgentKeys,
    health: Health,
    live: BTreeSet<AgentId>,
    unreachable: Unreachable,
    start: Instant,
    elapsed: Duration,
    sequence: u64,
    protocol: OrderProtocol,
}

fn site_key() -> Key {
    Key::new([9; 32])
}

impl World {
    fn new() -> Self {
        let config = config();
        let mut keys = AgentKeys::default();
        keys.insert(KeyFile::OwnSite(KeyId::new(1).unwrap()), site_key());
        let protocol = OrderProtocol::new(config.agent_id, BootId(1));
        let health = Health { draining: false, backup: false, sessions: 0, memory_bytes: 0 };
        let live = BTreeSet::from([config.peers[0].agents[0].id]);
        Self {
            config,
            keys,
            health,
            live,
            unreachable: Unreachable::default(),
            start: Instant::now(),
            elapsed: Duration::ZERO,
            sequence: 0,
            protocol,
        }
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut OrderProtocol, &Env<'_>) -> T) -> T {
        let env = Env {
            config: &self.config,
            keys: &self.keys,
            health: self.health,
            live: &self.live,
            unreachable: &self.unreachable,
            can_bind: |client, _| client.port() != TAKEN,
            now: self.start + self.elapsed,
            unix_ms: 1_000_000 + u64::try_from(self.elapsed.as_millis()).unwrap(),
        };
        let result = act(&mut self.protocol, &env);
        self.protocol.assert_invariants();
        result
    }

    fn datagram(&mut self, controller: ControllerId, body: OrderBody) -> Vec<u8> {
        self.sequence += 1;
        let header = OrderHeader {
            key_id: KeyId::new(1).unwrap(),
            controller,
            agent: self.config.agent_id,
            boot: BootId(100),
            sequence: self.sequence,
            time_ms: 1_000_000,
            reply_to: 0,
        };
        Order { header, body }.encode(&site_key().order_to_agent(self.config.agent_id)).unwrap()
    }

    /// Sends an order and returns the answers.
    fn order(&mut self, controller: ControllerId, body: OrderBody) -> Vec<Order> {
        let datagram = self.datagram(controller, body);
        let handled = self.with(|protocol, env| protocol.handle(&datagram, env)).unwrap();
        self.read(&handled.answers)
    }

    fn prepare(&mut self, prepare: &Prepare) -> OrderBody {
        self.order(CONTROLLER, OrderBody::Prepare(prepare.clone())).pop().unwrap().body
    }

    /// Prepares a session with number 1 at this agent as egress agent.
    fn prepare_egress(&mut self) -> Prepare {
        self.config.services[0].role = ServiceRole::Egress;
        self.config.services[0].to = vec!["10.0.0.0/25".parse().unwrap()];
        let egress = Prepare {
            role: Role::Egress,
            client: "10.0.0.139:4000".parse().unwrap(),
            server: "10.0.0.11:22".parse().unwrap(),
            ..prepare(1)
        };
        assert_eq!(self.prepare(&egress), OrderBody::Ready(uuid(1)));
        egress
    }

    fn read(&self, datagrams: &[Vec<u8>]) -> Vec<Order> {
        let key = site_key().order_to_controller(self.config.agent_id);
        datagrams.iter().map(|bytes| UnverifiedOrder::parse(bytes).unwrap().verify(&key).unwrap()).collect()
    }

    fn pass(&mut self, time: Duration) -> Vec<Order> {
        self.elapsed += time;
        let datagrams = self.with(OrderProtocol::poll);
        self.read(&datagrams)
    }

    fn now(&self) -> Instant {
        self.start + self.elapsed
    }
}

fn uuid(number: u8) -> SessionUuid {
    SessionUuid([number; 16])
}

fn prepare(number: u8) -> Prepare {
    Prepare {
        session: uuid(number),
        role: Role::Ingress,
        streams: 0,
        block_bytes: 0,
        queue_bytes: 0,
        lease_ms: 5_000,
        client: format!("10.0.0.11:{}", 40_000 + u16::from(number)).parse().unwrap(),
        server: "10.0.0.139:5003".parse().unwrap(),
        labels: 1,
        congestion: Congestion::Auto,
        accept: sos_wire::Accept::Early,
        marks: sos_wire::Marks::default(),
        peer: "ad030578ad55bf67de8f32bef31dd55b".parse().unwrap(),
        peer_address: "10.0.0.254".parse().unwrap(),
        peer_stream_port: 10_000,
    }
}

/// Party of the sessions that [`prepare`] describes.
fn near() -> Party {
    Party::of(&prepare(0))
}

fn flow(prepare: &Prepare) -> FlowKey {
    FlowKey { client: prepare.client, server: prepare.server }
}

fn outcome() -> Outcome {
    Outcome { reason: EndReason::Finished, bytes_up: 5, bytes_down: 6, duration: Duration::from_millis(7) }
}

fn ended(orders: &[Order]) -> Vec<(SessionUuid, EndReason)> {
    let end = |order: &Order| match &order.body {
        OrderBody::Ended(ended) => Some((ended.session, ended.reason)),
        _ => None,
    };
    orders.iter().filter_map(end).collect()
}

fn reported(orders: &[Order]) -> Vec<(ControllerId, Vec<SessionUuid>)> {
    let report = |order: &Order| match &order.body {
        OrderBody::SessionReport(report) => Some((order.header.controller, report.sessions.clone())),
        _ => None,
    };
    orders.iter().filter_map(report).collect()
}

#[test]
fn a_preparation_serves_only_one_arrival_of_its_client() {
    let mut world = World::new();
    let datagram = world.datagram(CONTROLLER, OrderBody::Prepare(prepare(1)));
    let handled = world.with(|protocol, env| protocol.handle(&datagram, env)).unwrap();
    assert_eq!(handled.prepared, Some(prepare(1)));
    let answer = world.read(&handled.answers).pop().unwrap();
    assert_eq!(answer.body, OrderBody::Ready(uuid(1)));
    assert_eq!((answer.header.controller, answer.header.reply_to), (CONTROLLER, 1));
    let now = world.now();
    assert_eq!(world.protocol.begin_arriving(flow(&prepare(2)), now), None);
    let preparation = world.protocol.begin_arriving(flow(&prepare(1)), now).unwrap();
    assert_eq!((preparation.prepare.session, preparation.peer_site.as_str()), (uuid(1), "east"));
    assert_eq!(world.protocol.begin_arriving(flow(&prepare(1)), now), None);
}

#[test]
fn a_repeated_prepare_changes_nothing_and_is_answered_again() {
    let mut world = World::new();
    assert_eq!(world.prepare(&prepare(1)), OrderBody::Ready(uuid(1)));
    let other = Prepare { lease_ms: 60_000, ..prepare(1) };
    assert_eq!(world.prepare(&other), OrderBody::Ready(uuid(1)));
    assert_eq!(ended(&world.pass(Duration::from_secs(5))), [(uuid(1), EndReason::PreparationExpired)]);
    let now = world.now();
    assert_eq!(world.prepare(&prepare(2)), OrderBody::Ready(uuid(2)));
    world.protocol.begin_arriving(flow(&prepare(2)), now).unwrap();
    assert_eq!(
        world.prepare(&prepare(2)),
        OrderBody::Ready(uuid(2)),
        "a Prepare is answered with Ready while its session runs"
    );
}

#[test]
fn the_later_of_two_preparations_for_one_client_replaces_the_earlier() {
    let mut world = World::new();
    world.prepare(&prepare(1));
    let later = Prepare { session: uuid(2), ..prepare(1) };
    let answers = world.order(CONTROLLER, OrderBody::Prepare(later));
    assert_eq!(ended(&answers), [(uuid(1), EndReason::PreparationExpired)]);
    let now = world.now();
    assert_eq!(world.protocol.begin_arriving(flow(&prepare(1)), now).unwrap().prepare.session, uuid(2));
}

/// Client port that the agent cannot bind in these tests.
const TAKEN: u16 = 7;

#[test]
fn an_egress_agent_refuses_a_client_whose_port_is_taken() {
    let mut world = World::new();
    world.config.services[0].role = ServiceRole::Egress;
    let mut taken =
        Prepare { role: Role::Egress, client: format!("10.0.0.11:{TAKEN}").parse().unwrap(), ..prepare(1) };
    assert_eq!(world.prepare(&taken), OrderBody::Refused(uuid(1), RefuseReason::PortTaken));
    taken.client.set_port(TAKEN + 1);
    assert_eq!(world.prepare(&taken), OrderBody::Ready(uuid(1)));
}

#[test]
fn a_prepare_is_refused_with_the_reason() {
    type Change = fn(&mut World, &mut Prepare);
    let cases: [(RefuseReason, Change); 11] = [
        (RefuseReason::Draining, |w, _| w.health.draining = true),
        (RefuseReason::SessionLimit, |w, _| w.health.sessions = 4_096),
        (RefuseReason::MemoryLimit, |w, _| w.health.memory_bytes = 1 << 40),
        (RefuseReason::UnknownPeer, |_, p| p.peer = AgentId([3; 16])),
        (RefuseReason::UnknownPeer, |_, p| p.peer_address = "10.0.0.253".parse().unwrap()),
        (RefuseReason::UnknownPeer, |_, p| p.peer_stream_port = 10_001),
        (RefuseReason::UnknownPeer, |w, _| w.live.clear()),
        (RefuseReason::NotPermitted, |_, p| p.server = "10.0.0.139:81".parse().unwrap()),
        (RefuseReason::NotPermitted, |_, p| p.client = "10.0.0.200:1".parse().unwrap()),
        (RefuseReason::NotPermitted, |_, p| p.role = Role::Egress),
        (RefuseReason::ServerUnreachable, |w, p| w.unreachable.note(p.server, w.start)),
    ];
    for (reason, change) in cases {
        let (mut world, mut prepare) = (World::new(), prepare(1));
        change(&mut world, &mut prepare);
        assert_eq!(world.prepare(&prepare), OrderBody::Refused(uuid(1), reason));
        assert_eq!(world.protocol.counts().0, 0);
    }
}

#[test]
fn foreign_and_unsigned_orders_are_dropped() {
    let mut world = World::new();
    let good = world.datagram(CONTROLLER, OrderBody::Prepare(prepare(1)));
    let mut forged = good.clone();
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(world.with(|protocol, env| protocol.handle(&forged, env)), Err(WireError::Tag.into()));
    assert_eq!(world.protocol.counts(), (0, 0), "a forged order leaves no state");
    world.with(|protocol, env| protocol.handle(&good, env)).unwrap();
    let again = world.with(|protocol, env| protocol.handle(&good, env));
    assert_eq!(again.unwrap_err().label(), "replay");

    let answer = world.datagram(CONTROLLER, OrderBody::Ready(uuid(1)));
    assert_eq!(world.with(|protocol, env| protocol.handle(&answer, env)), Err(OrderError::WrongDirection));
    let mut other = World::new();
    other.config.agent_id = AgentId([5; 16]);
    let datagram = other.datagram(CONTROLLER, OrderBody::Prepare(prepare(1)));
    assert_eq!(world.with(|protocol, env| protocol.handle(&datagram, env)), Err(OrderError::NotForUs));
}

#[test]
fn a_session_whose_preparation_has_expired_is_refused() {
    let mut world = World::new();
    let egress = world.prepare_egress();
    assert_eq!(ended(&world.pass(Duration::from_secs(6))), [(uuid(1), EndReason::PreparationExpired)]);
    let open = |world: &mut World, session| {
        let now = world.now();
        world.protocol.begin_opened(session, egress.peer, flow(&egress), now)
    };
    assert_eq!(open(&mut world, uuid(1)), Err(OpenRefusal::Expired));
    assert_eq!(
        open(&mut world, uuid(2)),
        Ok(None),
        "a session without an order is for the services to judge"
    );
}

#[test]
fn an_egress_session_must_be_the_prepared_flow() {
    let mut world = World::new();
    world.live.clear(); // an egress agent needs no stream: the ingress agent may notice the new stream earlier
    let egress = world.prepare_egress();
    let wrong = FlowKey { server: "10.0.0.12:22".parse().unwrap(), ..flow(&egress) };
    let now = world.now();
    assert_eq!(world.protocol.begin_opened(uuid(1), egress.peer, wrong, now), Err(OpenRefusal::Mismatch));
    let stranger = AgentId([0xEE; 16]);
    assert_eq!(
        world.protocol.begin_opened(uuid(1), stranger, flow(&egress), now),
        Err(OpenRefusal::Mismatch)
    );
    assert_eq!(
        world.protocol.begin_arriving(flow(&egress), now),
        None,
        "no client arrives at the egress agent"
    );
    assert_eq!(flow_policy::opened(&world.config, flow(&egress), egress.peer, None), Some(1));
    assert_eq!(world.protocol.prepared_peers().into_keys().collect::<Vec<_>>(), [egress.peer]);
    let lapsed = world.protocol.prepared_peers()[&egress.peer];
    assert_eq!(
        world.protocol.begin_opened(uuid(1), egress.peer, flow(&egress), lapsed),
        Err(OpenRefusal::Expired),
        "the preparation has expired, and is still listed"
    );
    world.config.services.clear(); // deleting the service must not end a set-up whose client the peer has already accepted
    let taken = world.protocol.begin_opened(uuid(1), egress.peer, flow(&egress), now).unwrap();
    assert_eq!(
        flow_policy::opened(&world.config, flow(&egress), egress.peer, taken.as_ref()),
        Some(egress.labels),
        "a session answered with Ready keeps its preparation"
    );
    let later = world.protocol.begin_opened(uuid(2), egress.peer, flow(&egress), now);
    assert_eq!(later, Ok(None), "a session without an order may be opened");
    assert_eq!(
        flow_policy::opened(&world.config, flow(&egress), egress.peer, None),
        None,
        "a session without an order needs a service that covers it"
    );
}

#[test]
fn finish_with_another_party_does_not_end_a_session_of_the_same_uuid() {
    let mut world = World::new();
    let (ordered, unordered) = (prepare(1), uuid(2));
    world.prepare(&ordered);
    let now = world.now();
    world.protocol.begin_arriving(flow(&ordered), now).unwrap();
    let Prepare { role, client, server, peer, .. } = prepare(2);
    world.with(|protocol, _| {
        protocol.begin_unordered(ReportedFlow { session: unordered, role, client, server, peer });
    });
    let stranger = Party { role: Role::Egress, peer: AgentId([0xEE; 16]) };
    for session in [uuid(1), unordered] {
        for party in
            [stranger, Party { role: Role::Egress, ..near() }, Party { role: Role::Ingress, ..stranger }]
        {
            let told = world.with(|protocol, env| protocol.finish((session, party), outcome(), env));
            assert!(told.is_empty());
        }
    }
    assert_eq!(world.protocol.running.counts(), (1, 1));
    for (session, told) in [(uuid(1), 1), (unordered, 0)] {
        let ends = world.with(|protocol, env| protocol.finish((session, near()), outcome(), env));
        assert_eq!(ends.len(), told);
    }
    assert_eq!(world.protocol.running.counts(), (0, 0));
}

#[test]
fn release_drops_sessions_that_have_not_begun() {
    let mut world = World::new();
    world.prepare(&prepare(1));
    world.prepare(&prepare(2));
    let now = world.now();
    world.protocol.begin_arriving(flow(&prepare(2)), now).unwrap();
    world.order(ControllerId(8), OrderBody::Release(uuid(1)));
    assert_eq!(world.protocol.counts().0, 1, "only the controller of a session may release it");
    for number in [1, 2] {
        assert!(world.order(CONTROLLER, OrderBody::Release(uuid(number))).is_empty());
    }
    assert_eq!(world.protocol.counts().0, 0);
    let told = world.with(|protocol, env| protocol.finish((uuid(2), near()), outcome(), env));
    assert_eq!(told.len(), 1, "a running session continues");
}

#[test]
fn abort_by_its_own_controller_resets_an_ingress_session() {
    let mut world = World::new();
    world.prepare(&prepare(1));
    world.prepare(&prepare(2));
    let now = world.now();
    world.protocol.begin_arriving(flow(&prepare(2)), now).unwrap();
    let mut abort = |controller, number| {
        let datagram = world.datagram(controller, OrderBody::Abort(uuid(number)));
        world.with(|protocol, env| protocol.handle(&datagram, env)).unwrap()
    };
    assert_eq!(
        abort(ControllerId(8), 2),
        Handled::default(),
        "only the controller of a session may abort it"
    );
    assert_eq!(
        abort(CONTROLLER, 1),
        Handled::default(),
        "a session that has not begun is released, not aborted"
    );
    assert_eq!(abort(CONTROLLER, 3), Handled::default());
    assert_eq!(abort(CONTROLLER, 2), Handled { aborted: Some(uuid(2)), ..Handled::default() });
}

#[test]
fn an_end_is_retransmitted_until_acknowledged() {
    let mut world = World::new();
    world.prepare(&prepare(1));
    let now = world.now();
    world.protocol.begin_arriving(flow(&prepare(1)), now).unwrap();
    let told = world.with(|protocol, env| protocol.finish((uuid(1), near()), outcome(), env));
    assert_eq!(ended(&world.read(&told)), [(uuid(1), EndReason::Finished)]);
    assert_eq!(ended(&world.pass(Duration::from_millis(200))).len(), 1);
    world.order(CONTROLLER, OrderBody::EndedAck(uuid(1)));
    assert!(ended(&world.pass(Duration::from_secs(4))).is_empty());
    let again = world.with(|protocol, env| protocol.finish((uuid(1), near()), outcome(), env));
    assert!(again.is_empty(), "a session has only one end");
}

#[test]
fn each_controller_gets_reports_of_its_own_sessions() {
    let mut world = World::new();
    world.order(ControllerId(8), OrderBody::Prepare(prepare(2)));
    for number in 10..110 {
        world.prepare(&prepare(number));
    }
    let now = world.now();
    for number in 10..110 {
        world.protocol.begin_arriving(flow(&prepare(number)), now).unwrap();
    }
    world.order(ControllerId(8), OrderBody::Release(uuid(2)));
    let orders = world.pass(REPORT_INTERVAL);
    let reports = reported(&orders);
    let of = |id| reports.iter().filter(move |(to, _)| *to == ControllerId(id));
    assert_eq!(
        of(8).map(|(_, sessions)| sessions.len()).collect::<Vec<_>>(),
        [0],
        "an empty report is one chunk"
    );
    assert_eq!(of(7).map(|(_, sessions)| sessions.len()).collect::<Vec<_>>(), [64, 36]);
    let all: BTreeSet<_> = of(7).flat_map(|(_, sessions)| sessions.clone()).collect();
    assert_eq!(all.len(), 100);
    assert!(reported(&world.pass(REPORT_INTERVAL - Duration::from_millis(1))).is_empty());
    assert_eq!(reported(&world.pass(Duration::from_millis(1))).len(), 3);
}

#[test]
fn keeps_sixteen_controllers_and_evicts_idle_ones_first() {
    let mut world = World::new();
    for id in 0..16 {
        world.elapsed += Duration::from_millis(1);
        let number = u8::try_from(id).unwrap();
        world.order(ControllerId(id), OrderBody::Prepare(Prepare { lease_ms: 60_000, ..prepare(number) }));
    }
    let datagram = world.datagram(ControllerId(16), OrderBody::Prepare(prepare(16)));
    let full = world.with(|protocol, env| protocol.handle(&datagram, env));
    assert_eq!(full, Err(OrderError::TooManyControllers));
    world.order(ControllerId(3), OrderBody::Release(uuid(3)));
    world.order(ControllerId(16), OrderBody::Prepare(prepare(16)));
    assert!(!world.protocol.controllers.contains_key(&ControllerId(3)));
    assert_eq!(world.protocol.counts(), (16, 16));
}
