//! Makes one node's Open vSwitch match its node-config (spec/node-config.md, sections 1 and 2), and keeps it so.
//!
//! Who calls what, in which order:
//!
//! 1. [`daemon`] looks four times a second whether anything may have changed: the config file, Open vSwitch's sockets,
//!    the list of network devices. If so, and every few seconds anyway, it makes a pass.
//! 2. [`node`] observes: `ovs-vsctl`, `ovs-ofctl`, `ip` and `ethtool` print, [`ovsdb`], [`flow`] and [`link`] parse,
//!    and the answer is one value, [`observed::Observed`].
//! 3. [`plan::plan`] compares that with the [`config::NodeConfig`] and returns the [`change::Change`]s that are missing,
//!    in an order in which no moment forwards in a loop. It is the only place that decides anything.
//! 4. [`encode`] turns changes into command lines, [`node`] runs them and observes again; [`status`] says how it stands.
//!
//! An uplink is put on the bridge on trial ([`trial`]), and what a restart of Open vSwitch takes from the bridge's local port is given
//! back ([`local`]).
//!
//! Everything but [`command`], [`daemon`], [`memory`], [`node`], [`serve`], [`store`] and [`watch`] is pure.

#![forbid(unsafe_code)]

pub mod bugs;
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
pub mod reject;
pub mod schedule;
pub mod serve;
pub mod status;
pub mod store;
pub mod trial;
pub mod vlan;
pub mod watch;
