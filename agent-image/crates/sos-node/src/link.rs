//! What `ip -d -j addr show`, `ip -j route show default` and `ethtool --json -k` print.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::Deserialize;
use serde_json::Value;

use crate::observed::{Link, Offloads, Vxlan};

#[derive(Deserialize)]
struct PrintedLink {
    ifname: String,
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
    #[serde(default)]
    scope: String,
}

#[derive(Deserialize)]
struct PrintedRoute {
    dev: Option<String>,
}

/// Reads `ip -d -j addr show` and the default routes of both families. Addresses of link scope, which the kernel gives
/// every device by itself, are left out.
///
/// # Errors
/// A text is not JSON of that form.
pub fn parse_links(links: &str, routes: &[&str]) -> Result<BTreeMap<String, Link>, serde_json::Error> {
    let mut uplinks = BTreeSet::new();
    for text in routes {
        uplinks.extend(parse_list::<PrintedRoute>(text)?.into_iter().filter_map(|route| route.dev));
    }
    let link = |printed: PrintedLink| {
        let default_route = uplinks.contains(&printed.ifname);
        (printed.ifname.clone(), link(&printed, default_route))
    };
    Ok(parse_list::<PrintedLink>(links)?.into_iter().map(link).collect())
}

/// `ip -j` prints nothing at all, or objects that are empty, where there is nothing to list.
fn parse_list<T: for<'a> Deserialize<'a>>(text: &str) -> Result<Vec<T>, serde_json::Error> {
    if text.trim().is_empty() {
        return Ok(vec![]);
    }
    let values: Vec<Value> = serde_json::from_str(text)?;
    let empty = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    values.into_iter().filter(|value| !empty(value)).map(serde_json::from_value).collect()
}

fn link(printed: &PrintedLink, default_route: bool) -> Link {
    let flag = |name: &str| printed.flags.iter().any(|flag| flag == name);
    let kind = printed.linkinfo.as_ref().and_then(|info| info.info_kind.clone());
    let vxlan = match &printed.linkinfo {
        Some(LinkInfo { info_kind: Some(kind), info_data: Some(data) }) if kind == "vxlan" => vxlan(data),
        _ => None,
    };
    let addresses =
        printed.addr_info.iter().filter(|a| a.scope != "link").filter_map(|a| a.local.clone()).collect();
    Link {
        up: flag("UP"),
        carrier: flag("LOWER_UP"),
        mtu: printed.mtu,
        alias: printed.ifalias.clone(),
        master: printed.master.clone(),
        kind,
        vxlan,
        addresses,
        default_route,
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

/// Reads `ethtool --json -k DEVICE`: whether offloads are on that can be switched off. Of groups such as
/// `tx-checksumming` ethtool does not say whether they can (`"fixed": null`), so the members are looked at.
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
    fn links_with_addresses_tunnels_and_routes() {
        let links = r#"[{},{"ifindex":2,"ifname":"eth0","flags":["BROADCAST","UP","LOWER_UP"],"mtu":1500,"master":"docker0",
            "addr_info":[{"family":"inet","local":"192.0.2.1","scope":"global"},{"family":"inet6","local":"fe80::1","scope":"link"}]},
            {"ifname":"sosvx3","flags":[],"mtu":1450,"ifalias":"sos-node:1","linkinfo":{"info_kind":"vxlan",
            "info_data":{"id":5459,"remote":"192.0.2.5","port":14789}},"addr_info":[]}]"#;
        let parsed = parse_links(links, &[r#"[{"dst":"default","dev":"eth0"}]"#, "[]", ""]).unwrap();
        let eth0 = &parsed["eth0"];
        assert!(eth0.up && eth0.carrier && eth0.default_route);
        assert_eq!(eth0.addresses, ["192.0.2.1"]);
        assert_eq!(eth0.master.as_deref(), Some("docker0"));
        let tunnel = &parsed["sosvx3"];
        let vxlan = Vxlan { vni: 5459, remote: "192.0.2.5".parse().unwrap(), udp_port: 14789 };
        assert_eq!(tunnel.vxlan, Some(vxlan));
        assert_eq!(tunnel.alias.as_deref(), Some("sos-node:1"));
        assert!(!tunnel.up && !tunnel.default_route);
    }

    #[test]
    fn offloads_that_can_be_switched() {
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
