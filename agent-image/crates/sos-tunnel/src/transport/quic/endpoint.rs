//! The UDP sockets of QUIC streams, one per path label. Dialed and accepted connections share a socket, because the socket's port
//! identifies the path.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use quinn::{Endpoint, EndpointConfig, TokioRuntime};
use tokio::task::AbortHandle;

use super::server_defaults;
use crate::lock;

/// Endpoints by label, with the tasks that accept connections. Bounded by the ports that the process has opened.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(Mutex<BTreeMap<u8, (Endpoint, AbortHandle)>>);

impl Endpoints {
    pub(crate) fn of(&self, label: u8) -> Option<Endpoint> {
        lock(&self.0).get(&label).map(|(endpoint, _)| endpoint.clone())
    }

    /// Stops accepting connections. Established connections end by themselves.
    pub(crate) fn close(&self) {
        std::mem::take(&mut *lock(&self.0)).values().for_each(|(_, task)| task.abort());
    }

    /// Replaces the endpoint of a label, and ends the task of the previous endpoint.
    pub(crate) fn insert(&self, label: u8, endpoint: Endpoint, task: AbortHandle) {
        if let Some((_, before)) = lock(&self.0).insert(label, (endpoint, task)) {
            before.abort();
        }
    }
}

/// Creates an endpoint from a UDP socket.
pub(crate) fn endpoint(socket: UdpSocket) -> io::Result<Endpoint> {
    socket.set_nonblocking(true)?;
    let defaults = server_defaults().map_err(io::Error::other)?;
    let runtime = Arc::new(TokioRuntime);
    Endpoint::new(EndpointConfig::default(), Some(defaults), socket, runtime)
}
