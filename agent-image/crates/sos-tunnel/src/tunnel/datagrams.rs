//! Accepts QUIC connections at the UDP ports of the path labels.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use quinn::{Endpoint, Incoming};

use crate::transport::quic;
use crate::tunnel::accept::{self, Arrived};
use crate::tunnel::context::TunnelContext;
use crate::tunnel::slots::MAX_PENDING;

/// With this many or more pending handshakes, a dialer must first prove its address (QUIC Retry): packets that forge a peer's address must
/// not displace real handshakes.
const PROVE_FROM: usize = MAX_PENDING / 2;

/// Opens a label's endpoint.
pub(crate) fn listen(context: &Arc<TunnelContext>, socket: UdpSocket, label: u8) -> io::Result<()> {
    let endpoint = quic::endpoint(socket)?;
    let task = context
        .runtime
        .spawn(accept_connections(Arc::clone(context), endpoint.clone(), label))
        .abort_handle();
    context.endpoints.insert(label, endpoint, task);
    Ok(())
}

async fn accept_connections(context: Arc<TunnelContext>, endpoint: Endpoint, label: u8) {
    while let Some(incoming) = endpoint.accept().await {
        let from = incoming.remote_address().ip();
        if !context.config.sockets.admits(from) {
            incoming.ignore();
        } else if context.pending.len() >= PROVE_FROM && incoming.may_retry() {
            prove(incoming);
        } else {
            accept::accept(&context, Arrived::Quic(Box::new(incoming)), label);
        }
    }
}

fn prove(incoming: Incoming) {
    if let Err(error) = incoming.retry() {
        error.into_incoming().ignore();
    }
}
