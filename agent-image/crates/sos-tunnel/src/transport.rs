//! Transports: one connection under each stream, over TCP, TLS or QUIC.

pub(crate) mod batched_read;
pub(crate) mod bpf;
pub(crate) mod buffers;
pub(crate) mod channel;
pub(crate) mod handle;
pub(crate) mod path_info;
pub(crate) mod quic;
pub(crate) mod segment_marks;
pub(crate) mod sockopt;
pub(crate) mod splice;
pub(crate) mod tls;
pub(crate) mod write_queue_iovecs;
