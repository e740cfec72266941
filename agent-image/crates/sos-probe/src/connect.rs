//! `connect`: check for a listening server. An agent may accept before the server has, so the next event on the connection
//! counts, too.

use std::io::Read as _;
use std::net::{SocketAddr, SocketAddrV4, TcpStream};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::failure::Failure;
use crate::transfer::CONNECT_WITHIN;

/// Time after the handshake in which a reset counts as a failure: an agent that accepts before the server resets the connection
/// if the server refuses.
const SETTLE: Duration = Duration::from_secs(3);

/// Outcome of the connection.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The connection was accepted and not reset.
    pub ok: bool,
    /// The failure in one word.
    pub failure: Option<&'static str>,
    /// Details of the failure.
    pub detail: String,
    /// Time from the SYN to its answer.
    pub connect_seconds: f64,
}

/// Open a connection, wait a moment and close it. Nothing is sent.
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
        _ => None, // silence, a greeting or a close means that a server is listening
    }
}
