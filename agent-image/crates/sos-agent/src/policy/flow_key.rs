//! Flow key: the 4-tuple of a client's TCP connection.

use std::net::SocketAddrV4;

/// 4-tuple of a client's TCP connection, as the network sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowKey {
    /// The client's address and port.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
}

impl std::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} -> {}", self.client, self.server)
    }
}
