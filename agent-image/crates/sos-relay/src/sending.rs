//! The sending half of a session: the host's bytes to the streams.
//!
//! Order of calls: `read_ahead` limits the bytes that the driver reads from the host, `sender` keeps them. When a stream can take a frame,
//! the driver marks the streams that [`stream_reservation`] leaves to other sessions, [`scheduler`] selects the stream, and `sender` cuts
//! the block.
//!
//! | module | contains |
//! |---|---|
//! | `read_ahead` | limit of bytes read from the host |
//! | `sender` | blocks, and their retransmission after the loss of a stream |
//! | `sender::retransmit`, `redundancy` | copies of late blocks and of the tail, and the allowance for them |
//! | [`scheduler`] | the stream of the next frame |
//! | [`stream_reservation`] | streams that a session leaves to other sessions |

pub(crate) mod read_ahead;
pub(crate) mod redundancy;
pub mod scheduler;
pub(crate) mod sender;
pub mod stream_reservation;
