//! Edge: files, commands, sockets and the clock. Its modules decide nothing.
//!
//! Order of calls:
//!
//! 1. [`daemon`] rereads the config ([`store`]), checks Open vSwitch's sockets and the list of devices, and takes notifications of Open
//!    vSwitch's database from [`watch`].
//! 2. [`node`] makes a pass: [`command`] runs commands, [`memory`] adds the state kept from earlier passes.
//! 3. [`serve`] and [`metrics`] publish the status; [`polls`] notes the operator's polls of it.
//!
//! | module | contains |
//! |---|---|
//! | [`daemon`] | the main loop |
//! | [`node`], [`command`] | one pass, and the commands that it runs |
//! | [`watch`] | the subscription to Open vSwitch's database |
//! | [`store`], [`memory`] | files, and the state that outlives a pass |
//! | [`serve`], [`metrics`] | the HTTP server, and the metrics |
//! | [`polls`] | the operator's polls, and the wait of Open vSwitch's start script for this process |

pub mod command;
pub mod daemon;
pub mod memory;
pub mod metrics;
pub mod node;
pub mod polls;
pub mod serve;
pub mod store;
pub mod watch;
