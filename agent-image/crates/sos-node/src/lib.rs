//! Keeps one node's Open vSwitch in the state of its node-config (spec/node-config.md, sections 1 and 2).
//!
//! Order of calls:
//!
//! 1. [`edge::daemon`] checks for changes: the config file each second ([`edge::store`], [`config`]); four times a second Open vSwitch's
//!    sockets, the list of network devices, and notifications of Open vSwitch's database ([`edge::watch`]). [`schedule`] turns them into
//!    passes, at least one every few seconds.
//! 2. [`edge::node`] observes: [`edge::command`] runs `ovs-vsctl`, `ovs-ofctl`, `ip` and `ethtool`; [`observation`] parses their output;
//!    [`edge::memory`] adds the state kept from earlier passes. The result is one value, [`observation::observed::Observed`].
//! 3. [`planning::plan::plan`] compares the observed state with the [`config::NodeConfig`], which [`planning::desired`] converts to Open
//!    vSwitch's ports and rows, and returns the missing [`planning::change::Change`]s, in an order that avoids forwarding loops at every
//!    step. All decisions are made there.
//! 4. [`encode`] turns changes into command lines, [`edge::node`] runs them and observes again; [`status`] describes the result,
//!    [`edge::serve`] and [`edge::metrics`] publish it.
//!
//! A new uplink is on trial ([`planning::trial`]): it is removed again if it cuts the node off. [`planning::local`] restores the addresses
//! that the bridge's local port loses in a restart of Open vSwitch. [`planning::orphan`] decides at SIGTERM if the bridge stays.
//!
//! | module | contains |
//! |---|---|
//! | [`config`], [`names`] | the node-config and the checked texts in it |
//! | [`observation`] | parsers of rows, flow entries, devices and reset rules; the observed state as one value |
//! | [`planning`] | the desired state, the difference, the changes that remove it; uplinks on trial, addresses to restore, the end of the site |
//! | [`encode`] | changes and observations as command lines |
//! | [`status`] | the status |
//! | [`schedule`] | the times of passes |
//! | [`edge`] | the main loop, one pass, commands, files, the HTTP server |
//! | `provoked` | panics that tests provoke |
//!
//! All modules are pure, except [`edge`].

#![forbid(unsafe_code)]

pub mod config;
pub mod edge;
pub mod encode;
pub mod names;
pub mod observation;
pub mod planning;
#[cfg(test)]
pub(crate) mod provoked;
pub mod schedule;
pub mod status;
