//! Observation: the state of a node's Open vSwitch, devices and reset rules, as values. Pure.
//!
//! Order of calls: `crate::edge::node` runs the commands that [`crate::encode`] renders and passes their output to [`ovsdb`], [`flow`],
//! [`link`] and [`reject`]; the parsed parts form one [`observed::Observed`], the input of [`crate::planning`].
//!
//! | module | contains |
//! |---|---|
//! | [`ovsdb`] | parser of the rows of Open vSwitch's database |
//! | [`flow`] | flow entries: their identity, the base entries as text, parsers of dumps |
//! | [`link`] | parsers of devices, their addresses and offloads |
//! | [`reject`] | the rules that reset connections, and the parser of their counters |
//! | [`observed`] | the observed state as one value |

pub mod flow;
pub mod link;
pub mod observed;
pub mod ovsdb;
pub mod reject;
