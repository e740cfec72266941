//! The agent's nftables, rendered as text for `nft -f -` (design: fail-open rules 1 and 2).
//!
//! One table, `inet sos`, in the agent's own network namespace. What happens to a packet that the switch sent to the agent:
//!
//! 1. To one of the agent's own addresses: delivered (streams, orders).
//! 2. A bare SYN that went plain before stays plain: its retransmits must meet the same decision.
//! 3. A bare SYN with MD5, AO or MPTCP options goes plain: those ends would notice a relay.
//! 4. A bare SYN that the switch has marked as one of a service that is not armed yet, or not any more, goes plain
//!    (spec/node-config.md clause 22).
//! 5. A bare SYN inside `armed`, while `heartbeat` holds an element: to the transparent listener. The element expires by
//!    itself in [`HEARTBEAT_SECONDS`] unless the agent keeps putting it back; and without a listening socket `tproxy` does
//!    not match at all. So a dead agent takes nothing over.
//! 6. A packet of a known transparent socket: delivered.
//! 7. Any other bare SYN is remembered in `plain` and forwarded.
//! 8. Any other packet is forwarded. One with an acknowledgement, inside `armed`, is of a connection that stands without
//!    this agent, and is remembered in `plain` for [`STANDING_SECONDS`]: a repeat of its SYN may be on its way here still,
//!    held by the controller while the server's answer to the first one arrived.

use std::fmt::Write as _;

use crate::region::Region;

/// Lifetime of the heartbeat element: two refreshes may be late before new connections go plain.
pub const HEARTBEAT_SECONDS: u32 = 3;
/// How long a 4-tuple stays plain: a client repeats its SYN for up to 127 s with Linux's defaults (tcp_syn_retries 6).
pub const PLAIN_SECONDS: u32 = 130;
/// How long a connection that stands without this agent is remembered: longer than the controller holds a SYN.
pub const STANDING_SECONDS: u32 = 5;
/// Most 4-tuples remembered as plain; beyond it SYNs still go plain, but unremembered (counted).
pub const PLAIN_LIMIT: u32 = 65_536;
/// Mark, and its mask, of packets that are delivered to transparent sockets.
pub const MARK: u32 = 0x0001_0000;

/// Source MAC address of SYNs that the switch marks as not to be taken over (spec/node-config.md clause 22).
pub const UNARMED_MAC: &str = "02:53:4f:53:00:02";

/// Names of the counters in the table, each with its meaning for the metrics page.
pub const COUNTERS: [(&str, &str); 5] = [
    ("syn_accelerated", "Bare SYNs handed to the transparent listener"),
    ("syn_plain", "Bare SYNs decided plain"),
    ("syn_plain_again", "Bare SYNs kept plain by an earlier decision"),
    ("syn_plain_options", "Bare SYNs plain because of MD5, AO or MPTCP options"),
    ("syn_plain_unremembered", "Bare SYNs plain while the set of plain flows was full"),
];

/// The table without anything armed. Flows remembered as plain by an earlier life of the agent in the same namespace are
/// kept; rules are replaced.
#[must_use]
pub fn setup(interface: &str, listener_port: u16) -> String {
    let mut text = String::from("table inet sos {\n}\nflush table inet sos\ntable inet sos {\n");
    for (name, _) in COUNTERS {
        writeln!(text, "  counter {name} {{ }}").expect("writing to a String cannot fail");
    }
    let tuple = "ip saddr . tcp sport . ip daddr . tcp dport";
    write!(
        text,
        "  set plain {{
    type ipv4_addr . inet_service . ipv4_addr . inet_service
    size {PLAIN_LIMIT}
    flags dynamic,timeout
    timeout {PLAIN_SECONDS}s
  }}
  set armed {{
    type ipv4_addr . ipv4_addr . inet_service
    flags interval
  }}
  set heartbeat {{
    type inet_proto
    flags timeout
    timeout {HEARTBEAT_SECONDS}s
  }}
  chain plain_syn {{
    update @plain {{ {tuple} }} counter name syn_plain accept
    counter name syn_plain_unremembered accept
  }}
  chain special_syn {{
    counter name syn_plain_options goto plain_syn
  }}
  chain unarmed_syn {{
    socket transparent 1 meta mark set meta mark or {MARK:#x} accept
    goto plain_syn
  }}
  chain bare_syn {{
    {tuple} @plain counter name syn_plain_again accept
    tcp option md5sig exists goto special_syn
    tcp option 29 exists goto special_syn
    tcp option mptcp exists goto special_syn
    ether saddr {UNARMED_MAC} goto unarmed_syn
    meta l4proto @heartbeat ip saddr . ip daddr . tcp dport @armed tproxy ip to 127.0.0.1:{listener_port} \
meta mark set meta mark or {MARK:#x} counter name syn_accelerated accept
    socket transparent 1 meta mark set meta mark or {MARK:#x} accept
    goto plain_syn
  }}
  chain standing {{
    ip saddr . ip daddr . tcp dport @armed add @plain {{ {tuple} timeout {STANDING_SECONDS}s }}
  }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    iifname != \"{interface}\" accept
    meta nfproto != ipv4 accept
    meta l4proto != tcp accept
    fib daddr type local accept
    tcp flags & (fin | syn | rst | ack) == syn goto bare_syn
    socket transparent 1 meta mark set meta mark or {MARK:#x} accept
    tcp flags & (syn | rst | ack) == ack goto standing
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname \"{interface}\" oifname != \"{interface}\" drop
    iifname != \"{interface}\" oifname \"{interface}\" drop
  }}
}}
flush set inet sos armed
flush set inet sos heartbeat
"
    )
    .expect("writing to a String cannot fail");
    text
}

/// Starts over when [`setup`] does not fit what an earlier version left behind.
#[must_use]
pub fn setup_afresh(interface: &str, listener_port: u16) -> String {
    format!("table inet sos {{\n}}\ndelete table inet sos\n{}", setup(interface, listener_port))
}

/// Replaces the content of `armed` in one transaction and puts the heartbeat back.
#[must_use]
pub fn arm(regions: &[Region]) -> String {
    let mut text = String::from("flush set inet sos armed\n");
    if !regions.is_empty() {
        let elements: Vec<String> = regions.iter().map(element).collect();
        writeln!(text, "add element inet sos armed {{ {} }}", elements.join(", "))
            .expect("writing to a String cannot fail");
    }
    text.push_str(&heartbeat());
    text
}

/// Puts the heartbeat element back with its full lifetime; `add` alone would not prolong it.
#[must_use]
pub fn heartbeat() -> String {
    "flush set inet sos heartbeat\nadd element inet sos heartbeat { tcp }\n".to_owned()
}

/// Takes nothing over from now on.
#[must_use]
pub fn disarm() -> String {
    "flush set inet sos heartbeat\n".to_owned()
}

fn element(region: &Region) -> String {
    let range = |first: String, last: String| if first == last { first } else { format!("{first}-{last}") };
    let (clients, servers, ports) = (region.clients(), region.servers(), region.ports());
    format!(
        "{} . {} . {}",
        range(clients.0.to_string(), clients.1.to_string()),
        range(servers.0.to_string(), servers.1.to_string()),
        range(ports.0.to_string(), ports.1.to_string()),
    )
}

/// Reads the packet counts out of `nft --json list counters`; counters that are not ours are left out.
#[must_use]
pub fn parse_counters(json: &[u8]) -> Vec<(&'static str, u64)> {
    let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let objects = document["nftables"].as_array().cloned().unwrap_or_default();
    COUNTERS
        .iter()
        .filter_map(|(name, _)| {
            let counter = objects.iter().map(|o| &o["counter"]).find(|c| c["name"] == *name)?;
            Some((*name, counter["packets"].as_u64()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_as_agreed() {
        assert_eq!(setup("net0", 39_999), include_str!("../tests/golden/setup.nft"));
    }

    #[test]
    fn arming_is_one_transaction() {
        let service =
            |ports| Region::new("10.0.0.0/25".parse().unwrap(), "10.0.0.128/25".parse().unwrap(), ports);
        let text = arm(&[service((22, 22)), service((5000, 5999))]);
        assert_eq!(text, include_str!("../tests/golden/arm.nft"));
    }

    #[test]
    fn nothing_armed_adds_no_element() {
        assert_eq!(
            arm(&[]),
            "flush set inet sos armed\nflush set inet sos heartbeat\nadd element inet sos heartbeat { tcp }\n"
        );
    }

    #[test]
    fn counters_are_read_by_name() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}},
            {"counter": {"family": "inet", "name": "syn_plain", "table": "sos", "handle": 1, "packets": 7, "bytes": 420}},
            {"counter": {"family": "inet", "name": "other", "table": "sos", "handle": 2, "packets": 9, "bytes": 0}}]}"#;
        assert_eq!(parse_counters(json), vec![("syn_plain", 7)]);
        assert!(parse_counters(b"not json").is_empty());
    }
}
