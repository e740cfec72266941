//! Connects to servers ahead of their sessions, as requested by a controller (spec/order.md clause 3) or by the ingress agent (spec/frame.md
//! section 9), and reports whether the server accepts.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::{AgentId, Prepare, RefuseReason, Role, SessionUuid};
use tokio::net::TcpStream;
use tracing::debug;

use crate::context::AgentContext;
use crate::policy::arming;
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;
use crate::tasks::server_dial::{SILENT_AFTER, can_bind, dial, flow};

/// Lease of a connection opened for a peer, until the session's Open: the time that the ingress agent allows its client for the handshake
/// ([`crate::segments::syn_hold::handshakes::COMPLETE_WITHIN`]), plus a round trip and a margin.
const LEASE: Duration = Duration::from_secs(12);
/// Connects to a server at a controller's request, and reports the result to the controller.
pub(crate) fn connect(context: &Arc<AgentContext>, prepare: &Prepare) {
    let (session, marks, peer) = (prepare.session, prepare.marks, prepare.peer);
    let flow = FlowKey { client: prepare.client, server: prepare.server };
    // The task needs this lock before it can end, so the connection is registered before the task ends.
    context.with_server_legs(|legs| {
        let context = Arc::clone(context);
        let task = tokio::spawn(async move {
            let answer = tokio::time::timeout(SILENT_AFTER, dial(&context, flow, peer, marks)).await;
            answered(&context, session, flow, answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())));
        });
        legs.begin(session, task.abort_handle(), None);
    });
}

/// Connects to a server at the ingress agent's request, and reports the result to that agent.
pub(crate) fn connect_for_peer(context: &Arc<AgentContext>, info: OpenInfo) {
    let (session, flow) = (info.open.session, flow(&info));
    let judged = judge(context, &info, flow);
    context.with_server_legs(|legs| match judged {
        Ok(()) if !legs.has_room(info.peer) => {
            context.tunnel().answer(info.peer, session, Some(RefuseReason::SessionLimit));
        }
        Ok(()) => match legs.legs.get(&session) {
            // This request is a repetition: the answer is in flight or was lost.
            Some(leg) if leg.stream.is_some() && leg.asker == Some((info.peer, flow)) => {
                context.tunnel().answer(info.peer, session, None);
            }
            Some(_) => {}
            None => {
                let task = tokio::spawn(serve_peer(Arc::clone(context), info, flow));
                legs.begin(session, task.abort_handle(), Some((info.peer, flow)));
            }
        },
        Err(reason) => context.tunnel().answer(info.peer, session, Some(reason)),
    });
}

/// Checks a request by the rules for a session without an order (node-config.md clause 12), and against this agent's limits.
fn judge(context: &AgentContext, info: &OpenInfo, flow: FlowKey) -> Result<(), RefuseReason> {
    let (config, health) = (context.config(), context.health());
    if flow_policy::opened(&config, flow, info.peer, None).is_none() {
        return Err(RefuseReason::NotPermitted);
    }
    // A backup does not get the server's replies.
    if health.draining || health.backup {
        return Err(RefuseReason::Draining);
    }
    if !arming::memory_left(&config, health) {
        return Err(RefuseReason::MemoryLimit);
    }
    if !arming::sessions_left(&config, health) {
        return Err(RefuseReason::SessionLimit);
    }
    if !can_bind(context, flow, info.peer) {
        return Err(RefuseReason::PortTaken);
    }
    let service = flow_policy::service_of(&config, Role::Egress, flow, info.peer);
    if service.is_some_and(|service| !context.reserve_share(service, flow)) {
        return Err(RefuseReason::SessionLimit);
    }
    Ok(())
}

/// Serves one connection that a peer has requested, until its session has begun or its lease has expired.
async fn serve_peer(context: Arc<AgentContext>, info: OpenInfo, flow: FlowKey) {
    let (session, peer) = (info.open.session, info.peer);
    let _lease = Lease { context: Arc::clone(&context), peer, session, flow };
    let dialed = tokio::time::timeout(SILENT_AFTER, dial(&context, flow, peer, info.open.marks)).await;
    match dialed.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
        Ok(stream) => {
            if context.with_server_legs(|legs| legs.connected(session, stream)) {
                context.tunnel().answer(peer, session, None);
                tokio::time::sleep(LEASE).await;
            }
        }
        Err(error) => {
            debug!(%session, %flow, %error, "the server has not accepted");
            // The socket is already closed: after this answer, the client's own SYN may pass.
            context.tunnel().answer(peer, session, Some(refusal(&error)));
        }
    }
}

/// Removes a connection when its task ends, for any reason.
struct Lease {
    context: Arc<AgentContext>,
    peer: AgentId,
    session: SessionUuid,
    flow: FlowKey,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.context.release_share(self.flow);
        self.context.with_server_legs(|legs| legs.release(self.peer, self.session));
    }
}

fn answered(context: &AgentContext, session: SessionUuid, flow: FlowKey, answer: io::Result<TcpStream>) {
    let told = match answer {
        Ok(stream) => {
            let kept = context.with_server_legs(|legs| legs.connected(session, stream));
            kept.then(|| context.with_order_protocol(|protocol, env| protocol.server_accepted(session, env)))
                .flatten()
        }
        Err(error) => {
            debug!(%session, %flow, %error, "the server has not accepted");
            context.with_server_legs(|legs| drop(legs.remove(session)));
            context
                .with_order_protocol(|protocol, env| protocol.server_refused(session, refusal(&error), env))
        }
    };
    context.send_orders(told.as_slice());
}

/// Reason reported for a failed connection.
fn refusal(error: &io::Error) -> RefuseReason {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => RefuseReason::ServerRefused,
        ErrorKind::TimedOut => RefuseReason::ServerSilent,
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => RefuseReason::PortTaken,
        // ICMP errors (RFC 1122, 4.2.3.9), or no route to the server.
        _ => RefuseReason::ServerRejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_gets_the_reason_of_a_refusal() {
        let cases = [
            (ErrorKind::ConnectionRefused, RefuseReason::ServerRefused),
            (ErrorKind::ConnectionReset, RefuseReason::ServerRefused),
            (ErrorKind::TimedOut, RefuseReason::ServerSilent),
            (ErrorKind::HostUnreachable, RefuseReason::ServerRejected),
            (ErrorKind::NetworkUnreachable, RefuseReason::ServerRejected),
            (ErrorKind::AddrInUse, RefuseReason::PortTaken),
            (ErrorKind::AddrNotAvailable, RefuseReason::PortTaken),
        ];
        for (kind, reason) in cases {
            assert_eq!(refusal(&kind.into()), reason, "{kind:?}");
        }
    }
}
