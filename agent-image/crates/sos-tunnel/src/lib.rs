//! Streams between agents, and the tasks that drive sessions over them.
//!
//! This is the Tokio edge of the relay. It owns sockets and timers and decides nothing about the protocol: `sos-relay` decides what a
//! session sends next, `sos-wire` defines the bytes, and the process around this crate decides which flows are accepted and to which peer
//! they are relayed. That process calls [`Tunnel`], and implements the callbacks [`Keys`], [`Sockets`] and [`EgressHandler`].
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
//! tunnel.peer_alive(AgentId) -> bool                         a stream is established and the peer is not leaving
//! tunnel.path_streams(AgentId) -> Vec<PathStreams>          streams of each path label, established and configured
//! tunnel.willing_peers() -> watch::Receiver<BTreeSet<AgentId>>  alive peers that accept new sessions
//! tunnel.set_willing(bool)                                   accept or refuse new sessions at this agent
//! tunnel.reset_sessions()                                    reset every session; streams stay open
//! tunnel.drain()                                             refuse new sessions, notify the peers
//! tunnel.stats() -> Stats, tunnel.paths() -> Vec<PathStats>
//! tunnel.close()                                             reset every session, close every stream
//! ```
//!
//! Of two agents, the agent with the lower id dials (frame.md clause 1); the other agent waits in [`Tunnel::accept_stream`].
//!
//! Order of calls:
//!
//! 1. `tunnel::pool` keeps a task for each configured stream, which redials with back-off: `dial` connects and runs the
//!    `stream::handshake`, `registration` adds the stream to its `peer`, `stream_task` runs it. On the other side `accept` (over QUIC after
//!    `datagrams`) does the same once.
//! 2. `stream_task` reads (`stream::reader`), writes (`stream::outgoing`), pings, hands the transport to [`Sockets::tend`] for path control, and
//!    delivers frames to the sessions' mailboxes by way of the `peer`. `migration` replaces a stream of the wrong kind.
//! 3. `tunnel::open_session` starts a session, for a host or for a peer's Open, and spawns its `session::driver`.
//! 4. The driver's `poll` takes mail, connects, reads the `session::host`, requests frames from the core
//!    (`sos_relay::sending::stream_reservation` first marks reserved streams), writes to the host, and handles events. `host_liveness` polls all hosts in one task.
//!
//! | modules | part |
//! |---|---|
//! | `config`, `types`, `callbacks`, `counters`, `first_byte` | interface to the process |
//! | `tunnel` | the handle, and `context`, the state that all tasks share |
//! | `tunnel::{pool, dial, accept, datagrams, slots}` | opening of streams |
//! | `tunnel::{registration, stream_task, migration}` | operation and replacement of streams |
//! | `tunnel::{peer, open_session}` | peers, and the start of sessions |
//! | `session::{driver, handle, mailbox}` | one session's task |
//! | `session::driver::{delivery, liveness, marks}` | delivery to the host; answers to its probes; its DSCP and TTL |
//! | `session::{host, host_liveness}` | host leg, detection of keepalive probes |
//! | `stream::{handshake, outgoing, reader, path, path_loss}` | one stream: handshake, both directions, path statistics |
//! | `transport::{channel, tls, quic}` | the connection under a stream |
//! | `transport::tls::{identity, config, handshake, record}` | raw public keys; verification of the peer's key; handshake; records |
//! | `transport::{handle, path_info}` | control of a connection: statistics, congestion control, pacing |
//! | `transport::{batched_read, buffers, splice, write_queue_iovecs}` | efficient reads and writes |
//! | `transport::{sockopt, bpf, segment_marks}` | the kernel: socket options and filters |
#![deny(unsafe_code)]

mod callbacks;
mod config;
mod counters;
mod first_byte;
mod session;
mod stream;
mod transport;
mod tunnel;
mod types;

use std::sync::{Mutex, MutexGuard, PoisonError};

#[cfg(feature = "fuzzing")]
pub use transport::tls::fuzzing::records as fuzz_records;

pub use callbacks::{BoxFuture, Egress, EgressHandler, Keys, OpenInfo, PlainSockets, Sockets};
pub use config::{
    Dial, Limits, OpenRequest, PathStats, PathStreams, PeerConfig, Protocol, Stats, Timing, TunnelConfig,
};
pub use first_byte::FirstByteTimes;
pub use session::handle::{Aborter, Relayed, SessionHandle};
pub use session::host::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES};
pub use sos_relay::{Cause, Retransmitted};
pub use transport::handle::TransportHandle;
pub use transport::path_info::{Pacing, PathInfo};
pub use transport::segment_marks::{SegmentMarks, first_marks, keep_first_marks, set_marks};
pub use transport::sockopt::{set_first_window, set_retransmit_max};
pub use tunnel::Tunnel;
pub use types::{Labels, SessionEnd};

/// Locks a mutex even if its holder panicked: every critical section here leaves its data consistent at each step.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
