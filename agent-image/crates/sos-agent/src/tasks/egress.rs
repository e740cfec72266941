//! Egress: connections to servers on behalf of clients.

use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::Arc;

use socket2::SockRef;
use sos_tunnel::{BoxFuture, Egress, EgressHandler, Labels, OpenInfo, SessionEnd};
use sos_wire::{AgentId, EndReason, RefuseReason, Role, SessionUuid};
use tokio::net::TcpStream;
use tracing::debug;

use crate::context::AgentContext;
use crate::documents::config;
use crate::metrics::{self, Reason};
use crate::orders::active_sessions::Party;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;
use crate::tasks::connect_ahead;
use crate::tasks::held_syns;
use crate::tasks::server_dial::{SILENT_AFTER, dial, flow};

/// Connects to servers that this agent's own configuration permits.
#[derive(Debug)]
pub struct Servers(pub Arc<AgentContext>);

impl EgressHandler for Servers {
    fn connect(&self, info: OpenInfo) -> BoxFuture<Result<Egress, EndReason>> {
        let context = Arc::clone(&self.0);
        Box::pin(async move {
            let result = connect(&context, &info).await;
            if let Err(reason) = &result {
                let reason = Reason { reason: metrics::reason(*reason) };
                context.metrics.connect_failures.get_or_create(&reason).inc();
            }
            result
        })
    }

    fn ended(&self, info: &OpenInfo, end: SessionEnd) {
        let party = Party { role: Role::Egress, peer: info.peer };
        self.0.finished(info.open.session, party, flow(info), &end);
    }

    fn connect_ahead(&self, info: OpenInfo) {
        connect_ahead::connect_for_peer(&self.0, info);
    }

    fn release(&self, peer: AgentId, session: SessionUuid) {
        self.0.with_server_legs(|legs| legs.release(peer, session));
    }

    fn connected_ahead(&self, peer: AgentId, session: SessionUuid, refused: Option<RefuseReason>) {
        held_syns::answered(&self.0, peer, session, refused);
    }
}

async fn connect(context: &AgentContext, info: &OpenInfo) -> Result<Egress, EndReason> {
    let flow = flow(info);
    let admitted = admit(context, info, flow)?;
    context.look_for_room();
    let failed = |error: io::Error| {
        debug!(session = %info.open.session, %flow, %error, "no connection to the server");
        end_reason(&error)
    };
    let config = context.config();
    let routers = flow_policy::routers(&config, *flow.client.ip());
    let host = match context.with_server_legs(|legs| legs.take(info.open.session, (info.peer, flow))) {
        Some(connected) => {
            // The connection still has the marks of the client's SYN; set the marks of the session's Open.
            let marked = sos_tunnel::set_marks(&SockRef::from(&connected), info.open.marks.behind(routers));
            marked.map(|()| connected).map_err(failed)?
        }
        None => patiently(context, info, flow, admitted.ordered).await.map_err(failed)?,
    };
    if !admitted.ordered {
        context.begin_unordered(info.open.session, Role::Egress, flow, info.peer);
    }
    let transport = flow_policy::session_transport(&config, flow, info.peer, config::Role::Egress);
    Ok(Egress {
        host,
        routers,
        labels: admitted.labels,
        compress: transport.compress,
        streams: transport.streams,
    })
}

/// A permitted session.
struct Admitted {
    labels: Labels,
    ordered: bool,
}

/// Checks a session that a peer opens (node-config.md clause 12) and takes its preparation, if there is one.
fn admit(context: &AgentContext, info: &OpenInfo, flow: FlowKey) -> Result<Admitted, EndReason> {
    let session = info.open.session;
    let refused = |why: &dyn Display| {
        debug!(%session, peer = %info.peer, %flow, %why, "not permitted");
        EndReason::InternalLimit
    };
    if context.virtual_address.is_backup() {
        return Err(refused(&"another node has the virtual address"));
    }
    let preparation = context
        .with_order_protocol(|protocol, env| protocol.begin_opened(session, info.peer, flow, env.now))
        .map_err(|refusal| refused(&refusal))?;
    let labels = flow_policy::opened(&context.config(), flow, info.peer, preparation.as_ref())
        .ok_or_else(|| refused(&"no service covers it"))?;
    Ok(Admitted { labels: Labels(labels), ordered: preparation.is_some() })
}

/// Connects to a server whose client has already been accepted. Tries for as long as the client's kernel would have tried, but only while
/// the session lasts. Reports a silent server to the controller or to the ingress agent, which then accepts no further client before this
/// server has accepted.
async fn patiently(
    context: &AgentContext,
    info: &OpenInfo,
    flow: FlowKey,
    ordered: bool,
) -> io::Result<TcpStream> {
    let mut connecting = pin!(dial(context, flow, info.peer, info.open.marks));
    if let Ok(answered) = tokio::time::timeout(SILENT_AFTER, &mut connecting).await {
        return answered;
    }
    if ordered {
        let party = Party { role: Role::Egress, peer: info.peer };
        let told = context
            .with_order_protocol(|protocol, env| protocol.server_silent((info.open.session, party), env));
        context.send_orders(told.as_slice());
    } else {
        context.tunnel().answer(info.peer, info.open.session, Some(RefuseReason::ServerSilent));
    }
    connecting.await
}

fn end_reason(error: &io::Error) -> EndReason {
    match error.kind() {
        ErrorKind::ConnectionRefused => EndReason::ServerRefused,
        // AddrNotAvailable: the server's replies to the client's address would not reach this agent, so this server's clients stay plain
        // for a while.
        ErrorKind::TimedOut
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::AddrNotAvailable => EndReason::ServerUnreachable,
        ErrorKind::ConnectionReset => EndReason::ServerReset,
        // The client's port is in use at this agent, or was until recently: reset the client immediately.
        _ => EndReason::InternalLimit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_gets_the_reason() {
        let cases = [
            (ErrorKind::ConnectionRefused, EndReason::ServerRefused),
            (ErrorKind::TimedOut, EndReason::ServerUnreachable),
            (ErrorKind::HostUnreachable, EndReason::ServerUnreachable),
            (ErrorKind::AddrInUse, EndReason::InternalLimit),
            (ErrorKind::AddrNotAvailable, EndReason::ServerUnreachable),
        ];
        for (kind, reason) in cases {
            assert_eq!(end_reason(&kind.into()), reason);
        }
    }
}
