//! Emulates WAN links between pairs of network interfaces, for kernels without `netem`.
//!
//! Order of calls:
//!
//! 1. `main` parses the arguments ([`config`], [`units`]), creates an [`edge::engine::Engine`] with one [`link::Link`] and two
//!    [`edge::port::Port`]s per `--link`, attaches the ports and runs the loop.
//! 2. The loop waits for events. A port reads frames, and [`frames::frame`] divides each frame into wire packets.
//! 3. The [`shaper`] of the link's direction queues, delays and drops the packets, in virtual time. When packets are
//!    due, [`frames::delivery`] builds super-frames from them, and the other port sends these super-frames.
//! 4. [`edge::server`] passes lines of the control socket to [`control`], which changes links and answers with their [`stats`].
//!
//! | module | contains |
//! |---|---|
//! | [`config`], [`units`] | link specifications, and the quantities in them |
//! | [`frames`] (`frame`, `vnet`, `checksum`, `delivery`) | frames, their virtio-net headers, the Internet checksum; runs of packets as frames |
//! | [`link`], [`shaper`], [`stats`] | a link, one direction of it in virtual time, its counters |
//! | [`control`] | the control protocol |
//! | [`edge`] (`engine`, `port`, `server`, `sys`) | the event loop, one end of a link, the control socket, packet sockets: the only unsafe code |
//!
//! All modules are pure, without clock or socket, except [`edge`].
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod config;
pub mod control;
pub mod edge;
pub mod frames;
pub mod link;
pub mod shaper;
pub mod stats;
pub mod units;
