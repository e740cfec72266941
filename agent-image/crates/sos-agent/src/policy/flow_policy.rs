//! Flow policy: the flows that this agent's own configuration covers (spec/node-config.md clauses 11 and 12).
//!
//! Orders and sessions of peers are checked here: controllers and peers are not trusted to use only addresses that the agent's
//! configuration covers.

use std::net::{Ipv4Addr, SocketAddrV4};

use sos_wire::{AgentId, Prepare};

use crate::documents::config::{
    AgentConfig, Compression, Interface, PeerAgent, ProxyProtocol, Rewrite, Role, Service, Setup, Source,
};
use crate::orders::preparations::Preparation;
use crate::policy::flow_key::FlowKey;
use crate::policy::slots;

/// First Ingress service, in configured order, that covers a flow.
#[must_use]
pub fn ingress_service(config: &AgentConfig, flow: FlowKey) -> Option<&Service> {
    config.services.iter().find(|service| service.role == Role::Ingress && covers(service, flow))
}

/// Source address of connections to servers if a switch rewrites it to the client's address; `None` if the agent itself uses the client's
/// address.
#[must_use]
pub fn own_address(config: &AgentConfig) -> Option<Ipv4Addr> {
    (config.site.rewrite == Rewrite::OpenFlow).then(|| config.stream_address(0))
}

/// Presentation of a client to its server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClientIdentity {
    /// Source address of the connection.
    pub source: Source,
    /// Header before the client's own bytes.
    pub proxy_protocol: ProxyProtocol,
}

/// [`ClientIdentity`] of a flow that a peer opens: the settings of the Egress service that permits the flow.
#[must_use]
pub fn client_identity(config: &AgentConfig, flow: FlowKey, peer: AgentId) -> ClientIdentity {
    let site = config.peers.iter().find(|site| site.agents.iter().any(|agent| agent.id == peer));
    let service = site.and_then(|site| egress_service(config, flow, &site.site));
    service.map_or_else(ClientIdentity::default, |service| ClientIdentity {
        source: service.source,
        proxy_protocol: service.proxy_protocol,
    })
}

/// Number of routers between the agent's site and a host of another site (docs/adr/0018). Switches route between sites with separate
/// subnets. Without a bridge, the agent's machine itself is the router.
#[must_use]
pub fn routers(config: &AgentConfig, far_host: Ipv4Addr) -> u8 {
    let routed =
        |interface: &Interface| interface.gateway.is_some() && !interface.address.contains(&far_host);
    u8::from(config.interface.as_ref().is_none_or(routed))
}

/// True if the agent can connect to the server from the port in the order. At a site that rewrites, the agent uses the client's port on its
/// own address, where some ports are taken.
#[must_use]
pub fn can_have_port(config: &AgentConfig, prepare: &Prepare) -> bool {
    let port = prepare.client.port();
    let redirect = config.discovery.as_ref().map(|discovery| discovery.redirect_port);
    let taken =
        redirect == Some(port) || port == config.metrics_address.port() || config.stream_ports.contains(port);
    config.site.rewrite == Rewrite::Transparent || prepare.role == sos_wire::Role::Ingress || !taken
}

/// Agent that serves a flow of an Ingress service without an order. Pass `None` as `flow` to find out if any agent can serve the service.
///
/// On a bridge, the egress switch sends packets of a proactive service first to the agent of the client's port ([`slots`]); any other
/// service uses the first live agent. If some agent is beside the server (only at a site without bridges), only such an agent serves the
/// flow.
#[must_use]
pub fn far_agent(
    config: &AgentConfig,
    service: &Service,
    flow: Option<FlowKey>,
    alive: impl Fn(AgentId) -> bool,
) -> Option<AgentId> {
    let agents = &config.peer(&service.peer)?.agents;
    if config.bridge().is_some() && service.setup == Setup::Proactive {
        let ids: Vec<AgentId> = agents.iter().take(slots::PLACES).map(|agent| agent.id).collect();
        return slots::owner(&ids, flow.map_or(0, |flow| flow.client.port()), alive);
    }
    let is_beside =
        |agent: &&PeerAgent| flow.is_some_and(|flow| contains(&agent.prefixes, *flow.server.ip()));
    let named = agents.iter().any(|agent| is_beside(&agent));
    let fitting = agents.iter().filter(|agent| !named || is_beside(agent));
    fitting.map(|agent| agent.id).find(|id| alive(*id))
}

/// True if a server is in a pod on the node of a peer's agent: the agent connects from inside this pod.
#[must_use]
pub fn is_beside(config: &AgentConfig, agent: AgentId, server: Ipv4Addr) -> bool {
    let mut agents = config.peers.iter().flat_map(|site| &site.agents);
    agents.any(|known| known.id == agent && contains(&known.prefixes, server))
}

/// First Ingress service towards one peer site that covers a flow. A controller that prepares a flow names the peer agent and thereby its site.
#[must_use]
pub fn ingress_service_towards<'a>(
    config: &'a AgentConfig,
    flow: FlowKey,
    site: &str,
) -> Option<&'a Service> {
    config.services.iter().find(|s| s.role == Role::Ingress && s.peer == site && covers(s, flow))
}

/// Egress service that permits this agent to connect to the flow's server for a peer of `site`. The client must be inside the site's
/// prefixes or the service's `from`; the server and its port must be inside the service's `to` and `ports`.
#[must_use]
pub fn egress_service<'a>(config: &'a AgentConfig, flow: FlowKey, site: &str) -> Option<&'a Service> {
    let peer = config.peer(site)?;
    let at_peer = contains(&peer.prefixes, *flow.client.ip());
    config.services.iter().find(|service| {
        service.role == Role::Egress
            && service.peer == site
            && (at_peer || contains(&service.from, *flow.client.ip()))
            && serves(service, flow.server)
    })
}

/// Service of a session without an order: the first Ingress service that covers the flow, or the Egress service that permits it to the peer.
#[must_use]
pub fn service_of(
    config: &AgentConfig,
    role: sos_wire::Role,
    flow: FlowKey,
    peer: AgentId,
) -> Option<&Service> {
    if role == sos_wire::Role::Ingress {
        return ingress_service(config, flow);
    }
    let site = config.peers.iter().find(|site| site.agents.iter().any(|agent| agent.id == peer))?;
    egress_service(config, flow, &site.site)
}

/// Path labels of a session that a peer opens, or `None` if the session is not permitted. A prepared session keeps the labels of its
/// preparation, even if the configuration has changed since: it was permitted when this agent answered Ready, and its client may already be
/// accepted. Without a preparation, an Egress service decides.
#[must_use]
pub fn opened(
    config: &AgentConfig,
    flow: FlowKey,
    peer: AgentId,
    preparation: Option<&Preparation>,
) -> Option<u32> {
    if let Some(preparation) = preparation {
        return Some(preparation.prepare.labels);
    }
    let site = config.peers.iter().find(|site| site.agents.iter().any(|agent| agent.id == peer))?;
    egress_service(config, flow, &site.site).map(Service::label_mask)
}

/// Transport of data that this agent sends in a session, from its first service that covers the flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionTransport {
    /// Compress the data if that makes the session faster.
    pub compress: bool,
    /// Maximum number of streams per path; `None`: not set by the service.
    pub streams: Option<usize>,
}

/// [`SessionTransport`] of a flow with a peer; the defaults if no service covers the flow any longer.
#[must_use]
pub fn session_transport(config: &AgentConfig, flow: FlowKey, peer: AgentId, role: Role) -> SessionTransport {
    let site = config.peers.iter().find(|site| site.agents.iter().any(|agent| agent.id == peer));
    let service = site.and_then(|site| match role {
        Role::Ingress => ingress_service_towards(config, flow, &site.site),
        Role::Egress => egress_service(config, flow, &site.site),
    });
    service.map_or_else(SessionTransport::default, |service| SessionTransport {
        compress: service.transport.compression == Compression::Adaptive,
        streams: Some(usize::from(service.transport.streams)).filter(|named| *named > 0),
    })
}

fn covers(service: &Service, flow: FlowKey) -> bool {
    contains(&service.from, *flow.client.ip()) && serves(service, flow.server)
}

fn serves(service: &Service, server: SocketAddrV4) -> bool {
    contains(&service.to, *server.ip())
        && service.ports.iter().any(|range| (range.first..=range.last).contains(&server.port()))
}

fn contains(prefixes: &[ipnet::Ipv4Net], address: Ipv4Addr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    fn flow(client: &str, server: &str) -> FlowKey {
        FlowKey { client: client.parse().unwrap(), server: server.parse().unwrap() }
    }

    #[test]
    fn a_proactive_service_goes_to_the_agent_of_the_clients_port() {
        let mut config = config();
        let first = config.peers[0].agents[0].clone();
        let second = PeerAgent { id: AgentId([7; 16]), ..first.clone() };
        config.peers[0].agents.push(second.clone());
        for (setup, by_port) in [(Setup::Reactive, first.id), (Setup::Proactive, second.id)] {
            config.services[0].setup = setup;
            let agent = |port: u16, dead: Option<AgentId>| {
                let flow = flow(&format!("10.0.0.11:{port}"), "10.0.0.139:5000");
                far_agent(&config, &config.services[0], Some(flow), |id| Some(id) != dead)
            };
            assert_eq!(agent(40_000, None), Some(first.id));
            assert_eq!(agent(40_002, None), Some(by_port));
            assert_eq!(agent(40_002, Some(second.id)), Some(first.id));
            assert_eq!(far_agent(&config, &config.services[0], None, |id| id == second.id), Some(second.id));
            assert_eq!(far_agent(&config, &config.services[0], None, |_| false), None);
        }
    }

    #[test]
    fn a_server_beside_an_agent_on_routes_is_served_by_that_agent_only() {
        let mut config = config();
        (config.interface, config.discovery) = (None, None);
        config.services[0].setup = Setup::Proactive;
        let first = config.peers[0].agents[0].clone();
        let beside = PeerAgent {
            id: AgentId([7; 16]),
            prefixes: vec!["10.0.0.192/26".parse().unwrap()],
            ..first.clone()
        };
        config.peers[0].agents.push(beside.clone());
        let agent = |server: Option<&str>, dead: Option<AgentId>| {
            let flow = server.map(|server| flow("10.0.0.11:40000", &format!("{server}:5000")));
            far_agent(&config, &config.services[0], flow, |id| Some(id) != dead)
        };
        assert_eq!(agent(Some("10.0.0.200"), None), Some(beside.id));
        assert_eq!(agent(Some("10.0.0.200"), Some(beside.id)), None);
        assert_eq!(agent(Some("10.0.0.139"), None), Some(first.id));
        assert_eq!(agent(Some("10.0.0.139"), Some(first.id)), Some(beside.id));
        assert_eq!(agent(None, Some(first.id)), Some(beside.id));
    }

    #[test]
    fn ingress_needs_client_server_and_port() {
        let config = config();
        assert!(ingress_service(&config, flow("10.0.0.11:40000", "10.0.0.139:5000")).is_some());
        for (client, server) in [
            ("10.0.0.139:40000", "10.0.0.140:5000"),
            ("10.0.0.11:40000", "10.0.0.12:5000"),
            ("10.0.0.11:40000", "10.0.0.139:6000"),
        ] {
            assert!(ingress_service(&config, flow(client, server)).is_none(), "{client} {server}");
        }
        let covered = flow("10.0.0.11:40000", "10.0.0.139:22");
        assert!(ingress_service_towards(&config, covered, "east").is_some());
        assert!(ingress_service_towards(&config, covered, "north").is_none());
    }

    #[test]
    fn each_agent_compresses_by_its_own_service() {
        let mut config = config();
        let (peer, covered) = (config.peers[0].agents[0].id, flow("10.0.0.11:40000", "10.0.0.139:22"));
        let ingress =
            |config: &AgentConfig, flow, peer| session_transport(config, flow, peer, Role::Ingress).compress;
        assert!(!ingress(&config, covered, peer));
        config.services[0].transport.compression = Compression::Adaptive;
        assert!(ingress(&config, covered, peer));
        assert!(!ingress(&config, flow("10.0.0.11:40000", "10.0.0.139:23"), peer), "no service covers it");
        assert!(!ingress(&config, covered, AgentId([9; 16])), "an unknown peer");
        assert!(!session_transport(&config, covered, peer, Role::Egress).compress);
        config.services[0].role = Role::Egress;
        config.services[0].to = vec!["10.0.0.0/25".parse().unwrap()];
        assert!(
            session_transport(&config, flow("10.0.0.139:1", "10.0.0.11:22"), peer, Role::Egress).compress
        );
    }

    #[test]
    fn a_session_uses_the_number_of_streams_of_its_own_service() {
        let mut config = config();
        let (peer, covered) = (config.peers[0].agents[0].id, flow("10.0.0.11:40000", "10.0.0.139:22"));
        for (named, most) in [(0, None), (1, Some(1)), (128, Some(128))] {
            config.services[0].transport.streams = named;
            assert_eq!(session_transport(&config, covered, peer, Role::Ingress).streams, most);
        }
        assert_eq!(session_transport(&config, covered, AgentId([9; 16]), Role::Ingress).streams, None);
    }

    #[test]
    fn the_first_egress_service_of_a_flow_decides_the_clients_identity() {
        let mut config = config();
        let (peer, covered) = (config.peers[0].agents[0].id, flow("10.0.0.139:1", "10.0.0.11:22"));
        let first = &mut config.services[0];
        first.role = Role::Egress;
        first.to = vec!["10.0.0.0/25".parse().unwrap()];
        first.source = Source::Agent;
        first.proxy_protocol = ProxyProtocol::V2;
        let second = Service {
            ports: vec![crate::documents::config::PortRange { first: 1, last: 65_535 }],
            source: Source::Preserve,
            proxy_protocol: ProxyProtocol::None,
            ..first.clone()
        };
        config.services.push(second);
        let named = ClientIdentity { source: Source::Agent, proxy_protocol: ProxyProtocol::V2 };
        assert_eq!(client_identity(&config, covered, peer), named);
        let other_port = flow("10.0.0.139:1", "10.0.0.11:23");
        assert_eq!(client_identity(&config, other_port, peer), ClientIdentity::default());
        assert_eq!(client_identity(&config, covered, AgentId([9; 16])), ClientIdentity::default());
    }

    #[test]
    fn egress_takes_clients_of_the_peer_site_or_of_from_only() {
        let mut config = config();
        config.services[0].role = Role::Egress;
        config.services[0].from = vec!["192.0.2.0/24".parse().unwrap()];
        config.services[0].to = vec!["10.0.0.0/25".parse().unwrap()];
        let server = "10.0.0.11:22";
        assert!(egress_service(&config, flow("10.0.0.139:1", server), "east").is_some());
        assert!(egress_service(&config, flow("192.0.2.7:1", server), "east").is_some());
        assert!(egress_service(&config, flow("203.0.113.7:1", server), "east").is_none());
        assert!(egress_service(&config, flow("10.0.0.139:1", "10.0.0.11:23"), "east").is_none());
        assert!(egress_service(&config, flow("10.0.0.139:1", "10.0.0.139:22"), "east").is_none());
        assert!(egress_service(&config, flow("10.0.0.139:1", server), "north").is_none());
        assert!(ingress_service(&config, flow("10.0.0.139:1", server)).is_none());
    }
}
