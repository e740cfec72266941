//! `/status`: state of the agent, for readers at a site without bridges, where no controller reports this state (spec/node-config.md clause
//! 40).

use serde::Serialize;
use sos_tunnel::PathStreams;

use crate::context::AgentContext;
use crate::documents::config::{AgentConfig, Intake, Role};
use crate::policy::{arming, flow_policy};

/// The document.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    node: String,
    site: String,
    agent_id: String,
    generation: u64,
    hash: String,
    willing: bool,
    draining: bool,
    /// State of an agent that follows the site's virtual address.
    #[serde(skip_serializing_if = "Option::is_none")]
    virtual_address: Option<&'static str>,
    sessions: u32,
    intercepted_pods: usize,
    peers: Vec<Peer>,
    services: Vec<Service>,
}

/// A peer agent.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Peer {
    site: String,
    id: String,
    node: String,
    alive: bool,
    willing: bool,
    paths: Vec<Path>,
}

/// The streams of one path to a peer agent.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Path {
    label: u8,
    /// Streams established now.
    streams: usize,
    /// Streams that the configuration keeps open.
    configured: usize,
}

impl From<PathStreams> for Path {
    fn from(path: PathStreams) -> Self {
        Self { label: path.label, streams: path.established, configured: path.configured }
    }
}

/// A service.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Service {
    id: String,
    role: &'static str,
    /// At the ingress: new connections are accelerated. At the egress: sessions are accepted.
    ready: bool,
}

/// State of the agent now.
#[must_use]
pub fn status(context: &AgentContext) -> Status {
    let (config, health) = (context.config(), context.health());
    let tunnel = context.tunnel();
    let willing = arming::willing(&config, health);
    let peer = |site: &str, agent: &crate::documents::config::PeerAgent| Peer {
        site: site.to_owned(),
        id: agent.id.to_string(),
        node: agent.node.clone(),
        alive: tunnel.peer_alive(agent.id),
        willing: tunnel.peer_willing(agent.id),
        paths: tunnel.path_streams(agent.id).into_iter().map(Path::from).collect(),
    };
    let follows = config.intake.as_ref().and_then(Intake::followed).is_some();
    let peers = config.peers.iter().flat_map(|site| site.agents.iter().map(|agent| peer(&site.site, agent)));
    Status {
        node: config.node.clone(),
        site: config.site.name.clone(),
        agent_id: config.agent_id.to_string(),
        generation: config.generation,
        hash: config.hash.clone(),
        willing,
        draining: health.draining,
        virtual_address: follows.then(|| context.virtual_address.state().word()),
        sessions: health.sessions,
        intercepted_pods: context.pods().all().len(),
        peers: peers.collect(),
        services: services(&config, willing, |id| tunnel.peer_willing(id)),
    }
}

fn services(config: &AgentConfig, willing: bool, peer: impl Fn(sos_wire::AgentId) -> bool) -> Vec<Service> {
    let ready = |service: &crate::documents::config::Service| {
        willing && flow_policy::far_agent(config, service, None, &peer).is_some()
    };
    let role = |role| match role {
        Role::Ingress => "Ingress",
        Role::Egress => "Egress",
    };
    let row = |service: &crate::documents::config::Service| Service {
        id: service.id.clone(),
        role: role(service.role),
        ready: ready(service),
    };
    config.services.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    #[test]
    fn a_service_is_ready_while_both_agents_accept_sessions() {
        let config = config();
        let ready = |willing, peer: bool| services(&config, willing, |_| peer)[0].ready;
        assert!(ready(true, true) && !ready(false, true) && !ready(true, false));
        let row = serde_json::to_value(&services(&config, true, |_| true)[0]).unwrap();
        assert_eq!(row, serde_json::json!({"id": "default/bulk", "role": "Ingress", "ready": true}));
    }

    #[test]
    fn a_path_has_its_label_and_streams() {
        let path = Path::from(PathStreams { label: 1, established: 3, configured: 5 });
        let row = serde_json::to_value(path).unwrap();
        assert_eq!(row, serde_json::json!({"label": 1, "streams": 3, "configured": 5}));
    }
}
