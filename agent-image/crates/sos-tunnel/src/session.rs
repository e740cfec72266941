//! Sessions: the task that drives each one, its host's connection, and its mailbox.

pub(crate) mod driver;
pub(crate) mod handle;
pub(crate) mod host;
pub(crate) mod host_liveness;
pub(crate) mod mailbox;
pub(crate) mod stream_reservation;
