//! Rules by which the kernel resets connections that must not be plain (spec/node-config.md clause 35). Pure.
//!
//! The rules are in an ingress chain of a dedicated device, ahead of all other packet processing of the node. The kernel sends the resets even
//! if no process of SOS runs. A reset leaves through the device on which the segment arrived, with source and destination MAC address
//! exchanged.

use serde_json::Value;

/// Name of the nftables table, of the family `netdev`.
pub const TABLE: &str = "sos_reject";

/// Counters since the rules were created.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rejected {
    /// Bare SYNs, including retransmissions.
    pub connections: u64,
    /// All other TCP segments.
    pub segments: u64,
}

/// The rules, as input of `nft -f`. Loading them replaces the rules of an earlier version.
#[must_use]
pub fn rules(peer: &str) -> String {
    format!(
        "{}table netdev {TABLE} {{
  chain ingress {{
    type filter hook ingress device \"{peer}\" priority 0; policy drop;
    tcp flags & (fin | syn | rst | ack) == syn counter reject with tcp reset
    meta l4proto tcp counter reject with tcp reset
  }}
}}
",
        no_rules()
    )
}

/// Input of `nft -f` that removes the rules, and succeeds even if there are none.
#[must_use]
pub fn no_rules() -> String {
    format!("table netdev {TABLE} {{\n}}\ndelete table netdev {TABLE}\n")
}

/// Parse `nft -j list table`. None if rules are missing, for example because the kernel has deleted the chain together with the device.
#[must_use]
pub fn parse(printed: &str) -> Option<Rejected> {
    let document: Value = serde_json::from_str(printed).ok()?;
    let rules: Vec<&Value> =
        document["nftables"].as_array()?.iter().filter(|object| object.get("rule").is_some()).collect();
    let counters: Vec<u64> = rules.iter().filter_map(|rule| counter(&rule["rule"]["expr"])).collect();
    match counters[..] {
        [connections, segments] if rules.len() == 2 => Some(Rejected { connections, segments }),
        _ => None,
    }
}

/// Packets that matched a rule with `reject with tcp reset`.
fn counter(expression: &Value) -> Option<u64> {
    let parts = expression.as_array()?;
    let resets = parts.iter().any(|part| part["reject"]["type"] == "tcp reset");
    let packets = parts.iter().find_map(|part| part["counter"]["packets"].as_u64())?;
    resets.then_some(packets)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"table": {"family": "netdev", "name": "sos_reject"}},
        {"chain": {"family": "netdev", "table": "sos_reject", "name": "ingress", "policy": "drop"}},
        {"rule": {"chain": "ingress", "expr": [{"match": {}}, {"counter": {"packets": 7, "bytes": 420}}, {"reject": {"type": "tcp reset"}}]}},
        {"rule": {"chain": "ingress", "expr": [{"match": {}}, {"counter": {"packets": 2, "bytes": 80}}, {"reject": {"type": "tcp reset"}}]}}]}"#;

    #[test]
    fn counters_are_read() {
        assert_eq!(parse(PRINTED), Some(Rejected { connections: 7, segments: 2 }));
    }

    #[test]
    fn missing_or_different_rules_yield_none() {
        assert_eq!(parse(""), None);
        assert_eq!(parse(r#"{"nftables": [{"table": {"family": "netdev", "name": "sos_reject"}}]}"#), None);
        assert_eq!(parse(&PRINTED.replacen("tcp reset", "icmp", 1)), None);
    }
}
