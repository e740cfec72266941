//! The session core of the relay: a byte stream in each direction, over any number of streams, each of which may fail.
//!
//! No sockets, no clock, no runtime, no threads. The driver (`sos-tunnel`, or a test in virtual time) owns all of these and reports events
//! to a [`Session`]; the session answers with frames and actions:
//!
//! ```text
//!   host socket                                 Session                                     streams
//!   read       -> handle_local_data/eof/reset |         | handle_frame(body)            <-  read
//!   (only while local_room() > 0)             | Sender  | poll_transmit(streams)        ->  write
//!   write      <- deliverable                 | Receiver| handle_stream_up/closed       <-  up, closed
//!              -> handle_delivered(n), or     |         | poll_timeout, handle_timeout  <-> a timer
//!                 handle_host_full()          |         |
//!   shut, reset <- poll_event                 |
//! ```
//!
//! Call a `handle_*` when its event happens, then `deliverable`, `poll_event` and `poll_transmit` until they return nothing, then sleep
//! until the next event or `poll_timeout`. Calls that depend on the time take it as an argument; the same calls with the same times give
//! the same results.
//!
//! **Sending.** The host's bytes are cut into blocks when a stream is about to take them, so that the stream is chosen late
//! ([`Scheduler`]). Blocks are kept until cumulatively acknowledged. Blocks on a stream that was lost, or that stalled while other streams
//! make progress, are retransmitted on another stream, oldest first. If nothing else can be sent, for lack of credit or at the end of the
//! data, the oldest unacknowledged blocks are copied from a slow path to a faster path, provided that the copy is expected to arrive well
//! before the original.
//!
//! **Receiving.** The [`ReorderBuffer`] puts blocks in order. The credit that the receiver has granted bounds the size of this buffer.
//! Credit is an absolute limit that moves with the bytes that the host has taken ([`receiving::credit`]). Windows grow while the host keeps
//! up, within a [`Budget`] that all sessions share.
//!
//! **Compression.** A session itself produces only Data frames, and accepts Compressed frames, too. Its driver may compress a Data frame
//! before sending it ([`Compression`]). Buffers, counters and credit refer to the original size of blocks.
//!
//! **Closing.** A Fin ends one direction, a Reset both. An agent that has finished sends a closing Ack ([`Session::closing_ack`]). From
//! then on the other agent needs neither its peer nor the streams, however long its own host takes to read the remaining bytes. An error
//! ends only its own session.
//!
//! | modules | part |
//! |---|---|
//! | `session` (`interface`, `transmit`, `marks`, `close`) | the session: frames in, frames and events out |
//! | [`sending`] (`sender`, `redundancy`, `read_ahead`, `scheduler`, `stream_reservation`) | blocks, their streams and their retransmission |
//! | [`receiving`] (`receiver`, `reorder`, `credit`) | order, flow control |
//! | [`compression`] (`compress`, `codec`) | adaptive compression, and zstd |
//! | `marks` | DSCP and TTL of the hosts' packets, both directions |
//! | [`budget`] | memory of all sessions |
//! | [`closed_sessions`] | answers to late frames |
//! | `stats` | counters of a session |
#![forbid(unsafe_code)]

pub mod budget;
pub mod closed_sessions;
pub mod compression;
mod marks;
pub mod receiving;
pub mod sending;
mod session;
mod stats;

pub use budget::{Budget, Reservation};
pub use closed_sessions::ClosedSessions;
pub use compression::compress::{Adaptive, Compressed, Compression, Outcome};
pub use receiving::reorder::ReorderBuffer;
pub use sending::scheduler::{Demand, EarliestArrival, Scheduler, StreamId, StreamView, usable};
pub use session::{Event, Session, SessionConfig, Transmit};
pub use stats::{Cause, Retransmitted, SessionStats};

/// Interval at which a session re-examines its streams while it waits for a better stream than those with buffer space, because paths
/// change.
pub const ASK_AGAIN: std::time::Duration = std::time::Duration::from_millis(5);
/// Default block size, measured as the best size while a path's rate still grows; blocks of 8 KiB cost 70 % more CPU.
pub const DEFAULT_BLOCK: usize = 64 << 10;
/// Maximum block size: one frame's payload.
pub const MAX_BLOCK: usize = sos_wire::stream::frame::MAX_PAYLOAD;
/// Smallest block size that may be requested.
pub const MIN_BLOCK: usize = 4 << 10;
