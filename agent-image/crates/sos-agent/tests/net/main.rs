//! Two agents in network namespaces, with real hosts beside them. Needs root, iproute2 and nftables.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

/// Makes a test of each function for each kind of network.
macro_rules! on_every_network {
    ($($name:ident),* $(,)?) => {
        mod on_a_bridge { $(#[test] fn $name() { super::$name(crate::lab::Network::Bridge); })* }
        mod over_routes { $(#[test] fn $name() { super::$name(crate::lab::Network::Routes); })* }
        mod in_pods { $(#[test] fn $name() { super::$name(crate::lab::Network::Pods); })* }
    };
}

mod cards;
mod client_identity;
mod decisions;
mod hold;
mod lab;
mod marks;
mod orders;
mod pods;
mod sessions;
mod start;
mod virtual_address;
