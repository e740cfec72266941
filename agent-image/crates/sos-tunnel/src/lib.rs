//! Streams between agents.
#![forbid(unsafe_code)]
