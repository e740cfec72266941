use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Act {
    Prepare(u8, u8),
    Arrive(u8),
    Finish(u8),
    Release(u8),
    Acknowledge(u8),
    Pass(u16),
}

fn act() -> impl Strategy<Value = Act> {
    let number = 0u8..6;
    prop_oneof![
        (number.clone(), 0u8..6).prop_map(|(number, client)| Act::Prepare(number, client)),
        number.clone().prop_map(Act::Arrive),
        number.clone().prop_map(Act::Finish),
        number.clone().prop_map(Act::Release),
        number.prop_map(Act::Acknowledge),
        (0u16..3_000).prop_map(Act::Pass),
    ]
}

proptest! {
    /// After all sessions have ended and all timeouts have expired, no state is left. The end of every session for which a controller got
    /// Ready has been reported to this controller, unless the controller released the session.
    #[test]
    fn every_promised_session_is_reported_ended(acts in prop::collection::vec(act(), 0..60)) {
        let mut world = World::new();
        let (mut running, mut promised, mut told) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for act in acts {
            let told_now = match act {
                Act::Prepare(number, client) => {
                    let order = Prepare { client: prepare(client).client, lease_ms: 2_000, ..prepare(number) };
                    let answers = world.order(CONTROLLER, OrderBody::Prepare(order));
                    promised.insert(uuid(number));
                    ended(&answers)
                }
                Act::Arrive(client) => {
                    let now = world.now();
                    let arrived = world.protocol.begin_arriving(flow(&prepare(client)), now);
                    running.extend(arrived.map(|preparation| preparation.prepare.session));
                    Vec::new()
                }
                Act::Finish(number) => {
                    running.remove(&uuid(number));
                    let orders = world.with(|protocol, env| protocol.finish((uuid(number), near()), outcome(), env));
                    ended(&world.read(&orders))
                }
                Act::Release(number) => {
                    world.order(CONTROLLER, OrderBody::Release(uuid(number)));
                    if !running.contains(&uuid(number)) {
                        promised.remove(&uuid(number));
                    }
                    Vec::new()
                }
                Act::Acknowledge(number) => {
                    world.order(CONTROLLER, OrderBody::EndedAck(uuid(number)));
                    Vec::new()
                }
                Act::Pass(millis) => ended(&world.pass(Duration::from_millis(millis.into()))),
            };
            told.extend(told_now.into_iter().map(|(session, _)| session));
        }
        for session in running {
            let orders = world.with(|protocol, env| protocol.finish((session, near()), outcome(), env));
            told.extend(ended(&world.read(&orders)).into_iter().map(|(session, _)| session));
        }
        for _ in 0..8 {
            told.extend(ended(&world.pass(Duration::from_secs(4))).into_iter().map(|(session, _)| session));
        }
        prop_assert!(promised.is_subset(&told), "{promised:?} {told:?}");
        prop_assert_eq!(world.protocol.counts().0, 0);
        prop_assert!(world.protocol.running.counts() == (0, 0) && world.protocol.ends.is_empty());
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut world = World::new();
        prop_assert!(world.with(|protocol, env| protocol.handle(&bytes, env)).is_err());
    }
}
