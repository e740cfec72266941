//! Functions that fuzzing calls with arbitrary bytes. Each function panics if an invariant is violated, and has no other effect.
#![forbid(unsafe_code)]

mod card;
mod probe;
mod session;

use std::net::Ipv4Addr;

use bytes::BytesMut;
pub use card::{answered, card};
pub use probe::{probe, received};
use serde_json::Value;
pub use session::session;
use sha2::{Digest, Sha256};
use sos_agent::documents::config::AgentConfig;
use sos_agent::documents::config::source::{Verdict, judge};
use sos_agent::netns::nflog;
use sos_agent::segments::syn_hold::check_packet::parse_answer;
use sos_agent::segments::syn_hold::syn::Syn;
use sos_node::config::{NodeConfig, supersedes};
use sos_node::{
    encode,
    observation::{flow, link, ovsdb},
};
use sos_relay::compression::codec;
use sos_wire::stream::frame::MAX_PAYLOAD;
use sos_wire::{Decoder, Frame, Hello, Key, UnverifiedBeacon, UnverifiedOrder, Welcome, WireError};

/// Port of the checks in the corpus.
const CHECK_PORT: u16 = 40_000;
/// Key of the tags in the corpus, so that fuzzing gets past the authentication.
pub const KEY: [u8; 32] = [7; 32];

/// Decoded frames do not depend on the split of the bytes, frames round-trip through their encoding, and an error is permanent.
pub fn frame(data: &[u8]) {
    let whole = frames(data, data.len().max(1));
    for piece in [1, 7, 33] {
        assert_eq!(whole, frames(data, piece), "cut into pieces of {piece}");
    }
    let mut encoded = BytesMut::new();
    whole.0.iter().for_each(|frame| frame.encode(&mut encoded));
    assert_eq!(frames(&encoded, 4096), (whole.0, None));
}

fn frames(data: &[u8], piece: usize) -> (Vec<Frame>, Option<WireError>) {
    let (mut decoder, mut buffer, mut found) = (Decoder::default(), BytesMut::new(), Vec::new());
    for bytes in data.chunks(piece) {
        buffer.extend_from_slice(bytes);
        loop {
            match decoder.decode(&mut buffer) {
                Ok(Some(frame)) => found.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.decode(&mut buffer), Err(error), "an error is permanent");
                    return (found, Some(error));
                }
            }
        }
    }
    (found, None)
}

/// Messages of the stream handshake round-trip through their encoding.
pub fn handshake(data: &[u8]) {
    let Some((hello, rest)) = data.split_first_chunk() else { return };
    if let Ok(parsed) = Hello::decode(hello) {
        assert_eq!(Hello::decode(&parsed.encode()), Ok(parsed));
    }
    let Some(welcome) = rest.first_chunk() else { return };
    let key = Key::new(KEY);
    if let Ok(parsed) = Welcome::verify(welcome, &key, hello) {
        assert_eq!(Welcome::verify(&parsed.encode(Some(&key), hello), &key, hello), Ok(parsed));
    }
}

/// Copies of held SYNs and of answers to checks: a parsed SYN is rebuilt with a correct checksum, and is parsed to the same SYN again; an answer
/// belongs to the address and port to which the packet was sent.
pub fn syn(data: &[u8]) {
    for packet in nflog::packets(data).map(|copied| copied.packet).chain([data]) {
        if let Ok(syn) = Syn::parse(packet) {
            assert!(syn.packet.len() <= packet.len());
            assert_eq!(Syn::parse(&syn.packet), Ok(syn));
        }
        if let Some(address) = packet.get(16..20).and_then(|octets| <[u8; 4]>::try_from(octets).ok()) {
            let address = Ipv4Addr::from(address);
            for port in [CHECK_PORT, 0] {
                assert!(
                    parse_answer(packet, address, port).is_none_or(|answer| answer.path.client == address)
                );
            }
        }
    }
}

/// A compressed block expands to the declared length or is rejected, and compressed data expands to the original.
pub fn block(data: &[u8]) {
    let Some((length, payload)) = data.split_first_chunk() else { return };
    let length = u32::from_be_bytes(*length);
    let expanded = codec::expand(payload, length);
    assert!(expanded.is_none_or(|block| block.len() == length as usize && block.len() <= MAX_PAYLOAD));
    if let Some(small) = codec::compress(data) {
        assert!(small.len() < data.len());
        let again = u32::try_from(data.len()).ok().and_then(|length| codec::expand(&small, length));
        assert_eq!(again.as_deref(), Some(data));
    }
}

/// The records of an encrypted stream yield the peer's data, up to the first byte that is not from the peer.
pub fn records(data: &[u8]) {
    sos_tunnel::fuzz_records(data);
}

/// A verified beacon round-trips through its encoding.
pub fn beacon(data: &[u8]) {
    let Ok(unverified) = UnverifiedBeacon::parse(data) else { return };
    let Ok(beacon) = unverified.verify(&Key::new(KEY)) else { return };
    let encoded = beacon.encode(&Key::new(KEY)).expect("what was read can be written");
    let again = UnverifiedBeacon::parse(&encoded).and_then(|b| b.verify(&Key::new(KEY)));
    assert_eq!(again, Ok(beacon));
}

/// A verified order round-trips through its encoding.
pub fn order(data: &[u8]) {
    let Ok(unverified) = UnverifiedOrder::parse(data) else { return };
    let Ok(order) = unverified.verify(&Key::new(KEY)) else { return };
    let encoded = order.encode(&Key::new(KEY)).expect("what was read can be written");
    let again = UnverifiedOrder::parse(&encoded).and_then(|o| o.verify(&Key::new(KEY)));
    assert_eq!(again, Ok(order));
}

/// A configuration is either parsed or rejected with a path.
pub fn config(data: &[u8]) {
    for document in [Some(data.to_vec()), sealed(data)].into_iter().flatten() {
        match AgentConfig::parse(&document) {
            Ok(config) => assert_eq!(judge(&config, &config), Verdict::Same),
            Err(error) => assert!(!error.path.is_empty() && !error.message.is_empty()),
        }
    }
}

/// A node-config is either parsed or rejected with a path, and does not supersede itself.
pub fn node_config(data: &[u8]) {
    for document in [Some(data.to_vec()), sealed(data)].into_iter().flatten() {
        match NodeConfig::parse(&document) {
            Ok(config) => {
                assert_eq!(supersedes(&config, Some(&config)), Ok(false));
                let lines = flow::encode_base_flows(&config);
                assert_eq!(
                    lines.lines().count(),
                    config.base_flows.len(),
                    "each entry is one line, with any text"
                );
            }
            Err(error) => assert!(!error.path.is_empty() && !error.message.is_empty()),
        }
    }
}

/// The document with the correct hash, so that fuzzing gets past the check of the hash; `None` if it is not a JSON object.
fn sealed(data: &[u8]) -> Option<Vec<u8>> {
    let mut document: serde_json::Map<String, Value> = serde_json::from_slice(data).ok()?;
    let generation = document.remove("generation");
    document.remove("hash");
    let canonical = Value::Object(document.clone()).to_string();
    let digest: String = Sha256::digest(canonical).iter().map(|byte| format!("{byte:02x}")).collect();
    document.insert("hash".into(), format!("sha256:{digest}").into());
    if let Some(generation) = generation {
        document.insert("generation".into(), generation);
    }
    Some(Value::Object(document).to_string().into_bytes())
}

/// Frames of hosts are parsed or rejected by the library that is preloaded into ovs-vswitchd.
pub fn offload(data: &[u8]) {
    sos_ovs_buffers::fuzz_frame(data);
}

/// The output of programs that `sos-node` runs is parsed or rejected.
pub fn answers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = flow::parse_dump(&text);
    let _ = ovsdb::parse(&text);
    let _ = link::parse_links(&text, &[&text]);
    let _ = link::parse_offloads(&text);
    let _ = encode::parse_ports(&text);
}
