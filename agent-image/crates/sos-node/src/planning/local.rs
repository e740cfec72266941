//! Addresses configured on the bridge's local port by other programs.
//!
//! The port is a device of Open vSwitch. It survives a restart of ovs-vswitchd, unless the restart reloads the kernel's datapath or uses
//! another database. In that case the kernel drops the port's addresses and routes with the device, and this module restores them. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::observation::observed::{Link, Lost};

/// Maximum number of remembered addresses, and of remembered routes.
const MAX_REMEMBERED: usize = 256;
/// Fields of a printed route, and their ip(8) keywords.
const WORDS: [(&str, &str); 4] =
    [("gateway", "via"), ("prefsrc", "src"), ("metric", "metric"), ("protocol", "proto")];
/// Fields implied by the keywords.
const IMPLIED: [&str; 3] = ["dst", "dev", "scope"];
/// Flags of a route's state, not of its configuration.
const STATES: [&str; 6] = ["linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap"];
/// Route metrics whose printed form ip(8) also accepts as input.
const METRICS: [&str; 2] = ["mtu", "advmss"];

/// State of the local port at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPort {
    /// Kernel boot id for which `index` is valid.
    pub boot: String,
    /// The device's index.
    pub index: u32,
    /// The device's addresses with prefix lengths. Addresses with a lifetime are omitted, because their source renews them.
    pub addresses: Vec<String>,
    /// Routes through the device that are not implied by an address, as arguments of ip(8) without the device, the family first.
    pub routes: Vec<String>,
}

impl LocalPort {
    /// Build the state from the device and the routes of [`parse_routes`].
    #[must_use]
    pub fn observe(boot: &str, link: &Link, mut routes: Vec<String>) -> Self {
        let lasting = link.addresses.iter().filter(|address| !link.lent.contains(*address));
        let mut addresses: Vec<String> = lasting.cloned().collect();
        addresses.truncate(MAX_REMEMBERED);
        routes.truncate(MAX_REMEMBERED);
        Self { boot: boot.to_owned(), index: link.index, addresses, routes }
    }

    /// Addresses and routes lost since the remembered state. Empty if the device is the same: then an administrator removed them. Empty
    /// after a reboot: then the node's own configuration adds them again.
    #[must_use]
    pub fn lost(&self, remembered: Option<&Self>) -> Lost {
        let Some(old) = remembered.filter(|old| old.boot == self.boot && old.index != self.index) else {
            return Lost::default();
        };
        let gone =
            |old: &[String], now: &[String]| old.iter().filter(|text| !now.contains(text)).cloned().collect();
        Lost { addresses: gone(&old.addresses, &self.addresses), routes: gone(&old.routes, &self.routes) }
    }
}

/// Configured routes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routes {
    /// The routes as ip(8) arguments that add them again.
    pub made: Vec<String>,
    /// Routes that ip(8) arguments cannot reproduce, as printed.
    pub unknown: Vec<String>,
}

/// Parse `ip -j FAMILY route show dev DEVICE` and add the result to `routes`.
///
/// # Errors
/// The text is not JSON.
pub fn parse_routes(routes: &mut Routes, family: &str, printed: &str) -> Result<(), serde_json::Error> {
    let list: Vec<Value> = if printed.trim().is_empty() { vec![] } else { serde_json::from_str(printed)? };
    for route in list {
        // Skip routes that are not configured: the kernel adds routes for addresses, routers advertise routes, and routes with a lifetime
        // are renewed.
        if matches!(route["protocol"].as_str(), Some("kernel" | "ra" | "redirect"))
            || route.get("expires").is_some()
        {
            continue;
        }
        match words(family, &route) {
            Some(words) => routes.made.push(words),
            None => routes.unknown.push(route.to_string()),
        }
    }
    Ok(())
}

/// The ip(8) arguments that add a route again. None if the route has an unknown attribute, which the restored route would lack.
fn words(family: &str, route: &Value) -> Option<String> {
    let mut text = format!("{family} {}", route["dst"].as_str()?);
    let mut add = |word: &str, value: &Value| match value {
        Value::String(value) => text.push_str(&format!(" {word} {value}")),
        value => text.push_str(&format!(" {word} {value}")),
    };
    for (field, value) in route.as_object()? {
        let known = match field.as_str() {
            // Handled below, in the order of ip(8).
            field if IMPLIED.contains(&field) || WORDS.iter().any(|(name, _)| *name == field) => true,
            "pref" => value == "medium",
            "type" => value == "unicast",
            "flags" | "via" | "metrics" => true,
            _ => false,
        };
        if !known {
            return None;
        }
    }
    if let Some(via) = route.get("via") {
        add(&format!("via {}", via["family"].as_str()?), via.get("host")?);
    }
    for (field, word) in WORDS {
        if let Some(value) = route.get(field) {
            add(word, value);
        }
    }
    for (name, value) in
        route["metrics"].as_array().into_iter().flatten().filter_map(Value::as_object).flatten()
    {
        add(METRICS.iter().find(|known| *known == name)?, value);
    }
    for flag in route["flags"].as_array().into_iter().flatten() {
        match flag.as_str()? {
            "onlink" => text.push_str(" onlink"),
            state if STATES.contains(&state) => {}
            _ => return None,
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(boot: &str, index: u32, addresses: &[&str], routes: &[&str]) -> LocalPort {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        LocalPort { boot: boot.into(), index, addresses: texts(addresses), routes: texts(routes) }
    }

    #[test]
    fn addresses_missing_on_a_new_device_are_restored() {
        let old = port("b", 7, &["10.0.0.1/24", "fd00::1/64"], &["10.9.0.0/16 via 10.0.0.2"]);
        let new = port("b", 9, &["10.0.0.1/24"], &[]);
        let expected =
            Lost { addresses: vec!["fd00::1/64".into()], routes: vec!["10.9.0.0/16 via 10.0.0.2".into()] };
        assert_eq!(new.lost(Some(&old)), expected);
    }

    #[test]
    fn removed_addresses_stay_removed() {
        let old = port("b", 7, &["10.0.0.1/24"], &[]);
        assert_eq!(
            port("b", 7, &[], &[]).lost(Some(&old)),
            Lost::default(),
            "an administrator removed the address from the same device"
        );
        assert_eq!(port("c", 9, &[], &[]).lost(Some(&old)), Lost::default(), "the node has rebooted");
        assert_eq!(port("b", 9, &[], &[]).lost(None), Lost::default());
    }

    #[test]
    fn an_address_with_a_lifetime_is_not_remembered() {
        let link = Link {
            addresses: vec!["10.0.0.1/24".into(), "10.0.0.7/24".into()],
            lent: vec!["10.0.0.7/24".into()],
            ..Link::default()
        };
        assert_eq!(LocalPort::observe("b", &link, vec![]).addresses, ["10.0.0.1/24"]);
    }

    fn parsed(family: &str, printed: &str) -> Routes {
        let mut routes = Routes::default();
        parse_routes(&mut routes, family, printed).unwrap();
        routes
    }

    #[test]
    fn configured_routes_are_reproduced() {
        let printed = r#"[{"dst":"10.0.0.0/24","protocol":"kernel","scope":"link","prefsrc":"10.0.0.1","flags":[]},
            {"dst":"10.9.0.0/16","gateway":"10.0.0.2","protocol":"static","metric":5,"flags":["linkdown"]},
            {"dst":"default","protocol":"boot","scope":"link"},
            {"dst":"10.8.0.0/16","gateway":"172.16.0.1","flags":["onlink"],"metrics":[{"mtu":1400}]},
            {"dst":"10.7.0.0/16","via":{"family":"inet6","host":"fe80::1"},"flags":[]},
            {"dst":"10.6.0.0/16","expires":90,"flags":[]}]"#;
        let expected = [
            "-4 10.9.0.0/16 via 10.0.0.2 metric 5 proto static",
            "-4 default proto boot",
            "-4 10.8.0.0/16 via 172.16.0.1 mtu 1400 onlink",
            "-4 10.7.0.0/16 via inet6 fe80::1",
        ];
        assert_eq!(
            parsed("-4", printed),
            Routes { made: expected.map(str::to_owned).into(), unknown: vec![] }
        );
        assert_eq!(parsed("-6", ""), Routes::default());
    }

    #[test]
    fn a_route_that_cannot_be_reproduced_is_unknown() {
        for part in [
            r#""encap":"mpls""#,
            r#""flags":["pervasive"]"#,
            r#""metrics":[{"hoplimit":3}]"#,
            r#""type":"blackhole""#,
        ] {
            let found = parsed("-4", &format!(r#"[{{"dst":"10.9.0.0/16",{part}}}]"#));
            assert!(found.made.is_empty() && found.unknown.len() == 1, "{found:?}");
        }
    }
}
