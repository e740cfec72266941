//! Changes and observations as command lines.

use std::path::PathBuf;

use crate::observation::flow::{BASE_COOKIE, BASE_COOKIE_MASK, Flow, REDIRECT_COOKIE, REDIRECT_COOKIE_MASK};
use crate::observation::observed::{BOND, Controller, Device, Offloads, Row, text};
use crate::observation::ovsdb::TABLES;
use crate::observation::reject;
use crate::planning::change::{Change, Place};
use crate::planning::desired;

/// Timeout of one Open vSwitch command, in seconds.
const OVS_TIMEOUT_S: u32 = 4;

/// One command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, looked up in `PATH`.
    pub program: &'static str,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its standard input.
    pub stdin: String,
}

impl CommandLine {
    fn new<S: Into<String>>(program: &'static str, args: impl IntoIterator<Item = S>) -> Self {
        Self { program, args: args.into_iter().map(Into::into).collect(), stdin: String::new() }
    }
}

/// An Open vSwitch, identified by its socket directory.
#[derive(Debug, Clone)]
pub struct Ovs {
    /// The directory.
    pub rundir: PathBuf,
}

impl Ovs {
    /// The database's socket.
    #[must_use]
    pub fn database_socket(&self) -> PathBuf {
        self.rundir.join("db.sock")
    }

    /// A bridge's OpenFlow socket.
    #[must_use]
    pub fn bridge_socket(&self, bridge: &str) -> PathBuf {
        self.rundir.join(format!("{bridge}.mgmt"))
    }

    fn vsctl(&self, args: Vec<String>) -> CommandLine {
        let database = format!("--db=unix:{}", self.database_socket().display());
        let timeout = format!("--timeout={OVS_TIMEOUT_S}");
        CommandLine::new("ovs-vsctl", [timeout, database, "--format=json".to_owned()].into_iter().chain(args))
    }

    fn ofctl<const N: usize>(
        &self,
        version: &str,
        bridge: &str,
        command: &[&str],
        rest: [&str; N],
    ) -> CommandLine {
        let timeout = format!("--timeout={OVS_TIMEOUT_S}");
        let target = format!("unix:{}", self.bridge_socket(bridge).display());
        let mut args = vec![timeout, "-O".to_owned(), version.to_owned()];
        args.extend(command.iter().map(|part| (*part).to_owned()));
        args.push(target);
        args.extend(rest.map(str::to_owned));
        CommandLine { program: "ovs-ofctl", args, stdin: String::new() }
    }

    /// Print the database's tables, for [`crate::observation::ovsdb::parse`].
    #[must_use]
    pub fn list(&self) -> CommandLine {
        let tables = TABLES.iter().enumerate().flat_map(|(i, (table, columns))| {
            let separator = (i > 0).then(|| "--".to_owned());
            separator.into_iter().chain([
                format!("--columns={columns}"),
                "list".to_owned(),
                (*table).to_owned(),
            ])
        });
        self.vsctl(std::iter::once("--".to_owned()).chain(tables).collect())
    }

    /// Print the base entries, or all entries if `all`, for [`crate::observation::flow::parse_dump`].
    #[must_use]
    pub fn dump_flows(&self, bridge: &str, all: bool) -> CommandLine {
        let (any, base) = (String::new(), format!("cookie={BASE_COOKIE:#x}/{BASE_COOKIE_MASK:#x}"));
        let command = ["--no-stats", "--no-names", "dump-flows"];
        self.ofctl("OpenFlow13", bridge, &command, [if all { &any } else { &base }])
    }

    /// Print the session entries that output to an agent's port, one per line.
    #[must_use]
    pub fn dump_redirects(&self, bridge: &str, ofport: u16) -> CommandLine {
        self.ofctl("OpenFlow13", bridge, &["--no-stats", "--no-names", "dump-flows"], [&redirects_to(ofport)])
    }

    /// Print ports with their OpenFlow configuration, for [`parse_ports`].
    #[must_use]
    pub fn show(&self, bridge: &str) -> CommandLine {
        self.ofctl("OpenFlow10", bridge, &["show"], [])
    }

    /// Print entries as Open vSwitch normalises them, for [`crate::observation::flow::parse_base_flows`]. Needs no daemon.
    #[must_use]
    pub fn parse_flows(entries: String) -> CommandLine {
        let args = ["-O", "OpenFlow13", "parse-flows", "-"];
        CommandLine { stdin: entries, ..CommandLine::new("ovs-ofctl", args) }
    }

    /// Print the ports of the kernel's datapath, for [`crate::planning::datapath::parse_ports`]. Succeeds if the kernel has Open
    /// vSwitch's datapath; the command loads the datapath if it can.
    #[must_use]
    pub fn show_kernel_datapaths() -> CommandLine {
        CommandLine::new("ovs-dpctl", ["show"])
    }

    /// Encode the changes as commands, in order: adjacent database changes share a transaction.
    #[must_use]
    pub fn encode(&self, changes: &[Change]) -> Vec<CommandLine> {
        let groups = changes.chunk_by(|a, b| a.is_database() && b.is_database());
        groups.flat_map(|group| self.encode_group(group)).collect()
    }

    fn encode_group(&self, group: &[Change]) -> Vec<CommandLine> {
        if !group[0].is_database() {
            return self.encode_one(&group[0]);
        }
        let clauses = group.iter().flat_map(database_clauses);
        vec![self.vsctl(clauses.flat_map(|clause| std::iter::once("--".to_owned()).chain(clause)).collect())]
    }

    fn mod_port(&self, bridge: &str, port: &str, flag: &str) -> CommandLine {
        self.ofctl("OpenFlow10", bridge, &["mod-port"], [port, flag])
    }

    fn encode_one(&self, change: &Change) -> Vec<CommandLine> {
        match change {
            Change::AddTunnel { name, vni, remote, udp_port, mtu, alias } => {
                let (vni, remote) = (vni.to_string(), remote.to_string());
                let (udp_port, mtu) = (udp_port.to_string(), mtu.to_string());
                let kind =
                    ["type", "vxlan", "id", &vni, "remote", &remote, "dstport", &udp_port, "nolearning"];
                let add = ["link", "add", name, "mtu", &mtu].into_iter().chain(kind);
                vec![ip(add), ip(["link", "set", "dev", name, "alias", alias, "up"])]
            }
            Change::TagLink { name, alias } => vec![ip(["link", "set", "dev", name, "alias", alias])],
            Change::SetLinkMtu { name, mtu } => {
                vec![ip(["link", "set", "dev", name, "mtu", &mtu.to_string()])]
            }
            Change::SetLinkUp { name } => vec![ip(["link", "set", "dev", name, "up"])],
            Change::SetLinkDown { name } => vec![ip(["link", "set", "dev", name, "down"])],
            Change::AddReject { name, peer, alias } => {
                let mut lines = vec![
                    ip(["link", "add", "name", name, "type", "veth", "peer", "name", peer]),
                    ip(["link", "set", "dev", name, "alias", alias, "addrgenmode", "none", "up"]),
                    ip(["link", "set", "dev", peer, "addrgenmode", "none", "up"]),
                    // Make the kernel compute checksums: the user-space datapath may forward packets without checksums as if they were
                    // complete.
                    CommandLine::new("ethtool", ["-K", peer.as_str(), "tx", "off"]),
                ];
                lines.push(nft(reject::rules(peer)));
                lines
            }
            Change::SetRejectRules { peer } => vec![nft(reject::rules(peer))],
            Change::DeleteReject { name } => {
                vec![ip(["link", "delete", "dev", name]), nft(reject::no_rules())]
            }
            Change::DeleteLink { name } => vec![ip(["link", "delete", "dev", name])],
            Change::SetNoFlood { bridge, port, no_flood } => {
                vec![self.mod_port(bridge, port, if *no_flood { "no-flood" } else { "flood" })]
            }
            Change::SetNoPacketIn { bridge, port } => vec![self.mod_port(bridge, port, "no-packet-in")],
            Change::EditFlows { bridge, add, remove } => {
                let stdin = encode_flows(add, remove);
                vec![CommandLine {
                    stdin,
                    ..self.ofctl("OpenFlow13", bridge, &["--bundle", "add-flows"], ["-"])
                }]
            }
            Change::ForgetAgent { bridge, ofport } => {
                vec![self.ofctl("OpenFlow13", bridge, &["del-flows"], [&redirects_to(*ofport)])]
            }
            Change::AddAddress { device, address } => {
                vec![ip(["address", "replace", address, "dev", device])]
            }
            Change::AddRoute { device, route } => {
                let (family, words) = route.split_once(' ').unwrap_or(("-4", route));
                let words = words.split(' ').chain(["dev", device]);
                vec![ip([family, "route", "replace"].into_iter().chain(words))]
            }
            Change::SetOffloads { device, which, on } => vec![set_offloads(device, *which, *on)],
            _ => unreachable!("changes of the database are encoded as a group"),
        }
    }
}

fn ip<'a>(args: impl IntoIterator<Item = &'a str>) -> CommandLine {
    CommandLine::new("ip", args)
}

fn nft(rules: String) -> CommandLine {
    CommandLine { stdin: rules, ..CommandLine::new("nft", ["-f", "-"]) }
}

/// Print the reset rules, for [`crate::observation::reject::parse`]. Fails if there are none.
#[must_use]
pub fn show_reject_rules() -> CommandLine {
    CommandLine::new("nft", ["-j", "list", "table", "netdev", reject::TABLE])
}

/// Print devices with their addresses, for [`crate::observation::link::parse_links`].
#[must_use]
pub fn show_links() -> CommandLine {
    ip(["-d", "-j", "addr", "show"])
}

/// Address families, as options of ip(8).
pub const FAMILIES: [&str; 2] = ["-4", "-6"];

/// Print the routes of a family in all tables, including tables that policy rules select.
#[must_use]
pub fn show_routes(family: &str) -> CommandLine {
    ip(["-d", "-j", family, "route", "show", "table", "all"])
}

/// Print the routes of a family through one device, for [`crate::planning::local::parse_routes`].
#[must_use]
pub fn show_routes_of(family: &str, device: &str) -> CommandLine {
    ip(["-j", family, "route", "show", "table", "main", "dev", device])
}

/// Match for the session entries that output to a port. Base entries do not match, because their cookie contains a hash instead of the
/// kind.
fn redirects_to(ofport: u16) -> String {
    format!("cookie={REDIRECT_COOKIE:#x}/{REDIRECT_COOKIE_MASK:#x},out_port={ofport}")
}

/// Print a device's offloads, for [`crate::observation::link::parse_offloads`].
#[must_use]
pub fn show_offloads(device: &Device) -> CommandLine {
    ethtool(device, ["--json", "-k", &device.name])
}

fn set_offloads(device: &Device, which: Offloads, on: bool) -> CommandLine {
    let state = if on { "on" } else { "off" };
    let features = [("tx", which.tx), ("gro", which.gro)].into_iter().filter(|(_, chosen)| *chosen);
    let features = features.flat_map(|(name, _)| [name, state]);
    ethtool(device, ["-K", &device.name].into_iter().chain(features))
}

fn ethtool<'a>(device: &'a Device, args: impl IntoIterator<Item = &'a str>) -> CommandLine {
    match &device.netns {
        None => CommandLine::new("ethtool", args),
        Some(path) => {
            let enter = [format!("--net={path}"), "--".to_owned(), "ethtool".to_owned()];
            CommandLine::new("nsenter", enter.into_iter().chain(args.into_iter().map(str::to_owned)))
        }
    }
}

/// Encode additions before removals, so that replacing an entry leaves no gap.
fn encode_flows(add: &[Flow], remove: &[Flow]) -> String {
    let added = add.iter().map(|f| format!("add {},cookie={:#x} actions={}\n", f.key, f.cookie, f.actions));
    let removed = remove.iter().map(|f| format!("delete_strict {},cookie={:#x}/-1\n", f.key, f.cookie));
    added.chain(removed).collect()
}

/// The clauses of one change, each an ovs-vsctl command.
fn database_clauses(change: &Change) -> Vec<Vec<String>> {
    match change {
        Change::AddBridge { name, row } => vec![clause(["add-br", name]), set("Bridge", name, row)],
        Change::SetBridge { name, row } => vec![set("Bridge", name, row)],
        Change::DeleteBridge { name } => vec![clause(["--if-exists", "del-br", name])],
        Change::SetControllers { bridge, targets } => controllers(bridge, targets),
        Change::SetTls { row } => set_tls(row),
        Change::RemoveTls => vec![clause(["del-ssl"])],
        Change::AddPort { bridge, name, port, interface, place: Place::Own } => {
            vec![
                clause(["add-port", bridge, name]),
                set("Port", name, port),
                set("Interface", name, interface),
            ]
        }
        Change::AddPort { bridge, name, port, interface, place: Place::Bond { alone } } => {
            add_member(bridge, name, port, interface, *alone)
        }
        Change::SetPort { name, port, interface } => {
            let rows =
                [("Port", port), ("Interface", interface)].into_iter().filter(|(_, row)| !row.is_empty());
            rows.map(|(table, row)| set(table, name, row)).collect()
        }
        Change::DeletePort { bridge, name, place: Place::Own } => {
            vec![clause(["--if-exists", "del-port", bridge, name])]
        }
        Change::DeletePort { bridge, place: Place::Bond { alone: true }, .. } => {
            vec![clause(["--if-exists", "del-port", bridge, BOND])]
        }
        Change::DeletePort { name, place: Place::Bond { alone: false }, .. } => {
            let id = label(name);
            vec![
                clause([&format!("--id={id}"), "get", "Interface", name]),
                clause(["remove", "Port", BOND, "interfaces", &id]),
            ]
        }
        Change::EndRestoreWait => {
            let remove = |[column, key]: [&str; 2]| clause(["remove", "Open_vSwitch", ".", column, key]);
            vec![remove(["other_config", "flow-restore-wait"]), remove(["external_ids", "sos-restoring"])]
        }
        _ => vec![],
    }
}

fn clause<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

fn set(table: &str, record: &str, row: &Row) -> Vec<String> {
    clause(["set", table, record]).into_iter().chain(assignments(row)).collect()
}

/// `set-ssl` replaces the row and sets its three files in one transaction.
fn set_tls(row: &Row) -> Vec<Vec<String>> {
    let file = |column| text(row, column);
    let ids = row.iter().filter(|(column, _)| column.contains(':'));
    let ids = ids.map(|(column, value)| (column.clone(), value.clone())).collect();
    vec![
        clause(["set-ssl", file("private_key"), file("certificate"), file("ca_cert")]),
        set("SSL", ".", &ids),
    ]
}

/// Map values are strings, and are quoted because they may contain colons or only digits. Other columns need no quotes: this program sets
/// their values.
fn assignments(row: &Row) -> impl Iterator<Item = String> {
    row.iter().map(|(column, value)| match column.contains(':') {
        true => format!("{column}={}", serde_json::Value::from(value.as_str())),
        false => format!("{column}={value}"),
    })
}

/// Create the interface of a member, and the bond with its first member. `ovs-vsctl add-bond` needs all members at once.
fn add_member(bridge: &str, name: &str, bond: &Row, interface: &Row, alone: bool) -> Vec<Vec<String>> {
    let id = label(name);
    let create = |id: &str, table: &str, name: &str| {
        clause([&format!("--id={id}"), "create", table, &format!("name={name}")])
    };
    let made = create(&id, "Interface", name).into_iter().chain(assignments(interface)).collect();
    if !alone {
        return vec![made, clause(["add", "Port", BOND, "interfaces", &id])];
    }
    let members = [format!("interfaces={id}")];
    let port = create("@bond", "Port", BOND).into_iter().chain(members).chain(assignments(bond)).collect();
    vec![made, port, clause(["add", "Bridge", bridge, "ports", "@bond"])]
}

/// Label of an interface's row within a transaction. Labels admit fewer characters than names of devices.
fn label(name: &str) -> String {
    let digits: String = name.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("@interface{digits}")
}

fn controllers(bridge: &str, targets: &[String]) -> Vec<Vec<String>> {
    let create = |(i, target): (usize, &String)| {
        let Controller { target, connection_mode, max_backoff, inactivity_probe, .. } =
            desired::controller(target);
        let mut words = vec![format!("--id=@c{i}"), "create".to_owned(), "Controller".to_owned()];
        words.push(format!("target={}", serde_json::Value::from(target)));
        words.push(format!("connection_mode={connection_mode}"));
        words.push(format!("max_backoff={max_backoff}"));
        words.push(format!("inactivity_probe={inactivity_probe}"));
        words
    };
    let rows: Vec<String> = (0..targets.len()).map(|i| format!("@c{i}")).collect();
    let assign = clause(["set", "Bridge", bridge, &format!("controller=[{}]", rows.join(","))]);
    targets.iter().enumerate().map(create).chain([assign]).collect()
}

/// Flags of a port's OpenFlow configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortFlags {
    /// Flooding excludes the port.
    pub no_flood: bool,
    /// Packets that no entry matches are not sent to controllers.
    pub no_packet_in: bool,
}

/// Parse `ovs-ofctl show` with OpenFlow 1.0: ports with their flags.
#[must_use]
pub fn parse_ports(printed: &str) -> std::collections::BTreeMap<String, PortFlags> {
    let mut ports = std::collections::BTreeMap::new();
    let mut last = None;
    for line in printed.lines() {
        if let Some((head, _)) = line.split_once("): addr:") {
            last = head.split_once('(').map(|(_, name)| name.to_owned());
        } else if let (Some(config), Some(name)) = (line.trim().strip_prefix("config:"), last.take()) {
            let has = |wanted| config.split_whitespace().any(|flag| flag == wanted);
            ports.insert(name, PortFlags { no_flood: has("NO_FLOOD"), no_packet_in: has("NO_PACKET_IN") });
        }
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ovs() -> Ovs {
        Ovs { rundir: "/run/x".into() }
    }

    #[test]
    fn adjacent_database_changes_share_a_transaction() {
        let row = Row::from([
            ("fail_mode".to_owned(), "secure".to_owned()),
            ("other_config:hwaddr".to_owned(), "06:00".to_owned()),
        ]);
        let changes = [
            Change::AddBridge { name: "b".into(), row },
            Change::SetControllers { bridge: "b".into(), targets: vec!["tcp:192.0.2.1:6653".into()] },
            Change::SetLinkUp { name: "wan0".into() },
            Change::DeletePort { bridge: "b".into(), name: "wan1".into(), place: Place::Own },
        ];
        let lines = ovs().encode(&changes);
        assert_eq!(
            lines.iter().map(|line| line.program).collect::<Vec<_>>(),
            ["ovs-vsctl", "ip", "ovs-vsctl"]
        );
        let words = lines[0].args.join(" ");
        let expected = "--timeout=4 --db=unix:/run/x/db.sock --format=json -- add-br b -- set Bridge b fail_mode=secure \
                        other_config:hwaddr=\"06:00\" -- --id=@c0 create Controller target=\"tcp:192.0.2.1:6653\" \
                        connection_mode=out-of-band max_backoff=2000 inactivity_probe=5000 -- set Bridge b controller=[@c0]";
        assert_eq!(words, expected);
    }

    #[test]
    fn a_bond_is_created_with_its_first_member_and_removed_with_its_last() {
        let row = |column: &str, value: &str| Row::from([(column.to_owned(), value.to_owned())]);
        let add = |name: &str, alone| Change::AddPort {
            bridge: "b".into(),
            name: name.into(),
            port: row("bond_mode", "active-backup"),
            interface: row("ofport_request", "33001"),
            place: Place::Bond { alone },
        };
        let delete = |name: &str, alone| {
            let (bridge, name) = ("b".into(), name.into());
            Change::DeletePort { bridge, name, place: Place::Bond { alone } }
        };
        let words = |change| ovs().encode(&[change])[0].args[3..].join(" ");
        let created = "-- --id=@interface61 create Interface name=a ofport_request=33001 ";
        assert_eq!(
            words(add("a", true)),
            format!(
                "{created}-- --id=@bond create Port name=sos-base-uplinks interfaces=@interface61 bond_mode=active-backup \
                 -- add Bridge b ports @bond"
            )
        );
        let joined = "-- add Port sos-base-uplinks interfaces @interface61";
        assert_eq!(words(add("a", false)), format!("{created}{joined}"));
        let left =
            "-- --id=@interface61 get Interface a -- remove Port sos-base-uplinks interfaces @interface61";
        assert_eq!(words(delete("a", false)), left);
        assert_eq!(words(delete("a", true)), "-- --if-exists del-port b sos-base-uplinks");
    }

    #[test]
    fn entries_are_added_before_old_entries_are_removed() {
        let key = |priority| crate::observation::flow::FlowKey { table: 1, priority, matches: "ip".into() };
        let new = Flow { key: key(1), cookie: 0x10, actions: "drop".into() };
        let old = Flow { key: key(2), cookie: 0x9, actions: "drop".into() };
        let expected = "add table=1,priority=1,ip,cookie=0x10 actions=drop\ndelete_strict table=1,priority=2,ip,cookie=0x9/-1\n";
        assert_eq!(encode_flows(&[new], &[old]), expected);
    }

    #[test]
    fn reads_the_flags_of_ports() {
        let printed = "OFPT_FEATURES_REPLY (xid=0x2): dpid:0001\nn_tables:254, n_buffers:0\n 1(wan0): addr:2e:f2:32:47:37:fa\n     \
                       config:     0\n     state:      0\n 2(wan1): addr:e2:a7:a2:36:58:b7\n     config:     PORT_DOWN NO_FLOOD NO_PACKET_IN\n \
                       LOCAL(br-sos): addr:06:2a:51:b7:d0:e4\n     config:     PORT_DOWN\n";
        let expected = [("wan0", false), ("wan1", true), ("br-sos", false)]
            .map(|(name, bit)| (name.to_owned(), PortFlags { no_flood: bit, no_packet_in: bit }));
        assert_eq!(parse_ports(printed), expected.into());
    }

    #[test]
    fn offloads_of_a_pod_are_set_in_its_namespace() {
        let device = Device { netns: Some("/run/netns/a".into()), name: "net1".into() };
        let line = set_offloads(&device, Offloads { tx: true, gro: false }, false);
        assert_eq!(
            (line.program, line.args.join(" ").as_str()),
            ("nsenter", "--net=/run/netns/a -- ethtool -K net1 tx off")
        );
    }
}
