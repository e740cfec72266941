//! Preparations whose Ready waits for the server (spec/order.md clauses 3 and 4).

use sos_wire::Accept;

use super::*;

fn egress(number: u8) -> Prepare {
    Prepare {
        role: Role::Egress,
        client: format!("10.0.0.139:{}", 4_000 + u16::from(number)).parse().unwrap(),
        server: "10.0.0.11:22".parse().unwrap(),
        accept: Accept::Confirmed,
        marks: sos_wire::Marks { dscp: 46, ttl: 64 },
        ..prepare(number)
    }
}

fn far() -> World {
    let mut world = World::new();
    world.config.services[0].role = ServiceRole::Egress;
    world.config.services[0].to = vec!["10.0.0.0/25".parse().unwrap()];
    world
}

fn bodies(world: &World, told: &Option<Vec<u8>>) -> Vec<(u64, OrderBody)> {
    world.read(told.as_slice()).into_iter().map(|order| (order.header.reply_to, order.body)).collect()
}

#[test]
fn the_answer_comes_when_the_server_has_accepted() {
    let mut world = far();
    let datagram = world.datagram(CONTROLLER, OrderBody::Prepare(egress(1)));
    let handled = world.with(|protocol, env| protocol.handle(&datagram, env)).unwrap();
    assert_eq!((handled.answers.len(), handled.prepared), (0, Some(egress(1))));
    let again = world.datagram(CONTROLLER, OrderBody::Prepare(egress(1)));
    let again = world.with(|protocol, env| protocol.handle(&again, env)).unwrap();
    assert_eq!(again, Handled::default(), "a repeated order sends no answer and opens no second connection");
    let told = world.with(|protocol, env| protocol.server_accepted(uuid(1), env));
    assert_eq!(bodies(&world, &told), [(1, OrderBody::Accepted(uuid(1)))]);
    assert_eq!(
        world.prepare(&egress(1)),
        OrderBody::Accepted(uuid(1)),
        "a repeated order is answered after the server has accepted"
    );
    assert_eq!(world.with(|protocol, env| protocol.server_accepted(uuid(1), env)), None);
    let now = world.now();
    assert!(world.protocol.begin_opened(uuid(1), egress(1).peer, flow(&egress(1)), now).unwrap().is_some());
}

#[test]
fn a_refusal_of_the_server_ends_the_preparation() {
    let mut world = far();
    world.order(CONTROLLER, OrderBody::Prepare(egress(1)));
    let told = world.with(|protocol, env| protocol.server_refused(uuid(1), RefuseReason::ServerRefused, env));
    assert_eq!(bodies(&world, &told), [(1, OrderBody::Refused(uuid(1), RefuseReason::ServerRefused))]);
    assert_eq!(world.protocol.counts().0, 0);
    assert!(
        ended(&world.pass(Duration::from_secs(10))).is_empty(),
        "no Ready was sent, so no end is reported"
    );
}

#[test]
fn a_server_is_not_reported_once_its_preparation_is_gone() {
    for release in [true, false] {
        let mut world = far();
        world.order(CONTROLLER, OrderBody::Prepare(egress(1)));
        if release {
            world.order(CONTROLLER, OrderBody::Release(uuid(1)));
        } else {
            world.pass(Duration::from_secs(5));
        }
        assert!(!world.protocol.stands(uuid(1)), "the server connection closes with its preparation");
        assert_eq!(world.with(|protocol, env| protocol.server_accepted(uuid(1), env)), None);
        let late =
            world.with(|protocol, env| protocol.server_refused(uuid(1), RefuseReason::ServerSilent, env));
        assert_eq!(late, None);
    }
}

#[test]
fn connections_that_wait_for_their_sessions_count_as_sessions() {
    let mut world = far();
    world.config.limits.sessions = 16;
    for number in 0..15 {
        world.order(CONTROLLER, OrderBody::Prepare(egress(number)));
    }
    let refused = OrderBody::Refused(uuid(15), RefuseReason::SessionLimit);
    assert_eq!(world.prepare(&egress(15)), refused);
    world.order(CONTROLLER, OrderBody::Release(uuid(3)));
    assert!(
        world.order(CONTROLLER, OrderBody::Prepare(egress(15))).is_empty(),
        "a released preparation frees a session"
    );
}

#[test]
fn only_the_egress_agent_asks_the_server() {
    let mut world = World::new();
    let near = Prepare { accept: Accept::Confirmed, ..prepare(1) };
    assert_eq!(world.prepare(&near), OrderBody::Ready(uuid(1)));
}

#[test]
fn the_controller_of_a_session_gets_a_report_of_its_silent_server() {
    let mut world = far();
    let early = Prepare { accept: Accept::Early, ..egress(1) };
    let party = Party { role: Role::Egress, peer: early.peer };
    assert_eq!(world.prepare(&early), OrderBody::Ready(uuid(1)));
    assert_eq!(world.with(|protocol, env| protocol.server_silent((uuid(1), party), env)), None);
    let now = world.now();
    world.protocol.begin_opened(uuid(1), early.peer, flow(&early), now).unwrap().unwrap();
    let told = world.with(|protocol, env| protocol.server_silent((uuid(1), party), env));
    assert_eq!(bodies(&world, &told), [(0, OrderBody::Refused(uuid(1), RefuseReason::ServerSilent))]);
}
