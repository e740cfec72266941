//! Sessions: the task, the host's connection and the mailbox of each session.

pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod host;
pub(crate) mod host_liveness;
pub(crate) mod mailbox;
