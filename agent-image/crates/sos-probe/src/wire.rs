//! What is on a probe's connection: a greeting each way, then chunks of the pattern and an end that says how many bytes it
//! was; the receiver says now and then, and at the end, how many it has. A clean end of file before is a truncation.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::pattern::Pattern;

/// First bytes of a request, so that a probe never takes a stranger for one.
pub const MAGIC: [u8; 8] = *b"SOSPROB1";
/// Bytes of a chunk: enough that a gigabit needs two thousand a second.
const CHUNK: usize = 65_536;
/// Longest transfer that is asked for.
pub const MOST_SECONDS: u16 = 60;
/// What may be under way at least: a round trip of 164 ms at 400 Mbit/s.
const LEAST_UNDER_WAY: u64 = 8 << 20;
/// How often a receiver says how much it has.
const TELL: Duration = Duration::from_millis(200);
/// How long what is under way may take at the end, as long as it moves: that much at a megabit.
const DRAIN: Duration = Duration::from_secs(60);
/// When a receiver gives up, after the time of a transfer.
pub const LONGEST_END: Duration = Duration::from_secs(70);
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

/// Sends the pattern until a time, then its end, and waits until the receiver has it all. What is under way is bounded by
/// what the receiver took in the last second: an agent would take far more than its path carries, and the end would come
/// late. Returns how many bytes the receiver has confirmed.
///
/// # Errors
/// The connection's; `TimedOut` when the receiver confirms nothing new for `stall`.
pub fn send(
    to: &mut impl Write,
    pattern: &Pattern,
    until: Instant,
    heard: &Heard,
    stall: Duration,
) -> Result<u64> {
    let (mut sent, length) = (0_u64, u32::try_from(CHUNK).expect("fits").to_be_bytes());
    while Instant::now() < until {
        if sent.saturating_sub(heard.check(stall)?) > heard.window() {
            sleep(POLL);
            continue;
        }
        to.write_all(&length)?;
        to.write_all(pattern.at(sent, CHUNK))?;
        sent += CHUNK as u64;
    }
    to.write_all(&0_u32.to_be_bytes())?;
    to.write_all(&sent.to_be_bytes())?;
    to.flush()?;
    let deadline = Instant::now() + DRAIN;
    while heard.check(stall)? < sent && Instant::now() < deadline {
        sleep(POLL);
    }
    Ok(heard.check(stall)?.min(sent))
}

/// Takes the pattern to its end, checking every byte, and tells `back` now and then how many there are. Returns that.
///
/// # Errors
/// The connection's; `InvalidData` for a wrong byte or a wrong sum; `TimedOut` when it has not ended `within` that long.
pub fn receive(
    from: &mut impl Read,
    back: &mut impl Write,
    pattern: &Pattern,
    within: Duration,
    taken: &mut u64,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    let (deadline, mut told) = (Instant::now() + within, Instant::now());
    loop {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length == 0 {
            let mut sum = [0; 8];
            from.read_exact(&mut sum)?;
            back.write_all(&taken.to_be_bytes())?;
            return if u64::from_be_bytes(sum) == *taken { Ok(()) } else { Err(wrong(*taken)) };
        }
        let part = chunk.get_mut(..length).ok_or_else(|| wrong(*taken))?;
        from.read_exact(part)?;
        if *part != *pattern.at(*taken, length) {
            return Err(wrong(*taken));
        }
        *taken += length as u64;
        let now = Instant::now();
        if now.duration_since(told) > TELL {
            told = now;
            back.write_all(&taken.to_be_bytes())?;
        }
        if now > deadline {
            return Err(Error::new(ErrorKind::TimedOut, format!("no end within {} s", within.as_secs())));
        }
    }
}

/// What a receiver has confirmed so far.
#[derive(Debug)]
pub struct Heard(Mutex<Progress>);

#[derive(Debug)]
struct Progress {
    /// When the receiver had how much, for a second back; the last is now.
    marks: VecDeque<(Instant, u64)>,
    failed: Option<ErrorKind>,
}

impl Heard {
    /// Listens to the other direction of a connection until it ends.
    pub fn listen(mut from: impl Read + Send + 'static) -> Arc<Self> {
        let heard = Arc::new(Self::new(0));
        let mine = Arc::clone(&heard);
        thread::spawn(move || {
            let mut word = [0; 8];
            loop {
                match from.read_exact(&mut word) {
                    Ok(()) => mine.note(Instant::now(), u64::from_be_bytes(word)),
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    Err(error) => return mine.lock().failed = Some(error.kind()),
                }
            }
        });
        heard
    }

    fn new(confirmed: u64) -> Self {
        let marks = VecDeque::from([(Instant::now(), confirmed)]);
        Self(Mutex::new(Progress { marks, failed: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, now: Instant, confirmed: u64) {
        let mut progress = self.lock();
        if progress.marks.back().is_some_and(|last| last.1 >= confirmed) {
            return;
        }
        progress.marks.push_back((now, confirmed));
        while progress.marks.len() > 2 && now.duration_since(progress.marks[0].0) > Duration::from_secs(1) {
            progress.marks.pop_front();
        }
    }

    /// How much; an error when the connection broke, or nothing new has come for too long.
    fn check(&self, stall: Duration) -> Result<u64> {
        let progress = self.lock();
        if let Some(kind) = progress.failed {
            return Err(Error::from(kind));
        }
        let (at, confirmed) = *progress.marks.back().expect("never empty");
        if at.elapsed() > stall { Err(Error::from(ErrorKind::TimedOut)) } else { Ok(confirmed) }
    }

    /// How much.
    #[must_use]
    pub fn confirmed(&self) -> u64 {
        self.lock().marks.back().expect("never empty").1
    }

    /// How much may be under way.
    fn window(&self) -> u64 {
        let progress = self.lock();
        let (first, last) = (progress.marks[0].1, progress.marks.back().expect("never empty").1);
        LEAST_UNDER_WAY.max(2 * (last - first))
    }
}

fn wrong(at: u64) -> Error {
    Error::new(ErrorKind::InvalidData, format!("other bytes than were sent, at {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn sent() -> Vec<u8> {
        let (mut wire, heard, pattern) = (Vec::new(), Heard::new(u64::MAX), Pattern::default());
        let until = Instant::now() + Duration::from_millis(2);
        assert!(send(&mut wire, &pattern, until, &heard, LONG).unwrap() > 0);
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
    fn no_more_is_under_way_than_the_receiver_took_in_a_second_and_silence_is_a_stall() {
        let (mut wire, heard) = (Vec::new(), Heard::new(0));
        let (until, stall) = (Instant::now() + LONG, Duration::from_millis(300));
        let error = send(&mut wire, &Pattern::default(), until, &heard, stall).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!((LEAST_UNDER_WAY..LEAST_UNDER_WAY + 200_000).contains(&(wire.len() as u64)));
        heard.note(Instant::now(), 40 << 20);
        assert_eq!(heard.window(), 80 << 20);
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
