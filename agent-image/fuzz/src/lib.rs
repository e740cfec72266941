//! What fuzzing feeds with arbitrary bytes. Each function panics when a promise is broken, and does nothing else.
#![forbid(unsafe_code)]

mod probe;
mod session;

use bytes::BytesMut;
pub use probe::{probe, received};
use serde_json::Value;
pub use session::session;
use sha2::{Digest, Sha256};
use sos_agent::config::AgentConfig;
use sos_agent::config::source::{Verdict, judge};
use sos_agent::netns::nflog;
use sos_agent::syn_hold::syn::Syn;
use sos_node::config::{NodeConfig, supersedes};
use sos_node::{encode, flow, link, ovsdb};
use sos_relay::codec;
use sos_wire::frame::MAX_PAYLOAD;
use sos_wire::{Decoder, Frame, Hello, Key, UnverifiedBeacon, UnverifiedOrder, Welcome, WireError};

/// Tags made under this key are right in the corpus, so that fuzzing starts behind the authentication.
pub const KEY: [u8; 32] = [7; 32];

/// Frames are the same however the bytes are cut, come back from their encoding, and an error stays.
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
                    assert_eq!(decoder.decode(&mut buffer), Err(error), "an error stays");
                    return (found, Some(error));
                }
            }
        }
    }
    (found, None)
}

/// The exchange at the start of a stream: what is read is what was written.
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

/// Copies of held SYNs: what is read as one is written back with a checksum that is right, and reads the same again.
pub fn syn(data: &[u8]) {
    for packet in nflog::packets(data).chain([data]) {
        if let Ok(syn) = Syn::parse(packet) {
            assert!(syn.packet.len() <= packet.len());
            assert_eq!(Syn::parse(&syn.packet), Ok(syn));
        }
    }
}

/// A compressed block becomes what was declared or nothing, and what was compressed becomes what it was.
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

/// Of the records of an encrypted stream comes what the peer has said, up to the first byte that is not its own.
pub fn records(data: &[u8]) {
    sos_tunnel::fuzz_records(data);
}

/// A beacon that passes comes back from its encoding.
pub fn beacon(data: &[u8]) {
    let Ok(unverified) = UnverifiedBeacon::parse(data) else { return };
    let Ok(beacon) = unverified.verify(&Key::new(KEY)) else { return };
    let encoded = beacon.encode(&Key::new(KEY)).expect("what was read can be written");
    let again = UnverifiedBeacon::parse(&encoded).and_then(|b| b.verify(&Key::new(KEY)));
    assert_eq!(again, Ok(beacon));
}

/// An order that passes comes back from its encoding.
pub fn order(data: &[u8]) {
    let Ok(unverified) = UnverifiedOrder::parse(data) else { return };
    let Ok(order) = unverified.verify(&Key::new(KEY)) else { return };
    let encoded = order.encode(&Key::new(KEY)).expect("what was read can be written");
    let again = UnverifiedOrder::parse(&encoded).and_then(|o| o.verify(&Key::new(KEY)));
    assert_eq!(again, Ok(order));
}

/// A configuration either parses or names a path.
pub fn config(data: &[u8]) {
    for document in [Some(data.to_vec()), sealed(data)].into_iter().flatten() {
        match AgentConfig::parse(&document) {
            Ok(config) => assert_eq!(judge(&config, &config), Verdict::Same),
            Err(error) => assert!(!error.path.is_empty() && !error.message.is_empty()),
        }
    }
}

/// A node-config either parses or names a path, and takes over from none but an older one.
pub fn node_config(data: &[u8]) {
    for document in [Some(data.to_vec()), sealed(data)].into_iter().flatten() {
        match NodeConfig::parse(&document) {
            Ok(config) => {
                assert_eq!(supersedes(&config, Some(&config)), Ok(false));
                let lines = flow::encode_base_flows(&config);
                assert_eq!(
                    lines.lines().count(),
                    config.base_flows.len(),
                    "an entry is a line, whatever its text"
                );
            }
            Err(error) => assert!(!error.path.is_empty() && !error.message.is_empty()),
        }
    }
}

/// The document with the right hash, so that fuzzing gets behind it; `None` when it is no JSON object.
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

/// Frames of hosts as the library reads them that is preloaded into ovs-vswitchd.
pub fn offload(data: &[u8]) {
    sos_ovs_buffers::fuzz_frame(data);
}

/// What the programs that `sos-node` asks print is read or refused.
pub fn answers(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = flow::parse_dump(&text);
    let _ = ovsdb::parse(&text);
    let _ = link::parse_links(&text, &[&text]);
    let _ = link::parse_offloads(&text);
    let _ = encode::parse_ports(&text);
}
