//! Streams between agents, and the tasks that drive sessions over them.
//!
//! This is the Tokio edge of the relay. It owns sockets and timers and decides nothing about the protocol: what a session sends next is
//! `sos-relay`'s business, what bytes mean `sos-wire`'s, which flows are accepted and where they go that of the process around it,
//! which talks to this crate through [`Tunnel`] and is asked through the traits [`Keys`], [`Sockets`] and [`EgressHandler`].
//!
//! ```text
//! Tunnel::start(TunnelConfig) -> Tunnel                      inside a Tokio runtime; Tunnel is Clone
//! tunnel.set_peers(Vec<PeerConfig>)                          whole list each time; streams are dialed ahead of need
//! tunnel.accept_stream(TcpStream, label)                     a connection to first stream port + label
//! tunnel.open_datagrams(UdpSocket, label)                    the same port of UDP, for streams over QUIC
//! tunnel.open(OpenRequest, host: TcpStream)
//!     -> Result<SessionHandle, RefuseReason>                 a refused or failed host socket is reset
//! SessionHandle: Future<Output = SessionEnd>                 dropping it does not end the session
//! session.abort(EndReason), session.progress() -> (up, down)
//! tunnel.peer_alive(AgentId) -> bool                         a stream stands and the peer is not leaving
//! tunnel.willing_peers() -> watch::Receiver<BTreeSet<AgentId>>  those of them that have room
//! tunnel.set_willing(bool)                                   whether this agent has, for now
//! tunnel.drain()                                             refuse new sessions, tell the peers
//! tunnel.stats() -> Stats, tunnel.paths() -> Vec<PathStats>
//! tunnel.close()                                             reset every session, close every stream
//! ```
//!
//! Of two agents the one with the lower id dials (frame.md clause 1); the other waits in [`Tunnel::accept_stream`].
#![deny(unsafe_code)]

mod bpf;
mod buffers;
mod channel;
mod config;
mod counters;
mod driver;
mod exchange;
mod hooks;
mod host;
mod line;
mod liveness;
mod loss;
mod mailbox;
mod outgoing;
mod pace;
mod path;
mod peer;
mod pieces;
mod pipes;
mod pool;
mod quic;
mod reader;
mod replace;
mod segment_marks;
mod sockopt;
mod spare;
mod stream;
mod tls;
mod tunnel;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "fuzzing")]
pub use tls::fuzzing::records as fuzz_records;

pub use config::{
    Labels, Limits, OpenRequest, PathStats, PeerConfig, Protocol, SessionEnd, Stats, Timing, TunnelConfig,
};
pub use hooks::{BoxFuture, Egress, EgressHandler, Keys, OpenInfo, PlainSockets, Sockets};
pub use host::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
pub use line::{Line, Pacing};
pub use segment_marks::{SegmentMarks, first_marks, keep_first_marks, set_marks};
pub use sockopt::{PathInfo, set_first_window, set_retransmit_max};
pub use sos_relay::{Cause, Resent};
pub use tunnel::{Aborter, Relayed, SessionHandle, Tunnel};

/// Locks a mutex whose holder may have panicked: every critical section here leaves its data whole at each step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
