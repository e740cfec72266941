//! Hosts beside a switch, and the state of the switch's interfaces.

use serde_json::Value;

use super::lab::{Lab, Namespace};

/// A machine with this address, connected to the interface `device` of the node.
pub(crate) fn machine(lab: &Lab, device: &str, address: &str) -> Namespace {
    let machine = Namespace::new("m");
    lab.ns.wire(device, &machine, "e0");
    machine.run("ip", &["addr", "add", address, "dev", "e0"]);
    machine
}

/// True if a host answers every ping.
pub(crate) fn ping(from: &Namespace, to: &str) -> bool {
    from.command("ping", &["-c", "3", "-i", "0.2", "-W", "2", to]).output().unwrap().status.success()
}

/// Number of ICMP messages that a host has received.
pub(crate) fn messages(host: &Namespace) -> u64 {
    let printed = host.run("cat", &["/proc/net/snmp"]);
    let values = printed.lines().filter_map(|line| line.strip_prefix("Icmp: ")).nth(1).unwrap();
    values.split(' ').next().unwrap().parse().unwrap()
}

/// Everything that the kernel shows of an interface and that a bridge may change; without carrier and counters, which change by themselves.
pub(crate) fn interface(lab: &Lab, name: &str) -> (Value, Value) {
    let printed = lab.ns.run("ip", &["-d", "-j", "addr", "show", "dev", name]);
    let mut link = serde_json::from_str::<Value>(&printed).unwrap()[0].take();
    let flags = link["flags"].as_array().unwrap().clone();
    link["flags"] = flags.into_iter().filter(|flag| flag == "UP" || flag == "PROMISC").collect();
    link["operstate"].take();
    let offloads = serde_json::from_str(&lab.ns.run("ethtool", &["--json", "-k", name])).unwrap();
    (link, offloads)
}
