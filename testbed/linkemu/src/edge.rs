//! Edge: sockets, the clock and the event loop.
//!
//! Order of calls: [`engine`] waits for events. [`port`] reads and sends frames through [`sys`]; [`server`] accepts lines of the control
//! socket.
//!
//! | module | contains |
//! |---|---|
//! | [`engine`] | the event loop |
//! | [`port`] | one end of a link |
//! | [`server`] | the control socket |
//! | [`sys`] | packet sockets: the only unsafe code |

pub mod engine;
pub mod port;
pub mod server;
pub mod sys;
