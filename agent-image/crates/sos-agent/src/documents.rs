//! Documents that the agent reads: its configuration, the site cards of peer clusters, and the enrollment of a machine.
//!
//! Order of calls: [`config::source`] reads the agent-config; on an enrolled machine, `crate::tasks::enrollment` has received it before, by
//! [`enrollment`]. `crate::tasks::cards` passes the Offers of peer clusters to [`cards`].
//!
//! | module | contains |
//! |---|---|
//! | [`config`] (`attachment`, `check`, `keys`, `source`) | the configuration document, its file, and the key folder |
//! | [`config::peers`], [`config::peers_file`] | the document of peer clusters, and its file |
//! | [`cards`] (`offer`, `store`, `page`) | site cards of peer clusters |
//! | [`enrollment`] (`key_source`, `offer`, `state`) | the enrollment of a machine outside Kubernetes, and the agent-config that it receives |

pub mod cards;
pub mod config;
pub mod enrollment;
