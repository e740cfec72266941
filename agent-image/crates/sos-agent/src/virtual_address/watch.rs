//! Observes the addresses of an interface. Edge.

use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// RTMGRP_IPV4_IFADDR (linux/rtnetlink.h): notifications of IPv4 addresses that interfaces receive or lose.
const ADDRESSES: u32 = 0x10;
/// Buffer of one notification. Its content is not read, because the addresses are read afterwards.
const BUFFER: usize = 512;
/// Maximum time between two observations: a notification may be lost.
const AT_LEAST_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two observations, so that a burst of notifications costs little.
const AT_MOST_EVERY: Duration = Duration::from_millis(20);

/// A netlink socket that is readable after each change of the addresses in this network namespace. Tokio has no type for netlink; receiving
/// from a datagram socket works in the same way.
#[derive(Debug)]
pub struct Changes(Option<UdpSocket>);

impl Changes {
    /// Opens the socket. Call within a Tokio runtime. Without the socket, addresses are read every second.
    #[must_use]
    pub fn open() -> Self {
        let opened = subscribe().inspect_err(|error| debug!(%error, "no notifications of addresses"));
        Self(opened.ok())
    }

    /// Waits for a change, for [`AT_LEAST_EVERY`] at most.
    pub async fn wait(&self) {
        let Some(socket) = &self.0 else { return sleep(AT_LEAST_EVERY).await };
        let mut buffer = [0; BUFFER];
        // An error is a lost notification, or the timeout.
        let _ = timeout(AT_LEAST_EVERY, socket.recv(&mut buffer)).await;
        sleep(AT_MOST_EVERY).await;
        while socket.try_recv(&mut buffer).is_ok() {}
    }
}

/// NETLINK_ROUTE is protocol 0.
fn subscribe() -> io::Result<UdpSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, ADDRESSES))?;
    UdpSocket::from_std(socket.into())
}

/// True if an interface of this network namespace has an address; `None` if the addresses cannot be read.
#[must_use]
pub fn has_address(interface: &str, address: Ipv4Addr) -> Option<bool> {
    let listed = nix::ifaddrs::getifaddrs().inspect_err(|error| debug!(%error, "addresses not read")).ok()?;
    let mut own = listed.filter(|entry| entry.interface_name == interface);
    Some(own.any(|entry| {
        entry.address.is_some_and(|own| own.as_sockaddr_in().is_some_and(|own| own.ip() == address))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_one_interface() {
        assert_eq!(has_address("lo", Ipv4Addr::LOCALHOST), Some(true));
        assert_eq!(has_address("lo", Ipv4Addr::new(192, 0, 2, 1)), Some(false));
        assert_eq!(has_address("none", Ipv4Addr::LOCALHOST), Some(false));
    }
}
