//! The agent's nftables, rendered as text for `nft -f -` (design: fail-open rules 1 and 2).
//!
//! One table, `inet sos`, in the agent's own network namespace. Handling of a packet that the switch sent to the agent:
//!
//! 1. To one of the agent's own addresses: delivered (streams, orders).
//! 2. A bare SYN of a connection that went plain before stays plain, so that retransmissions get the same verdict.
//! 3. A bare SYN with MD5, AO or MPTCP options goes plain: hosts that use these would notice a relay.
//! 4. A bare SYN goes plain if the switch has marked its service as not armed (spec/node-config.md clause 22).
//! 5. A bare SYN to a server that has not answered recently (`unreachable`) goes plain.
//! 6. A bare SYN that must be held (marked in `armed`), because its server must accept first, is copied to this agent and dropped, on the
//!    conditions of rule 7. The agent reinjects the SYN later, to the listener or to the server ([`crate::tasks::held_syns`]). All SYNs of
//!    proactive services take this way, so that the agent finds clients that do not complete their handshakes. A bare SYN with the 4-tuple
//!    of a connection that the agent has accepted is delivered to that connection's socket.
//! 7. A bare SYN inside `armed` (clients, servers and ports, see [`crate::policy::classifier`]) is delivered to the transparent listener
//!    while `heartbeat` contains an element. The element expires in [`HEARTBEAT_SECONDS`] unless the agent renews it, and `tproxy` does not
//!    match without a listening socket. So a dead agent intercepts no connection.
//! 8. A packet of a known transparent socket is delivered. An ICMP error about a segment of such a socket is delivered, too: a router has
//!    addressed the error to the host whose address the agent used in the segment.
//! 9. Any other bare SYN is remembered in `plain` and forwarded. A connection that goes plain for the first time is listed in `plain_seen`
//!    for [`SEEN_SECONDS`], with the reason as a mark. The agent polls this set ([`crate::policy::plain_traffic`]).
//! 10. Any other packet is forwarded. If it has an acknowledgement and is inside `armed`, its connection is established without this agent,
//!     and is remembered in `plain` for [`STANDING_SECONDS`]: a retransmitted SYN may arrive later, because the controller held the
//!     retransmission while the server answered the first SYN.

mod pod;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::Ipv4Addr;

use sos_wire::PlainReason;

use crate::policy::arming::Armed;
use crate::policy::classifier::{self, Classifier, Range};

pub use pod::{POD_HEARTBEAT_MS, setup_pod};

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

/// Mark of packets inside `armed`, while the chains examine them. During the lookups, the lower half of a packet's mark is its class
/// ([`classifier::Class`]).
const ARMED: u32 = 0x0002_0000;

/// Mark of packets that are held until their server has accepted, while the chains examine them.
const HELD: u32 = 0x0004_0000;

/// Mark of held SYNs that the agent reinjects for its listener. They are delivered locally.
pub const TAKE: u32 = MARK | 0x0008_0000;

/// Mark of held SYNs that the agent reinjects for the server. Its lower half is a [`PlainReason`].
pub const LEAVE: u32 = 0x0010_0000;

/// Mark of the agent's connections to servers from inside a pod's namespace: of their packets, and of their conntrack entries.
pub const DIALED: u32 = 0x0020_0000;

/// Mark of the checks of a pod's plain paths (docs/adr/0059).
pub const CHECK: u32 = 0x0040_0000;

/// Mark of streams during their handshakes, on a machine whose routes the agent does not manage ([`crate::netns::stream_routes`]).
pub const OPENING: u32 = 0x0080_0000;

/// Netlink group that receives the copies of held SYNs (nfnetlink_log). No other program in the agent's namespace uses a group.
pub const COPIES: u16 = 5_345;

/// Bits of a mark that hold the reason why a SYN goes plain.
const REASON: u32 = 0xffff;
const NOT_REASON: u32 = !REASON;

/// Source MAC address by which the switch marks SYNs of services that are not armed (spec/node-config.md clause 22).
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
    /// All packets: the namespace belongs to a router.
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

/// Chains with the verdicts on clients' bare SYNs, and on packets of connections established without SOS.
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

/// Key of a connection in the sets.
const TUPLE: &str = "ip saddr . tcp sport . ip daddr . tcp dport";

/// TCP options that would not survive a relay: hosts that use them would notice the relay.
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

/// Hands a SYN that was reinjected over `lo` to the transparent listener, and a reset to the half-open connection of this listener.
fn written_back(listener_port: u16) -> String {
    format!(
        "  chain written_back {{
    tcp flags & rst == rst tproxy ip to 127.0.0.1:{listener_port} meta mark set {MARK:#x} accept
    meta l4proto tcp tproxy ip to 127.0.0.1:{listener_port} meta mark set {MARK:#x} counter name syn_accelerated accept
    drop
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
    // A router's servers may be behind other interfaces than its clients, so packets of sessions are delivered on every interface. Packets
    // that the router's own rules have marked are not changed.
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
