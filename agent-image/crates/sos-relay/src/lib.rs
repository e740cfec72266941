//! The session core of the relay.
#![forbid(unsafe_code)]
