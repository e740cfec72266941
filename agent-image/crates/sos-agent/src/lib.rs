//! The relay agent: sockets, orders and beacons around the tunnel between agents.
//!
//! | modules | what they decide or do |
//! |---|---|
//! | [`config`], [`canonical`], [`keys`], [`source`] | what the agent has been told, and when it may change |
//! | [`permit`], [`region`], [`arming`] | which flows it may take, and whether it takes any now |
//! | [`nft`], [`netplan`] | what its network namespace must look like |
//! | [`orders`], [`preparations`], [`ends`] | what controllers and agent tell each other |
//! | [`load`] | the figures of a beacon |
//! | [`netns`], [`socket`] | edge: the kernel's network |
#![forbid(unsafe_code)]

pub mod arming;
pub mod canonical;
pub mod cli;
pub mod config;
pub mod ends;
pub mod keys;
pub mod load;
pub mod netns;
pub mod netplan;
pub mod nft;
pub mod orders;
pub mod permit;
pub mod preparations;
pub mod region;
pub mod socket;
pub mod source;
