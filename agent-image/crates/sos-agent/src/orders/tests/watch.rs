//! Reports for watching controllers only (spec/order.md clauses 11 to 13).

use sos_wire::PathReport;

use super::*;

fn reported_flows(orders: &[Order]) -> Vec<SessionUuid> {
    let report = |order: &Order| match &order.body {
        OrderBody::FlowReport(report) => {
            Some(report.flows.iter().map(|flow| flow.session).collect::<Vec<_>>())
        }
        _ => None,
    };
    orders.iter().filter_map(report).flatten().collect()
}

fn unordered(number: u8) -> ReportedFlow {
    let Prepare { session, role, client, server, peer, .. } = prepare(number);
    ReportedFlow { session, role, client, server, peer }
}

#[test]
fn unordered_sessions_are_reported_to_watching_controllers() {
    let mut world = World::new();
    let other = ControllerId(8);
    world.order(other, OrderBody::Release(uuid(200)));
    for number in 0..20 {
        world.with(|protocol, _| protocol.begin_unordered(unordered(number)));
    }
    let all: Vec<_> = (0..20).map(uuid).collect();
    let first = world.order(CONTROLLER, OrderBody::Watch);
    assert_eq!(first.len(), 2, "sixteen flows fit a datagram");
    assert_eq!(reported_flows(&first), all, "the first Watch is answered immediately");
    assert!(world.order(CONTROLLER, OrderBody::Watch).is_empty());
    world.with(|protocol, env| protocol.finish((uuid(0), near()), outcome(), env));
    let due = world.pass(REPORT_INTERVAL);
    assert_eq!(reported_flows(&due), all[1..]);
    assert!(due.iter().all(|order| order.header.controller == CONTROLLER
        || reported_flows(std::slice::from_ref(order)).is_empty()));
    for number in 1..20 {
        world.with(|protocol, env| protocol.finish((uuid(number), near()), outcome(), env));
    }
    let empty = world.pass(REPORT_INTERVAL);
    assert!(
        empty
            .iter()
            .any(|order| matches!(&order.body, OrderBody::FlowReport(report) if report.flows.is_empty()))
    );
    let later = world.pass(WATCHED_FOR);
    assert!(
        !later.iter().any(|order| matches!(order.body, OrderBody::FlowReport(_))),
        "the watch has expired"
    );
}

#[test]
fn paths_are_reported_to_watching_controllers_only() {
    let mut world = World::new();
    let report = PathReport { sampled_ms: 7, paths: Vec::new(), services: Vec::new() };
    let reports = [report.clone(), PathReport { sampled_ms: 8, ..report }];
    world.prepare(&prepare(1));
    let now = world.now();
    assert!(!world.protocol.is_watched(now));
    assert!(world.with(|protocol, env| protocol.tell_paths(&reports, env)).is_empty());
    world.order(ControllerId(8), OrderBody::Watch);
    assert!(world.protocol.is_watched(now));
    let told = world.with(|protocol, env| protocol.tell_paths(&reports, env));
    let told = world.read(&told);
    assert!(told.iter().all(|order| order.header.controller == ControllerId(8)));
    let bodies: Vec<_> = told.into_iter().map(|order| order.body).collect();
    assert_eq!(bodies, reports.map(OrderBody::PathReport));
    world.pass(WATCHED_FOR);
    let now = world.now();
    assert!(!world.protocol.is_watched(now));
}
