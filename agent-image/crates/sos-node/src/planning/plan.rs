//! The difference between desired and observed state.
//!
//! The order of the changes is part of the result. A non-base port may exist only while no broadcast can leave or enter through it. So ports are
//! removed before the entries that guard them, and new ports are added after all entries and after setting "no flood" on the existing ports:
//!
//! 1. devices; 2. the bridge, its settings, ports removed; 3. flags of ports; 4. base entries; 5. ports added;
//! 6. flags of the added ports; 7. offloads, and interfaces of the node that leave set down again; 8. addresses of the local port;
//! 9. unused devices removed.
//!
//! An interface of the node is set up only after the port's row has recorded that the interface was down, so that a killed process leaves
//! no interface up.
//!
//! Open vSwitch drops all entries of a bridge when the bridge gets its first controller or loses its last controller
//! (`connmgr_set_controllers`), so the base entries are installed again after such a change.
//!
//! If the device of a port is gone, or is not the device for which the port was added, the port is removed. Only the next plan adds the
//! port again: Open vSwitch would see no difference if one transaction removed and added the port. The next plan also sets the offloads of
//! the new device, and adds the port of a tunnel whose device this plan creates: the device and its index are unknown until then.
//!
//! A new port floods for the moment between steps 5 and 6; the entries of the same config at the other end of the link drop that traffic.
//! While Open vSwitch has no entries, as after its start, `fail_mode=secure` drops all packets.

mod bond;
mod refusal;
mod reject;
mod tls;
mod tunnels;

use std::collections::BTreeMap;

use crate::config::{NodeConfig, Presence};
use crate::observation::flow::{Flow, FlowKey};
use crate::observation::observed::{
    Controller, DEVICE_KEY, Device, LINK_DOWN, LINK_KEY, Link, OFFLOADS_KEY, Observed, Port, Row, text,
};
use crate::planning::change::{Change, Place};
use crate::planning::datapath;
use crate::planning::desired::{self, DesiredPort, PortKind};
use crate::planning::problem::Problem;
use crate::planning::vlan;

/// Changes to make, and problems that no change solves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes in order of execution.
    pub changes: Vec<Change>,
    /// Problems that no change solves.
    pub problems: Vec<Problem>,
}

/// Compare a config with the observed state. `base_flows` are the config's base entries as Open vSwitch prints them
/// ([`crate::observation::flow::parse_base_flows`]).
#[must_use]
pub fn plan(config: &NodeConfig, base_flows: &[Flow], observed: &Observed) -> Plan {
    let bridge = config.bridge.name.as_str();
    let mut planner = Planner { config, observed, phases: Phases::default(), problems: vec![] };
    let exists = observed.bridges.contains_key(bridge);
    if config.state == Presence::Present && exists && !observed.owns_bridge(bridge, config.site_id) {
        planner.problems.push(Problem::ForeignBridge { bridge: bridge.to_owned() });
        return planner.finish();
    }
    if config.state == Presence::Present && datapath::is_refused(config, observed) {
        planner.problems.push(Problem::DatapathTaken { bridge: bridge.to_owned() });
        if !exists {
            return planner.finish();
        }
    }
    if observed.ovs.restore_wait && !observed.restore_overdue {
        // Leave the switch unchanged while its entries are being restored after a start.
        planner.problems.push(Problem::RestoreWait);
        return planner.finish();
    }
    if observed.ovs.restore_wait {
        planner.phases.database.push(Change::EndRestoreWait);
    }
    planner.leftover_ports();
    planner.leftover_bridges();
    planner.tls();
    if config.state == Presence::Present {
        planner.bridge();
        planner.tunnels();
        planner.reject();
        planner.ports();
        planner.bond();
        planner.flows(&[base_flows, &vlan::entries(config, observed)].concat());
        planner.stranded();
        planner.offloads();
        planner.local_addresses();
    }
    planner.leftover_links();
    planner.finish()
}

/// Changes by the step of their execution; see the top of this file.
#[derive(Default)]
struct Phases {
    links: Vec<Change>,
    database: Vec<Change>,
    no_flood: Vec<Change>,
    flows: Vec<Change>,
    attach: Vec<Change>,
    no_flood_new: Vec<Change>,
    offloads: Vec<Change>,
    addresses: Vec<Change>,
    unlink: Vec<Change>,
}

struct Planner<'a> {
    config: &'a NodeConfig,
    observed: &'a Observed,
    phases: Phases,
    problems: Vec<Problem>,
}

impl<'a> Planner<'a> {
    fn finish(self) -> Plan {
        let p = self.phases;
        let before = [p.links, p.database, p.no_flood, p.flows];
        let after = [p.attach, p.no_flood_new, p.offloads, p.addresses, p.unlink];
        let steps = before.into_iter().chain(after);
        let mut changes: Vec<Change> = steps.flatten().collect();
        bond::settle(&mut changes, self.observed, self.config.site_id);
        Plan { changes, problems: self.problems }
    }

    fn bridge_name(&self) -> &'a str {
        self.config.bridge.name.as_str()
    }

    fn owns_port(&self, name: &str) -> bool {
        self.observed.owns_port(name, self.config.site_id)
    }

    /// Remove our ports that are not in the config, or are on another bridge.
    fn leftover_ports(&mut self) {
        let wanted: Vec<DesiredPort> = desired::ports(self.config);
        for (name, port) in &self.observed.ports {
            let Some(bridge) = self.observed.bridge_of(name).filter(|_| self.owns_port(name)) else {
                continue;
            };
            let here = bridge == self.bridge_name();
            if here && (wanted.iter().any(|wanted| wanted.name == *name) || self.is_leaving(name, port)) {
                continue;
            }
            self.detach(bridge, name, port);
        }
    }

    /// True for the port of an agent that is no longer in the config but still runs. The agent finishes its sessions through the port. The
    /// port is removed after its device has disappeared with the agent.
    fn is_leaving(&self, name: &str, port: &Port) -> bool {
        self.config.state == Presence::Present
            && desired::is_agent_port(&port.interface)
            && self.observed.links.contains_key(name)
    }

    fn detach(&mut self, bridge: &str, name: &str, port: &Port) {
        let (bridge, name_) = (bridge.to_owned(), name.to_owned());
        self.phases.database.push(Change::DeletePort { bridge, name: name_, place: bond::place_of(port) });
        let which = desired::parse_offloads(text(&port.row, OFFLOADS_KEY));
        // Restore only the device for which the port was added: a device that has replaced it was never changed.
        if !self.observed.links.get(name).is_some_and(|link| may_be_of(port, link)) {
            return;
        }
        if which.tx || which.gro {
            let device = Device { netns: None, name: name.to_owned() };
            self.phases.offloads.push(Change::SetOffloads { device, which, on: true });
        }
        if text(&port.row, LINK_KEY) == LINK_DOWN {
            self.phases.offloads.push(Change::SetLinkDown { name: name.to_owned() });
        }
    }

    /// Remove our bridges that are not in the config, unless they have foreign ports.
    fn leftover_bridges(&mut self) {
        for (name, bridge) in &self.observed.bridges {
            let kept = self.config.state == Presence::Present && name == self.bridge_name();
            if kept || !self.observed.owns_bridge(name, self.config.site_id) {
                continue;
            }
            let others = bridge.ports.iter().filter(|port| *port != name && !self.owns_port(port));
            let others: Vec<String> = others.cloned().collect();
            if others.is_empty() {
                self.phases.database.push(Change::DeleteBridge { name: name.clone() });
                continue;
            }
            if !bridge.controllers.is_empty() {
                self.phases.database.push(Change::SetControllers { bridge: name.clone(), targets: vec![] });
            }
            self.problems.push(Problem::BridgeInUse { bridge: name.clone(), ports: others });
            if name == self.bridge_name() {
                self.flows(&[]);
            }
        }
    }

    /// Remove our devices that are not in the config, after their ports.
    fn leftover_links(&mut self) {
        let wanted = desired::ports(self.config);
        for (name, link) in &self.observed.links {
            if !self.observed.owns_link(name, self.config.site_id)
                || wanted.iter().any(|port| port.name == *name)
            {
                continue;
            }
            match link.kind.as_deref() {
                Some("vxlan") => self.phases.unlink.push(Change::DeleteLink { name: name.clone() }),
                Some("veth") => self.phases.unlink.push(Change::DeleteReject { name: name.clone() }),
                _ => {}
            }
        }
    }

    fn bridge(&mut self) {
        let name = self.bridge_name().to_owned();
        let wanted = desired::bridge_row(self.config, self.observed);
        let observed = self.observed.bridges.get(&name);
        match observed {
            None => self.phases.database.push(Change::AddBridge { name: name.clone(), row: wanted }),
            Some(bridge) => {
                let row = missing(wanted, &bridge.row);
                if !row.is_empty() {
                    self.phases.database.push(Change::SetBridge { name: name.clone(), row });
                }
            }
        }
        self.local_mtu(&name);
        let wanted = desired::controllers(self.config);
        let current = observed.map_or(&[][..], |bridge| &bridge.controllers);
        if !same_controllers(&wanted, current) {
            let targets = wanted.into_iter().map(|controller| controller.target).collect();
            self.phases.database.push(Change::SetControllers { bridge: name, targets });
        }
    }

    /// Set the local port's MTU: by default it follows the smallest MTU of the other ports.
    fn local_mtu(&mut self, bridge: &str) {
        let wanted = Row::from([("mtu_request".to_owned(), self.config.bridge.mtu.to_string())]);
        let current = self.observed.ports.get(bridge).map(|port| port.interface.clone()).unwrap_or_default();
        let interface = missing(wanted, &current);
        if !interface.is_empty() {
            let port = Row::new();
            self.phases.database.push(Change::SetPort { name: bridge.to_owned(), port, interface });
        }
    }

    fn ports(&mut self) {
        for port in desired::ports(self.config) {
            let link = self.observed.links.get(&port.name);
            let attached = self.observed.bridge_of(&port.name);
            if let Some(reason) = self.refusal(&port, link, attached) {
                self.problems.push(Problem::Refused { port: port.name.clone(), reason });
                if let (Some(bridge), true) = (attached, self.owns_port(&port.name)) {
                    self.detach(bridge, &port.name, &self.observed.ports[&port.name]);
                }
                continue;
            }
            if link.is_none() && !matches!(port.kind, PortKind::Tunnel | PortKind::Reject) {
                self.problems.push(Problem::Waiting { port: port.name.clone() });
            }
            if let Some(link) = link {
                self.link_state(&port, link);
            }
            let lasting = link.filter(|_| !self.replaced(&port.name));
            let outlived = self.outlived_its_device(&port, lasting);
            match (attached, lasting) {
                (Some(bridge), _) if bridge == self.bridge_name() && outlived => {
                    let (bridge, name) = (bridge.to_owned(), port.name.clone());
                    let place = bond::place_of(&self.observed.ports[&name]);
                    self.phases.database.push(Change::DeletePort { bridge, name, place });
                }
                // The port joins or leaves the bond: it is removed now, and added in its place by the next plan.
                (Some(bridge), Some(_)) if bridge == self.bridge_name() && self.is_misplaced(&port) => {
                    self.detach(bridge, &port.name, &self.observed.ports[&port.name]);
                }
                (Some(bridge), _) if bridge == self.bridge_name() => self.mend_port(&port, link),
                (_, Some(link)) if !outlived => self.attach(&port, link),
                _ => {}
            }
        }
    }

    /// True if our port was added for a device that no longer exists. `link` is the device with this name after this plan.
    fn outlived_its_device(&self, port: &DesiredPort, link: Option<&Link>) -> bool {
        let Some(there) = self.observed.ports.get(&port.name).filter(|_| self.owns_port(&port.name)) else {
            return false;
        };
        // A port without a stored ifindex may still be on the old device. An agent's port is therefore removed, and the next plan adds it
        // again within a moment. For other ports, the interruption would be longer and more likely than the fault (spec/node-config.md
        // clause 30).
        let doubtful = port.kind == PortKind::Agent && text(&there.row, DEVICE_KEY).is_empty();
        doubtful || !link.is_some_and(|link| may_be_of(there, link))
    }

    fn is_misplaced(&self, port: &DesiredPort) -> bool {
        self.owns_port(&port.name) && self.observed.ports[&port.name].bonded != port.bonded
    }

    fn link_state(&mut self, port: &DesiredPort, link: &Link) {
        // `attach` sets up interfaces of the node that are not on the bridge yet.
        let ready = !port.kind.is_interface() || self.owns_port(&port.name);
        if !link.up && ready && !self.replaced(&port.name) {
            self.phases.links.push(Change::SetLinkUp { name: port.name.clone() });
        }
        let wanted = self.config.bridge.mtu;
        if link.mtu < wanted && !matches!(port.kind, PortKind::Tunnel | PortKind::Reject) {
            self.problems.push(Problem::Mtu { port: port.name.clone(), mtu: link.mtu, wanted });
        }
    }

    /// True if this plan recreates the device, so that its present state does not matter.
    fn replaced(&self, device: &str) -> bool {
        self.phases
            .links
            .iter()
            .any(|change| matches!(change, Change::AddTunnel { name, .. } if name == device))
    }

    /// True if this plan removes the port. The plan that adds the port again also sets the offloads of its device.
    fn taken_off(&self, port: &str) -> bool {
        self.phases
            .database
            .iter()
            .any(|change| matches!(change, Change::DeletePort { name, .. } if name == port))
    }

    /// Offloads to store in a port's row: the stored offloads, or else the offloads that are on now.
    fn remembered(&self, port: &DesiredPort) -> Option<String> {
        if !port.kind.is_interface() || !desired::offloads_must_be_off(self.config, self.observed) {
            return None;
        }
        let row = self.observed.ports.get(&port.name).map(|port| &port.row);
        let known = row.and_then(|row| row.get(OFFLOADS_KEY)).filter(|_| self.owns_port(&port.name));
        let device = Device { netns: None, name: port.name.clone() };
        known.cloned().or_else(|| self.observed.offloads.get(&device).copied().map(desired::encode_offloads))
    }

    fn attach(&mut self, port: &DesiredPort, link: &Link) {
        let bridge = self.bridge_name().to_owned();
        let mut row = port.port_row(self.config.site_id, Some(link.index), self.remembered(port));
        let was_down = port.kind.is_interface() && !link.up;
        if was_down {
            row.insert(LINK_KEY.to_owned(), LINK_DOWN.to_owned());
        }
        let place = if port.bonded { Place::Bond { alone: false } } else { Place::Own };
        let (row, interface) = bond::rows(port, row, desired::bond_row(self.config));
        let (bridge_, name) = (bridge.clone(), port.name.clone());
        self.phases.attach.push(Change::AddPort { bridge: bridge_, name, port: row, interface, place });
        if was_down {
            self.phases.attach.push(Change::SetLinkUp { name: port.name.clone() });
        }
        if port.no_flood() {
            let port = port.name.clone();
            let bridge = bridge.clone();
            self.phases.no_flood_new.push(Change::SetNoFlood { bridge, port, no_flood: true });
        }
        if port.is_watched() {
            self.phases.no_flood_new.push(Change::SetNoPacketIn { bridge, port: port.name.clone() });
        }
    }

    /// Correct a port that is on the bridge. Foreign ports stay unchanged, even if their name is in the config.
    fn mend_port(&mut self, wanted: &DesiredPort, link: Option<&Link>) {
        let name = wanted.name.clone();
        let observed = &self.observed.ports[&name];
        if self.owns_port(&name) {
            let device = link.map(|link| link.index);
            let row = wanted.port_row(self.config.site_id, device, self.remembered(wanted));
            let mut port = missing(row, &observed.row);
            let mut interface = missing(wanted.interface_row(), &observed.interface);
            if wanted.bonded {
                interface.append(&mut port);
            }
            if !port.is_empty() || !interface.is_empty() {
                self.phases.database.push(Change::SetPort { name: name.clone(), port, interface });
            }
            if self.observed.no_flood.get(&name).is_some_and(|no_flood| *no_flood != wanted.no_flood()) {
                let (bridge, no_flood) = (self.bridge_name().to_owned(), wanted.no_flood());
                self.phases.no_flood.push(Change::SetNoFlood { bridge, port: name.clone(), no_flood });
            }
            if wanted.is_watched() && self.observed.no_packet_in.get(&name) == Some(&false) {
                let bridge = self.bridge_name().to_owned();
                self.phases.no_flood.push(Change::SetNoPacketIn { bridge, port: name.clone() });
            }
        }
        if let Some(number) = observed.ofport.filter(|number| *number != wanted.ofport) {
            self.problems.push(Problem::PortNumber { port: name.clone(), wanted: wanted.ofport, number });
        }
        if let (Some(error), Some(_)) = (&observed.error, link) {
            self.problems.push(Problem::PortError { port: name, error: error.clone() });
        }
    }

    /// True if setting the controllers makes Open vSwitch drop the entries of the bridge.
    fn flushes(&self) -> bool {
        let current =
            self.observed.bridges.get(self.bridge_name()).map_or(&[][..], |bridge| &bridge.controllers);
        self.phases.database.iter().any(|change| match change {
            Change::SetControllers { bridge, targets } => {
                bridge == self.bridge_name() && targets.is_empty() != current.is_empty()
            }
            _ => false,
        })
    }

    fn flows(&mut self, wanted: &[Flow]) {
        let observed = if self.flushes() { &[][..] } else { &self.observed.flows };
        let current: BTreeMap<&FlowKey, &Flow> = observed.iter().map(|flow| (&flow.key, flow)).collect();
        let keys: std::collections::BTreeSet<&FlowKey> = wanted.iter().map(|flow| &flow.key).collect();
        let mut add = vec![];
        for flow in wanted {
            match current.get(&flow.key) {
                Some(there)
                    if there.actions == flow.actions && (there.cookie == flow.cookie || !there.is_base()) => {
                }
                Some(there) if !there.is_base() => {
                    self.problems.push(Problem::FlowTaken { key: flow.key.clone(), cookie: there.cookie });
                }
                _ => add.push(flow.clone()),
            }
        }
        let stale = observed.iter().filter(|flow| flow.is_base() && !keys.contains(&flow.key));
        let remove: Vec<Flow> = stale.cloned().collect();
        if !add.is_empty() || !remove.is_empty() {
            let bridge = self.bridge_name().to_owned();
            self.phases.flows.push(Change::EditFlows { bridge, add, remove });
        }
    }

    /// Delete session entries of departed agents. The agent's end of each connection is gone, too. If the host opens the same connection
    /// again, it must be forwarded as plain traffic, with or without a controller.
    fn stranded(&mut self) {
        let bridge = self.bridge_name();
        let changes = self.observed.stranded.iter();
        let changes =
            changes.map(|ofport| Change::ForgetAgent { bridge: bridge.to_owned(), ofport: *ofport });
        self.phases.flows.extend(changes);
    }

    /// Restore addresses and routes that the local port lost when it was recreated.
    fn local_addresses(&mut self) {
        let device = self.bridge_name();
        let lost = &self.observed.lost;
        if lost.is_empty() {
            return;
        }
        let changes = &mut self.phases.addresses;
        if self.observed.links.get(device).is_some_and(|link| !link.up) {
            changes.push(Change::SetLinkUp { name: device.to_owned() });
        }
        let address =
            |address: &String| Change::AddAddress { device: device.to_owned(), address: address.clone() };
        changes.extend(lost.addresses.iter().map(address));
        let route = |route: &String| Change::AddRoute { device: device.to_owned(), route: route.clone() };
        changes.extend(lost.routes.iter().map(route));
    }

    fn offloads(&mut self) {
        if self.config.bridge.userspace_tso
            && !self.observed.ovs.tso
            && datapath::datapath_type(self.config, self.observed) == "netdev"
        {
            self.problems.push(Problem::TsoOff);
        }
        for device in desired::offload_devices(self.config, self.observed) {
            let which = self.observed.offloads.get(&device).copied().unwrap_or_default();
            let refused = self.problems.iter().any(
                |p| matches!(p, Problem::Refused { port, .. } if device.netns.is_none() && *port == device.name),
            );
            let leaves =
                device.netns.is_none() && (self.replaced(&device.name) || self.taken_off(&device.name));
            if (which.tx || which.gro) && !refused && !leaves {
                self.phases.offloads.push(Change::SetOffloads { device, which, on: false });
            }
        }
    }
}

/// True unless a port's row names another device.
fn may_be_of(port: &Port, link: &Link) -> bool {
    let known = text(&port.row, DEVICE_KEY);
    known.is_empty() || known == link.index.to_string()
}

/// The columns that differ from the desired row.
fn missing(wanted: Row, current: &Row) -> Row {
    wanted.into_iter().filter(|(column, value)| text(current, column) != value).collect()
}

fn same_controllers(wanted: &[Controller], current: &[Controller]) -> bool {
    let bare = |controller: &Controller| Controller { connected: false, ..controller.clone() };
    current.iter().map(bare).eq(wanted.iter().cloned())
}
