//! The far side: connections to servers in the clients' names.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;

use socket2::SockRef;
use sos_tunnel::{BoxFuture, Egress, EgressHandler, Labels, OpenInfo, SessionEnd};
use sos_wire::{AgentId, EndReason, Marks, RefuseReason, Role, SessionUuid};
use tokio::net::{TcpSocket, TcpStream};
use tracing::debug;

use crate::config;
use crate::hold;
use crate::metrics::{self, Reason};
use crate::permit::{self, FlowKey};
use crate::running::Party;
use crate::server_legs::{self, SILENT_AFTER};
use crate::shared::Shared;
use crate::socket;

/// Connects to servers that this agent's own configuration permits.
#[derive(Debug)]
pub struct Servers(pub Arc<Shared>);

impl EgressHandler for Servers {
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>> {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let result = connect(&shared, &info).await;
            if let Err(reason) = &result {
                let reason = Reason { reason: metrics::reason(*reason) };
                shared.metrics.connect_failures.get_or_create(&reason).inc();
            }
            result
        })
    }

    fn ended(&self, info: &OpenInfo, end: SessionEnd) {
        let party = Party { role: Role::Egress, peer: info.peer };
        self.0.finished(info.open.session, party, flow(info), &end);
    }

    fn connect_ahead(&self, info: OpenInfo) {
        server_legs::connect_for_peer(&self.0, info);
    }

    fn release(&self, peer: AgentId, session: SessionUuid) {
        self.0.with_server_legs(|legs| legs.release(peer, session));
    }

    fn connected_ahead(&self, peer: AgentId, session: SessionUuid, refused: Option<RefuseReason>) {
        hold::answered(&self.0, peer, session, refused);
    }
}

pub(crate) fn flow(info: &OpenInfo) -> FlowKey {
    FlowKey { client: info.open.client, server: info.open.server }
}

async fn connect(shared: &Shared, info: &OpenInfo) -> Result<Egress, EndReason> {
    let flow = flow(info);
    let admitted = admit(shared, info, flow)?;
    shared.look_for_room();
    let failed = |error: io::Error| {
        debug!(session = %info.open.session, %flow, %error, "no connection to the server");
        end_reason(&error)
    };
    let config = shared.config();
    let routers = permit::routers(&config, *flow.client.ip());
    let host = match shared.with_server_legs(|legs| legs.take(info.open.session, (info.peer, flow))) {
        Some(connected) => {
            // It was made with the marks of the SYN.
            let marked = sos_tunnel::set_marks(&SockRef::from(&connected), info.open.marks.behind(routers));
            marked.map(|()| connected).map_err(failed)?
        }
        None => patiently(shared, info, flow, admitted.ordered).await.map_err(failed)?,
    };
    if !admitted.ordered {
        shared.begin_unordered(info.open.session, Role::Egress, flow, info.peer);
    }
    let transport = permit::session_transport(&config, flow, info.peer, config::Role::Egress);
    Ok(Egress {
        host,
        routers,
        labels: admitted.labels,
        compress: transport.compress,
        streams: transport.streams,
    })
}

/// A session that may go on.
struct Admitted {
    labels: Labels,
    ordered: bool,
}

/// Checks a session that a peer opens (node-config.md clause 12) and takes its preparation, if there is one.
fn admit(shared: &Shared, info: &OpenInfo, flow: FlowKey) -> Result<Admitted, EndReason> {
    let session = info.open.session;
    let refused = |why: &dyn Display| {
        debug!(%session, peer = %info.peer, %flow, %why, "not permitted");
        EndReason::InternalLimit
    };
    let preparation = shared
        .at_desk(|desk, env| desk.begin_opened(session, info.peer, flow, env.now))
        .map_err(|mismatch| refused(&mismatch))?;
    let labels = permit::opened(&shared.config(), flow, info.peer, preparation.as_ref())
        .ok_or_else(|| refused(&"no service covers it"))?;
    Ok(Admitted { labels: Labels(labels), ordered: preparation.is_some() })
}

/// Connects to a server whose client has been accepted already: for as long as the client's kernel would have tried, and the session lasts.
/// A controller, or the near agent, is told of one that does not answer, as its next clients are not to be accepted ahead.
async fn patiently(shared: &Shared, info: &OpenInfo, flow: FlowKey, ordered: bool) -> io::Result<TcpStream> {
    let mut connecting = pin!(dial(shared, flow, info.open.marks));
    if let Ok(answered) = tokio::time::timeout(SILENT_AFTER, &mut connecting).await {
        return answered;
    }
    if ordered {
        let party = Party { role: Role::Egress, peer: info.peer };
        let told = shared.at_desk(|desk, env| desk.server_silent((info.open.session, party), env));
        shared.send_orders(told.as_slice());
    } else {
        shared.tunnel().answer(info.peer, info.open.session, Some(RefuseReason::ServerSilent));
    }
    connecting.await
}

/// Connects to a server in its client's name. The kernel gives up as it does for any program: after 127 s of silence.
pub(crate) async fn dial(shared: &Shared, flow: FlowKey, marks: Marks) -> io::Result<TcpStream> {
    let config = shared.config();
    let marks = marks.behind(permit::routers(&config, *flow.client.ip()));
    let socket = socket::towards_server(flow.client, permit::own_address(&config), marks)?;
    // Before it connects: the server's SYN-ACK has marks, too.
    if let Some(filters) = &shared.segment_marks {
        filters.watch(&socket)?;
    }
    let socket = TcpSocket::from_std_stream(socket);
    socket.connect(flow.server.into()).await
}

fn end_reason(error: &io::Error) -> EndReason {
    match error.kind() {
        ErrorKind::ConnectionRefused => EndReason::ServerRefused,
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            EndReason::ServerUnreachable
        }
        ErrorKind::ConnectionReset => EndReason::ServerReset,
        // The client's port is taken here, or was until a moment ago: the client is reset at once.
        _ => EndReason::InternalLimit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_learns_why() {
        let cases = [
            (ErrorKind::ConnectionRefused, EndReason::ServerRefused),
            (ErrorKind::TimedOut, EndReason::ServerUnreachable),
            (ErrorKind::HostUnreachable, EndReason::ServerUnreachable),
            (ErrorKind::AddrInUse, EndReason::InternalLimit),
            (ErrorKind::AddrNotAvailable, EndReason::InternalLimit),
        ];
        for (kind, reason) in cases {
            assert_eq!(end_reason(&kind.into()), reason);
        }
    }
}
