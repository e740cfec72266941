//! The relay agent: sockets, orders and beacons around the tunnel between agents.
//!
//! | modules | what they decide or do |
//! |---|---|
//! | [`config`], [`canonical`], [`keys`], [`source`] | what the agent has been told, and when it may change |
//! | [`permit`], [`region`], [`arming`] | which flows it may take, and whether it takes any now |
//! | [`nft`], [`netplan`] | what its network namespace must look like |
//! | [`orders`], [`preparations`], [`ends`] | what controllers and agent tell each other |
//! | [`load`], [`pool`] | the figures of a beacon; the streams to keep |
//! | [`netns`], [`socket`] | edge: the kernel's network |
//! | [`ingress`], [`egress`], [`streams`], [`duties`], [`http`] | edge: the tasks, which share [`shared::Shared`] |
//! | [`run`] | edge: start, drain, stop |
//!
//! A client's connection: nft hands its SYN to [`ingress`], which finds the order or the service it belongs to and opens a
//! session of the tunnel towards the peer. There [`egress`] checks it against that agent's own configuration and connects
//! to the server in the client's name. Everything between the two sockets is the business of `sos-tunnel`.
#![forbid(unsafe_code)]

pub mod arming;
pub mod bugs;
pub mod canonical;
pub mod classifier;
pub mod cli;
pub mod config;
pub mod duties;
pub mod egress;
pub mod ends;
pub mod hold;
pub mod http;
pub mod ingress;
pub mod keys;
pub mod known_servers;
pub mod load;
pub mod meters;
pub mod metrics;
pub mod netns;
pub mod netplan;
pub mod nflog;
pub mod nft;
pub mod orders;
pub mod permit;
pub mod plain;
pub mod pool;
pub mod preparations;
pub mod run;
pub mod running;
mod server_legs;
pub mod shared;
pub mod socket;
pub mod source;
mod stream_monitor;
pub mod streams;
pub mod syn;
pub mod syn_hold;
