//! Parsers return a value or an error for any output of the programs, without a panic.

use proptest::prelude::*;
use sos_node::{
    encode,
    observation::{flow, link, ovsdb},
};

/// Texts close to the expected form: pieces of real output in any order.
fn arb_answer() -> impl Strategy<Value = String> {
    let pieces = [
        " cookie=0x1",
        ", ",
        "table=",
        "1",
        "70000",
        "priority=",
        "in_port=2",
        " actions=",
        "drop",
        "\n",
        "OFPT_FLOW_MOD ",
        "): ADD ",
        "table:",
        " cookie:",
        "(wan0): addr:",
        "config:",
        "NO_FLOOD",
        "[",
        "]",
        "{",
        "}",
        "\"data\":",
        "\"headings\":",
        "\"ifname\":\"a\"",
        "\"mtu\":1",
        ",",
        "[\"map\",[[\"a\",1]]]",
        "[\"uuid\",\"x\"]",
        "é",
        "\0",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn no_output_makes_a_parser_panic(text in prop_oneof![arb_answer(), any::<String>()]) {
        let _ = flow::parse_dump(&text);
        let _ = ovsdb::parse(&text);
        let _ = link::parse_links(&text, &[&text]);
        let _ = link::parse_offloads(&text);
        let _ = encode::parse_ports(&text);
    }

    /// A printed entry is parsed back, with any flags and timeouts around it.
    #[test]
    fn entries_survive_printing(
        cookie in any::<u64>(), table in any::<u8>(), priority in any::<u16>(), port in 1_u16..1000,
        timeout in prop::option::of(1_u16..), flags in prop::sample::select(vec!["", "send_flow_rem ", "reset_counts no_packet_counts "]),
    ) {
        let timeout = timeout.map_or(String::new(), |t| format!("idle_timeout={t}, "));
        let line = format!(" cookie={cookie:#x}, table={table}, {timeout}{flags}priority={priority},in_port={port} actions=drop");
        let key = flow::FlowKey { table, priority, matches: format!("in_port={port}") };
        let expected = flow::Flow { key, cookie, actions: "drop".into() };
        prop_assert_eq!(flow::parse_dump(&line), Ok(vec![expected]));
    }
}
