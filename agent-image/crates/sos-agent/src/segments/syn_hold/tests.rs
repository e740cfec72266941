use std::collections::BTreeSet;

use proptest::prelude::*;

use sos_wire::{Marks, ServiceMark};

use super::*;
use crate::segments::syn_hold::client_backoff::{FIRST, Source};
use crate::segments::syn_hold::handshakes::EXAMINE_AFTER;
use crate::segments::syn_hold::plain_path::Check;
use crate::segments::syn_hold::syn::tests::{flow, packet};

const FAR: AgentId = AgentId([2; 16]);

fn syn(client_port: u16, server_port: u16) -> Syn {
    Syn::parse(&packet(flow(client_port, server_port))).unwrap()
}

fn covered(accept: Accept, number: u16) -> Covered {
    let (service, source) = (ServiceMark([1; 8]), Source::Mac([1; 6]));
    Covered { service, source, accept, peer: FAR, session: uuid(number), check: None, beside: true }
}

fn uuid(number: u16) -> SessionUuid {
    let mut uuid = [0; 16];
    uuid[..2].copy_from_slice(&number.to_be_bytes());
    SessionUuid(uuid)
}

/// Passes a SYN whose client port is also the number of its session.
fn arrive(hold: &mut SynHold, accept: Accept, client: u16, server: u16, now: Instant) -> Option<Step> {
    let mut steps = hold.arrive(syn(client, server), covered(accept, client), now);
    assert!(steps.len() <= 1, "{steps:?}");
    steps.pop()
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
    assert_eq!(hold.expire(now + EXAMINE_AFTER), [Step::Examine(flow(1, 80))]);
    hold.examined(flow(1, 80), false);
    assert_eq!(hold.expire(now + COMPLETE_WITHIN), [Step::Release(FAR, uuid(1))]);
    assert!(hold.is_empty() && hold.of_server.is_empty() && hold.next_timeout().is_none());
}

#[test]
fn a_client_without_a_completed_handshake_is_plain_with_every_accept_setting() {
    for accept in [Accept::Early, Accept::Learned, Accept::Confirmed] {
        let (mut hold, now) = (SynHold::default(), Instant::now());
        hold.known.note(flow(0, 80).server, now);
        let taken = match arrive(&mut hold, accept, 1, 80, now) {
            Some(Step::Ask(_)) => hold.answer(FAR, uuid(1), None, now),
            step => step.into_iter().collect(),
        };
        assert_eq!(taken, [take(1, 80)], "{accept:?}");
        assert_eq!(hold.expire(now + EXAMINE_AFTER), [Step::Examine(flow(1, 80))]);
        hold.examined(flow(1, 80), true);
        let over = now + COMPLETE_WITHIN;
        let other = now + Duration::from_secs(7);
        let held = arrive(&mut hold, Accept::Confirmed, 2, 80, other);
        assert!(is_ask(held.as_ref()), "not plain yet");
        let steps = hold.expire(over);
        assert!(matches!(steps[0], Step::Reset(_)), "{steps:?}");
        let released = (accept == Accept::Confirmed).then_some(Step::Release(FAR, uuid(1)));
        assert_eq!(steps[1..], released.into_iter().collect::<Vec<_>>());
        let silent = |client| leave(client, 80, PlainReason::CLIENT_SILENT);
        assert_eq!(arrive(&mut hold, accept, 1, 80, over), Some(silent(1)));
        let steps = hold.arrive(syn(2, 80), covered(accept, 2), over);
        assert_eq!(steps, [silent(2), Step::Release(FAR, uuid(2))], "a held SYN is not held any longer");
        assert!(hold.is_empty() && hold.of_server.is_empty());
        assert_ne!(arrive(&mut hold, accept, 1, 80, over + FIRST), Some(silent(1)));
    }
}

#[test]
fn a_retransmission_of_a_silent_client_resets_and_releases_its_earlier_connection() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive(&mut hold, Accept::Early, 1, 80, now);
    let later = now + Duration::from_secs(7);
    arrive(&mut hold, Accept::Confirmed, 2, 80, later);
    assert_eq!(hold.answer(FAR, uuid(2), None, later), [take(2, 80)]);
    hold.expire(now + EXAMINE_AFTER);
    hold.expire(now + COMPLETE_WITHIN);
    let steps = hold.arrive(syn(2, 80), covered(Accept::Confirmed, 2), now + COMPLETE_WITHIN);
    assert!(matches!(steps[0], Step::Reset(_)), "{steps:?}");
    assert_eq!(steps[1..], [leave(2, 80, PlainReason::CLIENT_SILENT), Step::Release(FAR, uuid(2))]);
    assert!(hold.is_empty() && hold.next_timeout().is_none());
}

#[test]
fn a_completed_handshake_leaves_nothing_behind() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive(&mut hold, Accept::Early, 1, 80, now);
    hold.completed(flow(1, 80));
    assert!(hold.next_timeout().is_none());
    assert_eq!(arrive(&mut hold, Accept::Early, 1, 80, now), Some(take(1, 80)), "the ports are used again");
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

/// Sequence number of checks in these tests.
const SEQUENCE: u32 = 41;

fn arrive_with_check(
    hold: &mut SynHold,
    accept: Accept,
    client: u16,
    server: u16,
    now: Instant,
) -> Vec<Step> {
    hold.arrive(syn(client, server), Covered { check: Some(SEQUENCE), ..covered(accept, client) }, now)
}

fn answer(server: u16, refused: bool) -> Answer {
    Answer { path: path(flow(0, server)), acknowledged: SEQUENCE + 1, refused }
}

fn check(server: u16) -> Step {
    Step::Check(Check { path: path(flow(0, server)), sequence: SEQUENCE })
}

#[test]
fn an_answered_check_takes_the_place_of_the_request_with_learned() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    assert_eq!(arrive_with_check(&mut hold, Accept::Learned, 1, 80, now), [check(80)]);
    assert_eq!(arrive_with_check(&mut hold, Accept::Learned, 1, 80, now), [], "a retransmission");
    assert_eq!(
        arrive_with_check(&mut hold, Accept::Learned, 2, 80, now),
        [],
        "a second client of the same path"
    );
    assert_eq!(hold.len(), 2);
    assert_eq!(hold.checked(answer(80, false), now), [take(1, 80), take(2, 80)]);
    assert!(hold.is_empty() && hold.of_server.is_empty());
    assert_eq!(arrive_with_check(&mut hold, Accept::Learned, 3, 80, now), [take(3, 80)], "open");
}

#[test]
fn an_egress_agent_that_is_not_beside_the_server_is_asked_after_the_check() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    let elsewhere =
        |client| Covered { check: Some(SEQUENCE), beside: false, ..covered(Accept::Learned, client) };
    assert_eq!(hold.arrive(syn(1, 80), elsewhere(1), now), [check(80)]);
    assert!(is_ask(hold.checked(answer(80, false), now).first()));
    assert_eq!(
        hold.answer(FAR, uuid(1), Some(RefuseReason::PortTaken), now),
        [leave(1, 80, PlainReason::PORT_TAKEN)]
    );
    assert!(is_ask(hold.arrive(syn(2, 80), elsewhere(2), now).first()), "the server is still unknown");
    assert_eq!(hold.answer(FAR, uuid(2), None, now), [take(2, 80)]);
    assert_eq!(hold.arrive(syn(3, 80), elsewhere(3), now), [take(3, 80)], "the server is known");
}

#[test]
fn confirmed_asks_after_the_check_and_early_takes_after_the_check() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    assert_eq!(arrive_with_check(&mut hold, Accept::Confirmed, 1, 80, now), [check(80)]);
    assert_eq!(arrive_with_check(&mut hold, Accept::Early, 2, 81, now), [check(81)]);
    assert!(is_ask(hold.checked(answer(80, false), now).first()));
    assert_eq!(hold.answer(FAR, uuid(1), None, now), [take(1, 80)]);
    assert_eq!(hold.checked(answer(81, false), now), [take(2, 81)]);
}

#[test]
fn an_open_path_is_checked_again_without_delay() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive_with_check(&mut hold, Accept::Learned, 1, 80, now);
    hold.checked(answer(80, false), now);
    let later = now + plain_path::CHECK_AGAIN_AFTER;
    assert_eq!(arrive_with_check(&mut hold, Accept::Learned, 2, 80, later), [check(80), take(2, 80)]);
    assert_eq!(hold.checked(answer(80, true), later), [], "nothing waits");
    assert_eq!(
        arrive_with_check(&mut hold, Accept::Learned, 3, 80, later),
        [check(80)],
        "the policy has changed"
    );
    assert_eq!(hold.checked(answer(80, true), later), [leave(3, 80, PlainReason::SERVER_REFUSED)]);
}

#[test]
fn a_silent_path_makes_its_clients_plain_and_no_egress_agent_is_asked() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive_with_check(&mut hold, Accept::Confirmed, 1, 80, now);
    arrive_with_check(&mut hold, Accept::Confirmed, 2, 81, now);
    hold.checked(answer(81, false), now);
    let silent = now + plain_path::ANSWER_WITHIN;
    assert_eq!(hold.expire(silent), [leave(1, 80, PlainReason::SERVER_SILENT)]);
    assert_eq!(
        arrive_with_check(&mut hold, Accept::Confirmed, 3, 80, silent),
        [leave(3, 80, PlainReason::SERVER_SILENT)],
        "plain at once"
    );
    assert_eq!(hold.answer(FAR, uuid(2), None, silent), [take(2, 81)], "another path is open");
    let again = silent + plain_path::CLOSED_FOR;
    assert_eq!(arrive_with_check(&mut hold, Accept::Confirmed, 4, 80, again), [check(80)]);
}

#[test]
fn a_policy_against_one_client_does_not_make_the_server_unknown_to_others() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    arrive_with_check(&mut hold, Accept::Learned, 1, 80, now);
    hold.checked(answer(80, false), now);
    let mut forbidden = flow(2, 80);
    forbidden.client.set_ip(std::net::Ipv4Addr::new(10, 0, 0, 12));
    let of_another_pod = Syn::parse(&packet(forbidden)).unwrap();
    hold.arrive(of_another_pod, Covered { check: Some(SEQUENCE), ..covered(Accept::Learned, 2) }, now);
    let refusal = Answer { path: path(forbidden), acknowledged: SEQUENCE + 1, refused: true };
    let plain = Step::Leave(packet(forbidden), PlainReason::SERVER_REFUSED);
    assert_eq!(hold.checked(refusal, now), [plain]);
    assert_eq!(arrive_with_check(&mut hold, Accept::Learned, 3, 80, now), [take(3, 80)]);
}

#[test]
fn a_changed_configuration_checks_a_connection_that_was_held_without_a_check() {
    let (mut hold, now) = (SynHold::default(), Instant::now());
    assert!(is_ask(arrive(&mut hold, Accept::Confirmed, 1, 80, now).as_ref()));
    let steps = arrive_with_check(&mut hold, Accept::Confirmed, 1, 80, now);
    assert_eq!(steps, [check(80), Step::Release(FAR, uuid(1))]);
    assert_eq!(hold.checked(answer(80, true), now), [leave(1, 80, PlainReason::SERVER_REFUSED)]);
    assert!(hold.is_empty() && hold.of_server.is_empty() && hold.asked.is_empty());
}

#[derive(Debug, Clone)]
enum Event {
    Arrive(bool, bool, u16, u16),
    Checked(u16, bool),
    Answer(u16, bool),
    Claim(u16, u16),
    Fail(u16),
    Wait(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let number = || 1u16..40;
    prop_oneof![
        4 => (any::<bool>(), any::<bool>(), 1u16..20, 80u16..84).prop_map(|(l, checked, c, s)| Event::Arrive(l, checked, c, s)),
        2 => (80u16..84, any::<bool>()).prop_map(|(server, refused)| Event::Checked(server, refused)),
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
                Event::Arrive(learned, checked, client, server) => {
                    number += 1;
                    let accept = if learned { Accept::Learned } else { Accept::Confirmed };
                    let parameters = Covered { check: checked.then_some(SEQUENCE), ..covered(accept, number) };
                    let steps = hold.arrive(syn(client, server), parameters, now);
                    if steps.iter().any(|step| matches!(step, Step::Take(_) | Step::Leave(..))) {
                        waiting.remove(&flow(client, server));
                    } else {
                        waiting.insert(flow(client, server));
                    }
                    Vec::new()
                }
                Event::Checked(server, refused) => hold.checked(answer(server, refused), now),
                Event::Answer(number, accepted) => {
                    let refused = (!accepted).then_some(RefuseReason::ServerRefused);
                    hold.answer(FAR, uuid(number), refused, now)
                }
                Event::Claim(client, server) => {
                    hold.claim(flow(client, server));
                    hold.completed(flow(client, server));
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
            let held: BTreeSet<_> = hold.held.keys().chain(hold.unchecked.keys()).copied().collect();
            prop_assert_eq!(&waiting, &held);
            prop_assert_eq!(held.len(), hold.held.len() + hold.unchecked.len());
            let counted: usize = hold.of_server.values().sum();
            prop_assert_eq!(counted, hold.len());
            let asked: usize = hold.asked.values().map(|asked| asked.waiting.len()).sum();
            prop_assert_eq!(asked, hold.held.len());
        }
        hold.expire(now + HELD_FOR + COMPLETE_WITHIN);
        hold.expire(now + HELD_FOR + COMPLETE_WITHIN);
        prop_assert!(hold.next_timeout().is_none_or(|due| due > now), "no deadline is left behind");
        prop_assert!(hold.is_empty() && hold.of_server.is_empty() && hold.shared.is_empty() && hold.asked.is_empty());
    }
}
