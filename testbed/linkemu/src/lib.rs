//! Emulates WAN links between pairs of network interfaces, for kernels without `netem`.
//!
//! Order of calls:
//!
//! 1. `main` parses the arguments ([`config`], [`units`]), creates an [`engine::Engine`] with one [`link::Link`] and two [`port::Port`]s
//!    per `--link`, attaches the ports and runs the loop.
//! 2. The loop waits for events. [`port`] reads frames through [`sys`], and [`frame`] divides each frame into wire
//!    packets.
//! 3. The [`shaper`] of the link's direction queues, delays and drops the packets, in virtual time. When packets are
//!    due, [`delivery`] builds super-frames from them, and the other port sends these super-frames.
//! 4. [`server`] passes lines of the control socket to [`control`], which changes links and answers with their [`stats`].
//!
//! | module | contains |
//! |---|---|
//! | [`config`], [`units`] | link specifications, and the quantities in them |
//! | [`frame`], [`vnet`], [`checksum`] | frames, their virtio-net headers, the Internet checksum |
//! | [`link`], [`shaper`], [`stats`] | a link, one direction of it in virtual time, its counters |
//! | [`delivery`] | runs of packets as frames |
//! | [`control`] | the control protocol |
//! | [`engine`] | the event loop |
//! | [`port`] | one end of a link |
//! | [`server`] | the control socket |
//! | [`sys`] | packet sockets: the only unsafe code |
//!
//! [`engine`], [`port`], [`server`] and [`sys`] are the edge; the rest is pure, without clock or socket.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod checksum;
pub mod config;
pub mod control;
pub mod delivery;
pub mod engine;
pub mod frame;
pub mod link;
pub mod port;
pub mod server;
pub mod shaper;
pub mod stats;
pub mod sys;
pub mod units;
pub mod vnet;
