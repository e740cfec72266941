//! Emulates many OpenFlow 1.3 switches and measures a controller's answers to their packet-ins, like OFCBenchmark (M. Jarschel et al.,
//! "A flexible OpenFlow-controller benchmark", EWSDN 2012): rates, latencies and outstanding packets per switch, and fairness.
//!
//! Order of calls:
//!
//! 1. `main` parses the arguments, builds a [`network`] (from the document of [`config`], if given), its agents and a [`world::World`].
//! 2. [`edge::run`] connects every switch to the controller and loops: it passes received bytes and the time to the world, and writes
//!    the output of the switches.
//! 3. [`world`] sends the SYNs that are due according to [`load`]. Each switch answers the controller from its flow table
//!    ([`openflow`]), each [`agent`] answers orders, and [`stats`] counts.
//! 4. [`report`] formats the counts, with the CPU time of [`process`].
//!
//! | module | contains |
//! |---|---|
//! | [`openflow`] (`wire`, `packets`, `table`, `switch`) | one switch with its flow table; encoding of OpenFlow messages and of the frames in them |
//! | [`agent`] | one agent of SOS |
//! | [`network`], [`config`] | the emulated network |
//! | [`world`], [`load`], [`stats`] | the whole emulation, with time as an argument |
//! | [`edge`], [`process`] | sockets, clocks, /proc |
//! | [`report`] | results |

pub mod agent;
pub mod config;
pub mod edge;
pub mod load;
pub mod network;
pub mod openflow;
pub mod process;
pub mod report;
pub mod stats;
pub mod world;
