//! Willing peers in the order in which they became willing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use sos_wire::AgentId;

/// Time after which a willing peer is settled: the switch of a new agent has learned by now that the agent exists, from its beacons (one each
/// second), and sends it the packets of its sessions.
pub const SETTLE: Duration = Duration::from_secs(30);

/// Willing peers, the latest first. Bounded by the configured peers.
#[derive(Debug, Default)]
pub struct LatestWilling {
    agents: Vec<AgentId>,
    known: BTreeSet<AgentId>,
    since: BTreeMap<AgentId, Instant>,
}

impl LatestWilling {
    /// Notes the peers that are willing now. Peers that became willing at once keep the order of their ids.
    pub fn note(&mut self, willing: &BTreeSet<AgentId>, now: Instant) {
        if self.known == *willing {
            return;
        }
        self.since.retain(|id, _| willing.contains(id));
        for id in willing {
            self.since.entry(*id).or_insert(now);
        }
        let new = willing.difference(&self.known).copied();
        self.agents = new.chain(self.agents.iter().filter(|id| willing.contains(id)).copied()).collect();
        self.known.clone_from(willing);
    }

    /// The peers that have been willing for at least [`SETTLE`].
    #[must_use]
    pub fn settled(&self, now: Instant) -> BTreeSet<AgentId> {
        let settled = self.since.iter().filter(|(_, since)| now.duration_since(**since) >= SETTLE);
        settled.map(|(id, _)| *id).collect()
    }

    /// The peers.
    #[must_use]
    pub fn agents(&self) -> &[AgentId] {
        &self.agents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_that_became_willing_last_comes_first() {
        let [one, two, three] = [1, 2, 3].map(|byte| AgentId([byte; 16]));
        let mut latest = LatestWilling::default();
        let mut after = |willing: &[AgentId]| {
            latest.note(&willing.iter().copied().collect(), Instant::now());
            latest.agents().to_vec()
        };
        assert_eq!(after(&[one, three]), [one, three]);
        assert_eq!(after(&[one, two, three]), [two, one, three]);
        assert_eq!(after(&[one, two, three]), [two, one, three]);
        assert_eq!(after(&[one, three]), [one, three]);
        assert_eq!(after(&[two]), [two]);
    }

    #[test]
    fn a_peer_settles_after_it_has_been_willing_without_a_gap() {
        let [one, two] = [1, 2].map(|byte| AgentId([byte; 16]));
        let (mut latest, start) = (LatestWilling::default(), Instant::now());
        latest.note(&BTreeSet::from([one]), start);
        latest.note(&BTreeSet::from([one, two]), start + SETTLE / 2);
        assert_eq!(latest.settled(start + SETTLE - Duration::from_millis(1)), BTreeSet::new());
        assert_eq!(latest.settled(start + SETTLE), BTreeSet::from([one]));
        latest.note(&BTreeSet::from([two]), start + SETTLE);
        latest.note(&BTreeSet::from([one, two]), start + SETTLE + Duration::from_secs(1));
        assert_eq!(latest.settled(start + SETTLE * 2), BTreeSet::from([two]));
    }
}
