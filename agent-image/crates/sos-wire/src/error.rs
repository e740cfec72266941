//! Errors of decoding.

use thiserror::Error;

/// Reason for rejecting a message. Callers count each kind separately; no error affects more than its message or stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer bytes than the layout needs.
    #[error("truncated message")]
    Truncated,
    /// A length field or the whole message is over its bound, or disagrees with the number of bytes.
    #[error("wrong length")]
    Length,
    /// The first four bytes are not the expected magic.
    #[error("wrong magic")]
    Magic,
    /// A version that this code does not support (README.md clause 3).
    #[error("unknown version {0}")]
    Version(u8),
    /// A message or frame type that does not exist.
    #[error("unknown type {0}")]
    Type(u8),
    /// A field holds an invalid value.
    #[error("impossible value in field {0}")]
    Field(&'static str),
    /// No key with the id named in the message.
    #[error("unknown key id {0}")]
    UnknownKey(u16),
    /// The authentication tag is wrong.
    #[error("wrong tag")]
    Tag,
    /// The message was seen before or is too old (README.md clause 9).
    #[error("replayed: {0}")]
    Replayed(#[from] Replay),
}

/// Reason for treating a datagram as replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Replay {
    /// The sender has restarted since it sent the message.
    #[error("boot id of an earlier run")]
    OldBoot,
    /// The sequence was received before.
    #[error("sequence seen before")]
    Seen,
    /// The sequence is outside the replay window, so it may have been received before.
    #[error("sequence too old")]
    TooOld,
    /// A new boot id with a time too far from the receiver's clock.
    #[error("new boot id with a clock {0} ms away")]
    Clock(u64),
}
