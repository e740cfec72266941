//! Plan of a network namespace: the commands and settings that the data plane needs.
//!
//! Pure: [`crate::netns`] applies the plan. All settings belong to the agent's own namespace and disappear with it, except the outer end of
//! the veth pair (attach `host`).

use std::collections::BTreeSet;

use ipnet::Ipv4Net;

use crate::documents::config::{Bridge, Rewrite};
use crate::netns::nft::{MARK, OPENING, TAKE};

/// Routing table that delivers marked packets locally, independent of their destination.
pub const LOCAL_TABLE: u32 = 5_345;
/// Routing table of streams' handshakes on a machine whose routes the agent does not manage ([`crate::netns::stream_routes`]).
pub const STREAM_TABLE: u32 = 5_346;
/// Upper half of a mark, which the agent's rules compare.
const UPPER_HALF: u32 = 0xffff_0000;
/// Priority of the agent's routing rules: after the table `local` (0), before `main` (32766).
const RULE_PRIORITY: u32 = 5_345;
/// Maximum socket buffer in bytes: more than twice the bandwidth-delay product of 1 Gbit/s at 200 ms (50 MB).
const MAX_SOCKET_BUFFER: u32 = 64 * 1024 * 1024;
/// Initial receive buffer in bytes: Linux's default, so that a host sends no more ahead than over plain TCP. Streams get a larger buffer
/// ([`crate::netns::sockets::stream_listener`]).
const FIRST_RECEIVE_BUFFER: u32 = 128 * 1024;
/// Initial congestion and receive windows of streams, segments.
pub const STREAM_START: u32 = 100;
/// Minimum GSO burst of a stream in segments, if its window allows (tcp_min_tso_segs). Otherwise, a burst is one millisecond at the
/// stream's rate. For one of many streams this is two or three segments, so that switches, devices and agents on the path would handle
/// almost every packet separately.
const SEGMENTS_AT_ONCE: u32 = 16;

/// MAC address for a site's gateway, which is not a real host (spec/node-config.md clause 26). It is set statically because controllers do
/// not see an agent's ARP requests.
const GATEWAY_MAC: &str = "02:53:4f:53:00:02";

/// One command of iproute2, without the leading `ip`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ip {
    /// Arguments.
    pub arguments: Vec<String>,
    /// Clean-up command: may fail if there is nothing to clean.
    pub may_fail: bool,
}

fn ip(arguments: &str) -> Ip {
    Ip { arguments: arguments.split_whitespace().map(str::to_owned).collect(), may_fail: false }
}

fn tidy(arguments: &str) -> Ip {
    Ip { may_fail: true, ..ip(arguments) }
}

/// One kernel setting below `/proc/sys`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sysctl {
    /// Path below `/proc/sys`.
    pub path: String,
    /// Value.
    pub value: String,
    /// Required by the data plane; other settings only improve it.
    pub required: bool,
}

/// State of the interface before any change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Present {
    /// The interface has the configured address.
    pub address: bool,
    /// The interface has the configured MAC address.
    pub mac: bool,
}

/// Creates the veth pair from inside the new namespace; `host` names the host's namespace in a form that `ip` takes.
#[must_use]
pub fn veth_pair(bridge: Bridge<'_>, host: &str) -> Ip {
    let interface = bridge.interface;
    ip(&format!(
        "link add name {} mtu {mtu} type veth peer name {} mtu {mtu} netns {host}",
        interface.name,
        interface.host_name,
        mtu = interface.mtu,
    ))
}

/// Command in the host's namespace before the pair is created: removes a veth of an earlier run, which may meanwhile disappear by itself.
#[must_use]
pub fn free_outer_end(bridge: Bridge<'_>) -> Ip {
    tidy(&format!("link delete dev {} type veth", bridge.interface.host_name))
}

/// Commands in the host's namespace after the pair is created.
#[must_use]
pub fn outer_end_up(bridge: Bridge<'_>) -> Ip {
    ip(&format!("link set dev {} up", bridge.interface.host_name))
}

/// Commands that configure the inner interface, the route and the neighbour of the discovery address, and the delivery of marked packets.
/// Running these commands twice changes nothing.
#[must_use]
pub fn inner(bridge: Bridge<'_>, present: Present) -> Vec<Ip> {
    let interface = bridge.interface;
    let discovery = bridge.discovery;
    let name = &interface.name;
    let mut commands = vec![ip("link set dev lo up")];
    if !present.mac {
        commands.push(ip(&format!("link set dev {name} address {}", interface.mac)));
    }
    commands.push(ip(&format!("link set dev {name} mtu {} up", interface.mtu)));
    if !present.address {
        commands.push(ip(&format!("-4 address replace {} dev {name}", interface.address)));
    }
    commands.extend(routes(bridge));
    commands.push(ip(&format!("-4 route replace {}/32 dev {name} scope link", discovery.address)));
    commands.push(ip(&format!(
        "neighbour replace {} lladdr {} dev {name} nud permanent",
        discovery.address, discovery.mac,
    )));
    if let Some(gateway) = interface.gateway {
        commands
            .push(ip(&format!("neighbour replace {gateway} lladdr {GATEWAY_MAC} dev {name} nud permanent")));
    }
    commands.extend(delivery());
    commands
}

/// Rules for packets with the agent's marks. The rules compare the whole upper half, so that marks of other programs do not match.
fn rules() -> [String; 2] {
    [MARK, TAKE]
        .map(|mark| format!("priority {RULE_PRIORITY} fwmark {mark:#x}/{UPPER_HALF:#x} lookup {LOCAL_TABLE}"))
}

/// The rule of earlier versions, which any mark with this bit matched.
fn former_rule() -> String {
    format!("priority {RULE_PRIORITY} fwmark {MARK:#x}/{MARK:#x} lookup {LOCAL_TABLE}")
}

fn without_rules() -> Vec<Ip> {
    let [mark, take] = rules();
    [former_rule(), mark, take].iter().map(|rule| tidy(&format!("-4 rule delete {rule}"))).collect()
}

/// Commands for the rule by which streams' handshakes take the copied routes. They first remove a rule and routes that a killed agent may
/// have left.
#[must_use]
pub fn stream_rule() -> Vec<Ip> {
    let mut commands = stream_rule_undone();
    commands.push(ip(&format!("-4 rule add {}", opening_rule())));
    commands
}

/// Removes the rule and the copied routes.
#[must_use]
pub fn stream_rule_undone() -> Vec<Ip> {
    vec![
        tidy(&format!("-4 rule delete {}", opening_rule())),
        tidy(&format!("-4 route flush table {STREAM_TABLE}")),
    ]
}

fn opening_rule() -> String {
    format!("priority {RULE_PRIORITY} fwmark {OPENING:#x}/{UPPER_HALF:#x} lookup {STREAM_TABLE}")
}

/// Undoes the delivery of marked packets.
#[must_use]
pub fn delivery_undone() -> Vec<Ip> {
    let mut commands = without_rules();
    commands.push(tidy(&format!("-4 route flush table {LOCAL_TABLE}")));
    commands
}

/// Commands that deliver marked packets locally on a machine that forwards its hosts' packets ([`crate::documents::config::Intake::Routed`]).
#[must_use]
pub fn delivery() -> Vec<Ip> {
    let mut commands = without_rules();
    commands.extend(rules().iter().map(|rule| ip(&format!("-4 rule add {rule}"))));
    commands.push(ip(&format!("-4 route replace local 0.0.0.0/0 dev lo table {LOCAL_TABLE}")));
    commands
}

/// Kernel settings of a machine that forwards its hosts' packets.
#[must_use]
pub fn forwarding(interface: &str) -> Vec<Sysctl> {
    let needed = |path: String, value: &str| Sysctl { path, value: value.to_owned(), required: true };
    vec![
        needed("net/ipv4/ip_forward".to_owned(), "1"),
        // Packets may leave through their ingress interface; an ICMP redirect would lead the hosts past this machine.
        needed("net/ipv4/conf/all/send_redirects".to_owned(), "0"),
        needed(format!("net/ipv4/conf/{interface}/send_redirects"), "0"),
    ]
}

/// Routes to all configured addresses outside the subnet, and one to every other agent. Never a default route: with attach `none` the
/// namespace may be a pod's, whose own default route leads into the cluster.
#[must_use]
pub fn routes(bridge: Bridge<'_>) -> Vec<Ip> {
    let name = &bridge.interface.name;
    let agents: BTreeSet<Ipv4Net> = bridge
        .config
        .peers
        .iter()
        .flat_map(|peer| &peer.agents)
        .map(|agent| Ipv4Net::from(agent.address))
        .collect();
    let subnet = bridge.interface.address.trunc();
    let via = |prefix: &Ipv4Net| match bridge.interface.gateway {
        Some(gateway) if !subnet.contains(prefix) => format!("via {gateway} "),
        _ => String::new(),
    };
    let mut commands: Vec<Ip> = beyond(bridge)
        .difference(&agents)
        .map(|prefix| ip(&format!("-4 route replace {prefix} {}dev {name}", via(prefix))))
        .collect();
    let reachable =
        agents.iter().filter(|agent| bridge.interface.gateway.is_some() || subnet.contains(*agent));
    commands.extend(reachable.map(|agent| {
        ip(&format!(
            "-4 route replace {agent} {}dev {name} initcwnd {STREAM_START} initrwnd {STREAM_START}",
            via(agent)
        ))
    }));
    commands
}

fn beyond(bridge: Bridge<'_>) -> BTreeSet<Ipv4Net> {
    if bridge.interface.gateway.is_none() {
        return BTreeSet::new();
    }
    let subnet = bridge.interface.address.trunc();
    let prefixes =
        bridge.config.peers.iter().flat_map(|peer| &peer.prefixes).chain(&bridge.config.site.prefixes);
    let services = bridge.config.services.iter().flat_map(|service| service.from.iter().chain(&service.to));
    prefixes.chain(services).map(Ipv4Net::trunc).filter(|prefix| !subnet.contains(prefix)).collect()
}

/// Arguments of `ethtool` if the switch rewrites addresses: checksums left to a network card would be wrong after the rewrite (docs/adr/0004).
/// sos-node does the same for the outer end.
#[must_use]
pub fn without_offload(bridge: Bridge<'_>) -> Option<[&str; 4]> {
    (bridge.config.site.rewrite == Rewrite::OpenFlow).then_some(["-K", &bridge.interface.name, "tx", "off"])
}

/// Arguments of `ethtool` for streams over QUIC: the kernel itself segments datagrams sent in bulk, because a user-space switch handles
/// unsegmented TCP packets but drops unsegmented UDP packets.
#[must_use]
pub fn datagrams_cut(bridge: Bridge<'_>) -> [&str; 4] {
    ["-K", &bridge.interface.name, "tx-udp-segmentation", "off"]
}

/// Kernel settings of the agent's namespace.
#[must_use]
pub fn sysctls(bridge: Bridge<'_>) -> Vec<Sysctl> {
    let name = &bridge.interface.name;
    let setting = |required, path: String, value: String| Sysctl { path, value, required };
    let needed = |path: String, value: &str| setting(true, path, value.to_owned());
    let wished = |path: &str, value: String| setting(false, format!("net/ipv4/{path}"), value);
    vec![
        needed("net/ipv4/ip_forward".to_owned(), "1"),
        // A redirected packet leaves through its ingress interface; the client must not get an ICMP redirect.
        needed("net/ipv4/conf/all/send_redirects".to_owned(), "0"),
        needed(format!("net/ipv4/conf/{name}/send_redirects"), "0"),
        // Source addresses of redirected packets are not routed through the interface on which they arrive.
        needed("net/ipv4/conf/all/rp_filter".to_owned(), "0"),
        needed(format!("net/ipv4/conf/{name}/rp_filter"), "0"),
        wished("tcp_rmem", format!("4096 {FIRST_RECEIVE_BUFFER} {MAX_SOCKET_BUFFER}")),
        wished("tcp_wmem", format!("4096 65536 {MAX_SOCKET_BUFFER}")),
        wished("tcp_slow_start_after_idle", "0".to_owned()),
        wished("tcp_min_tso_segs", SEGMENTS_AT_ONCE.to_string()),
        wished("tcp_mtu_probing", "1".to_owned()),
        // A path may drop all packets for some seconds during a failover: tcp_mtu_probing tries smaller packets only afterwards.
        wished("tcp_retries1", "6".to_owned()),
        wished("tcp_max_syn_backlog", "8192".to_owned()),
        // A client that reuses its port must not fail because an earlier connection of this agent to the server still has that port in
        // TIME-WAIT (RFC 6191).
        wished("tcp_tw_reuse", "1".to_owned()),
        wished("tcp_tw_reuse_delay", "100".to_owned()),
        // Do not copy a client's DSCP to the server's packets (earlier versions did).
        wished("tcp_reflect_tos", "0".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::AgentConfig;
    use crate::documents::config::tests::config;

    fn bridge(config: &AgentConfig) -> Bridge<'_> {
        config.bridge().unwrap()
    }

    fn lines(commands: &[Ip]) -> String {
        commands
            .iter()
            .map(|c| format!("{}{}\n", if c.may_fail { "-" } else { "" }, c.arguments.join(" ")))
            .collect()
    }

    #[test]
    fn checksum_offload_is_off_where_the_switch_rewrites() {
        let mut config = config();
        assert_eq!(without_offload(bridge(&config)), None);
        config.site.rewrite = Rewrite::OpenFlow;
        assert_eq!(without_offload(bridge(&config)), Some(["-K", "net0", "tx", "off"]));
    }

    #[test]
    fn the_kernel_segments_datagrams() {
        assert_eq!(datagrams_cut(bridge(&config())), ["-K", "net0", "tx-udp-segmentation", "off"]);
    }

    #[test]
    fn set_up_of_a_new_namespace_matches_the_golden_file() {
        let mut config = config();
        config.interface.as_mut().unwrap().gateway = Some("10.0.0.1".parse().unwrap());
        config.services[0].to.push("192.0.2.0/24".parse().unwrap());
        let mut commands = vec![
            free_outer_end(bridge(&config)),
            veth_pair(bridge(&config), "/proc/7/fd/3"),
            outer_end_up(bridge(&config)),
        ];
        commands.extend(inner(bridge(&config), Present::default()));
        assert_eq!(lines(&commands), include_str!("../../tests/golden/attach-host.txt"));
    }

    #[test]
    fn an_existing_address_is_not_set_again() {
        let commands = lines(&inner(bridge(&config()), Present { address: true, mac: true }));
        assert!(!commands.contains("address"), "{commands}");
        assert!(!commands.contains(" via "), "{commands}");
    }

    #[test]
    fn every_required_setting_names_a_reachable_file() {
        for setting in sysctls(bridge(&config())) {
            assert!(setting.path.starts_with("net/ipv4/") && !setting.path.contains(".."), "{setting:?}");
        }
    }
}
