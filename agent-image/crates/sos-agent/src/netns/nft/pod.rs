//! The table `inet sos` of a pod, in the pod's own network namespace (docs/adr/0057).

use std::net::Ipv4Addr;

use sos_wire::PlainReason;

use super::{
    ARMED, CHECK, COPIES, DIALED, HELD, LEAVE, MARK, NOT_REASON, REASON, SPECIAL, TAKE, TUPLE, plain_chains,
    sets, written_back,
};

/// Lifetime of the heartbeat in pods' tables, milliseconds. The agent renews the heartbeat after a third of this time: two renewals may
/// be late before new connections go plain.
pub const POD_HEARTBEAT_MS: u64 = 900;

const NOT_DIALED: u32 = !DIALED;
const NOT_MARK: u32 = !MARK;

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
/// `check_port` is the port from which the agent checks the pod's plain paths (docs/adr/0059).
///
/// * The pod's SYNs get their verdict at `output`, after the NAT of a sidecar (priority -100). A SYN of a covered flow and its conntrack entry are
///   marked. Marked packets are routed to `lo`, where the transparent listener and its connections receive them. Packets with a mark of another
///   program are not changed.
/// * Each retransmission of a SYN gets a new verdict, because an earlier SYN may have been dropped for lack of a listener.
/// * A server's replies on a connection that the agent has opened with a client's address are routed to `lo`, too, as are ICMP errors about this
///   connection. If the server leaves the agent's SYN unanswered, the client's own SYN may arrive. That SYN matches the conntrack entry of
///   the agent's SYN, and the entry's mark is removed.
/// * A SYN that is reinjected towards its server is not tracked. Otherwise a sidecar's NAT, which exempts the sidecar's own connections by their
///   user, would redirect the agent's packet. The SYN of a check is not tracked for the same reason.
/// * A reset that is injected for a half-open connection of the listener does not mark the conntrack entry: the pod's connection becomes plain.
/// * Answers to checks are copied to the agent.
#[must_use]
pub fn setup_pod(address: Ipv4Addr, listener_port: u16, check_port: u16) -> String {
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
    meta mark {CHECK:#x} notrack
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
    meta mark {CHECK:#x} meta mark set 0 accept
    ip saddr {address} meta mark & {NOT_REASON:#x} == {LEAVE:#x} meta mark set meta mark & {REASON:#x} goto plain_syn
    ip saddr {address} meta mark {TAKE:#x} tcp flags & rst == rst accept
    ip saddr {address} meta mark {TAKE:#x} ct mark set ct mark or {MARK:#x} ct timeout set \"sessions\" accept
    ip daddr {address} meta mark {DIALED:#x} ct mark set ct mark or {DIALED:#x} ct timeout set \"sessions\" accept
    ct direction reply ct mark & {DIALED:#x} == {DIALED:#x} meta mark set meta mark or {MARK:#x} accept
    tcp flags & (fin | syn | rst | ack) == syn jump bare_pod_syn
    ct direction original ct mark & {MARK:#x} == {MARK:#x} meta mark set meta mark or {MARK:#x} accept
  }}
  chain prerouting {{
    type filter hook prerouting priority mangle; policy accept;
    iifname \"lo\" meta mark {TAKE:#x} goto written_back
    iifname != \"lo\" ip daddr {address} tcp dport {check_port} log group {COPIES} queue-threshold 1
    iifname != \"lo\" ip daddr {address} icmp type destination-unreachable log group {COPIES} queue-threshold 1
    iifname != \"lo\" ct state new ct mark & {DIALED:#x} == {DIALED:#x} ct mark set ct mark and {NOT_DIALED:#x}
  }}
}}
"
    )
}
