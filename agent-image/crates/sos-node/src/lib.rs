//! Keeps one node's Open vSwitch in the state of its node-config (spec/node-config.md, sections 1 and 2).
//!
//! Order of calls:
//!
//! 1. [`daemon`] checks four times a second for changes: the config file ([`store`], [`config`]), Open vSwitch's sockets, the list of
//!    network devices, notifications of Open vSwitch's database ([`watch`]). [`schedule`] turns them into passes, at least one every few
//!    seconds.
//! 2. [`node`] observes: [`command`] runs `ovs-vsctl`, `ovs-ofctl`, `ip` and `ethtool`; [`ovsdb`], [`flow`] and [`link`] parse their output;
//!    [`memory`] adds the state kept from earlier passes. The result is one value, [`observed::Observed`].
//! 3. [`plan::plan`] compares the observed state with the [`config::NodeConfig`], which [`desired`] converts to Open vSwitch's ports and rows,
//!    and returns the missing [`change::Change`]s, in an order that avoids forwarding loops at every step. All decisions are made there.
//! 4. [`encode`] turns changes into command lines, [`node`] runs them and observes again; [`status`] describes the result, [`serve`] and
//!    [`metrics`] publish it.
//!
//! A new uplink is on trial ([`trial`]): it is removed again if it cuts the node off. [`local`] restores the addresses that the bridge's
//! local port loses in a restart of Open vSwitch.
//!
//! | module | contains |
//! |---|---|
//! | [`daemon`], [`schedule`] | the main loop, and the times of passes |
//! | [`config`], [`names`] | the node-config and the checked texts in it |
//! | [`store`], [`memory`] | files, and the state that outlives a pass |
//! | [`node`], [`command`], [`watch`] | one pass, the commands that it runs, the subscription to Open vSwitch's database |
//! | [`ovsdb`], [`flow`], [`link`] | parsers of rows, flow entries and devices |
//! | [`observed`] | the observed state as one value |
//! | [`desired`], [`datapath`], [`vlan`] | the desired ports, bridge and controllers; the choice of datapath; entries for ports whose untagged frames are in another VLAN |
//! | [`plan`], [`change`], [`problem`] | the difference, the changes that remove it, the problems that no change solves |
//! | [`trial`], [`local`], [`reject`] | uplinks on trial, addresses to restore, the rules that reset connections |
//! | [`encode`] | changes and observations as command lines |
//! | [`status`], [`metrics`], [`serve`] | the status, its metrics, the HTTP server |
//! | `provoked` | panics that tests provoke |
//!
//! All modules are pure, except [`command`], [`daemon`], [`memory`], [`metrics`], [`node`], [`serve`], [`store`] and [`watch`].

#![forbid(unsafe_code)]

pub mod change;
pub mod command;
pub mod config;
pub mod daemon;
pub mod datapath;
pub mod desired;
pub mod encode;
pub mod flow;
pub mod link;
pub mod local;
pub mod memory;
pub mod metrics;
pub mod names;
pub mod node;
pub mod observed;
pub mod ovsdb;
pub mod plan;
pub mod problem;
#[cfg(test)]
pub(crate) mod provoked;
pub mod reject;
pub mod schedule;
pub mod serve;
pub mod status;
pub mod store;
pub mod trial;
pub mod vlan;
pub mod watch;
