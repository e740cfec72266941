//! Fuzzing of the records.

use bytes::BytesMut;
use rustls::ConnectionTrafficSecrets;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::crypto::ring::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;

use super::record::{Opener, Sealer};

/// Length of a long write: more than a record holds.
const MANY: usize = 17_000;
/// Bytes of records after which writing stops, because more would only take time.
const ENOUGH: usize = 20_000;
/// Maximum number of pieces in which the bytes arrive.
const MAX_PIECES: usize = 256;

fn secrets() -> ConnectionTrafficSecrets {
    ConnectionTrafficSecrets::Chacha20Poly1305 { key: AeadKey::from([7; 32]), iv: Iv::from([7; 12]) }
}

/// Bytes on the wire, and the peer's own bytes up to the first forged byte.
struct Wire {
    sealer: Sealer,
    bytes: Vec<u8>,
    said: Vec<u8>,
    honest: bool,
}

impl Wire {
    fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut records = Vec::new();
        let sealed = self.sealer.seal(&[bytes], usize::MAX, &mut records).expect("its key is fresh");
        assert_eq!(sealed, bytes.len());
        records.concat()
    }

    fn say(&mut self, bytes: &[u8]) {
        let sealed = self.seal(bytes);
        self.bytes.extend(sealed);
        if self.honest {
            self.said.extend(bytes);
        }
    }

    /// Appends the peer's bytes with one bit flipped.
    fn change(&mut self, bytes: &[u8], at: u8) {
        let mut sealed = self.seal(bytes);
        if !sealed.is_empty() {
            let index = usize::from(at) % sealed.len();
            sealed[index] ^= 1 << (at % 8);
            self.honest = false;
        }
        self.bytes.extend(sealed);
    }

    /// Inserts forged bytes.
    fn forge(&mut self, bytes: &[u8]) {
        self.honest &= bytes.is_empty();
        self.bytes.extend(bytes);
    }
}

/// Checks that records, for any cut of the wire, yield the peer's bytes in order, up to the first forged byte.
///
/// The first byte of `data` selects how the wire is cut; then follow events: a type byte, a length byte, and that many bytes.
///
/// # Panics
/// If any other bytes come out.
pub fn records(data: &[u8]) {
    let Some((&cut, mut script)) = data.split_first() else { return };
    let sealer = Sealer::new((0, secrets()), TLS13_CHACHA20_POLY1305_SHA256).expect("a cipher of TLS 1.3");
    let mut wire = Wire { sealer, bytes: Vec::new(), said: Vec::new(), honest: true };
    while let [what, len, rest @ ..] = script
        && wire.bytes.len() < ENOUGH
    {
        let (bytes, after) = rest.split_at(usize::from(*len).min(rest.len()));
        script = after;
        match what % 8 {
            0 => wire.forge(bytes),
            1 => wire.change(bytes, *what),
            2 => wire.say(&vec![bytes.len() as u8; MANY]),
            _ => wire.say(bytes),
        }
    }
    read(&wire, usize::from(cut));
}

fn read(wire: &Wire, cut: usize) {
    let mut opener =
        Opener::new((0, secrets()), TLS13_CHACHA20_POLY1305_SHA256, &[], &[]).expect("a cipher of TLS 1.3");
    let mut out = BytesMut::new();
    for piece in wire.bytes.chunks((cut * 64 + 1).max(wire.bytes.len() / MAX_PIECES)) {
        assert!(opener.make_room() >= piece.len());
        opener.incoming.extend_from_slice(piece);
        loop {
            match opener.open(&mut out, cut + 1) {
                Ok(0) => break,
                Ok(_) => assert!(wire.said.starts_with(&out), "the peer's bytes"),
                Err(_) => return assert!(!wire.honest, "an error without a reason"),
            }
        }
    }
    assert!(!wire.honest || out == wire.said, "all of the peer's bytes");
}
