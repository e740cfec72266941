//! Protocol of a probe's connection. Both ends send a greeting, then the sender sends chunks of the pattern and an end marker
//! with the total of bytes. The receiver acknowledges at intervals and at the end. An end of file before the marker is a
//! truncation.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::transfer::heard::{FIRST_UNDER_WAY, Heard, WRONG};
use crate::transfer::pattern::Pattern;

/// First bytes of a request, which identify a probe.
pub const MAGIC: [u8; 8] = *b"SOSPROB1";
/// Bytes of a chunk: 1 Gbit/s needs two thousand chunks a second.
const CHUNK: usize = 65_536;
/// Longest transfer that can be requested, in seconds.
pub const MOST_SECONDS: u16 = 60;
/// Acknowledgement interval in time and bytes. The bytes are fewer than the sender's first window: otherwise the sender would
/// wait for an acknowledgement, and the receiver for more bytes.
const TELL: Duration = Duration::from_millis(50);
const TELL_BYTES: u64 = FIRST_UNDER_WAY / 2;
/// Time limit for the acknowledgement of the bytes in flight at the end: enough for the window at 1 Mbit/s. Without progress, the
/// transfer ends earlier.
const DRAIN: Duration = Duration::from_secs(60);
/// Time for which a receiver waits for the end marker after the requested duration of the transfer: longer than `DRAIN`.
pub const LONGEST_END: Duration = Duration::from_secs(70);
/// Time for which a receiver keeps reading after corrupt bytes.
const LISTEN_ON: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);
/// Longest address in a greeting: `255.255.255.255:65535`.
const LONGEST_ADDRESS: u8 = 21;

/// Direction of the bytes, as seen from the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// To the server.
    Up,
    /// From the server.
    Down,
}

/// Request a transfer.
///
/// # Errors
/// The connection's error.
pub fn ask(to: &mut impl Write, direction: Direction, seconds: u16) -> Result<()> {
    let [high, low] = seconds.to_be_bytes();
    to.write_all(&MAGIC)?;
    to.write_all(&[u8::from(direction == Direction::Down), high, low])?;
    to.flush()
}

/// Read a request.
///
/// # Errors
/// The connection's error, or the bytes are not a request.
pub fn asked(from: &mut impl Read) -> Result<(Direction, u16)> {
    let mut head = [0; 11];
    from.read_exact(&mut head)?;
    let seconds = u16::from_be_bytes([head[9], head[10]]);
    if head[..8] != MAGIC || head[8] > 1 || seconds > MOST_SECONDS {
        return Err(Error::new(ErrorKind::InvalidData, "not a probe's request"));
    }
    Ok((if head[8] == 1 { Direction::Down } else { Direction::Up }, seconds))
}

/// Send the peer its address as this end sees it.
///
/// # Errors
/// The connection's error.
pub fn tell_address(to: &mut impl Write, address: &str) -> Result<()> {
    let length = u8::try_from(address.len()).unwrap_or(0).min(LONGEST_ADDRESS);
    to.write_all(&[length])?;
    to.write_all(&address.as_bytes()[..length.into()])?;
    to.flush()
}

/// Read this end's address as the peer sees it.
///
/// # Errors
/// The connection's error, or the bytes are not an address.
pub fn told_address(from: &mut impl Read) -> Result<String> {
    let mut length = [0];
    from.read_exact(&mut length)?;
    if length[0] > LONGEST_ADDRESS {
        return Err(Error::new(ErrorKind::InvalidData, "not a probe's greeting"));
    }
    let mut text = vec![0; length[0].into()];
    from.read_exact(&mut text)?;
    String::from_utf8(text).map_err(|_| Error::new(ErrorKind::InvalidData, "not a probe's greeting"))
}

/// Send the pattern until `until`, then the end marker, and wait until the receiver has acknowledged all bytes; `arrived` counts
/// the acknowledged bytes. The bytes in flight are bounded: an agent would accept far more than its path carries, and the
/// transfer would end late.
///
/// # Errors
/// The connection's error; `InvalidData` if the receiver got corrupt data; `TimedOut` if the receiver acknowledges nothing new for
/// `stall`, or does not acknowledge all bytes within `DRAIN`.
pub fn send(
    to: &mut impl Write,
    pattern: &Pattern,
    until: Instant,
    heard: &Heard,
    stall: Duration,
    arrived: &mut u64,
) -> Result<()> {
    let (mut sent, length) = (0_u64, u32::try_from(CHUNK).expect("fits").to_be_bytes());
    while Instant::now() < until {
        *arrived = heard.check(sent, stall)?;
        if sent - *arrived > heard.window() {
            sleep(POLL);
            continue;
        }
        let chunk = [&length, pattern.at(sent, CHUNK)].concat();
        said(to.write_all(&chunk), heard, sent + CHUNK as u64)?;
        sent += CHUNK as u64;
    }
    let end = [[0; 4].as_slice(), &sent.to_be_bytes()].concat();
    said(to.write_all(&end).and_then(|()| to.flush()), heard, sent)?;
    let deadline = Instant::now() + DRAIN;
    loop {
        *arrived = heard.check(sent, stall)?;
        if *arrived == sent {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let what = format!(
                "{arrived} of {sent} bytes have arrived {} s after the last was sent",
                DRAIN.as_secs()
            );
            return Err(Error::new(ErrorKind::TimedOut, what));
        }
        sleep(POLL);
    }
}

/// After a failed write, return the receiver's report of corrupt data, if there is one, in place of the write's error.
fn said(written: Result<()>, heard: &Heard, sent: u64) -> Result<()> {
    written.map_err(|error| match heard.check(sent, Duration::MAX) {
        Err(told) if told.kind() == ErrorKind::InvalidData => told,
        _ => error,
    })
}

/// Receive the pattern to its end, checking every byte, and acknowledge to `back` at intervals; `taken` counts the bytes.
///
/// # Errors
/// The connection's error; `InvalidData` for a wrong byte or total, of which the sender is notified; `TimedOut` if the end does
/// not arrive within `within`.
pub fn receive(
    from: &mut impl Read,
    back: &mut impl Write,
    pattern: &Pattern,
    within: Duration,
    taken: &mut u64,
) -> Result<()> {
    let ended = take(from, back, pattern, within, taken);
    if ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidData) {
        let _ = back.write_all(&WRONG.to_be_bytes()).and_then(|()| back.flush());
        // closing with unread bytes would send a reset, which could overtake the acknowledgement
        let (until, mut rest) = (Instant::now() + LISTEN_ON, vec![0; CHUNK]);
        while Instant::now() < until && matches!(from.read(&mut rest), Ok(1..)) {}
    }
    ended
}

fn take(
    from: &mut impl Read,
    back: &mut impl Write,
    pattern: &Pattern,
    within: Duration,
    taken: &mut u64,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let (deadline, mut told, mut confirmed) = (Instant::now() + within, Instant::now(), 0);
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length == 0 {
            let mut sum = [0; 8];
            from.read_exact(&mut sum)?;
            if u64::from_be_bytes(sum) != *taken {
                return Err(wrong(*taken));
            }
            back.write_all(&taken.to_be_bytes())?;
            return back.flush();
        }
        let part = chunk.get_mut(..length).ok_or_else(|| wrong(*taken))?;
        from.read_exact(part)?;
        if *part != *pattern.at(*taken, length) {
            return Err(wrong(*taken));
        }
        *taken += length as u64;
        let now = Instant::now();
        if now.duration_since(told) > TELL || *taken - confirmed >= TELL_BYTES {
            (told, confirmed) = (now, *taken);
            back.write_all(&taken.to_be_bytes())?;
        }
        if now > deadline {
            return Err(Error::new(ErrorKind::TimedOut, format!("no end within {} s", within.as_secs())));
        }
    }
}

fn wrong(at: u64) -> Error {
    Error::new(ErrorKind::InvalidData, format!("received data differs from the sent data at byte {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A complete connection in memory: written bytes are received immediately, and the acknowledgements are read.
    struct Loop<'a> {
        heard: &'a Heard,
        wire: Vec<u8>,
        mute: bool,
    }

    impl Write for Loop<'_> {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.wire.extend_from_slice(bytes);
            if !self.mute {
                let (mut from, mut back, mut count) = (self.wire.as_slice(), Vec::new(), 0);
                let _ = receive(&mut from, &mut back, &Pattern::default(), LONG, &mut count);
                let word = back.last_chunk().map_or(count, |word| u64::from_be_bytes(*word));
                self.heard.hear(Instant::now(), &word.to_be_bytes());
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn run(mute: bool, change: impl Fn(&mut Vec<u8>), stall: Duration) -> (Result<()>, u64, Vec<u8>) {
        let (heard, mut arrived) = (Heard::default(), 0);
        let mut to = Loop { heard: &heard, wire: Vec::new(), mute };
        change(&mut to.wire);
        let pattern = Pattern::default();
        let until = Instant::now() + if mute { LONG } else { Duration::from_millis(50) };
        let ended = send(&mut to, &pattern, until, &heard, stall, &mut arrived);
        (ended, arrived, to.wire)
    }

    fn sent() -> Vec<u8> {
        let (ended, arrived, wire) = run(false, |_| (), LONG);
        ended.unwrap();
        assert!(arrived > 0);
        wire
    }

    fn taken(wire: &[u8]) -> (std::result::Result<u64, ErrorKind>, Vec<u8>) {
        let (mut from, mut back, mut taken) = (wire, Vec::new(), 0);
        let ended = receive(&mut from, &mut back, &Pattern::default(), LONG, &mut taken);
        (ended.map(|()| taken).map_err(|error| error.kind()), back)
    }

    #[test]
    fn sent_bytes_arrive_and_are_counted_and_acknowledged() {
        let (count, back) = taken(&sent());
        let count = count.unwrap();
        assert!(count > 0 && back.ends_with(&count.to_be_bytes()));
    }

    #[test]
    fn a_changed_byte_and_a_wrong_total_differ_from_an_early_end() {
        let mut wire = sent();
        wire[1000] ^= 1;
        assert_eq!(taken(&wire).0, Err(ErrorKind::InvalidData));
        let mut wire = sent();
        *wire.last_mut().unwrap() ^= 1;
        assert_eq!(taken(&wire).0, Err(ErrorKind::InvalidData));
        let wire = sent();
        let early = taken(&wire[..wire.len() - 12]).0;
        assert_eq!(
            early,
            Err(ErrorKind::UnexpectedEof),
            "an end of file before the end marker is a truncation"
        );
        assert_eq!(taken(&[0xff; 16]).0, Err(ErrorKind::InvalidData));
    }

    #[test]
    fn a_burst_is_acknowledged_before_the_end() {
        let (pattern, mut wire) = (Pattern::default(), Vec::new());
        for number in 0..4 {
            wire.extend(u32::try_from(CHUNK).unwrap().to_be_bytes());
            wire.extend(pattern.at(number * CHUNK as u64, CHUNK));
        }
        let begun = taken(&wire);
        assert_eq!(begun.0, Err(ErrorKind::UnexpectedEof));
        assert!(begun.1.len() >= 16, "at least two acknowledgements, or the sender would wait forever");
    }

    #[test]
    fn a_sender_is_notified_of_corrupt_bytes() {
        let (ended, ..) = run(false, |wire| wire.extend([0, 0, 0, 1, 0xff]), LONG);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn silence_is_a_stall_and_the_first_window_limits_the_bytes_in_flight() {
        let (ended, arrived, wire) = run(true, |_| (), Duration::from_millis(300));
        assert_eq!((ended.unwrap_err().kind(), arrived), (ErrorKind::TimedOut, 0));
        assert!((FIRST_UNDER_WAY..FIRST_UNDER_WAY + 200_000).contains(&(wire.len() as u64)));
    }

    #[test]
    fn requests_and_greetings_round_trip_and_other_protocols_are_refused() {
        let mut wire = Vec::new();
        ask(&mut wire, Direction::Down, 3).unwrap();
        assert_eq!(asked(&mut wire.as_slice()).unwrap(), (Direction::Down, 3));
        assert!(asked(&mut b"GET / HTTP/1.1\r\n".as_slice()).is_err());
        let mut wire = Vec::new();
        tell_address(&mut wire, "10.0.0.11:40000").unwrap();
        assert_eq!(told_address(&mut wire.as_slice()).unwrap(), "10.0.0.11:40000");
        assert!(told_address(&mut b"HTTP/1.1 400".as_slice()).is_err());
    }
}
