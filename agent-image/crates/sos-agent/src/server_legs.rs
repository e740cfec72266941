//! Connections to servers that were made before their sessions: a controller asked whether the server accepts (spec/order.md clause 3).
//!
//! Each belongs to a preparation that stands. It goes with that, and its server is reset then: sockets towards hosts linger for zero
//! seconds. One that is still connecting sends nothing when it is closed.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use sos_wire::{Prepare, RefuseReason, SessionUuid};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::egress;
use crate::permit::FlowKey;
use crate::shared::Shared;

/// How long a server may take to answer: it is at the agent's own site. Less than the second after which its client, and the kernel here,
/// would repeat the SYN (RFC 6298), and than that after which the controller gives up, so that this connection is gone when the client's own
/// SYN is let through.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(700);

/// How far a connection is.
#[derive(Debug)]
enum Leg {
    Connecting(AbortHandle),
    Connected(TcpStream),
}

/// All of them. Bounded by the preparations that ask for one (`OrderDesk`).
#[derive(Debug, Default)]
pub struct ServerLegs(BTreeMap<SessionUuid, Leg>);

impl ServerLegs {
    /// Starts one. The task must not be able to end before this returns.
    fn begin(&mut self, session: SessionUuid, task: AbortHandle) {
        if let Some(earlier) = self.0.insert(session, Leg::Connecting(task)) {
            close(earlier);
        }
    }

    /// The server has accepted. False when nobody waits for it any more; the connection is reset then.
    fn connected(&mut self, session: SessionUuid, stream: TcpStream) -> bool {
        let leg = self.0.get_mut(&session);
        leg.map(|leg| *leg = Leg::Connected(stream)).is_some()
    }

    /// The connection for a session that begins, if there is one.
    pub fn take(&mut self, session: SessionUuid) -> Option<TcpStream> {
        match self.0.remove(&session)? {
            Leg::Connected(stream) => Some(stream),
            connecting @ Leg::Connecting(_) => {
                close(connecting);
                None
            }
        }
    }

    /// Closes those whose preparation does not stand any more.
    pub fn keep(&mut self, stands: impl Fn(SessionUuid) -> bool) {
        let gone: Vec<_> = self.0.keys().copied().filter(|session| !stands(*session)).collect();
        gone.iter().filter_map(|session| self.0.remove(session)).for_each(close);
    }
}

fn close(leg: Leg) {
    if let Leg::Connecting(task) = leg {
        task.abort();
    }
}

/// Connects to a server as a controller has asked, and tells it what the server says.
pub(crate) fn connect(shared: &Arc<Shared>, prepare: &Prepare) {
    let (session, marks) = (prepare.session, prepare.marks);
    let flow = FlowKey { client: prepare.client, server: prepare.server };
    // The task waits for this lock before it ends.
    shared.with_server_legs(|legs| {
        let shared = Arc::clone(shared);
        let task = tokio::spawn(async move {
            let answer = tokio::time::timeout(SILENT_AFTER, egress::dial(&shared, flow, marks)).await;
            answered(&shared, session, flow, answer.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())));
        });
        legs.begin(session, task.abort_handle());
    });
}

fn answered(shared: &Shared, session: SessionUuid, flow: FlowKey, answer: io::Result<TcpStream>) {
    let told = match answer {
        Ok(stream) => {
            let kept = shared.with_server_legs(|legs| legs.connected(session, stream));
            kept.then(|| shared.at_desk(|desk, env| desk.server_accepted(session, env))).flatten()
        }
        Err(error) => {
            debug!(%session, %flow, %error, "the server has not accepted");
            shared.with_server_legs(|legs| legs.take(session));
            shared.at_desk(|desk, env| desk.server_refused(session, refusal(&error), env))
        }
    };
    shared.send_orders(told.as_slice());
}

/// What the controller is told of a connection that did not come about.
fn refusal(error: &io::Error) -> RefuseReason {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => RefuseReason::ServerRefused,
        ErrorKind::TimedOut => RefuseReason::ServerSilent,
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable => RefuseReason::PortTaken,
        // The errors of an ICMP message (RFC 1122, 4.2.3.9), or no route to the server.
        _ => RefuseReason::ServerRejected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_is_told_why_a_server_does_not_accept() {
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

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (stream, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_connection_is_handed_over_once_and_goes_with_its_preparation() {
        let session = |number| SessionUuid([number; 16]);
        let mut legs = ServerLegs::default();
        let never = || tokio::spawn(std::future::pending::<()>());
        let (first, second) = (never(), never());
        legs.begin(session(1), first.abort_handle());
        legs.begin(session(2), second.abort_handle());
        assert!(legs.connected(session(1), pair().await.0));
        assert!(!legs.connected(session(3), pair().await.0), "nobody waits for it");
        assert!(legs.take(session(1)).is_some() && legs.take(session(1)).is_none());
        legs.keep(|_| false);
        assert!(legs.0.is_empty());
        assert!(second.await.unwrap_err().is_cancelled(), "its socket is closed");
        first.abort();
    }
}
