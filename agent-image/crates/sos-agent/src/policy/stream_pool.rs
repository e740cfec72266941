//! Stream pool: the tunnel's list of peers and streams, from configuration and orders.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Instant;

use sos_tunnel::PeerConfig;
use sos_wire::{AgentId, Prepare};

use crate::documents::config::{
    AgentConfig, CongestionControl, Dial, Encryption, MAX_STREAM_PORTS, Peer, Protocol,
};

/// Path labels that controllers have named for a peer in addition to the configured labels. They are kept until the agent exits: there are
/// at most eight labels, and a warm stream costs almost nothing.
#[derive(Debug, Default)]
pub struct OrderedLabels(BTreeMap<AgentId, BTreeSet<u8>>);

impl OrderedLabels {
    /// Records the labels of an accepted order. Returns true if a label is new; then the peer list must be set again.
    pub fn note(&mut self, prepare: &Prepare) -> bool {
        let labels = (0..8).filter(|label| prepare.labels >> label & 1 == 1);
        let known = self.0.entry(prepare.peer).or_default();
        labels.fold(false, |new, label| known.insert(label) | new)
    }
}

/// The tunnel's peers: every configured agent. Each label that a service may use or an order has named gets the largest number of streams
/// that any service requests. If any service requests encryption or QUIC, all streams use it.
#[must_use]
pub fn peers(config: &AgentConfig, ordered: &OrderedLabels) -> Vec<PeerConfig> {
    let mut list = Vec::new();
    for peer in &config.peers {
        let (streams, configured) = (streams(config, peer), labels(config, peer));
        for agent in &peer.agents {
            let mut entry = PeerConfig::new(agent.id, peer.site_id, agent.address, agent.first_stream_port);
            let named = |label: &u8| ordered.0.get(&agent.id).is_some_and(|labels| labels.contains(label));
            let there = 0..u8::try_from(config.stream_ports.count.min(MAX_STREAM_PORTS)).unwrap_or(1);
            let labels = there.filter(|label| u16::from(*label) < configured || named(label));
            if !agent.addresses.is_empty() {
                entry.addresses.clone_from(&agent.addresses);
            }
            let has_label =
                |label: &u8| agent.addresses.is_empty() || usize::from(*label) < agent.addresses.len();
            entry.streams = labels.filter(has_label).map(|label| (label, streams)).collect();
            entry.encrypted = encrypted(config, peer);
            entry.encrypted_only = encrypted_only(config, peer);
            entry.protocol = protocol(config, peer);
            entry.dial = match peer.dial {
                Dial::ById => sos_tunnel::Dial::ById,
                Dial::Always => sos_tunnel::Dial::Always,
                Dial::Never => sos_tunnel::Dial::Never,
            };
            list.push(entry);
        }
    }
    list
}

/// Peers that are no longer configured, kept for sessions prepared earlier: their clients may still be accepted.
#[derive(Debug, Default)]
pub struct DepartingPeers(BTreeMap<AgentId, (PeerConfig, Instant)>);

impl DepartingPeers {
    /// Adds peers that are no longer listed but have preparations, with the last expiry of the preparations.
    pub fn note(
        &mut self,
        before: Vec<PeerConfig>,
        now: &[PeerConfig],
        prepared_until: &BTreeMap<AgentId, Instant>,
    ) {
        for peer in before.into_iter().filter(|peer| !now.iter().any(|one| one.agent == peer.agent)) {
            if let Some(until) = prepared_until.get(&peer.agent) {
                self.0.insert(peer.agent, (peer, *until));
            }
        }
    }

    /// Removes expired peers; returns true if there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.0.len();
        self.0.retain(|_, (_, until)| *until > now);
        self.0.len() < before
    }

    /// The listed peers and the peers kept for preparations.
    #[must_use]
    pub fn with(&self, mut now: Vec<PeerConfig>) -> Vec<PeerConfig> {
        let listed: BTreeSet<AgentId> = now.iter().map(|peer| peer.agent).collect();
        now.extend(
            self.0.values().filter(|(peer, _)| !listed.contains(&peer.agent)).map(|(peer, _)| peer.clone()),
        );
        now
    }
}

fn streams(config: &AgentConfig, peer: &Peer) -> usize {
    named_streams(config, peer).unwrap_or(PeerConfig::DEFAULT_STREAMS) + PeerConfig::RESERVED_STREAMS
}

/// Largest number of streams that a service towards a peer's site names.
fn named_streams(config: &AgentConfig, peer: &Peer) -> Option<usize> {
    let services = config.services.iter().filter(|service| service.peer == peer.site);
    services.map(|service| usize::from(service.transport.streams)).filter(|streams| *streams > 0).max()
}

/// True if a service requests encryption. Streams carry sessions of all services between the two sites, so one such service encrypts all
/// streams.
fn encrypted(config: &AgentConfig, peer: &Peer) -> bool {
    let mut services = config.services.iter().filter(|service| service.peer == peer.site);
    services.any(|service| service.transport.encryption == Encryption::Tls)
}

/// True if any service between the two sites requires encrypted streams. Sessions of all services share the streams, so one service's
/// requirement applies to all streams.
fn encrypted_only(config: &AgentConfig, peer: &Peer) -> bool {
    config.services.iter().any(|service| service.peer == peer.site && service.encrypted_only)
}

/// QUIC if any service between the two sites requests QUIC. Sessions of all services share the streams, so one service's request applies to
/// all streams.
fn protocol(config: &AgentConfig, peer: &Peer) -> sos_tunnel::Protocol {
    let mut services = config.services.iter().filter(|service| service.peer == peer.site);
    match services.any(|service| service.transport.protocol == Protocol::Quic) {
        true => sos_tunnel::Protocol::Quic,
        false => sos_tunnel::Protocol::Tcp,
    }
}

/// Number of path labels, from 0, that a service towards a peer site may use. The streams of all these labels are kept open even while
/// paths share links: as soon as a path has recovered, the controller may assign it to a session, which needs established streams.
fn labels(config: &AgentConfig, peer: &Peer) -> u16 {
    let services = config.services.iter().filter(|service| service.peer == peer.site);
    services.map(|service| service.labels).max().unwrap_or(1)
}

/// Configured congestion control of the streams with the agent that has this address: from the first service towards the agent's site that
/// names an algorithm.
#[must_use]
pub fn congestion(config: &AgentConfig, address: Ipv4Addr) -> CongestionControl {
    let named = |peer: &Peer| {
        let services = config.services.iter().filter(|service| service.peer == peer.site);
        services.map(|service| service.transport.congestion_control).find(|c| *c != CongestionControl::Auto)
    };
    peer_at(config, address).and_then(named).unwrap_or(CongestionControl::Auto)
}

/// True if a service towards the site of the agent with this address names the number of streams.
#[must_use]
pub fn names_streams(config: &AgentConfig, address: Ipv4Addr) -> bool {
    peer_at(config, address).is_some_and(|peer| named_streams(config, peer).is_some())
}

fn peer_at(config: &AgentConfig, address: Ipv4Addr) -> Option<&Peer> {
    config.peers.iter().find(|peer| peer.agents.iter().any(|agent| agent.has_address(address)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;
    use sos_wire::{Congestion, Role, SessionUuid};
    use std::time::Duration;

    fn order(labels: u32) -> Prepare {
        Prepare {
            session: SessionUuid([0; 16]),
            role: Role::Ingress,
            streams: 0,
            block_bytes: 0,
            queue_bytes: 0,
            lease_ms: 0,
            client: "10.0.0.11:1".parse().unwrap(),
            server: "10.0.0.139:22".parse().unwrap(),
            labels,
            congestion: Congestion::Auto,
            accept: sos_wire::Accept::Early,
            marks: sos_wire::Marks::default(),
            peer: config().peers[0].agents[0].id,
            peer_address: "10.0.0.254".parse().unwrap(),
            peer_stream_port: 10_000,
        }
    }

    #[test]
    fn label_0_is_always_listed_and_orders_add_labels() {
        let config = config();
        let mut ordered = OrderedLabels::default();
        let labels =
            |ordered: &OrderedLabels| peers(&config, ordered)[0].streams.keys().copied().collect::<Vec<_>>();
        assert_eq!(labels(&ordered), [0]);
        assert!(ordered.note(&order(0b1000_0110)));
        assert!(!ordered.note(&order(0b10)));
        assert_eq!(labels(&ordered), [0, 1, 2, 7]);
        assert!(!ordered.note(&order(0xffff_ff00)), "labels over 7 do not exist");
    }

    #[test]
    fn a_removed_peer_is_kept_while_a_prepared_session_may_begin() {
        let (config, ordered, begun) = (config(), OrderedLabels::default(), Instant::now());
        let before = peers(&config, &ordered);
        let soon = begun + Duration::from_secs(8);
        let mut leaving = DepartingPeers::default();
        leaving.note(before.clone(), &[], &BTreeMap::new());
        assert!(leaving.with(Vec::new()).is_empty(), "no session is prepared with the peer");
        let prepared = BTreeMap::from([(before[0].agent, soon)]);
        leaving.note(before.clone(), &before, &prepared);
        assert!(leaving.with(Vec::new()).is_empty(), "the peer is still configured");
        leaving.note(before.clone(), &[], &prepared);
        assert_eq!(leaving.with(Vec::new()), before);
        assert_eq!(leaving.with(before.clone()), before, "a peer configured again is listed once");
        assert!(!leaving.expire(begun));
        assert!(leaving.expire(soon) && !leaving.expire(soon));
        assert!(leaving.with(Vec::new()).is_empty());
    }

    #[test]
    fn services_determine_the_number_and_kind_of_streams() {
        let mut config = config();
        let address = Ipv4Addr::new(10, 0, 0, 254);
        assert_eq!(
            peers(&config, &OrderedLabels::default())[0].streams[&0],
            PeerConfig::DEFAULT_STREAMS + PeerConfig::RESERVED_STREAMS
        );
        assert_eq!(congestion(&config, address), CongestionControl::Auto);
        assert!(!names_streams(&config, address));
        config.services[0].transport.streams = 3;
        config.services[0].transport.congestion_control = CongestionControl::Reno;
        config.services[0].labels = 2;
        let streams = peers(&config, &OrderedLabels::default())[0].streams.clone();
        assert_eq!(streams, BTreeMap::from([(0, 4), (1, 4)]));
        assert_eq!(congestion(&config, address), CongestionControl::Reno);
        assert!(names_streams(&config, address));
        assert_eq!(congestion(&config, Ipv4Addr::LOCALHOST), CongestionControl::Auto);
        assert!(!names_streams(&config, Ipv4Addr::LOCALHOST));
    }

    #[test]
    fn one_service_with_quic_moves_all_streams_of_its_peer_to_quic() {
        let mut config = config();
        let protocol = |config: &AgentConfig| peers(config, &OrderedLabels::default())[0].protocol;
        assert_eq!(protocol(&config), sos_tunnel::Protocol::Tcp);
        let mut another = config.services[0].clone();
        another.transport.protocol = Protocol::Quic;
        config.services.push(another);
        assert_eq!(protocol(&config), sos_tunnel::Protocol::Quic);
        assert!(
            !peers(&config, &OrderedLabels::default())[0].encrypted,
            "the flag concerns streams over TCP only"
        );
    }

    #[test]
    fn one_service_with_encryption_encrypts_all_streams_of_its_peer() {
        let mut config = config();
        let encrypted = |config: &AgentConfig| peers(config, &OrderedLabels::default())[0].encrypted;
        assert!(!encrypted(&config));
        let mut another = config.services[0].clone();
        another.transport.encryption = Encryption::Tls;
        config.services.push(another.clone());
        assert!(encrypted(&config));
        assert!(!peers(&config, &OrderedLabels::default())[0].encrypted_only);
        config.services[1].encrypted_only = true;
        assert!(peers(&config, &OrderedLabels::default())[0].encrypted_only);
        another.peer = "elsewhere".to_owned();
        config.services[1] = another;
        assert!(!encrypted(&config));
    }
}
