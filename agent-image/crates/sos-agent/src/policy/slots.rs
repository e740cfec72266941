//! Egress agents of proactive services by the client's port (spec/node-config.md clause 11).
//!
//! The egress switch derives a packet's first agent from the client's port in the same way, so that the packets of a session reach their
//! agent without passing another one (docs/adr/0074). The switch finds the agent also if the two sides differ for a time.

use sos_wire::AgentId;

/// Maximum number of agents of a site that serve proactive services: the first in the configured order.
pub const PLACES: usize = 8;

/// Owner of a client port's slot among the agents of a site, in configured order; `None` if no agent is alive. A slot whose own agent is not
/// alive goes to the others in turn.
#[must_use]
pub fn owner(agents: &[AgentId], client_port: u16, alive: impl Fn(AgentId) -> bool) -> Option<AgentId> {
    let slot = usize::from(client_port >> 1 & 0x3f);
    let own = agents.get(slot.checked_rem(agents.len())?).copied()?;
    if alive(own) {
        return Some(own);
    }
    let others: Vec<AgentId> = agents.iter().copied().filter(|id| alive(*id)).collect();
    others.get((slot / agents.len()).checked_rem(others.len())?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Row {
        agents: u8,
        takes: Vec<u8>,
        owners: String,
    }

    #[test]
    fn owners_equal_the_golden_vectors() {
        let text = include_str!("../../../../../spec/vectors/slots/v1.json");
        let rows: Vec<Row> = serde_json::from_str(text).unwrap();
        for row in rows {
            let agents: Vec<AgentId> = (0..row.agents).map(|byte| AgentId([byte; 16])).collect();
            let owners: Vec<Option<u32>> = row.owners.chars().map(|digit| digit.to_digit(10)).collect();
            assert_eq!(owners.len(), 64);
            for port in 0..=u16::MAX {
                let found = owner(&agents, port, |id| row.takes.contains(&id.0[0]));
                let wanted = owners[usize::from(port / 2 % 64)];
                assert_eq!(found.map(|id| u32::from(id.0[0])), wanted, "{port} of {:?}", row.takes);
            }
        }
    }
}
