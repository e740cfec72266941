//! `transfer`: bytes in one direction, with a check of each byte.
//!
//! Order of calls: [`transfer`] connects and uses the protocol [`wire`]; the sender takes bytes from [`pattern`] and limits the bytes in
//! flight by [`heard`].
//!
//! | module | contains |
//! |---|---|
//! | [`wire`] | the protocol of a transfer, both ends |
//! | [`pattern`] | the bytes of a transfer |
//! | [`heard`] | a receiver's acknowledgements, and the window that follows from them |

pub mod heard;
pub mod pattern;
pub mod wire;

use std::io::{Read as _, stdin};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use self::heard::Heard;
use self::pattern::Pattern;
use self::wire::Direction;
use crate::failure::Failure;

/// Connection timeout. A SYN is retransmitted after one and three seconds, so two SYNs may be lost.
pub const CONNECT_WITHIN: Duration = Duration::from_secs(6);
/// Time without progress that counts as a stall: four retransmissions on a path with a round trip of half a second.
pub const STALL: Duration = Duration::from_secs(5);

/// The first line of output, printed after connecting. The address identifies the connection at a controller.
#[derive(Debug, Serialize)]
pub struct Opened<'a> {
    /// Local address and port.
    pub own: &'a str,
}

/// Outcome of a transfer.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// All bytes arrived as sent.
    pub ok: bool,
    /// The failure in one word.
    pub failure: Option<&'static str>,
    /// Details of the failure.
    pub detail: String,
    /// Local address and port.
    pub own: String,
    /// The address that the server saw.
    pub seen: String,
    /// Bytes that arrived.
    pub bytes: u64,
    /// Time from the first SYN to the last byte.
    pub seconds: f64,
    /// Time from the SYN to its answer.
    pub connect_seconds: f64,
}

/// Open a connection, report it, and transfer bytes; `hold` returns when the connection may be closed.
#[must_use]
pub fn transfer(
    server: SocketAddrV4,
    direction: Direction,
    seconds: u16,
    opened: impl FnOnce(&Opened<'_>),
    hold: impl FnOnce(),
) -> Report {
    let (began, mut report) = (Instant::now(), Report::default());
    let ended = run(server, direction, seconds, opened, &mut report);
    report.seconds = began.elapsed().as_secs_f64();
    match ended {
        Ok(_open) => {
            report.ok = true;
            hold();
        }
        Err(failure) => {
            report.failure = Some(failure.word);
            report.detail = failure.detail;
        }
    }
    report
}

fn run(
    server: SocketAddrV4,
    direction: Direction,
    seconds: u16,
    opened: impl FnOnce(&Opened<'_>),
    report: &mut Report,
) -> Result<TcpStream, Failure> {
    let began = Instant::now();
    let mut stream = TcpStream::connect_timeout(&SocketAddr::V4(server), CONNECT_WITHIN)
        .map_err(|error| Failure::opening(&error))?;
    report.connect_seconds = began.elapsed().as_secs_f64();
    report.own = stream.local_addr().map(|address| address.to_string()).unwrap_or_default();
    opened(&Opened { own: &report.own });
    let limits = [stream.set_read_timeout(Some(STALL)), stream.set_write_timeout(Some(STALL))];
    limits.into_iter().collect::<Result<(), _>>().map_err(|error| Failure::moving(&error))?;
    exchange(&mut stream, direction, seconds, report).map_err(|error| Failure::moving(&error))?;
    Ok(stream)
}

fn exchange(
    stream: &mut TcpStream,
    direction: Direction,
    seconds: u16,
    report: &mut Report,
) -> std::io::Result<()> {
    let (pattern, time) = (Pattern::default(), Duration::from_secs(seconds.into()));
    wire::ask(stream, direction, seconds)?;
    report.seen = wire::told_address(stream)?;
    let mut other = stream.try_clone()?;
    if direction == Direction::Down {
        return wire::receive(stream, &mut other, &pattern, time + wire::LONGEST_END, &mut report.bytes);
    }
    let heard = Heard::listen(other);
    wire::send(stream, &pattern, Instant::now() + time, &heard, STALL, &mut report.bytes)
}

/// Wait until standard input ends or the time limit is reached, so that the connection can be inspected.
pub fn until_told(time: Duration) {
    if time.is_zero() {
        return;
    }
    let (tell, told) = mpsc::channel::<()>();
    thread::spawn(move || {
        let mut nothing = [0];
        while matches!(stdin().read(&mut nothing), Ok(1..)) {}
        drop(tell);
    });
    let _ = told.recv_timeout(time);
}

/// The address of a server.
#[must_use]
pub fn server(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}
