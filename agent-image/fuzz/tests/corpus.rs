//! The committed corpus and the golden vectors, run through the functions of fuzzing.

use std::path::Path;

use sos_wire::{Key, UnverifiedBeacon, UnverifiedOffer, UnverifiedOrder};

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} is empty", folder.display());
    files.iter().map(|f| (f.display().to_string(), std::fs::read(f).unwrap())).collect()
}

/// Runs each file unchanged, truncated at every length, and with each byte changed.
fn run(target: &str, function: fn(&[u8])) {
    for (file, bytes) in corpus(target) {
        println!("{file}");
        function(&bytes);
        for at in 0..bytes.len() {
            function(&bytes[..at]);
            let mut changed = bytes.clone();
            changed[at] ^= 0x81;
            function(&changed);
        }
    }
}

#[test]
fn frame() {
    run("frame", sos_fuzz::frame);
}

#[test]
fn records() {
    run("records", sos_fuzz::records);
}

#[test]
fn block() {
    run("block", sos_fuzz::block);
    let expands = |bytes: &[u8]| {
        let (length, payload) = bytes.split_first_chunk().unwrap();
        sos_relay::compression::codec::expand(payload, u32::from_be_bytes(*length)).is_some()
    };
    assert!(
        corpus("block").iter().any(|(_, bytes)| expands(bytes)),
        "the corpus contains a compressed block"
    );
}

#[test]
fn syn() {
    run("syn", sos_fuzz::syn);
    let reads = |bytes: &[u8]| {
        sos_agent::netns::nflog::packets(bytes)
            .any(|copied| sos_agent::segments::syn_hold::syn::Syn::parse(copied.packet).is_ok())
    };
    assert!(corpus("syn").iter().any(|(_, bytes)| reads(bytes)), "the corpus contains the copy of a SYN");
    let answers = |bytes: &[u8]| {
        sos_agent::segments::syn_hold::check_packet::parse_answer(bytes, [10, 0, 0, 11].into(), 40_000)
            .is_some()
    };
    let found = corpus("syn").iter().filter(|(_, bytes)| answers(bytes)).count();
    assert_eq!(found, 2, "the corpus contains a SYN-ACK and an ICMP error");
}

#[test]
fn session() {
    run("session", sos_fuzz::session);
}

#[test]
fn handshake() {
    run("handshake", sos_fuzz::handshake);
}

#[test]
fn beacon() {
    run("beacon", sos_fuzz::beacon);
    let key = Key::new(sos_fuzz::KEY);
    let passes = |bytes: &[u8]| UnverifiedBeacon::parse(bytes).and_then(|b| b.verify(&key)).is_ok();
    assert!(
        corpus("beacon").iter().any(|(_, bytes)| passes(bytes)),
        "the corpus contains a beacon with a valid tag"
    );
}

#[test]
fn card() {
    run("card", sos_fuzz::card);
    let key = Key::new(sos_fuzz::KEY);
    let offers = |bytes: &[u8]| UnverifiedOffer::parse(bytes).and_then(|o| o.verify(&key)).is_ok();
    assert!(corpus("card").iter().any(|(_, bytes)| offers(bytes)), "the corpus contains an Offer");
    let answers = |bytes: &[u8]| sos_fuzz::answered(bytes).is_some();
    assert!(corpus("card").iter().any(|(_, bytes)| answers(bytes)), "the corpus contains an Answer");
    let documents = |bytes: &[u8]| sos_agent::documents::config::peers::Peers::parse(bytes).is_ok();
    assert!(corpus("card").iter().any(|(_, bytes)| documents(bytes)), "the corpus contains a document");
}

#[test]
fn order() {
    run("order", sos_fuzz::order);
    let key = Key::new(sos_fuzz::KEY);
    let passes = |bytes: &[u8]| UnverifiedOrder::parse(bytes).and_then(|o| o.verify(&key)).is_ok();
    assert!(
        corpus("order").iter().filter(|(_, bytes)| passes(bytes)).count() >= 7,
        "the corpus contains an order of each type"
    );
}

#[test]
fn config() {
    run("config", sos_fuzz::config);
    let parses = |bytes: &[u8]| sos_agent::documents::config::AgentConfig::parse(bytes).is_ok();
    assert!(corpus("config").iter().any(|(_, bytes)| parses(bytes)));
}

#[test]
fn node_config() {
    run("node_config", sos_fuzz::node_config);
    let parses = |bytes: &[u8]| sos_node::config::NodeConfig::parse(bytes).is_ok();
    assert!(corpus("node_config").iter().any(|(_, bytes)| parses(bytes)));
}

#[test]
fn answers() {
    run("answers", sos_fuzz::answers);
}

#[test]
fn offload() {
    run("offload", sos_fuzz::offload);
}

#[test]
fn probe() {
    run("probe", sos_fuzz::probe);
    let arrives = |bytes: &[u8]| {
        bytes.first() == Some(&2) && sos_fuzz::received(&bytes[1..]).0.is_ok_and(|count| count > 0)
    };
    assert!(corpus("probe").iter().any(|(_, bytes)| arrives(bytes)), "the corpus contains a transfer");
}
