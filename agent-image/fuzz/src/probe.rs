//! Messages between the two ends of a probe. Neither end trusts the other.

use std::io::ErrorKind;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use sos_probe::transfer::heard::{Heard, WRONG};
use sos_probe::transfer::pattern::Pattern;
use sos_probe::{mtu, transfer::wire};

static PATTERN: LazyLock<Pattern> = LazyLock::new(Pattern::default);
const LONG: Duration = Duration::from_secs(3600);

/// The first byte selects the parser: a request, a greeting, a transfer, acknowledgements of a receiver, or a packet of `mtu`.
pub fn probe(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 5 {
        0 => request(rest),
        1 => greeting(rest),
        2 => transfer(rest),
        3 => confirmed(rest),
        _ => assert!(mtu::read(rest).is_none() || rest.len() >= mtu::HEAD),
    }
}

fn request(mut from: &[u8]) {
    let whole = from;
    if let Ok((direction, seconds)) = wire::asked(&mut from) {
        let mut again = Vec::new();
        wire::ask(&mut again, direction, seconds).expect("a Vec takes it");
        assert!(seconds <= wire::MOST_SECONDS && whole.starts_with(&again));
    }
}

fn greeting(mut from: &[u8]) {
    let whole = from;
    if let Ok(address) = wire::told_address(&mut from) {
        let mut again = Vec::new();
        wire::tell_address(&mut again, &address).expect("a Vec takes it");
        assert!(whole.starts_with(&again), "a parsed greeting round-trips");
    }
}

/// Result of a receiver for some bytes, and its answer.
pub fn received(mut from: &[u8]) -> (Result<u64, ErrorKind>, Vec<u8>) {
    let (mut back, mut count) = (Vec::new(), 0);
    let ended = wire::receive(&mut from, &mut back, &PATTERN, LONG, &mut count);
    (ended.map(|()| count).map_err(|error| error.kind()), back)
}

/// Bytes count if they match the pattern and their total is correct; otherwise the receiver reports corruption to the sender.
fn transfer(from: &[u8]) {
    let (ended, back) = received(from);
    let last = back.last_chunk().map(|word| u64::from_be_bytes(*word));
    match ended {
        Ok(count) => assert!(last == Some(count) && count < from.len() as u64),
        Err(ErrorKind::InvalidData) => assert_eq!(last, Some(WRONG)),
        Err(_) => assert_ne!(last, Some(WRONG)),
    }
}

/// Acknowledgements do not depend on the split of the bytes, and never exceed the bytes sent.
fn confirmed(words: &[u8]) {
    let now = Instant::now();
    let outcomes = [words.len().max(1), 1, 7].map(|piece| {
        let heard = Heard::default();
        for (number, part) in words.chunks(piece).enumerate() {
            heard.hear(now + Duration::from_millis(number as u64), part);
        }
        assert!(heard.window() > 0);
        let sent = 1 << 20;
        let outcome = heard.check(sent, LONG).map_err(|error| error.kind());
        assert!(outcome.is_err() || outcome.is_ok_and(|count| count <= sent));
        outcome
    });
    assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]));
}
