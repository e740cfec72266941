//! `connect`: does somebody listen? An agent may accept before the server has: what happens next counts, too.

use std::io::Read as _;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::transfer::CONNECT_WITHIN;

/// How long a reset may take that follows a handshake: an agent gives a silent server up after a second.
const SETTLE: Duration = Duration::from_secs(3);

/// What became of it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Somebody accepted, and did not take it back.
    pub ok: bool,
    /// One word for why not.
    pub failure: Option<&'static str>,
    /// The same in more words.
    pub detail: String,
    /// From the SYN to its answer.
    pub connect_seconds: f64,
}

/// Opens a connection, waits a moment and closes it. Nothing is sent.
#[must_use]
pub fn connect(server: SocketAddrV4) -> Report {
    let began = Instant::now();
    let opened = TcpStream::connect_timeout(&SocketAddr::V4(server), CONNECT_WITHIN);
    let connect_seconds = began.elapsed().as_secs_f64();
    let failure = match opened {
        Ok(stream) => taken_back(&stream),
        Err(error) => Some(Failure::opening(&error)),
    };
    Report {
        ok: failure.is_none(),
        failure: failure.as_ref().map(|failure| failure.word),
        detail: failure.map(|failure| failure.detail).unwrap_or_default(),
        connect_seconds,
    }
}

fn taken_back(mut stream: &TcpStream) -> Option<Failure> {
    let _ = stream.set_read_timeout(Some(SETTLE));
    match stream.read(&mut [0]) {
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => Some(Failure::moving(&error)),
        _ => None, // silence, a greeting or a close: it is a server
    }
}
