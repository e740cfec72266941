//! Parsers for `ip -d -j addr show`, `ip -j route show` and `ethtool --json -k`.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::observation::observed::{Link, Offloads, Vxlan};

/// Maximum number of routes stored per device: one route is enough to refuse the device, and a few show its use.
const MAX_ROUTES: usize = 4;

#[derive(Deserialize)]
struct PrintedLink {
    #[serde(default)]
    ifindex: u32,
    ifname: String,
    link: Option<String>,
    #[serde(default)]
    flags: Vec<String>,
    mtu: u32,
    ifalias: Option<String>,
    master: Option<String>,
    linkinfo: Option<LinkInfo>,
    #[serde(default)]
    addr_info: Vec<AddressInfo>,
}

#[derive(Deserialize)]
struct LinkInfo {
    info_kind: Option<String>,
    info_data: Option<Value>,
}

#[derive(Deserialize)]
struct AddressInfo {
    local: Option<String>,
    prefixlen: Option<u8>,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    dynamic: bool,
}

#[derive(Deserialize)]
struct PrintedRoute {
    #[serde(default)]
    r#type: String,
    #[serde(default)]
    dst: String,
    dev: Option<String>,
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    nexthops: Vec<PrintedHop>,
}

/// One next hop of a multipath route.
#[derive(Deserialize)]
struct PrintedHop {
    dev: Option<String>,
}

impl PrintedRoute {
    fn devices(&self) -> impl Iterator<Item = &String> {
        self.dev.iter().chain(self.nexthops.iter().filter_map(|hop| hop.dev.as_ref()))
    }

    /// True for routes that the kernel adds by itself: derived from an address, of link scope, or local.
    fn goes_without_saying(&self) -> bool {
        let local = !matches!(self.r#type.as_str(), "" | "unicast");
        local || self.protocol == "kernel" || self.dst.starts_with("fe80:") || self.dst.starts_with("ff")
    }
}

/// Parse `ip -d -j addr show` and the routes of both families. Link-scope addresses and routes are omitted: the kernel itself adds them to
/// every device.
///
/// # Errors
/// A text is not JSON of that form.
pub fn parse_links(links: &str, routes: &[&str]) -> Result<BTreeMap<String, Link>, serde_json::Error> {
    let mut found: BTreeMap<String, Link> = parse_list::<PrintedLink>(links)?
        .iter()
        .map(|printed| (printed.ifname.clone(), link(printed)))
        .collect();
    for text in routes {
        for route in parse_list::<PrintedRoute>(text)?.iter().filter(|route| !route.goes_without_saying()) {
            for device in route.devices() {
                let Some(link) = found.get_mut(device) else { continue };
                if route.dst == "default" {
                    link.default_route = true;
                } else if link.routes.len() < MAX_ROUTES {
                    link.routes.push(route.dst.clone());
                }
            }
        }
    }
    Ok(found)
}

/// `ip -j` prints nothing, or empty objects, for an empty list.
fn parse_list<T: for<'a> Deserialize<'a>>(text: &str) -> Result<Vec<T>, serde_json::Error> {
    if text.trim().is_empty() {
        return Ok(vec![]);
    }
    let values: Vec<Value> = serde_json::from_str(text)?;
    let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    values.into_iter().filter(|value| !empty(value)).map(serde_json::from_value).collect()
}

fn link(printed: &PrintedLink) -> Link {
    let flag = |name: &str| printed.flags.iter().any(|flag| flag == name);
    let kind = printed.linkinfo.as_ref().and_then(|info| info.info_kind.clone());
    let vxlan = match &printed.linkinfo {
        Some(LinkInfo { info_kind: Some(kind), info_data: Some(data) }) if kind == "vxlan" => vxlan(data),
        _ => None,
    };
    let address = |a: &AddressInfo| {
        let local = a.local.as_ref()?;
        Some(a.prefixlen.map_or_else(|| local.clone(), |length| format!("{local}/{length}")))
    };
    let global = || printed.addr_info.iter().filter(|a| a.scope != "link");
    let addresses = global().filter_map(address).collect();
    let lent = global().filter(|a| a.dynamic).filter_map(address).collect();
    // The field `link` names the lower device of a stacked device. For a veth, `link` is its peer, on which it is not stacked. Tunnels have
    // their lower device in another field.
    let stands = printed.link.clone().filter(|_| kind.as_deref() != Some("veth"));
    let data = printed.linkinfo.as_ref().and_then(|info| info.info_data.as_ref());
    let lower = stands.or_else(|| Some(data?.get("link")?.as_str()?.to_owned()));
    Link {
        index: printed.ifindex,
        up: flag("UP"),
        carrier: flag("LOWER_UP"),
        mtu: printed.mtu,
        alias: printed.ifalias.clone(),
        master: printed.master.clone(),
        kind,
        vxlan,
        lower,
        addresses,
        lent,
        default_route: false,
        routes: vec![],
    }
}

fn vxlan(data: &Value) -> Option<Vxlan> {
    let number = |name: &str| data.get(name).and_then(Value::as_u64);
    let remote = data.get("remote").or_else(|| data.get("remote6")).and_then(Value::as_str);
    Some(Vxlan {
        vni: u32::try_from(number("id")?).ok()?,
        remote: remote?.parse::<IpAddr>().ok()?,
        udp_port: u16::try_from(number("port")?).ok()?,
    })
}

/// Parse `ethtool --json -k DEVICE`: offloads that are on and can be switched off. For groups such as `tx-checksumming`, ethtool does not
/// report if they are fixed (`"fixed": null`), so the members of a group are examined.
///
/// # Errors
/// The text is not JSON of that form.
pub fn parse_offloads(printed: &str) -> Result<Offloads, serde_json::Error> {
    let devices: Vec<BTreeMap<String, Value>> = serde_json::from_str(printed)?;
    let features = devices.first().cloned().unwrap_or_default();
    let on = |feature: &Value| feature["active"] == true && feature["fixed"] != true;
    let tx = features.iter().any(|(name, feature)| name.starts_with("tx-checksum-") && on(feature));
    Ok(Offloads { tx, gro: features.get("generic-receive-offload").is_some_and(on) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_addresses_tunnels_and_routes_of_links() {
        let links = r#"[{},{"ifindex":2,"ifname":"eth0","flags":["BROADCAST","UP","LOWER_UP"],"mtu":1500,"master":"docker0",
            "addr_info":[{"family":"inet","local":"192.0.2.1","prefixlen":24,"scope":"global"},{"family":"inet6","local":"fe80::1","scope":"link"}]},
            {"ifname":"sosvx3","flags":[],"mtu":1450,"ifalias":"sos-node:1","linkinfo":{"info_kind":"vxlan",
            "info_data":{"id":5459,"remote":"192.0.2.5","port":14789}},"addr_info":[]}]"#;
        let parsed = parse_links(links, &[r#"[{"dst":"default","dev":"eth0"}]"#, "[]", ""]).unwrap();
        let eth0 = &parsed["eth0"];
        assert!(eth0.up && eth0.carrier && eth0.default_route);
        assert_eq!((eth0.index, &eth0.addresses[..]), (2, &["192.0.2.1/24".to_owned()][..]));
        assert_eq!(eth0.master.as_deref(), Some("docker0"));
        let tunnel = &parsed["sosvx3"];
        let vxlan = Vxlan { vni: 5459, remote: "192.0.2.5".parse().unwrap(), udp_port: 14789 };
        assert_eq!(tunnel.vxlan, Some(vxlan));
        assert_eq!(tunnel.alias.as_deref(), Some("sos-node:1"));
        assert!(!tunnel.up && !tunnel.default_route);
    }

    #[test]
    fn multipath_routes_and_stacked_devices_are_parsed() {
        let links = r#"[{"ifname":"eth1","mtu":1500},{"ifname":"eth2","mtu":1500},{"ifname":"eth3","mtu":1500},
            {"ifname":"eth1.7","link":"eth1","mtu":1500,"linkinfo":{"info_kind":"vlan"},"addr_info":[]},
            {"ifname":"vx7","mtu":1500,"linkinfo":{"info_kind":"vxlan","info_data":{"id":7,"link":"eth2","port":4789}}},
            {"ifname":"a","link":"b","mtu":1500,"linkinfo":{"info_kind":"veth"}}]"#;
        let routes = r#"[{"dst":"default","nexthops":[{"gateway":"192.0.2.1","dev":"eth1"},{"dev":"eth2"}]},
            {"dst":"198.51.100.0/24","dev":"eth2"},{"type":"local","dst":"192.0.2.9","dev":"eth3","table":"local"},
            {"dst":"192.0.2.0/24","dev":"eth3","protocol":"kernel"}]"#;
        let parsed =
            parse_links(links, &[routes, r#"[{"dst":"fe80::/64","dev":"eth3","protocol":"boot"}]"#]).unwrap();
        assert!(
            parsed["eth1"].default_route && parsed["eth2"].default_route && !parsed["eth3"].default_route
        );
        assert_eq!(
            (&parsed["eth2"].routes[..], parsed["eth3"].routes.len()),
            (&["198.51.100.0/24".to_owned()][..], 0)
        );
        let lower = ["eth1.7", "vx7", "a"].map(|name| parsed[name].lower.as_deref());
        assert_eq!(lower, [Some("eth1"), Some("eth2"), None]);
    }

    #[test]
    fn only_offloads_that_can_be_switched_off_are_reported() {
        let text = r#"[{"ifname":"vea","tx-checksumming":{"active":true,"fixed":null,"requested":null},
            "tx-checksum-ipv4":{"active":true,"fixed":true,"requested":false},
            "tx-checksum-ip-generic":{"active":true,"fixed":false,"requested":true},
            "generic-receive-offload":{"active":true,"fixed":true,"requested":true}}]"#;
        assert_eq!(parse_offloads(text).unwrap(), Offloads { tx: true, gro: false });
        let off = text.replace(r#"generic":{"active":true"#, r#"generic":{"active":false"#);
        assert_eq!(parse_offloads(&off).unwrap(), Offloads { tx: false, gro: false });
        assert!(parse_offloads("no device").is_err());
    }
}
