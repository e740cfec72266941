use super::*;
use crate::policy::classifier::Rule;
use std::sync::Arc;

#[test]
fn the_table_matches_the_golden_file() {
    assert_eq!(
        setup("net0", 39_999, Forward::WithinInterface),
        include_str!("../../../tests/golden/setup.nft")
    );
}

#[test]
fn the_table_of_a_pod_matches_the_golden_file() {
    let address = "10.0.0.11".parse().unwrap();
    assert_eq!(setup_pod(address, 39_999, 39_998), include_str!("../../../tests/golden/pod.nft"));
}

#[test]
fn a_router_forwards_between_its_interfaces() {
    let (bridged, routed) = (setup("net0", 1, Forward::WithinInterface), setup("net0", 1, Forward::Any));
    assert!(bridged.contains("chain forward") && !routed.contains("chain forward"));
}

#[test]
fn arming_is_one_transaction() {
    let prefix = |text: &str| vec![text.parse().unwrap()];
    let rule = Rule::new(&prefix("10.0.0.0/25"), &prefix("10.0.0.128/25"), [(22, 22), (5000, 5999)]);
    let held = Rule { ports: vec![(80, 80)], held: true, ..rule.clone() };
    let armed = Armed {
        covered: Arc::new(Classifier::build(&[rule, held], 10).unwrap()),
        unreachable: vec!["10.0.0.139:5003".parse().unwrap()],
        left_out: Vec::new(),
    };
    assert_eq!(arm(&armed, None), include_str!("../../../tests/golden/arm.nft"));
    assert_eq!(arm(&armed, Some(&armed)), heartbeat(), "nothing has changed");
    let answers = Armed { unreachable: Vec::new(), ..armed.clone() };
    assert_eq!(
        arm(&answers, Some(&armed)),
        format!("flush set inet sos unreachable\n{}", heartbeat()),
        "the covered flows do not change"
    );
}

#[test]
fn an_empty_armed_set_adds_only_the_heartbeat() {
    let text = arm(&Armed::default(), None);
    assert!(!text.contains("elements"), "{text}");
    assert_eq!(text.matches("add element").count(), 1, "{text}");
    assert!(text.ends_with(&heartbeat()));
}

#[test]
fn counters_are_read_by_name() {
    let json = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
        {"counter": {"family": "inet", "name": "syn_plain", "table": "sos", "handle": 1, "packets": 7, "bytes": 420}},
        {"counter": {"family": "inet", "name": "other", "table": "sos", "handle": 2, "packets": 9, "bytes": 0}}]}"#;
    assert_eq!(parse_counters(json), vec![("syn_plain", 7)]);
    assert!(parse_counters(b"not json").is_empty());
}
