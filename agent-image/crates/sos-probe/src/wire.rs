//! What is on a probe's connection: a greeting each way, then chunks of the pattern and an end that says how many bytes it
//! was; the receiver says now and then, and at the end, how many it has. A clean end of file before is a truncation.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::heard::{FIRST_UNDER_WAY, Heard, WRONG};
use crate::pattern::Pattern;

/// First bytes of a request, so that a probe never takes a stranger for one.
pub const MAGIC: [u8; 8] = *b"SOSPROB1";
/// Bytes of a chunk: enough that a gigabit needs two thousand a second.
const CHUNK: usize = 65_536;
/// Longest transfer that is asked for.
pub const MOST_SECONDS: u16 = 60;
/// A receiver says how much it has after so long, or so much: less than a sender may have under way, or both would wait.
const TELL: Duration = Duration::from_millis(50);
const TELL_BYTES: u64 = FIRST_UNDER_WAY / 2;
/// How long what is under way may take at the end, as long as it moves: that much at a megabit.
const DRAIN: Duration = Duration::from_secs(60);
/// When a receiver gives up, after the time of a transfer.
pub const LONGEST_END: Duration = Duration::from_secs(70);
/// How long a receiver that has got wrong bytes goes on reading.
const LISTEN_ON: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);
/// Longest address a server tells: `255.255.255.255:65535`.
const LONGEST_ADDRESS: u8 = 21;

/// Which way the bytes go, seen from whoever opened the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Direction {
    /// To the server.
    Up,
    /// From the server.
    Down,
}

/// Asks for a transfer.
///
/// # Errors
/// The connection's.
pub fn ask(to: &mut impl Write, direction: Direction, seconds: u16) -> Result<()> {
    let [high, low] = seconds.to_be_bytes();
    to.write_all(&MAGIC)?;
    to.write_all(&[u8::from(direction == Direction::Down), high, low])?;
    to.flush()
}

/// Takes a request.
///
/// # Errors
/// The connection's, or it is none.
pub fn asked(from: &mut impl Read) -> Result<(Direction, u16)> {
    let mut head = [0; 11];
    from.read_exact(&mut head)?;
    let seconds = u16::from_be_bytes([head[9], head[10]]);
    if head[..8] != MAGIC || head[8] > 1 || seconds > MOST_SECONDS {
        return Err(Error::new(ErrorKind::InvalidData, "not a probe's request"));
    }
    Ok((if head[8] == 1 { Direction::Down } else { Direction::Up }, seconds))
}

/// Tells the other end under which address it is known here.
///
/// # Errors
/// The connection's.
pub fn tell_address(to: &mut impl Write, address: &str) -> Result<()> {
    let length = u8::try_from(address.len()).unwrap_or(0).min(LONGEST_ADDRESS);
    to.write_all(&[length])?;
    to.write_all(&address.as_bytes()[..length.into()])?;
    to.flush()
}

/// Hears it.
///
/// # Errors
/// The connection's, or it is no address.
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

/// Sends the pattern until a time, then its end, and waits until the receiver has it all: `arrived` is how much. What is
/// under way is bounded: an agent would take far more than its path carries, and the end would come late.
///
/// # Errors
/// The connection's; `InvalidData` when other bytes arrived; `TimedOut` when the receiver confirms nothing new for `stall`, or
/// not everything in the time that is left for it.
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

/// A connection that breaks under a sender may have been closed for a reason that the receiver has told.
fn said(written: Result<()>, heard: &Heard, sent: u64) -> Result<()> {
    written.map_err(|error| match heard.check(sent, Duration::MAX) {
        Err(told) if told.kind() == ErrorKind::InvalidData => told,
        _ => error,
    })
}

/// Takes the pattern to its end, checking every byte, and tells `back` now and then how many there are: `taken`.
///
/// # Errors
/// The connection's; `InvalidData` for a wrong byte or a wrong sum (the sender is told); `TimedOut` when it has not ended `within`
/// that long.
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
        // closing with bytes unread would be a reset, and could overtake the word
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
    Error::new(ErrorKind::InvalidData, format!("other bytes than were sent, at {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A whole connection in memory: what is written is taken at once, and the answers are heard.
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
    fn what_is_sent_arrives_is_counted_and_confirmed() {
        let (count, back) = taken(&sent());
        let count = count.unwrap();
        assert!(count > 0 && back.ends_with(&count.to_be_bytes()));
    }

    #[test]
    fn a_changed_byte_a_wrong_sum_and_an_early_end_are_told_apart() {
        let mut wire = sent();
        wire[1000] ^= 1;
        assert_eq!(taken(&wire).0, Err(ErrorKind::InvalidData));
        let mut wire = sent();
        *wire.last_mut().unwrap() ^= 1;
        assert_eq!(taken(&wire).0, Err(ErrorKind::InvalidData));
        let wire = sent();
        let early = taken(&wire[..wire.len() - 12]).0;
        assert_eq!(early, Err(ErrorKind::UnexpectedEof), "a clean end of file in the middle is no end");
        assert_eq!(taken(&[0xff; 16]).0, Err(ErrorKind::InvalidData));
    }

    #[test]
    fn much_that_arrives_at_once_is_confirmed_before_the_end() {
        let (pattern, mut wire) = (Pattern::default(), Vec::new());
        for number in 0..4 {
            wire.extend(u32::try_from(CHUNK).unwrap().to_be_bytes());
            wire.extend(pattern.at(number * CHUNK as u64, CHUNK));
        }
        let begun = taken(&wire);
        assert_eq!(begun.0, Err(ErrorKind::UnexpectedEof));
        assert!(begun.1.len() >= 16, "twice, or its sender would wait for ever");
    }

    #[test]
    fn a_sender_learns_that_other_bytes_arrived() {
        let (ended, ..) = run(false, |wire| wire.extend([0, 0, 0, 1, 0xff]), LONG);
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn silence_is_a_stall_and_little_is_under_way_until_something_is_confirmed() {
        let (ended, arrived, wire) = run(true, |_| (), Duration::from_millis(300));
        assert_eq!((ended.unwrap_err().kind(), arrived), (ErrorKind::TimedOut, 0));
        assert!((FIRST_UNDER_WAY..FIRST_UNDER_WAY + 200_000).contains(&(wire.len() as u64)));
    }

    #[test]
    fn requests_and_greetings_come_back_and_strangers_are_refused() {
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
