//! The agent's nftables, rendered as text for `nft -f -` (design: fail-open rules 1 and 2).
//!
//! One table, `inet sos`, in the agent's own network namespace. Handling of a packet that the switch sent to the agent:
//!
//! 1. To one of the agent's own addresses: delivered (streams, orders).
//! 2. A bare SYN that went plain before stays plain: its retransmissions must get the same verdict.
//! 3. A bare SYN with MD5, AO or MPTCP options goes plain: hosts that use these would notice a relay.
//! 4. A bare SYN that the switch has marked as belonging to a service that is not yet, or no longer, armed goes plain (spec/node-config.md
//!    clause 22).
//! 5. A bare SYN to a server that has not answered recently (`unreachable`) goes plain.
//! 6. A bare SYN of a service whose server must accept first (marked in `armed`) is copied to this agent and dropped, on the conditions of
//!    rule 7. The agent reinjects the SYN later, to the listener or to the server ([`crate::tasks::held_syns`]). A bare SYN of an
//!    established connection is delivered.
//! 7. A bare SYN inside `armed` (clients, servers and ports, see [`crate::policy::classifier`]), is delivered to the transparent listener
//!    while `heartbeat` holds an element. The element expires in [`HEARTBEAT_SECONDS`] unless the agent renews it, and `tproxy` does not
//!    match without a listening socket. So a dead agent takes over no connection.
//! 8. A packet of a known transparent socket is delivered. An ICMP error about a segment of such a socket is delivered, too: a router has
//!    addressed the error to the host whose address the agent used in the segment.
//! 9. Any other bare SYN is remembered in `plain` and forwarded. A connection that goes plain for the first time is listed in `plain_seen`
//!    for [`SEEN_SECONDS`], with the reason as a mark. The agent polls this set ([`crate::policy::plain_traffic`]).
//! 10. Any other packet is forwarded. If it has an acknowledgement and is inside `armed`, its connection is established without this agent,
//!     and is remembered in `plain` for [`STANDING_SECONDS`]: a retransmitted SYN may arrive later, because the controller held it while
//!     the server answered the first SYN.

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use sos_wire::PlainReason;

use crate::policy::arming::Armed;
use crate::policy::classifier::{self, Classifier, Range};

/// Lifetime of the heartbeat element: two refreshes may be late before new connections go plain.
pub const HEARTBEAT_SECONDS: u32 = 3;
/// Time for which a 4-tuple stays plain: a client retransmits its SYN for up to 127 s with Linux's defaults (tcp_syn_retries 6).
pub const PLAIN_SECONDS: u32 = 130;
/// Time for which a connection established without this agent is remembered: longer than the controller holds a SYN.
pub const STANDING_SECONDS: u32 = 5;
/// Maximum number of 4-tuples remembered as plain; further SYNs also go plain and are counted, but are not remembered.
pub const PLAIN_LIMIT: u32 = 65_536;
/// Lifetime of an entry for a connection that went plain: several polling intervals, so that the agent reads each entry.
pub const SEEN_SECONDS: u32 = 10;
/// Maximum number of connections in the set that the agent polls. Further connections within [`SEEN_SECONDS`] are counted as plain, but for
/// no service.
pub const SEEN_LIMIT: u32 = 1_024;
/// Mark, and its mask, of packets that are delivered to transparent sockets.
pub const MARK: u32 = 0x0001_0000;

/// Mark of packets inside `armed`, while the chains examine them. The bits below this mark hold the class.
const ARMED: u32 = 0x0002_0000;

/// Mark of packets that are held until their server has accepted, while the chains examine them.
const HELD: u32 = 0x0004_0000;

/// Mark of held SYNs that the agent reinjects for its listener. They are delivered locally.
pub const TAKE: u32 = MARK | 0x0008_0000;

/// Mark of held SYNs that the agent reinjects for the server. Its lower half is a [`PlainReason`].
pub const LEAVE: u32 = 0x0010_0000;

/// Mark of the agent's connections to servers from inside a pod's namespace: of their packets, and of their conntrack entries.
pub const DIALED: u32 = 0x0020_0000;

const NOT_DIALED: u32 = !DIALED;
const NOT_REASON: u32 = !REASON;
const NOT_MARK: u32 = !MARK;

/// Lifetime of the heartbeat in pods' tables, milliseconds. It is renewed three times as often: two renewals may be late before new connections go
/// plain.
pub const POD_HEARTBEAT_MS: u64 = 900;

/// Netlink group that receives the copies of held SYNs (nfnetlink_log). No other program in the agent's namespace uses a group.
pub const COPIES: u16 = 5_345;

/// Bits of a mark that hold the reason why a SYN goes plain.
const REASON: u32 = 0xffff;

/// Source MAC address of SYNs that the switch marks as not to be taken over (spec/node-config.md clause 22).
pub const UNARMED_MAC: &str = "02:53:4f:53:00:02";

/// Names of the counters in the table, each with its meaning for the metrics page.
pub const COUNTERS: [(&str, &str); 7] = [
    ("syn_accelerated", "Bare SYNs handed to the transparent listener"),
    ("syn_held", "Bare SYNs held until the agent knows whether their server accepts"),
    ("syn_plain", "Bare SYNs decided plain"),
    ("syn_plain_again", "Bare SYNs kept plain by an earlier decision"),
    ("syn_plain_options", "Bare SYNs plain because of MD5, AO or MPTCP options"),
    ("syn_plain_unreachable", "Bare SYNs plain because the server has not answered recently"),
    ("syn_plain_unremembered", "Bare SYNs plain while the set of plain flows was full"),
];

/// Packets that the agent's namespace forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Forward {
    /// Only packets that arrive from the bridge and leave to it.
    WithinInterface,
    /// All packets: the namespace is that of a router.
    Any,
}

/// The table with nothing armed. Flows remembered as plain by an earlier run of the agent in the same namespace are kept; rules are replaced.
#[must_use]
pub fn setup(interface: &str, listener_port: u16, forward: Forward) -> String {
    let (sets, syns) = (sets(&format!("{HEARTBEAT_SECONDS}s")), syn_chains(listener_port));
    let hooks = hook_chains(interface, forward) + &forward_chain(interface, forward);
    format!(
        "table inet sos {{
}}
flush table inet sos
table inet sos {{
{sets}{syns}{hooks}}}
flush set inet sos plain_seen
flush set inet sos unreachable
flush set inet sos heartbeat
"
    )
}

/// Counters, and the sets that the chains look up.
fn sets(heartbeat: &str) -> String {
    let counters = COUNTERS.iter().map(|(name, _)| format!("  counter {name} {{ }}\n"));
    let tables = TABLES
        .iter()
        .map(|(kind, name, fields)| format!("  {kind} {name} {{ type {fields}; flags interval; }}\n"));
    let mut text: String = counters.chain(tables).collect();
    write(
        &mut text,
        format_args!(
            "  set plain {{
    type ipv4_addr . inet_service . ipv4_addr . inet_service
    size {PLAIN_LIMIT}
    flags dynamic,timeout
    timeout {PLAIN_SECONDS}s
  }}
  set plain_seen {{
    type ipv4_addr . inet_service . ipv4_addr . inet_service . mark
    size {SEEN_LIMIT}
    flags dynamic,timeout
    timeout {SEEN_SECONDS}s
  }}
  set unreachable {{
    type ipv4_addr . inet_service
  }}
  set heartbeat {{
    type inet_proto
    flags timeout
    timeout {heartbeat}
  }}
"
        ),
    );
    text
}

/// Verdicts on a client's SYN, bare or not, and on connections established without SOS.
fn syn_chains(listener_port: u16) -> String {
    let (not_armed, unreachable) = (PlainReason::NOT_ARMED.0, PlainReason::SERVER_UNREACHABLE.0);
    let (plain_chains, written_back) = (plain_chains(), written_back(listener_port));
    format!(
        "{plain_chains}  chain unarmed_syn {{
    socket transparent 1 meta mark set {MARK:#x} accept
    meta mark set {not_armed} goto plain_syn
  }}
  chain bare_syn {{
    {TUPLE} @plain counter name syn_plain_again accept
{SPECIAL}    ether saddr {UNARMED_MAC} goto unarmed_syn
    ip daddr . tcp dport @unreachable meta mark set {unreachable} counter name syn_plain_unreachable goto plain_syn
    jump classify
    meta mark {HELD:#x} socket transparent 1 socket mark 0 meta mark set {MARK:#x} accept
    meta l4proto tcp meta l4proto @heartbeat meta mark {HELD:#x} tproxy ip to 127.0.0.1:{listener_port} \
log group {COPIES} queue-threshold 1 counter name syn_held drop
    meta l4proto tcp meta l4proto @heartbeat meta mark {ARMED:#x} tproxy ip to 127.0.0.1:{listener_port} \
meta mark set {MARK:#x} counter name syn_accelerated accept
    socket transparent 1 meta mark set {MARK:#x} accept
    meta mark set 0 goto plain_syn
  }}
  chain standing {{
    jump classify
    meta mark {{ {ARMED:#x}, {HELD:#x} }} add @plain {{ {TUPLE} timeout {STANDING_SECONDS}s }}
    meta mark set 0
  }}
{written_back}"
    )
}

/// A connection, in sets.
const TUPLE: &str = "ip saddr . tcp sport . ip daddr . tcp dport";

/// TCP options that would not survive a relay, so hosts that use them would notice it.
const SPECIAL: &str = "    tcp option md5sig exists goto special_syn
    tcp option 29 exists goto special_syn
    tcp option mptcp exists goto special_syn
";

/// Chains of the verdict plain, and an empty chain `classify`.
fn plain_chains() -> String {
    let option = PlainReason::OPTION.0;
    format!(
        "  chain classify {{
  }}
  chain plain_syn {{
    add @plain_seen {{ {TUPLE} . meta mark }}
    meta mark set 0
    update @plain {{ {TUPLE} }} counter name syn_plain accept
    counter name syn_plain_unremembered accept
  }}
  chain special_syn {{
    meta mark set {option} counter name syn_plain_options goto plain_syn
  }}
"
    )
}

/// Hands a SYN that was reinjected over `lo` to the transparent listener.
fn written_back(listener_port: u16) -> String {
    format!(
        "  chain written_back {{
    meta l4proto tcp tproxy ip to 127.0.0.1:{listener_port} meta mark set {MARK:#x} counter name syn_accelerated accept
    drop
  }}
"
    )
}

/// Timeouts of the conntrack entries of sessions, seconds. The mark of the entry routes a session's packets, so the entry must outlive every pause
/// of a half-closed connection, as sockets do. After a reset, the entry must expire soon, since the next connection may use the same ports.
const SESSION_TIMEOUTS: &str = "  ct timeout sessions {
    protocol tcp;
    l3proto ip;
    policy = { established : 432000, fin_wait : 432000, close_wait : 432000, last_ack : 432000, close : 1 };
  }
";

/// The table of a pod, with nothing armed, as one transaction in the pod's own namespace (docs/adr/0057).
///
/// * The pod's SYNs get their verdict at `output`, after the NAT of a sidecar (priority -100). A SYN of a covered flow and its conntrack entry are
///   marked. Marked packets are routed to `lo`, where the transparent listener and its connections receive them. Packets with a mark of another
///   program are not changed.
/// * Each retransmission of a SYN gets a new verdict, because an earlier SYN may have been dropped for lack of a listener.
/// * A server's replies on a connection that the agent has opened with a client's address are routed to `lo`, too, as are ICMP errors about this
///   connection. If the agent's SYN was not answered and the client's own SYN arrives, it matches the conntrack entry of the agent's SYN, and
///   removes the entry's mark.
/// * A SYN that is reinjected towards its server is not tracked. Otherwise a sidecar's NAT, which exempts the sidecar's own connections by their
///   user, would redirect the agent's packet.
#[must_use]
pub fn setup_pod(address: Ipv4Addr, listener_port: u16) -> String {
    let sets = sets(&format!("{POD_HEARTBEAT_MS}ms"));
    let (plain_chains, written_back) = (plain_chains(), written_back(listener_port));
    let unreachable = PlainReason::SERVER_UNREACHABLE.0;
    format!(
        "table inet sos {{
}}
delete table inet sos
table inet sos {{
{sets}{plain_chains}{written_back}{SESSION_TIMEOUTS}  chain raw {{
    type filter hook output priority raw;
    meta mark & {NOT_REASON:#x} == {LEAVE:#x} notrack
  }}
  chain pod_syn {{
    ct mark set ct mark and {NOT_MARK:#x}
    {TUPLE} @plain counter name syn_plain_again accept
{SPECIAL}    ip daddr . tcp dport @unreachable meta mark set {unreachable} counter name syn_plain_unreachable goto plain_syn
    jump classify
    meta l4proto @heartbeat meta mark {HELD:#x} log group {COPIES} queue-threshold 1 counter name syn_held drop
    meta l4proto @heartbeat meta mark {ARMED:#x} ct mark set ct mark or {MARK:#x} ct timeout set \"sessions\" \
meta mark set {TAKE:#x} accept
    meta mark set 0 goto plain_syn
  }}
  chain bare_pod_syn {{
    meta mark != 0 accept
    ip saddr != {address} accept
    fib daddr type local accept
    goto pod_syn
  }}
  chain output {{
    type route hook output priority -90; policy accept;
    meta nfproto != ipv4 accept
    meta l4proto icmp ct state related ct mark & {DIALED:#x} == {DIALED:#x} meta mark set meta mark or {MARK:#x} accept
    meta l4proto != tcp accept
    ip saddr {address} meta mark & {NOT_REASON:#x} == {LEAVE:#x} meta mark set meta mark & {REASON:#x} goto plain_syn
    ip saddr {address} meta mark {TAKE:#x} ct mark set ct mark or {MARK:#x} ct timeout set \"sessions\" accept
    ip daddr {address} meta mark {DIALED:#x} ct mark set ct mark or {DIALED:#x} ct timeout set \"sessions\" accept
    ct direction reply ct mark & {DIALED:#x} == {DIALED:#x} meta mark set meta mark or {MARK:#x} accept
    tcp flags & (fin | syn | rst | ack) == syn jump bare_pod_syn
    ct direction original ct mark & {MARK:#x} == {MARK:#x} meta mark set meta mark or {MARK:#x} accept
  }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    iifname \"lo\" meta mark {TAKE:#x} goto written_back
    iifname != \"lo\" ct state new ct mark & {DIALED:#x} == {DIALED:#x} ct mark set ct mark and {NOT_DIALED:#x}
  }}
}}
"
    )
}

/// The chains with netfilter hooks.
fn hook_chains(interface: &str, forward: Forward) -> String {
    let of_sessions = format!(
        "    icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} socket transparent 1 \
meta mark set meta mark or {MARK:#x} accept
    meta l4proto tcp tcp flags & (fin | syn | rst | ack) != syn socket transparent 1 meta mark set meta mark or {MARK:#x} accept
"
    );
    // A router's servers may be behind other interfaces than its clients, and the router's own rules may have marked packets.
    let (everywhere, unmarked) = match forward {
        Forward::WithinInterface => (String::new(), ""),
        Forward::Any => (of_sessions, "    meta mark != 0 accept\n"),
    };
    format!(
        "  chain output {{
    type filter hook output priority mangle; policy accept;
    meta l4proto tcp meta mark & {NOT_REASON:#x} == {LEAVE:#x} meta mark set meta mark & {REASON:#x} goto plain_syn
  }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    iifname \"lo\" meta mark {TAKE:#x} goto written_back
{everywhere}    iifname != \"{interface}\" accept
{unmarked}    meta nfproto != ipv4 accept
    fib daddr type local accept
    icmp type {{ destination-unreachable, time-exceeded, parameter-problem }} socket transparent 1 \
meta mark set meta mark or {MARK:#x} accept
    meta l4proto != tcp accept
    tcp flags & (fin | syn | rst | ack) == syn goto bare_syn
    socket transparent 1 meta mark set meta mark or {MARK:#x} accept
    tcp flags & (syn | rst | ack) == ack goto standing
  }}
"
    )
}

/// Prevents forwarding between the bridge and the namespace's other interfaces. The table of a router has no such chain, since a router forwards
/// between its interfaces.
fn forward_chain(interface: &str, forward: Forward) -> String {
    if forward == Forward::Any {
        return String::new();
    }
    format!(
        "  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname \"{interface}\" oifname != \"{interface}\" drop
    iifname != \"{interface}\" oifname \"{interface}\" drop
  }}
"
    )
}

/// Deletes and recreates the table, for use if [`setup`] is not compatible with the table of an earlier version.
#[must_use]
pub fn setup_afresh(interface: &str, listener_port: u16, forward: Forward) -> String {
    format!("table inet sos {{\n}}\ndelete table inet sos\n{}", setup(interface, listener_port, forward))
}

/// One transaction that replaces `before` with `armed` and renews the heartbeat.
///
/// The sets are recreated instead of flushed: the kernel's time to remove one element from a set of ranges grows with the size of the set.
#[must_use]
pub fn arm(armed: &Armed, before: Option<&Armed>) -> String {
    let mut text = String::new();
    if before.is_none_or(|before| before.covered != armed.covered) {
        text.push_str(&classify(&armed.covered));
    }
    if before.is_none_or(|before| before.unreachable != armed.unreachable) {
        text.push_str("flush set inet sos unreachable\n");
        let servers: Vec<_> =
            armed.unreachable.iter().map(|server| format!("{} . {}", server.ip(), server.port())).collect();
        if !servers.is_empty() {
            write(&mut text, format_args!("add element inet sos unreachable {{ {} }}\n", servers.join(", ")));
        }
    }
    text.push_str(&heartbeat());
    text
}

/// Maps of covered flows, and the chain that looks up packets in these maps.
fn classify(covered: &Classifier) -> String {
    let mut text = String::from("flush chain inet sos classify\n");
    for (kind, name, _) in TABLES {
        write(&mut text, format_args!("delete {kind} inet sos {name}\n"));
    }
    let clients = covered.clients.iter().map(|e| format!("{} : {}", addresses(e.range), e.class));
    let servers = covered.servers.iter().map(|e| format!("{} . {} : {}", e.of, addresses(e.range), e.class));
    let ports = covered.ports.iter().map(|e| {
        let mark = if e.class == classifier::HELD { HELD } else { ARMED };
        format!("{} . {} : {mark:#x}", e.of, range(e.range.0, e.range.1))
    });
    text.push_str("table inet sos {\n");
    for ((kind, name, fields), elements) in
        TABLES.iter().zip([clients.collect(), servers.collect(), ports.collect()])
    {
        let elements: Vec<String> = elements;
        let held = if elements.is_empty() {
            String::new()
        } else {
            format!("; elements = {{ {} }}", elements.join(", "))
        };
        write(&mut text, format_args!("  {kind} {name} {{ type {fields}; flags interval{held}; }}\n"));
    }
    write(
        &mut text,
        format_args!(
            "  chain classify {{
    meta mark set 0
    meta mark set ip saddr map @armed_clients
    meta mark set meta mark . ip daddr map @armed_servers
    meta mark set meta mark . tcp dport map @armed return
    meta mark set 0
  }}
}}
"
        ),
    );
    text
}

/// Maps of covered flows: kind, name and fields.
const TABLES: [(&str, &str, &str); 3] = [
    ("map", "armed_clients", "ipv4_addr : mark"),
    ("map", "armed_servers", "mark . ipv4_addr : mark"),
    ("map", "armed", "mark . inet_service : mark"),
];

fn write(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("writing to a String cannot fail");
}

fn addresses((first, last): Range) -> String {
    range(Ipv4Addr::from(first), Ipv4Addr::from(last))
}

fn range<T: Copy + PartialEq + std::fmt::Display>(first: T, last: T) -> String {
    if first == last { first.to_string() } else { format!("{first}-{last}") }
}

/// Renews the heartbeat element with its full lifetime; `add` alone would not extend the lifetime.
#[must_use]
pub fn heartbeat() -> String {
    "flush set inet sos heartbeat\nadd element inet sos heartbeat { tcp }\n".to_owned()
}

/// Removes the heartbeat element, which disarms the table.
#[must_use]
pub fn disarm() -> String {
    "flush set inet sos heartbeat\n".to_owned()
}

/// Parses the packet counts of `nft --json list counters`; unknown counters are ignored.
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
    use crate::policy::classifier::Rule;
    use std::sync::Arc;

    #[test]
    fn the_table_matches_the_golden_file() {
        assert_eq!(
            setup("net0", 39_999, Forward::WithinInterface),
            include_str!("../../tests/golden/setup.nft")
        );
    }

    #[test]
    fn the_table_of_a_pod_matches_the_golden_file() {
        let address = "10.0.0.11".parse().unwrap();
        assert_eq!(setup_pod(address, 39_999), include_str!("../../tests/golden/pod.nft"));
    }

    #[test]
    fn a_router_forwards_between_its_interfaces() {
        let (bridged, routed) = (setup("net0", 1, Forward::WithinInterface), setup("net0", 1, Forward::Any));
        assert!(bridged.contains("chain forward") && !routed.contains("chain forward"));
    }

    #[test]
    fn arming_is_one_transaction() {
        let prefix = |text: &str| vec![text.parse().unwrap()];
        let rule = Rule::new(&prefix("10.0.0.0/25"), &prefix("10.0.0.128/25"), [(22, 22), (5000, 5999)]);
        let held = Rule { ports: vec![(80, 80)], held: true, ..rule.clone() };
        let armed = Armed {
            covered: Arc::new(Classifier::build(&[rule, held], 10).unwrap()),
            unreachable: vec!["10.0.0.139:5003".parse().unwrap()],
            left_out: Vec::new(),
        };
        assert_eq!(arm(&armed, None), include_str!("../../tests/golden/arm.nft"));
        assert_eq!(arm(&armed, Some(&armed)), heartbeat(), "nothing has changed");
        let answers = Armed { unreachable: Vec::new(), ..armed.clone() };
        assert_eq!(
            arm(&answers, Some(&armed)),
            format!("flush set inet sos unreachable\n{}", heartbeat()),
            "the covered flows do not change"
        );
    }

    #[test]
    fn nothing_armed_adds_no_element() {
        let text = arm(&Armed::default(), None);
        assert!(!text.contains("elements"), "{text}");
        assert_eq!(text.matches("add element").count(), 1, "{text}");
        assert!(text.ends_with(&heartbeat()));
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
