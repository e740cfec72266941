//! Willingness of this agent and of its peers to accept new sessions.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use sos_wire::AgentId;

use super::{AgentContext, lock};
use crate::policy::arming::{self, Health};
use crate::tasks::server_legs::ServerLegs;

/// Maximum pause in accepting clients, after this agent or a peer has reached a limit, until nft has stopped redirecting. nft needs about
/// ten milliseconds.
const DISARM_PATIENCE: Duration = Duration::from_secs(1);

impl AgentContext {
    /// True while the agent is draining.
    pub fn draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Refuses new orders, and stops redirecting clients, from now on. Sessions that were prepared or opened before may still arrive until
    /// the tunnel drains.
    pub fn refuse_more(&self) {
        self.draining.store(true, Ordering::Relaxed);
        self.rearm.notify_one();
        self.beacon_now.notify_one();
    }

    /// Refuses new sessions, and resets all hosts, because their packets arrive at another node.
    pub fn leave_hosts(&self) {
        self.tunnel().set_willing(false);
        self.rearm.notify_one();
        self.with_server_legs(ServerLegs::clear);
        self.tunnel().reset_sessions();
    }

    /// Inputs of the decision on new sessions.
    pub fn health(&self) -> Health {
        let stats = self.tunnel().stats();
        // Each server connection opened ahead for a peer will become a session.
        let ahead = lock(&self.server_legs).asked() as u64;
        Health {
            draining: self.draining(),
            backup: self.virtual_address.is_backup(),
            sessions: u32::try_from(stats.sessions + ahead).unwrap_or(u32::MAX),
            memory_bytes: stats.memory_reserved,
        }
    }

    /// True if the agent accepts more sessions. If not, peers and nft are notified immediately.
    pub fn look_for_room(&self) -> bool {
        let willing = arming::willing(&self.config(), self.health());
        if !willing {
            self.tunnel().set_willing(false);
            self.rearm.notify_one();
        }
        willing
    }

    /// Returns immediately while this agent and all agents towards which nft redirects clients accept sessions. Otherwise waits until nft
    /// has stopped redirecting, for [`DISARM_PATIENCE`] at most. Clients that arrive meanwhile wait in the listener's backlog. The margin
    /// below the limits ([`arming::willing`]) leaves capacity for these clients; a client beyond the limits is refused.
    pub async fn armed_as_willing(&self) {
        let (welcome, willing) = (self.look_for_room(), self.tunnel().willing_peers());
        let mut armed = self.armed.subscribe();
        let fits = |armed: &BTreeSet<_>| armed.is_empty() || (welcome && armed.is_subset(&willing.borrow()));
        let _ = tokio::time::timeout(DISARM_PATIENCE, armed.wait_for(fits)).await;
    }

    /// Agents of other sites that are alive and willing.
    pub fn willing_agents(&self) -> BTreeSet<AgentId> {
        let config = self.config();
        let agents = config.peers.iter().flat_map(|peer| &peer.agents).map(|agent| agent.id);
        agents.filter(|id| self.tunnel().peer_willing(*id)).collect()
    }

    /// Records the willing peers.
    pub fn note_willing(&self, willing: &BTreeSet<AgentId>) {
        lock(&self.latest_willing).note(willing, Instant::now());
    }

    /// Peers that have been willing long enough for their switch to know them.
    pub fn settled_peers(&self) -> BTreeSet<AgentId> {
        lock(&self.latest_willing).settled(Instant::now())
    }

    /// Willing peers, the agent that became willing last first.
    pub fn latest_willing(&self) -> Vec<AgentId> {
        lock(&self.latest_willing).agents().to_vec()
    }
}
