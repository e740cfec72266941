//! The session core of the relay: one direction of bytes each way over any number of streams that may die.
//!
//! No sockets, no clock, no runtime, no threads. Somebody else (`sos-tunnel`, or a test in virtual time) owns those, and tells a
//! [`Session`] what happened; the session says what to do about it:
//!
//! ```text
//!   host socket                                 Session                                     streams
//!   read       -> handle_local_data/eof/reset |         | handle_frame(stream, body)    <-  read
//!   (only while local_room() > 0)             | Sender  | poll_transmit(streams)        ->  write
//!   write      <- deliverable                 | Receiver| handle_stream_up/closed       <-  came, died
//!              -> handle_delivered(n), or     |         | poll_timeout, handle_timeout  <-> a timer
//!                 handle_host_full()          |         |
//!   shut, reset <- poll_event                 |
//! ```
//!
//! Call any `handle_*` when its thing happens, then `deliverable`, `poll_event` and `poll_transmit` until they yield nothing, then sleep
//! until something happens or `poll_timeout` is reached. Every call takes the current time, and the same calls with the same times give
//! the same answers.
//!
//! **Sending.** Bytes of the host are cut into blocks when a stream is about to take them, so that the choice of stream is made late
//! ([`Scheduler`]). Blocks are kept until the cumulative acknowledgement has passed them; those that were on a stream that died, or stalled
//! while others move, are sent again on another, oldest first. When there is nothing else to send, for want of credit or at the end, blocks at
//! the gap are sent again where they arrive well before they would on their slow stream.
//!
//! **Receiving.** The [`ReorderBuffer`] puts blocks in order. What it may have to hold is bounded by the credit that the receiver has
//! granted, an absolute limit that moves with what the host has taken ([`credit`]). Windows grow while the host keeps up, as far as a
//! [`Budget`] that all sessions share allows.
//!
//! **Compressing.** A session sends Data and takes Compressed as well. Whoever drives it may compress what it sends on the way
//! ([`Compression`]): everything is kept, counted and granted as it is without.
//!
//! **Ends.** Each direction ends by itself (Fin), both at once by Reset. An end that has finished says farewell ([`Session::farewell`]); the other
//! one needs neither it nor the streams any more, however long its host takes. Nothing here is fatal to more than the one session.
#![forbid(unsafe_code)]

mod ahead;
pub mod budget;
pub mod codec;
pub mod compress;
pub mod credit;
pub mod ended;
mod marks;
mod receiver;
mod redundancy;
pub mod reorder;
pub mod scheduler;
mod sender;
mod session;
mod stats;

pub use budget::{Budget, Reservation};
pub use compress::{Adaptive, Compressed, Compression, Outcome};
pub use ended::EndedSessions;
pub use reorder::ReorderBuffer;
pub use scheduler::{Demand, EarliestArrival, Scheduler, StreamId, StreamView, usable};
pub use session::{Event, Session, SessionConfig, Transmit};
pub use stats::{Cause, Resent, SessionStats};

/// A session that waits for a better stream than those with room looks at them again after this time: what is known of their paths changes.
pub const ASK_AGAIN: std::time::Duration = std::time::Duration::from_millis(5);
/// Block size unless something else is asked for. Measured best while a path's rate is still growing; 8 KiB costs 70 % more CPU.
pub const DEFAULT_BLOCK: usize = 64 << 10;
/// Largest block: one frame's payload.
pub const MAX_BLOCK: usize = sos_wire::frame::MAX_PAYLOAD;
/// Smallest block that may be asked for.
pub const MIN_BLOCK: usize = 4 << 10;
