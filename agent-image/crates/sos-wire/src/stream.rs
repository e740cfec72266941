//! Streams between agents (frame.md): the handshake, then frames.
//!
//! Order of calls: both ends exchange [`handshake::Hello`], [`handshake::Welcome`] and Confirm. Then the sender writes each
//! [`frame::Frame`] with `encode_head` and its [`payload::Payload`]; the receiver takes frames from [`decoder::Decoder::decode`].
//!
//! | module | contains |
//! |---|---|
//! | [`handshake`] | Hello, Welcome and Confirm |
//! | [`frame`] | frames |
//! | [`payload`] | the bytes of Data frames |
//! | [`decoder`] | splitter of a byte stream into frames |

pub mod decoder;
pub mod frame;
pub mod handshake;
pub mod payload;
