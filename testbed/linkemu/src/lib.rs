//! Emulates WAN links between pairs of network interfaces, for kernels without `netem`.
//!
//! The core is pure and in virtual time: [`frame`] understands what comes in, [`shaper`] queues, times and loses wire
//! packets, [`delivery`] cuts and joins super-frames. [`engine`], [`port`], [`server`] and [`sys`] are the edge.
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
