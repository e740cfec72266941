//! Sends real TCP between two hosts and reports the outcome.
//!
//! Four verbs print a line of JSON: `serve` is the server, `transfer` moves verified bytes in one direction for some seconds
//! (after a first line with its own address and port), `connect` checks for a listening server, `mtu` finds the largest packet
//! that passes unfragmented. `kubectl sos diagnose` interprets these lines. A fifth verb, `compare`, prints its own verdict:
//! `helm test` runs it. No verb needs privileges, files or configuration. A server runs as long as its standard input is open.
//!
//! Callers, in call order:
//!
//! 1. `main` parses the arguments with [`cli`] and calls one verb: [`serve::serve`], [`transfer::transfer`], [`compare::compare`],
//!    [`connect::connect`] or [`mtu::find`].
//! 2. [`transfer`] connects and uses the protocol [`wire`] with [`serve`]: the sender takes bytes from [`pattern`] and limits the
//!    bytes in flight by [`heard`], the receiver checks and acknowledges them. [`failure`] names an error in one word.
//! 3. [`compare`] runs two transfers, meanwhile queries [`controller`] through [`watch`], and passes both results to [`verdict`].
//!
//! | module | contains |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`serve`] | the server of transfers and of `mtu` |
//! | [`transfer`] | a transfer, and its report |
//! | [`wire`] | the protocol of a transfer, both ends |
//! | [`pattern`] | the bytes of a transfer |
//! | [`heard`] | a receiver's acknowledgements, and the window that follows from them |
//! | [`connect`] | a connection without data |
//! | [`mtu`] | the search for the largest packet, both ends |
//! | [`failure`] | outcomes in one word |
//! | [`compare`] | two downloads, outside a service and through it |
//! | [`controller`] | the query for a session in a controller's API |
//! | [`watch`] | polling in the background |
//! | [`verdict`] | the judgement of two downloads; pure |
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
