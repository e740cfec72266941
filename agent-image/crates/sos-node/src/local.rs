//! The addresses that somebody gave to the bridge's local port.
//!
//! The port is a device of Open vSwitch's. It outlives a restart of ovs-vswitchd, but not one that loads the kernel's datapath anew or
//! starts with another database, and the kernel forgets addresses and routes with it. They are no business of ours, except to give
//! them back. Pure.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::observed::Link;

/// Most addresses, and most routes, that are remembered.
const MAX_REMEMBERED: usize = 256;
/// Fields of a printed route, and the words of ip(8) for them.
const WORDS: [(&str, &str); 4] =
    [("gateway", "via"), ("prefsrc", "src"), ("metric", "metric"), ("protocol", "proto")];

/// The local port at a moment.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPort {
    /// The life of the kernel that `index` is of.
    pub boot: String,
    /// The device's number.
    pub index: u32,
    /// Whether it is switched on.
    pub up: bool,
    /// Its addresses with their prefix lengths.
    pub addresses: Vec<String>,
    /// Routes through it that do not follow from an address, as arguments of ip(8) without the device, the family first.
    pub routes: Vec<String>,
}

/// What is to be given back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lost {
    /// Addresses.
    pub addresses: Vec<String>,
    /// Routes, to be set after the addresses.
    pub routes: Vec<String>,
}

impl Lost {
    /// Whether nothing is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }
}

impl LocalPort {
    /// The port as it is observed. `routes` are [`parse_routes`]'s.
    #[must_use]
    pub fn observe(boot: &str, link: &Link, mut routes: Vec<String>) -> Self {
        let mut addresses = link.addresses.clone();
        addresses.truncate(MAX_REMEMBERED);
        routes.truncate(MAX_REMEMBERED);
        Self { boot: boot.to_owned(), index: link.index, up: link.up, addresses, routes }
    }

    /// What the port has lost since it was remembered: nothing as long as it is the same device, because then somebody took it away
    /// who may, and nothing over a boot, after which whoever configures the node does so anew.
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

/// Reads `ip -j FAMILY route show dev DEVICE`: routes that somebody made, in the words that make them again.
///
/// # Errors
/// The text is not JSON.
pub fn parse_routes(family: &str, printed: &str) -> Result<Vec<String>, serde_json::Error> {
    let routes: Vec<Value> = if printed.trim().is_empty() { vec![] } else { serde_json::from_str(printed)? };
    let made = |route: &&Value| {
        // The kernel's own follow from an address, a router's from what it advertises.
        !matches!(route["protocol"].as_str(), Some("kernel" | "ra" | "redirect"))
    };
    Ok(routes.iter().filter(made).filter_map(|route| words(family, route)).collect())
}

fn words(family: &str, route: &Value) -> Option<String> {
    let mut text = format!("{family} {}", route["dst"].as_str()?);
    for (field, word) in WORDS {
        match &route[field] {
            Value::String(value) => text.push_str(&format!(" {word} {value}")),
            Value::Number(value) => text.push_str(&format!(" {word} {value}")),
            _ => {}
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(boot: &str, index: u32, addresses: &[&str], routes: &[&str]) -> LocalPort {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        LocalPort { boot: boot.into(), index, up: true, addresses: texts(addresses), routes: texts(routes) }
    }

    #[test]
    fn what_a_new_device_lacks_is_given_back() {
        let old = port("b", 7, &["10.0.0.1/24", "fd00::1/64"], &["10.9.0.0/16 via 10.0.0.2"]);
        let new = port("b", 9, &["10.0.0.1/24"], &[]);
        let expected =
            Lost { addresses: vec!["fd00::1/64".into()], routes: vec!["10.9.0.0/16 via 10.0.0.2".into()] };
        assert_eq!(new.lost(Some(&old)), expected);
    }

    #[test]
    fn what_somebody_took_away_stays_away() {
        let old = port("b", 7, &["10.0.0.1/24"], &[]);
        assert_eq!(port("b", 7, &[], &[]).lost(Some(&old)), Lost::default(), "the same device");
        assert_eq!(port("c", 9, &[], &[]).lost(Some(&old)), Lost::default(), "another boot");
        assert_eq!(port("b", 9, &[], &[]).lost(None), Lost::default());
    }

    #[test]
    fn routes_as_they_were_made() {
        let printed = r#"[{"dst":"10.0.0.0/24","protocol":"kernel","scope":"link","prefsrc":"10.0.0.1","flags":[]},
            {"dst":"10.9.0.0/16","gateway":"10.0.0.2","protocol":"static","metric":5,"flags":[]},{"dst":"default","protocol":"boot"}]"#;
        let expected = ["-4 10.9.0.0/16 via 10.0.0.2 metric 5 proto static", "-4 default proto boot"];
        assert_eq!(parse_routes("-4", printed).unwrap(), expected);
        assert!(parse_routes("-6", "").unwrap().is_empty());
    }
}
