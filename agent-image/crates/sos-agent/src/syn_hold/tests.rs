use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::syn_hold::syn::tests::{flow, packet};

const FAR: AgentId = AgentId([2; 16]);

fn syn(client_port: u16, server_port: u16) -> Syn {
    Syn::parse(&packet(flow(client_port, server_port))).unwrap()
}

fn covered(accept: Accept, number: u16) -> Covered {
    Covered { accept, peer: FAR, session: uuid(number) }
}

fn uuid(number: u16) -> SessionUuid {
    let mut uuid = [0; 16];
    uuid[..2].copy_from_slice(&number.to_be_bytes());
    SessionUuid(uuid)
}

/// Passes a SYN whose client port is also the number of its session.
fn arrive(hold: &mut SynHold, accept: Accept, client: u16, server: u16, now: Instant) -> Option<Step> {
    hold.arrive(syn(client, server), covered(accept, client), now)
}

fn take(client: u16, server: u16) -> Step {
    Step::Take(packet(flow(client, server)))
}

fn leave(client: u16, server: u16, reason: PlainReason) -> Step {
    Step::Leave(packet(flow(client, server)), reason)
}

fn is_ask(step: Option<&Step>) -> bool {
    matches!(step, Some(Step::Ask(_)))
}

#[test]
fn a_confirmed_client_is_taken_once_its_server_has_accepted() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    let asked = arrive(&mut hold, Accept::Confirmed, 1, 80, now);
    assert_eq!(
        asked,
        Some(Step::Ask(Ask {
            session: uuid(1),
            peer: FAR,
            flow: flow(1, 80),
            marks: Marks { dscp: 10, ttl: 64 }
        }))
    );
    assert_eq!(hold.claim(flow(1, 80)), None);
    assert_eq!(hold.answer(FAR, uuid(1), None, now), [take(1, 80)]);
    assert_eq!(
        arrive(&mut hold, Accept::Confirmed, 1, 80, now),
        Some(take(1, 80)),
        "a retransmission is taken: the SYN-ACK was lost"
    );
    assert_eq!(hold.answer(FAR, uuid(1), None, now), [], "a repeated answer changes nothing");
    assert_eq!(hold.claim(flow(1, 80)), Some((uuid(1), FAR)));
    assert!(hold.is_empty() && hold.of_server.is_empty());
    assert!(
        is_ask(arrive(&mut hold, Accept::Confirmed, 2, 80, now).as_ref()),
        "Confirmed asks for a known server, too"
    );
}

#[test]
fn a_refusal_makes_the_client_plain() {
    for (refusal, reason) in [
        (RefuseReason::ServerRefused, PlainReason::SERVER_REFUSED),
        (RefuseReason::ServerRejected, PlainReason::SERVER_REFUSED),
        (RefuseReason::ServerSilent, PlainReason::SERVER_SILENT),
        (RefuseReason::PortTaken, PlainReason::PORT_TAKEN),
        (RefuseReason::SessionLimit, PlainReason::SESSIONS),
    ] {
        let (mut hold, now) = (SynHold::default(), Instant::now());
        arrive(&mut hold, Accept::Learned, 1, 80, now);
        assert_eq!(
            hold.answer(AgentId([9; 16]), uuid(1), Some(refusal), now),
            [],
            "an answer of another agent is ignored"
        );
        assert_eq!(hold.answer(FAR, uuid(1), Some(refusal), now), [leave(1, 80, reason)]);
        assert!(hold.is_empty());
        assert!(is_ask(arrive(&mut hold, Accept::Learned, 2, 80, now).as_ref()), "the server is not known");
    }
}

#[test]
fn clients_of_a_learned_server_share_one_ask_and_later_clients_need_none() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    assert!(is_ask(arrive(&mut hold, Accept::Learned, 1, 80, now).as_ref()));
    assert_eq!(arrive(&mut hold, Accept::Learned, 2, 80, now), None);
    assert!(
        is_ask(arrive(&mut hold, Accept::Learned, 3, 81, now).as_ref()),
        "another server needs an ask of its own"
    );
    assert_eq!(hold.answer(FAR, uuid(1), None, now), [take(1, 80), take(2, 80)]);
    assert_eq!(hold.claim(flow(2, 80)), None, "the second client has no connection opened ahead");
    assert_eq!(arrive(&mut hold, Accept::Learned, 4, 80, now), Some(take(4, 80)));
    hold.known.forget(flow(0, 80).server);
    assert!(is_ask(arrive(&mut hold, Accept::Learned, 5, 80, now).as_ref()));
}

#[test]
fn a_silent_egress_agent_makes_the_client_plain() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive(&mut hold, Accept::Learned, 1, 80, now);
    arrive(&mut hold, Accept::Learned, 2, 80, now);
    let second = now + Duration::from_secs(1);
    assert!(is_ask(arrive(&mut hold, Accept::Learned, 1, 80, second).as_ref()), "the request may be lost");
    assert_eq!(arrive(&mut hold, Accept::Learned, 2, 80, second), None);
    assert_eq!(hold.next_timeout(), Some(now + HELD_FOR));
    let plain = |client| leave(client, 80, PlainReason::NO_ANSWER);
    assert_eq!(hold.expire(now + HELD_FOR), [Step::Release(FAR, uuid(1)), plain(1), plain(2)]);
    assert!(hold.is_empty());
    assert_eq!(
        hold.answer(FAR, uuid(1), None, second),
        [Step::Release(FAR, uuid(1))],
        "a late answer releases the connection"
    );
}

#[test]
fn an_incomplete_client_handshake_releases_the_server_connection() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive(&mut hold, Accept::Confirmed, 1, 80, now);
    hold.answer(FAR, uuid(1), None, now);
    assert_eq!(hold.expire(now + CLAIM_WITHIN), [Step::Release(FAR, uuid(1))]);
    assert!(hold.is_empty() && hold.next_timeout().is_none());
}

#[test]
fn a_flood_to_one_server_goes_plain_at_the_limit_and_leaves_slots_for_others() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    for client in 1..=3_000 {
        let step = arrive(&mut hold, Accept::Confirmed, client, 80, now);
        let full = usize::from(client) > MAX_OF_SERVER;
        assert_eq!(step == Some(leave(client, 80, PlainReason::FULL)), full, "{client}");
    }
    assert!(is_ask(arrive(&mut hold, Accept::Confirmed, 4_000, 81, now).as_ref()));
    for port in 82..3_000 {
        arrive(&mut hold, Accept::Confirmed, 5_000 + port, port, now);
    }
    assert_eq!(hold.len(), MAX_HELD);
    let plain = Some(leave(9_999, 4_000, PlainReason::FULL));
    assert_eq!(arrive(&mut hold, Accept::Learned, 9_999, 4_000, now), plain);
    hold.expire(now + HELD_FOR);
    assert!(hold.is_empty() && hold.of_server.is_empty() && hold.shared.is_empty());
}

#[derive(Debug, Clone)]
enum Event {
    Arrive(bool, u16, u16),
    Answer(u16, bool),
    Claim(u16, u16),
    Fail(u16),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let number = || 1u16..40;
    prop_oneof![
        4 => (any::<bool>(), 1u16..20, 80u16..84).prop_map(|(learned, c, s)| Event::Arrive(learned, c, s)),
        3 => (number(), any::<bool>()).prop_map(|(number, accepted)| Event::Answer(number, accepted)),
        2 => (1u16..20, 80u16..84).prop_map(|(c, s)| Event::Claim(c, s)),
        1 => number().prop_map(Event::Fail),
        1 => (0u64..3_000).prop_map(Event::Wait),
    ]
}

proptest! {
    #[test]
    fn each_held_syn_is_written_back_once(events in prop::collection::vec(event(), 0..120)) {
        let (mut hold, mut now, mut number) = (SynHold::default(), Instant::now(), 0);
        let mut waiting = BTreeSet::new();
        for event in events {
            let steps = match event {
                Event::Arrive(learned, client, server) => {
                    number += 1;
                    let accept = if learned { Accept::Learned } else { Accept::Confirmed };
                    let step = hold.arrive(syn(client, server), covered(accept, number), now);
                    if matches!(step, None | Some(Step::Ask(_))) {
                        waiting.insert(flow(client, server));
                    }
                    step.into_iter().filter(|step| matches!(step, Step::Ask(_))).collect()
                }
                Event::Answer(number, accepted) => {
                    let refused = (!accepted).then_some(RefuseReason::ServerRefused);
                    hold.answer(FAR, uuid(number), refused, now)
                }
                Event::Claim(client, server) => {
                    hold.claim(flow(client, server));
                    Vec::new()
                }
                Event::Fail(number) => hold.fail(uuid(number)),
                Event::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    hold.expire(now)
                }
            };
            for step in steps {
                if let Step::Take(packet) | Step::Leave(packet, _) = step {
                    prop_assert!(waiting.remove(&Syn::parse(&packet).unwrap().flow), "only a held SYN is reinjected, and only once");
                }
            }
            prop_assert_eq!(waiting.iter().copied().collect::<Vec<_>>(), hold.held.keys().copied().collect::<Vec<_>>());
            let counted: usize = hold.of_server.values().sum();
            prop_assert_eq!(counted, hold.len());
            let asked: usize = hold.asked.values().map(|asked| asked.waiting.len()).sum();
            prop_assert_eq!(asked, hold.held.len());
        }
        hold.expire(now + HELD_FOR + CLAIM_WITHIN);
        prop_assert!(hold.is_empty() && hold.of_server.is_empty() && hold.shared.is_empty() && hold.asked.is_empty());
    }
}
