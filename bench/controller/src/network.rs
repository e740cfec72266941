//! Emulated network: switches, links between switches, hosts behind their ports, and sources of SYNs.

use std::collections::HashMap;
use std::net::Ipv4Addr;

use crate::config::{Document, Prefix, Site};
use crate::openflow::packets::{Mac, Party};
use sos_wire::{AgentId, MacAddress, SiteId};

/// Number of clients behind the host port of each switch with sources of SYNs.
pub const CLIENTS: usize = 20;
/// Port of clients, and of a server whose clients are at another switch.
pub const HOST_PORT: u32 = 1;
/// Port of a server at the same switch as its clients.
pub const SERVER_PORT: u32 = 2;
/// First port number for agents.
const AGENT_PORTS: u32 = 10;
/// First port number for links.
const WIRE_PORTS: u32 = 100;

/// A port of a switch, identified by the switch's index and the port number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Index of the switch.
    pub switch: usize,
    /// OpenFlow port number.
    pub port: u32,
}

/// A switch to emulate.
#[derive(Debug, Clone)]
pub struct SwitchPlan {
    /// Datapath id.
    pub dpid: u64,
    /// Name in reports.
    pub name: String,
    /// OpenFlow port numbers.
    pub ports: Vec<u32>,
}

/// An agent of SOS to emulate.
#[derive(Debug, Clone)]
pub struct AgentPlan {
    /// Agent id.
    pub id: AgentId,
    /// Site id.
    pub site: SiteId,
    /// Name of the agent's node.
    pub name: String,
    /// Addresses of the agent.
    pub party: Party,
    /// Switch and port of the agent.
    pub place: Place,
}

/// Source of SYNs: clients behind a port that connect to one server.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Switch and port of the clients.
    pub place: Place,
    /// Addresses of the clients.
    pub clients: Vec<Party>,
    /// Addresses of the server.
    pub server: Party,
    /// Switch and port of the server.
    pub server_place: Place,
    /// TCP port of the server.
    pub server_port: u16,
}

/// Links between the switches of a network without a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Topology {
    /// No links.
    None,
    /// Links form a line.
    Line,
    /// Links form a ring.
    Ring,
}

/// The complete emulated network.
#[derive(Debug, Default)]
pub struct Network {
    /// Switches.
    pub switches: Vec<SwitchPlan>,
    /// Both directions of every link.
    pub wires: HashMap<Place, Place>,
    /// Sources of SYNs.
    pub lanes: Vec<Lane>,
    /// Agents.
    pub agents: Vec<AgentPlan>,
}

impl Network {
    /// Network for benchmarks of a learning-switch controller: each switch has clients and a server.
    pub fn plain(count: usize, topology: Topology) -> Self {
        let mut network = Self::default();
        for index in 0..count {
            let number = u32::try_from(index).expect("fewer than 2^32 switches");
            let [_, _, high, low] = number.to_be_bytes();
            let party = |host: u8| Party {
                mac: [2, 0x0B, high, low, 0, host],
                address: Ipv4Addr::new(10, high, low, host),
            };
            let (place, server_place) =
                (Place { switch: index, port: HOST_PORT }, Place { switch: index, port: SERVER_PORT });
            let clients = (1..=CLIENTS).map(|n| party(u8::try_from(n).expect("few clients"))).collect();
            network.add_switch(
                u64::from(number) + 1,
                format!("s{}", index + 1),
                vec![HOST_PORT, SERVER_PORT],
            );
            network.lanes.push(Lane { place, clients, server: party(200), server_place, server_port: 5001 });
        }
        let wires = match topology {
            Topology::None => 0,
            Topology::Line => count.saturating_sub(1),
            Topology::Ring if count > 2 => count,
            Topology::Ring => count.saturating_sub(1),
        };
        (0..wires).for_each(|i| network.wire(i, (i + 1) % count));
        network
    }

    /// Network of a controller-config document. Each edge datapath has a link to every transit datapath; without a transit site, links
    /// form a line. The network has the document's agents and, for each service, clients at each datapath of the service's `from` site.
    ///
    /// # Errors
    /// A service has a site without datapaths, or no prefixes or ports.
    pub fn declared(document: &Document) -> Result<Self, String> {
        let mut network = Self::default();
        let mut of_site = HashMap::new();
        for site in &document.sites {
            for datapath in &site.datapaths {
                let ports = if site.transit { vec![] } else { vec![HOST_PORT] };
                network.add_switch(datapath.dpid, datapath.name.clone(), ports);
                of_site.entry(site.name.as_str()).or_insert_with(Vec::new).push(network.switches.len() - 1);
            }
        }
        network.join(document, &of_site);
        for site in &document.sites {
            network.add_agents(site, of_site.get(site.name.as_str()).map_or(&[], Vec::as_slice));
        }
        for service in &document.services {
            let find = |name: &str| document.sites.iter().find(|s| s.name == name).zip(of_site.get(name));
            let (from, to) = (find(&service.from.site), find(&service.to.site));
            let ((_, near), (_, far)) =
                from.zip(to).ok_or_else(|| format!("service {}: a site without datapaths", service.id))?;
            let prefixes = service.from.prefixes.first().zip(service.to.prefixes.first());
            let port = service.ports.first().map(|range| range.first);
            let (prefixes, port) =
                prefixes.zip(port).ok_or_else(|| format!("service {}: no prefix or port", service.id))?;
            network.add_lanes(near, far, prefixes, port);
        }
        Ok(network)
    }

    /// Keep at most `most` sources of SYNs, at equal distances in the order of the services.
    pub fn thin_lanes(&mut self, most: usize) {
        let (count, mut kept) = (self.lanes.len(), 0);
        let mut index = 0;
        self.lanes.retain(|_| {
            let keep = index * most >= kept * count && kept < most;
            index += 1;
            kept += usize::from(keep);
            keep
        });
    }

    fn add_switch(&mut self, dpid: u64, name: String, ports: Vec<u32>) {
        self.switches.push(SwitchPlan { dpid, name, ports });
    }

    fn add_port(&mut self, switch: usize, first: u32) -> Place {
        let ports = &mut self.switches[switch].ports;
        let port = (first..).find(|p| !ports.contains(p)).expect("fewer than 2^32 ports");
        ports.push(port);
        Place { switch, port }
    }

    fn wire(&mut self, one: usize, other: usize) {
        let (a, b) = (self.add_port(one, WIRE_PORTS), self.add_port(other, WIRE_PORTS));
        self.wires.insert(a, b);
        self.wires.insert(b, a);
    }

    fn join(&mut self, document: &Document, of_site: &HashMap<&str, Vec<usize>>) {
        let all = |transit: bool| -> Vec<usize> {
            let sites = document.sites.iter().filter(|s| s.transit == transit);
            sites.flat_map(|s| of_site.get(s.name.as_str()).cloned().unwrap_or_default()).collect()
        };
        let (edges, cores) = (all(false), all(true));
        if cores.is_empty() {
            (1..edges.len()).for_each(|i| self.wire(edges[i - 1], edges[i]));
        }
        for core in cores {
            edges.iter().for_each(|edge| self.wire(*edge, core));
        }
    }

    fn add_agents(&mut self, site: &Site, switches: &[usize]) {
        for agent in &site.agents {
            let own = switches.iter().copied().find(|i| self.switches[*i].name == agent.node);
            let Some(switch) = own.or_else(|| switches.first().copied()) else { continue };
            let place = self.add_port(switch, AGENT_PORTS);
            let party = Party { mac: mac_of(agent.address), address: agent.address };
            let id = agent.id;
            self.agents.push(AgentPlan { id, site: SiteId(site.id), name: agent.node.clone(), party, place });
        }
    }

    fn add_lanes(&mut self, near: &[usize], far: &[usize], prefixes: (&Prefix, &Prefix), server_port: u16) {
        let taken: Vec<Ipv4Addr> = self.agents.iter().map(|a| a.party.address).collect();
        let party = |prefix: &Prefix, number: usize| {
            let address = prefix.hosts().filter(|a| !taken.contains(a)).nth(number)?;
            Some(Party { mac: mac_of(address), address })
        };
        for (i, switch) in near.iter().enumerate() {
            let clients: Vec<Party> =
                (0..CLIENTS).filter_map(|n| party(prefixes.0, i * CLIENTS + n)).collect();
            let Some(server) = party(prefixes.1, i) else { continue };
            let server_place = Place { switch: far[i % far.len()], port: HOST_PORT };
            let place = Place { switch: *switch, port: HOST_PORT };
            if !clients.is_empty() {
                self.lanes.push(Lane { place, clients, server, server_place, server_port });
            }
        }
    }
}

/// Locally administered MAC address that contains an IPv4 address.
fn mac_of(address: Ipv4Addr) -> Mac {
    let [a, b, c, d] = address.octets();
    MacAddress([2, 0x0B, a, b, c, d]).0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_has_both_directions_and_existing_ports() {
        for topology in [Topology::None, Topology::Line, Topology::Ring] {
            let network = Network::plain(5, topology);
            assert_eq!(network.wires.len(), [0, 8, 10][topology as usize]);
            for (a, b) in &network.wires {
                assert_eq!(network.wires[b], *a);
                assert!(network.switches[a.switch].ports.contains(&a.port));
            }
        }
    }

    #[test]
    fn kept_lanes_are_at_equal_distances() {
        for (count, most, expected) in
            [(10, 5, vec![0, 2, 4, 6, 8]), (3, 5, vec![0, 1, 2]), (7, 3, vec![0, 3, 5])]
        {
            let mut network = Network::plain(count, Topology::None);
            network.thin_lanes(most);
            assert_eq!(network.lanes.iter().map(|lane| lane.place.switch).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn document_is_converted_to_switches_agents_and_clients() {
        let document: Document = serde_json::from_str(crate::config::EXAMPLE).expect("the example is valid");
        let network = Network::declared(&document).expect("the example's services are valid");
        assert_eq!((network.switches.len(), network.wires.len(), network.agents.len()), (3, 4, 2));
        let [lane] = network.lanes.as_slice() else { panic!("one lane") };
        assert_eq!(
            (lane.clients.len(), lane.server.address, lane.server_port),
            (CLIENTS, Ipv4Addr::new(10, 0, 2, 1), 5000)
        );
        assert_ne!(lane.place.switch, lane.server_place.switch);
        assert!(network.agents.iter().all(|a| a.place.port == AGENT_PORTS));
    }
}
