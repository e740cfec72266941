//! Orders at a site whose switches rewrite addresses and ports (spec/node-config.md clause 25).

use super::*;

#[test]
fn a_rewritten_clients_source_identifies_its_preparation() {
    let mut world = World::new();
    let (one, other) = (prepare(1), prepare(2));
    for each in [&one, &other] {
        assert_eq!(world.prepare(each), OrderBody::Ready(each.session));
    }
    let now = world.now();
    let found = world.with(|protocol, _| protocol.begin_rewritten(one.client, now)).unwrap();
    assert_eq!((found.flow(), found.prepare.session), (flow(&one), one.session));
    assert!(
        world.with(|protocol, _| protocol.begin_rewritten(one.client, now)).is_none(),
        "a preparation is taken once"
    );
    let stranger = "10.0.0.12:40002".parse().unwrap();
    assert!(world.with(|protocol, _| protocol.begin_rewritten(stranger, now)).is_none());
    let late = now + Duration::from_secs(6);
    assert!(
        world.with(|protocol, _| protocol.begin_rewritten(other.client, late)).is_none(),
        "the preparation has expired"
    );
}

#[test]
fn a_rewritten_client_with_two_preparations_matches_neither() {
    let mut world = World::new();
    let (one, mut other) = (prepare(1), prepare(2));
    (other.client, other.server) = (one.client, "10.0.0.140:5003".parse().unwrap());
    for each in [&one, &other] {
        assert_eq!(world.prepare(each), OrderBody::Ready(each.session));
    }
    let now = world.now();
    assert!(world.with(|protocol, _| protocol.begin_rewritten(one.client, now)).is_none());
    assert!(world.with(|protocol, _| protocol.begin_arriving(flow(&one), now)).is_some());
    assert!(world.with(|protocol, _| protocol.begin_rewritten(one.client, now)).is_some());
}

#[test]
fn an_egress_agent_at_a_rewriting_site_refuses_its_own_ports() {
    let mut world = World::new();
    world.config.services[0].role = ServiceRole::Egress;
    let swapped = |port: u16| {
        let mut order = prepare(u8::try_from(port % 251).unwrap());
        order.role = Role::Egress;
        // The configured service has clients in 10.0.0.0/25; in the egress role these are clients of the peer site.
        order.client = format!("10.0.0.11:{port}").parse().unwrap();
        order
    };
    let refused = |world: &mut World, port| {
        matches!(world.prepare(&swapped(port)), OrderBody::Refused(_, RefuseReason::PortTaken))
    };
    let own = [9_465, 9_877, 10_000, 10_007];
    assert!(
        own.iter().all(|port| !refused(&mut world, *port)),
        "without rewriting, connections from clients' addresses may use these ports"
    );
    world.config.site.rewrite = crate::documents::config::Rewrite::OpenFlow;
    world.protocol = OrderProtocol::new(world.config.agent_id, BootId(1));
    assert!(own.iter().all(|port| refused(&mut world, *port)));
    assert!([9_466, 9_999, 10_008, 40_000].iter().all(|port| !refused(&mut world, *port)));
}
