//! Server connections opened ahead of their sessions, at the request of a controller (spec/order.md clause 3) or of the ingress agent
//! (spec/frame.md section 9), to learn whether the server accepts.
//!
//! A connection requested by a controller belongs to a preparation; a connection requested by a peer has a lease. When the preparation or
//! the lease ends, the connection to the server is reset, because sockets towards hosts have a linger time of zero. A socket that is still
//! connecting sends no segment when it is closed.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use sos_wire::{AgentId, SessionUuid};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::policy::flow_key::FlowKey;

/// Maximum number of connections opened ahead for one peer: twice the maximum that an agent of this version requests
/// ([`crate::segments::syn_hold::MAX_HELD`]).
const MAX_OF_PEER: usize = 2_048;

/// One connection.
#[derive(Debug)]
pub(crate) struct Leg {
    /// `None` while it is connecting.
    pub(crate) stream: Option<TcpStream>,
    /// The peer that requested the connection, and the flow; `None` for an order.
    pub(crate) asker: Option<(AgentId, FlowKey)>,
    /// Task that connects, and then waits for the end of the lease. May be aborted at any await.
    task: AbortHandle,
}

/// All server connections opened ahead. Bounded by the number of preparations (`OrderProtocol`), and per peer.
#[derive(Debug, Default)]
pub struct ServerLegs {
    pub(crate) legs: BTreeMap<SessionUuid, Leg>,
    /// Number of connections by peer.
    of_peer: BTreeMap<AgentId, usize>,
}

impl ServerLegs {
    /// Adds a connection. The task that connects must not be able to end before this function returns: it would not yet find the
    /// connection, which it stores or removes.
    pub(crate) fn begin(
        &mut self,
        session: SessionUuid,
        task: AbortHandle,
        asker: Option<(AgentId, FlowKey)>,
    ) {
        self.remove(session);
        self.legs.insert(session, Leg { stream: None, asker, task });
        if let Some((peer, _)) = asker {
            *self.of_peer.entry(peer).or_default() += 1;
        }
    }

    /// Stores the connection after the server has accepted. Returns false if the connection is no longer wanted and has been reset.
    pub(crate) fn connected(&mut self, session: SessionUuid, stream: TcpStream) -> bool {
        let leg = self.legs.get_mut(&session);
        leg.map(|leg| leg.stream = Some(stream)).is_some()
    }

    /// Takes the connection of a session that begins, if there is one for this peer and flow.
    pub fn take(&mut self, session: SessionUuid, opener: (AgentId, FlowKey)) -> Option<TcpStream> {
        // For an ordered connection, peer and flow have already been compared with the preparation.
        if self.legs.get(&session)?.asker.is_some_and(|asker| asker != opener) {
            return None;
        }
        self.remove(session)
    }

    /// Closes a connection that a peer has requested.
    pub fn release(&mut self, peer: AgentId, session: SessionUuid) {
        let asked = self.legs.get(&session).is_some_and(|leg| leg.asker.is_some_and(|(by, _)| by == peer));
        if asked {
            self.remove(session);
        }
    }

    /// Closes all connections.
    pub fn clear(&mut self) {
        let all: Vec<_> = self.legs.keys().copied().collect();
        all.into_iter().for_each(|session| drop(self.remove(session)));
    }

    /// Number of connections that peers have requested.
    #[must_use]
    pub fn asked(&self) -> usize {
        self.of_peer.values().sum()
    }

    /// True if a connection that a peer has requested leads to a server at this address.
    pub(crate) fn has_server(&self, address: Ipv4Addr) -> bool {
        self.legs.values().any(|leg| leg.asker.is_some_and(|(_, flow)| *flow.server.ip() == address))
    }

    /// True if a peer may request another connection.
    pub(crate) fn has_room(&self, peer: AgentId) -> bool {
        self.of_peer.get(&peer).is_none_or(|count| *count < MAX_OF_PEER)
    }

    /// Removes a connection; its socket is closed unless the caller keeps it.
    pub(crate) fn remove(&mut self, session: SessionUuid) -> Option<TcpStream> {
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

    /// Closes connections whose preparation has ended.
    pub fn keep(&mut self, stands: impl Fn(SessionUuid) -> bool) {
        let ordered = self.legs.iter().filter(|(_, leg)| leg.asker.is_none());
        let gone: Vec<_> = ordered.map(|(session, _)| *session).filter(|session| !stands(*session)).collect();
        gone.into_iter().for_each(|session| drop(self.remove(session)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (stream, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_connection_is_taken_once_and_closed_with_its_preparation() {
        let session = |number| SessionUuid([number; 16]);
        let opener = (AgentId([2; 16]), flow(1));
        let mut legs = ServerLegs::default();
        let never = || tokio::spawn(std::future::pending::<()>());
        let (first, second) = (never(), never());
        legs.begin(session(1), first.abort_handle(), None);
        legs.begin(session(2), second.abort_handle(), None);
        assert!(legs.connected(session(1), pair().await.0));
        assert!(!legs.connected(session(3), pair().await.0), "the connection is no longer wanted");
        assert!(legs.take(session(1), opener).is_some() && legs.take(session(1), opener).is_none());
        legs.keep(|_| false);
        assert!(legs.legs.is_empty());
        assert!(second.await.unwrap_err().is_cancelled(), "a connecting socket is closed with its task");
        first.abort();
    }

    fn flow(port: u16) -> FlowKey {
        let end = |last, port| std::net::SocketAddrV4::new([10, 0, 0, last].into(), port);
        FlowKey { client: end(11, port), server: end(139, 80) }
    }

    #[tokio::test]
    async fn a_connection_opened_for_a_peer_serves_only_that_peer_and_flow() {
        let (session, peer, other) = (SessionUuid([1; 16]), AgentId([2; 16]), AgentId([3; 16]));
        let mut legs = ServerLegs::default();
        let never = tokio::spawn(std::future::pending::<()>());
        legs.begin(session, never.abort_handle(), Some((peer, flow(1))));
        assert!(legs.connected(session, pair().await.0));
        legs.keep(|_| false);
        legs.release(other, session);
        assert_eq!(
            legs.asked(),
            1,
            "the connection has no preparation, and only its own peer may release it"
        );
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
