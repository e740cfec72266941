//! One emulated OpenFlow 1.3 switch.
//!
//! Order of calls: [`switch`] parses the controller's messages by [`wire`], applies them to its [`table`], and answers; [`packets`] encodes the
//! frames in packet-ins and packet-outs.
//!
//! | module | contains |
//! |---|---|
//! | [`wire`] | encoding of OpenFlow messages |
//! | [`packets`] | encoding of the frames in them |
//! | [`table`] | a flow table |
//! | [`switch`] | a switch |

pub mod packets;
pub mod switch;
pub mod table;
pub mod wire;
