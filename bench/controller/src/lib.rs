//! Emulates many OpenFlow 1.3 switches and measures how a controller answers their packet-ins, as OFCBenchmark did (M. Jarschel et al.,
//! "A flexible OpenFlow-controller benchmark", EWSDN 2012): per switch rates, latencies, outstanding packets and fairness.
//!
//! | module | what |
//! |---|---|
//! | [`wire`], [`packets`] | OpenFlow and the frames in it, bytes only |
//! | [`table`], [`switch`], [`agent`] | one switch, one agent of SOS |
//! | [`network`], [`config`] | what is emulated |
//! | [`world`], [`load`], [`stats`] | all of it together, in the time it is told |
//! | [`edge`], [`process`] | sockets, clocks, /proc |
//! | [`report`] | what was found |

pub mod agent;
pub mod config;
pub mod edge;
pub mod load;
pub mod network;
pub mod packets;
pub mod process;
pub mod report;
pub mod stats;
pub mod switch;
pub mod table;
pub mod wire;
pub mod world;
