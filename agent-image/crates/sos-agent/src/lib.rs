//! The relay agent.
#![forbid(unsafe_code)]

pub mod arming;
pub mod canonical;
pub mod cli;
pub mod config;
pub mod hex;
pub mod load;
pub mod netns;
pub mod netplan;
pub mod nft;
pub mod permit;
pub mod region;
pub mod socket;
pub mod source;

