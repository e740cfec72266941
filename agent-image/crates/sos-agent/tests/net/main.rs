//! Two agents in network namespaces, with real hosts beside them. Needs root, iproute2 and nftables.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod decisions;
mod ends;
mod full;
mod hold;
mod lab;
mod marks;
mod orders;
mod start;
mod transfer;
mod wire;
