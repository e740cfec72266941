//! The UDP sockets of QUIC streams, one for each path label: both dialed and accepted connections use it, as paths are told by its port.

use std::collections::BTreeMap;
use std::io;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use quinn::{Endpoint, EndpointConfig, Incoming, TokioRuntime};
use tokio::task::AbortHandle;

use super::server_defaults;
use crate::lock;
use crate::pool::{self, Arrived};
use crate::tunnel::Shared;

/// Exchanges under way from which on a dialer has to show first that it is where it says it is: what a stranger sends in the name of a
/// peer must not push real ones out.
const PROVE_FROM: usize = pool::MAX_PENDING / 2;

/// The endpoints by label, with the tasks that take what comes in. As many as the process has opened ports.
#[derive(Debug, Default)]
pub(crate) struct Endpoints(Mutex<BTreeMap<u8, (Endpoint, AbortHandle)>>);

impl Endpoints {
    pub(crate) fn of(&self, label: u8) -> Option<Endpoint> {
        lock(&self.0).get(&label).map(|(endpoint, _)| endpoint.clone())
    }

    /// Takes no more connections. Those that stand end by themselves.
    pub(crate) fn close(&self) {
        std::mem::take(&mut *lock(&self.0)).values().for_each(|(_, task)| task.abort());
    }
}

/// Opens a label's endpoint.
pub(crate) fn listen(shared: &Arc<Shared>, socket: UdpSocket, label: u8) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let defaults = server_defaults().map_err(io::Error::other)?;
    let runtime = Arc::new(TokioRuntime);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(defaults), socket, runtime)?;
    let task = shared.runtime.spawn(accept(Arc::clone(shared), endpoint.clone(), label)).abort_handle();
    if let Some((_, before)) = lock(&shared.endpoints.0).insert(label, (endpoint, task)) {
        before.abort();
    }
    Ok(())
}

async fn accept(shared: Arc<Shared>, endpoint: Endpoint, label: u8) {
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address().ip();
        if !shared.config.sockets.admits(from) {
            incoming.ignore();
        } else if shared.pending.len() >= PROVE_FROM && incoming.may_retry() {
            prove(incoming);
        } else {
            pool::accept(&shared, Arrived::Quic(Box::new(incoming)), label);
        }
    }
}

fn prove(incoming: Incoming) {
    if let Err(error) = incoming.retry() {
        error.into_incoming().ignore();
    }
}
