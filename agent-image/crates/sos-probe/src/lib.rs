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
//! 2. [`transfer`] connects and uses its protocol with [`serve`]: the sender takes bytes from a pattern and limits the bytes in flight, the
//!    receiver checks and acknowledges them. [`failure`] names an error in one word.
//! 3. [`compare`] runs two transfers, meanwhile queries a controller, and judges both results.
//!
//! | module | contains |
//! |---|---|
//! | [`cli`] | the command line |
//! | [`serve`] | the server of transfers and of `mtu` |
//! | [`transfer`] (`wire`, `pattern`, `heard`) | a transfer, and its report: protocol, bytes, acknowledgements |
//! | [`connect`] | a connection without data |
//! | [`mtu`] | the search for the largest packet, both ends |
//! | [`failure`] | outcomes in one word |
//! | [`compare`] (`controller`, `watch`, `verdict`) | two downloads, outside a service and through it |
#![forbid(unsafe_code)]

pub mod cli;
pub mod compare;
pub mod connect;
pub mod failure;
pub mod mtu;
pub mod serve;
pub mod transfer;
