//! Sends real TCP between two places and says what became of it.
//!
//! Four verbs answer with a line of JSON: `serve` is the far end, `transfer` moves verified bytes one way for some seconds
//! (after a first line that tells its own address and port), `connect` asks whether somebody listens, `mtu` finds the largest
//! packet that passes unfragmented. `kubectl sos diagnose` judges what they say. A fifth, `compare`, judges by itself: it is what
//! `helm test` runs. None needs rights, files or configuration. A server lives as long as its standard input is open.
#![forbid(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod connect;
pub mod controller;
pub mod failure;
pub mod heard;
pub mod mtu;
pub mod pattern;
pub mod serve;
pub mod transfer;
pub mod verdict;
pub mod watch;
pub mod wire;
