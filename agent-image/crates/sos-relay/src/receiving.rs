//! The receiving half of a session: blocks of the streams to the host, in order.
//!
//! Order of calls: `receiver` checks a block against the granted [`credit`], the [`reorder`] buffer puts it in order, and `receiver` grants
//! further credit when the host has taken bytes.
//!
//! | module | contains |
//! |---|---|
//! | `receiver` | one direction of a session, as the receiver sees it |
//! | [`reorder`] | the reorder buffer |
//! | [`credit`] | flow control |

pub mod credit;
pub(crate) mod receiver;
pub mod reorder;
