//! Connections to servers that were made before their sessions: a controller asked whether the server accepts (spec/order.md clause 3), or
//! the agent near the client did (spec/frame.md section 9).
//!
//! The first kind belongs to a preparation that stands, the second has a lease. When either is over its server is reset: sockets towards
//! hosts linger for zero seconds. One that is still connecting sends nothing when it is closed.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use sos_tunnel::OpenInfo;
use sos_wire::{AgentId, Prepare, RefuseReason, SessionUuid};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tracing::debug;

use crate::arming;
use crate::egress;
use crate::permit::{self, FlowKey};
use crate::shared::Shared;
use crate::socket;

/// How long a server may take to answer: it is at the agent's own site. Less than the second after which its client, and the kernel here,
/// would repeat the SYN (RFC 6298), and than that after which the controller gives up, so that this connection is gone when the client's own
/// SYN is let through.
pub(crate) const SILENT_AFTER: Duration = Duration::from_millis(700);

/// Time that a connection made for a peer waits for the session's Open: a moment longer than the near agent waits for its client to
/// complete the handshake ([`crate::syn_hold::CLAIM_WITHIN`]), and a round trip.
const LEASE: Duration = Duration::from_secs(12);
/// Most connections that one peer may have asked for at a time: twice what an agent of this version asks for ([`crate::syn_hold::MAX_HELD`]).
const MAX_OF_PEER: usize = 2_048;

/// One connection.
#[derive(Debug)]
struct Leg {
    /// `None` while it is connecting.
    stream: Option<TcpStream>,
    /// The peer that has asked for it, and for which flow; `None` where an order has.
    asker: Option<(AgentId, FlowKey)>,
    /// Connects, and waits for the end of the lease. It may be stopped at any await.
    task: AbortHandle,
}

/// All of them. Bounded by the preparations that ask for one (`OrderDesk`), and for each peer.
#[derive(Debug, Default)]
pub struct ServerLegs {
    legs: BTreeMap<SessionUuid, Leg>,
    /// Connections that each peer has asked for.
    of_peer: BTreeMap<AgentId, usize>,
}

impl ServerLegs {
    /// Starts one. The task must not be able to end before this returns.
    fn begin(&mut self, session: SessionUuid, task: AbortHandle, asker: Option<(AgentId, FlowKey)>) {
        self.remove(session);
        self.legs.insert(session, Leg { stream: None, asker, task });
        if let Some((peer, _)) = asker {
            *self.of_peer.entry(peer).or_default() += 1;
        }
    }

    /// The server has accepted. False when nobody waits for it any more; the connection is reset then.
    fn connected(&mut self, session: SessionUuid, stream: TcpStream) -> bool {
        let leg = self.legs.get_mut(&session);
        leg.map(|leg| leg.stream = Some(stream)).is_some()
    }

    /// The connection for a session that begins, if there is one for this peer and flow.
    pub fn take(&mut self, session: SessionUuid, opener: (AgentId, FlowKey)) -> Option<TcpStream> {
        // One by order was compared with its preparation.
        if self.legs.get(&session)?.asker.is_some_and(|asker| asker != opener) {
            return None;
        }
        self.remove(session)
    }

    /// Closes one that a peer has asked for.
    pub fn release(&mut self, peer: AgentId, session: SessionUuid) {
        let asked = self.legs.get(&session).is_some_and(|leg| leg.asker.is_some_and(|(by, _)| by == peer));
        if asked {
            self.remove(session);
        }
    }

    /// Connections that peers have asked for.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.of_peer.values().sum()
    }

    /// True while a peer may ask for one more.
    fn has_room(&self, peer: AgentId) -> bool {
        self.of_peer.get(&peer).is_none_or(|count| *count < MAX_OF_PEER)
    }

    /// Its socket is closed unless the caller keeps it.
    fn remove(&mut self, session: SessionUuid) -> Option<TcpStream> {
        let leg = self.legs.remove(&session)?;
        leg.task.abort();
        if let Some((peer, _)) = leg.asker
            && let Some(count) = self.of_peer.get_mut(&peer)
        {
            *count -= 1;
            if *count == 0 {
                self.of_peer.remove(&peer);
            }
        }
        leg.stream
    }

    /// Closes those whose preparation does not stand any more.
    pub fn keep(&mut self, stands: impl Fn(SessionUuid) -> bool) {
        let ordered = self.legs.iter().filter(|(_, leg)| leg.asker.is_none());
        let gone: Vec<_> = ordered.map(|(session, _)| *session).filter(|session| !stands(*session)).collect();
        gone.into_iter().for_each(|session| drop(self.remove(session)));
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
        legs.begin(session, task.abort_handle(), None);
    });
}

/// Connects to a server as the agent near its client has asked, and tells that what the server says.
pub(crate) fn connect_for_peer(shared: &Arc<Shared>, info: OpenInfo) {
    let (session, flow) = (info.open.session, egress::flow(&info));
    let judged = judge(shared, &info, flow);
    shared.with_server_legs(|legs| match judged {
        Ok(()) if !legs.has_room(info.peer) => {
            shared.tunnel().answer(info.peer, session, Some(RefuseReason::SessionLimit));
        }
        Ok(()) => match legs.legs.get(&session) {
            // The question has come again: the answer is on its way, or was lost.
            Some(leg) if leg.stream.is_some() && leg.asker == Some((info.peer, flow)) => {
                shared.tunnel().answer(info.peer, session, None);
            }
            Some(_) => {}
            None => {
                let task = tokio::spawn(serve_peer(Arc::clone(shared), info, flow));
                legs.begin(session, task.abort_handle(), Some((info.peer, flow)));
            }
        },
        Err(reason) => shared.tunnel().answer(info.peer, session, Some(reason)),
    });
}

/// The checks of a session that is opened without an order (node-config.md clause 12), and this agent's limits.
fn judge(shared: &Shared, info: &OpenInfo, flow: FlowKey) -> Result<(), RefuseReason> {
    let (config, health) = (shared.config(), shared.health());
    if permit::opened(&config, flow, info.peer, None).is_none() {
        return Err(RefuseReason::NotPermitted);
    }
    if health.draining {
        return Err(RefuseReason::Draining);
    }
    if !arming::memory_left(&config, health) {
        return Err(RefuseReason::MemoryLimit);
    }
    if !arming::sessions_left(&config, health) {
        return Err(RefuseReason::SessionLimit);
    }
    if !socket::can_bind(flow.client, permit::own_address(&config)) {
        return Err(RefuseReason::PortTaken);
    }
    Ok(())
}

/// One connection that a peer has asked for, until its session has begun or its lease is over.
async fn serve_peer(shared: Arc<Shared>, info: OpenInfo, flow: FlowKey) {
    let (session, peer) = (info.open.session, info.peer);
    let _lease = Lease { shared: Arc::clone(&shared), peer, session };
    let dialed = tokio::time::timeout(SILENT_AFTER, egress::dial(&shared, flow, info.open.marks)).await;
    match dialed.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
        Ok(stream) => {
            if shared.with_server_legs(|legs| legs.connected(session, stream)) {
                shared.tunnel().answer(peer, session, None);
                tokio::time::sleep(LEASE).await;
            }
        }
        Err(error) => {
            debug!(%session, %flow, %error, "the server has not accepted");
            // The socket is gone before the client's own SYN can be let through.
            shared.tunnel().answer(peer, session, Some(refusal(&error)));
        }
    }
}

/// Takes a connection off the books with the task that keeps it, however that ends.
struct Lease {
    shared: Arc<Shared>,
    peer: AgentId,
    session: SessionUuid,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.shared.with_server_legs(|legs| legs.release(self.peer, self.session));
    }
}

fn answered(shared: &Shared, session: SessionUuid, flow: FlowKey, answer: io::Result<TcpStream>) {
    let told = match answer {
        Ok(stream) => {
            let kept = shared.with_server_legs(|legs| legs.connected(session, stream));
            kept.then(|| shared.at_desk(|desk, env| desk.server_accepted(session, env))).flatten()
        }
        Err(error) => {
            debug!(%session, %flow, %error, "the server has not accepted");
            shared.with_server_legs(|legs| drop(legs.remove(session)));
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
        let opener = (AgentId([2; 16]), flow(1));
        let mut legs = ServerLegs::default();
        let never = || tokio::spawn(std::future::pending::<()>());
        let (first, second) = (never(), never());
        legs.begin(session(1), first.abort_handle(), None);
        legs.begin(session(2), second.abort_handle(), None);
        assert!(legs.connected(session(1), pair().await.0));
        assert!(!legs.connected(session(3), pair().await.0), "nobody waits for it");
        assert!(legs.take(session(1), opener).is_some() && legs.take(session(1), opener).is_none());
        legs.keep(|_| false);
        assert!(legs.legs.is_empty());
        assert!(second.await.unwrap_err().is_cancelled(), "its socket is closed");
        first.abort();
    }

    fn flow(port: u16) -> FlowKey {
        let end = |last, port| std::net::SocketAddrV4::new([10, 0, 0, last].into(), port);
        FlowKey { client: end(11, port), server: end(139, 80) }
    }

    #[tokio::test]
    async fn a_connection_that_a_peer_asked_for_is_that_peers_and_that_flows() {
        let (session, peer, other) = (SessionUuid([1; 16]), AgentId([2; 16]), AgentId([3; 16]));
        let mut legs = ServerLegs::default();
        let never = tokio::spawn(std::future::pending::<()>());
        legs.begin(session, never.abort_handle(), Some((peer, flow(1))));
        assert!(legs.connected(session, pair().await.0));
        legs.keep(|_| false);
        legs.release(other, session);
        assert_eq!(legs.asked(), 1, "no order to lapse, and of another peer");
        assert!(legs.take(session, (other, flow(1))).is_none());
        assert!(legs.take(session, (peer, flow(2))).is_none());
        assert!(legs.take(session, (peer, flow(1))).is_some());
        assert_eq!(legs.asked(), 0);
        for number in 0..MAX_OF_PEER {
            let mut uuid = [0; 16];
            uuid[..8].copy_from_slice(&(number as u64).to_be_bytes());
            assert!(legs.has_room(peer));
            legs.begin(SessionUuid(uuid), never.abort_handle(), Some((peer, flow(1))));
        }
        assert!(!legs.has_room(peer) && legs.has_room(other));
    }
}
