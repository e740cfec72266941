//! TCP segments that the agent itself builds, outside its sockets.
//!
//! Order of calls: `crate::tasks::held_syns` passes clients' SYNs to [`syn_hold`], which decides about each SYN; its raw sockets reinject the
//! SYN. After the loss of a peer, [`half_open`] makes the segments that reveal half-open connections to the peer's hosts.
//!
//! | module | contains |
//! |---|---|
//! | [`syn_hold`] (`step`, `syn`, `known_servers`, `injector`) | SYNs held until their server accepts, and the raw sockets that reinject these SYNs |
//! | [`syn_hold::handshakes`], [`syn_hold::client_backoff`] | clients that do not complete their handshakes |
//! | [`syn_hold::plain_path`], [`syn_hold::check_packet`] | checks of the plain path by SYNs |
//! | [`half_open`] (`prober`) | half-open connections of far hosts after a peer was lost: segments; edge: sends them |

pub mod half_open;
pub mod syn_hold;
