//! The parts of a controller-config document (spec/controller-config.md) that define the emulated network, and the keys of its agents.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;

use serde::{Deserialize, Deserializer, de::Error as _};
use sos_wire::{AgentId, Key, KeyFile, KeyId, SiteId};

/// A controller-config document; unused fields are ignored.
#[derive(Debug, Deserialize)]
pub struct Document {
    /// Discovery settings.
    pub discovery: Discovery,
    /// Sites.
    pub sites: Vec<Site>,
    /// Services, in order.
    pub services: Vec<Service>,
}

/// Destination of beacons and orders.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Discovery {
    /// Discovery address, which belongs to no host.
    pub address: Ipv4Addr,
    /// Ethernet address of the discovery address.
    #[serde(deserialize_with = "parsed")]
    pub mac: MacText,
    /// UDP port of beacons.
    pub beacon_port: u16,
    /// UDP port of orders.
    pub order_port: u16,
}

/// An Ethernet address, parsed from text.
#[derive(Debug, Clone, Copy)]
pub struct MacText(pub [u8; 6]);

impl std::str::FromStr for MacText {
    type Err = sos_wire::WireError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<sos_wire::MacAddress>().map(|mac| Self(mac.0))
    }
}

/// A site.
#[derive(Debug, Deserialize)]
pub struct Site {
    /// Name of the site.
    pub name: String,
    /// Site id.
    pub id: u16,
    /// True for a transit site, which carries only traffic of other sites.
    pub transit: bool,
    /// Switches of the site.
    pub datapaths: Vec<Datapath>,
    /// Agents of the site.
    pub agents: Vec<Agent>,
}

/// A switch.
#[derive(Debug, Deserialize)]
pub struct Datapath {
    /// Datapath id.
    #[serde(deserialize_with = "hex")]
    pub dpid: u64,
    /// Name.
    pub name: String,
}

/// An agent.
#[derive(Debug, Deserialize)]
pub struct Agent {
    /// Agent id.
    #[serde(deserialize_with = "parsed")]
    pub id: AgentId,
    /// Node name, which is also the name of the agent's switch; for an unknown name the agent is at the site's first switch.
    pub node: String,
    /// Address of the agent.
    pub address: Ipv4Addr,
}

/// A service.
#[derive(Debug, Deserialize)]
pub struct Service {
    /// Namespace and name of the service.
    pub id: String,
    /// Clients.
    pub from: End,
    /// Servers.
    pub to: End,
    /// Server ports.
    pub ports: Vec<Ports>,
}

/// Clients or servers of a service.
#[derive(Debug, Deserialize)]
pub struct End {
    /// Name of their site.
    pub site: String,
    /// Prefixes of their addresses.
    pub prefixes: Vec<Prefix>,
}

/// A range of ports.
#[derive(Debug, Deserialize)]
pub struct Ports {
    /// First port.
    pub first: u16,
}

/// An IPv4 prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    network: u32,
    length: u8,
}

impl Prefix {
    /// Host addresses of the prefix, in ascending order.
    pub fn hosts(self) -> impl Iterator<Item = Ipv4Addr> {
        let size = 1_u64 << (32 - self.length);
        (1..size.saturating_sub(1))
            .map(move |n| Ipv4Addr::from(self.network + u32::try_from(n).expect("inside the prefix")))
    }
}

impl<'de> Deserialize<'de> for Prefix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parts =
            text.split_once('/').and_then(|(a, l)| a.parse::<Ipv4Addr>().ok().zip(l.parse::<u8>().ok()));
        let (address, length) = parts
            .filter(|(_, length)| *length <= 32)
            .ok_or_else(|| D::Error::custom(format!("{text} is not a prefix")))?;
        let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
        Ok(Self { network: u32::from(address) & mask, length })
    }
}

fn parsed<'de, D: Deserializer<'de>, T: std::str::FromStr<Err = sos_wire::WireError>>(
    d: D,
) -> Result<T, D::Error> {
    String::deserialize(d)?.parse().map_err(D::Error::custom)
}

fn hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    u64::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
}

/// Newest key of each site in a key folder (spec/README.md 4).
///
/// # Errors
/// The folder or a key file cannot be read, or a file does not contain a key.
pub fn read_keys(folder: &Path) -> io::Result<HashMap<SiteId, (KeyId, Key)>> {
    let mut found: HashMap<SiteId, (KeyId, Key)> = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|n| n.to_str()).and_then(KeyFile::parse);
        if let Some(KeyFile::Site(site, id)) = name {
            let key = Key::parse_hex(&fs::read_to_string(&path)?).map_err(io::Error::other)?;
            if found.get(&site).is_none_or(|(newest, _)| *newest < id) {
                found.insert(site, (id, key));
            }
        }
    }
    Ok(found)
}

/// Document with two sites and a transit site.
#[cfg(test)]
pub(crate) const EXAMPLE: &str = r#"{
  "discovery": {"address": "198.18.255.254", "mac": "02:53:4f:53:00:01", "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
  "sites": [
    {"name": "west", "id": 1, "transit": false, "datapaths": [{"dpid": "0000000000000001", "name": "edge1"}],
     "agents": [{"id": "00000000000000000000000000000001", "node": "edge1", "address": "10.0.1.250"}]},
    {"name": "east", "id": 2, "transit": false, "datapaths": [{"dpid": "0000000000000002", "name": "edge2"}],
     "agents": [{"id": "00000000000000000000000000000002", "node": "edge2", "address": "10.0.2.250"}]},
    {"name": "core", "id": 3, "transit": true, "datapaths": [{"dpid": "0000000000000003", "name": "core"}], "agents": []}
  ],
  "services": [{"id": "bulk", "from": {"site": "west", "prefixes": ["10.0.1.0/24"]},
                "to": {"site": "east", "prefixes": ["10.0.2.0/24"]}, "ports": [{"first": 5000, "last": 5999}]}]
}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_lists_its_host_addresses() {
        let prefix: Prefix = serde_json::from_str("\"10.0.1.0/30\"").expect("a prefix");
        assert_eq!(
            prefix.hosts().collect::<Vec<_>>(),
            [Ipv4Addr::new(10, 0, 1, 1), Ipv4Addr::new(10, 0, 1, 2)]
        );
        assert!(serde_json::from_str::<Prefix>("\"10.0.1.0/33\"").is_err());
    }
}
