//! A node in memory that applies changes, with the relevant rules of Open vSwitch and the kernel.

use std::collections::BTreeMap;

use sos_node::config::NodeConfig;
use sos_node::observation::flow::Flow;
use sos_node::observation::observed::{
    BOND, Bridge, Device, Link, Observed, Offloads, Port, Row, TlsFolder, Vxlan,
};
use sos_node::observation::reject::Rejected;
use sos_node::planning::change::{Change, Place};
use sos_node::planning::desired;

/// The node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FakeNode {
    /// State, except offloads.
    pub(crate) world: Observed,
    /// Offloads of all devices.
    pub(crate) offloads: BTreeMap<Device, Offloads>,
    /// Index of the newest device; no index is assigned twice.
    pub(crate) last_index: u32,
}

impl FakeNode {
    /// Observes the node for a config, like the edge.
    pub(crate) fn observe(&self, config: &NodeConfig) -> Observed {
        let devices = desired::offload_devices(config, &self.world);
        let offloads =
            devices.into_iter().map(|d| (d.clone(), self.offloads.get(&d).copied().unwrap_or_default()));
        let tls = Some(TlsFolder { path: "/tls".into(), unreadable: None });
        Observed { offloads: offloads.collect(), tls, ..self.world.clone() }
    }

    /// Replace a device by another device of the same name, with its own index and offloads.
    pub(crate) fn replace_device(&mut self, name: &str, offloads: Offloads) {
        self.last_index += 1;
        link(&mut self.world, name).index = self.last_index;
        self.offloads.insert(Device { netns: None, name: name.to_owned() }, offloads);
    }

    /// Apply a change; panics on a change that the real system would refuse.
    pub(crate) fn apply(&mut self, change: &Change) {
        let world = &mut self.world;
        match change {
            Change::AddTunnel { name, vni, remote, udp_port, mtu, alias } => {
                let vxlan = Some(Vxlan { vni: *vni, remote: *remote, udp_port: *udp_port });
                let twin =
                    |l: &Link| l.vxlan.as_ref().is_some_and(|v| (v.vni, v.udp_port) == (*vni, *udp_port));
                assert!(!world.links.values().any(twin), "the kernel refuses a second device of one VNI");
                let kind = Some("vxlan".into());
                let link = Link {
                    up: true,
                    carrier: true,
                    mtu: *mtu,
                    alias: Some(alias.clone()),
                    kind,
                    vxlan,
                    ..Link::default()
                };
                assert!(world.links.insert(name.clone(), link).is_none(), "{name} exists");
                self.replace_device(name, Offloads { tx: true, gro: true });
            }
            Change::AddReject { name, alias, .. } => {
                let (alias, kind) = (Some(alias.clone()), Some("veth".into()));
                let link = Link { up: true, carrier: true, mtu: 1500, alias, kind, ..Link::default() };
                assert!(world.links.insert(name.clone(), link).is_none(), "{name} exists");
                world.rejected = Some(Rejected::default());
                self.replace_device(name, Offloads { tx: true, gro: true });
            }
            Change::SetRejectRules { .. } => world.rejected = Some(Rejected::default()),
            Change::DeleteReject { name } => {
                assert!(!world.ports.contains_key(name), "{name} is on the bridge");
                world.links.remove(name).unwrap();
                world.rejected = None;
                self.offloads.remove(&Device { netns: None, name: name.clone() });
            }
            Change::TagLink { name, alias } => link(world, name).alias = Some(alias.clone()),
            Change::SetLinkMtu { name, mtu } => link(world, name).mtu = *mtu,
            Change::SetLinkUp { name } => link(world, name).up = true,
            Change::SetLinkDown { name } => link(world, name).up = false,
            Change::DeleteLink { name } => {
                world.links.remove(name).unwrap();
                self.offloads.remove(&Device { netns: None, name: name.clone() });
            }
            Change::SetNoFlood { bridge, port, no_flood } => {
                assert!(world.bridges[bridge].ports.contains(port));
                world.no_flood.insert(port.clone(), *no_flood);
            }
            Change::SetNoPacketIn { bridge, port } => {
                assert!(world.bridges[bridge].ports.contains(port));
                assert_eq!(world.ports[port].interface["bfd:enable"], "true", "{port} is not watched");
                world.no_packet_in.insert(port.clone(), true);
            }
            Change::EditFlows { bridge, add, remove } => {
                assert!(world.bridges.contains_key(bridge));
                edit_flows(&mut world.flows, add, remove);
            }
            Change::SetOffloads { device, which, on } => {
                let offloads = self.offloads.entry(device.clone()).or_default();
                offloads.tx = if which.tx { *on } else { offloads.tx };
                offloads.gro = if which.gro { *on } else { offloads.gro };
            }
            Change::ForgetAgent { ofport, .. } => {
                world.stranded.remove(ofport);
            }
            Change::AddAddress { address, .. } => world.lost.addresses.retain(|lost| lost != address),
            Change::AddRoute { route, .. } => world.lost.routes.retain(|lost| lost != route),
            Change::EndRestoreWait => {
                world.ovs.restore_wait = false;
                world.restore_overdue = false;
            }
            change => database(world, change),
        }
    }
}

fn link<'a>(world: &'a mut Observed, name: &str) -> &'a mut Link {
    world.links.get_mut(name).unwrap_or_else(|| panic!("there is no device {name}"))
}

fn edit_flows(flows: &mut Vec<Flow>, add: &[Flow], remove: &[Flow]) {
    for flow in add {
        flows.retain(|there| there.key != flow.key);
        flows.push(flow.clone());
    }
    for flow in remove {
        flows.retain(|there| there.key != flow.key || there.cookie != flow.cookie);
    }
}

fn database(world: &mut Observed, change: &Change) {
    match change {
        Change::AddBridge { name, row } => {
            let bridge = Bridge { row: row.clone(), ports: [name.clone()].into(), controllers: vec![] };
            assert!(world.bridges.insert(name.clone(), bridge).is_none());
            assert!(
                world.ports.insert(name.clone(), Port { ofport: Some(65_534), ..Port::default() }).is_none()
            );
        }
        Change::SetBridge { name, row } => world.bridges.get_mut(name).unwrap().row.extend(row.clone()),
        Change::DeleteBridge { name } => {
            let bridge = world.bridges.remove(name).unwrap();
            world.ports.retain(|port, _| !bridge.ports.contains(port));
            world.no_flood.retain(|port, _| !bridge.ports.contains(port));
            world.no_packet_in.retain(|port, _| !bridge.ports.contains(port));
            world.bond = world.bond.take().filter(|_| world.ports.values().any(|port| port.bonded));
            if name == "br-sos" {
                world.flows.clear();
            }
        }
        Change::SetControllers { bridge, targets } => {
            let row = world.bridges.get_mut(bridge).unwrap();
            if row.controllers.is_empty() != targets.is_empty() && bridge == "br-sos" {
                world.flows.clear();
            }
            row.controllers = targets.iter().map(|t| desired::controller(t)).collect();
        }
        Change::SetTls { row } => world.ssl = Some(row.clone()),
        Change::RemoveTls => assert!(world.ssl.take().is_some()),
        Change::AddPort { bridge, name, port, interface, place } => {
            assert!(world.links.contains_key(name), "Open vSwitch finds no device {name}");
            let port = &bond(world, place, port, interface);
            assert!(world.bridges.get_mut(bridge).unwrap().ports.insert(name.clone()));
            let ofport = free_number(world, bridge, &interface["ofport_request"]);
            let port = Port {
                row: port.clone(),
                interface: interface.clone(),
                ofport: Some(ofport),
                more_ofports: vec![],
                bonded: matches!(place, Place::Bond { .. }),
                error: None,
            };
            assert!(world.ports.insert(name.clone(), port).is_none(), "{name} is on another bridge");
            world.no_flood.insert(name.clone(), false);
            world.no_packet_in.insert(name.clone(), false);
        }
        Change::SetPort { name, port, .. } if name == BOND => {
            world.bond.as_mut().unwrap().extend(port.clone());
        }
        Change::SetPort { name, port, interface } => {
            let request = interface.get("ofport_request").cloned();
            let there = world.ports.get_mut(name).unwrap();
            if there.bonded {
                assert!(port.is_empty(), "{name} has no port of its own");
                there.row.extend(external_ids(interface));
            }
            there.row.extend(port.clone());
            there.interface.extend(interface.clone());
            if let Some(request) = request {
                let bridge = world.bridge_of(name).unwrap().to_owned();
                let number = free_number(world, &bridge, &request);
                world.ports.get_mut(name).unwrap().ofport = Some(number);
            }
        }
        Change::DeletePort { bridge, name, place } => {
            assert!(world.bridges.get_mut(bridge).unwrap().ports.remove(name));
            let port = world.ports.remove(name).unwrap();
            let alone = !world.ports.values().any(|port| port.bonded);
            assert_eq!(*place, if port.bonded { Place::Bond { alone } } else { Place::Own });
            world.bond = world.bond.take().filter(|_| !(port.bonded && alone));
            world.no_flood.remove(name);
            world.no_packet_in.remove(name);
        }
        other => panic!("{other:?} is no change of the database"),
    }
}

/// Row of an added port. A bond exists exactly while it has members, whose own keys are in their interfaces' rows.
fn bond(world: &mut Observed, place: &Place, port: &Row, interface: &Row) -> Row {
    let Place::Bond { alone } = place else { return port.clone() };
    assert_eq!(*alone, world.bond.is_none());
    world.bond.get_or_insert_with(|| port.clone());
    external_ids(interface).collect()
}

fn external_ids(row: &Row) -> impl Iterator<Item = (String, String)> {
    row.clone().into_iter().filter(|(column, _)| column.starts_with("external_ids:"))
}

/// The requested number, or the lowest free number if the requested number is in use.
fn free_number(world: &Observed, bridge: &str, request: &str) -> u16 {
    let names = &world.bridges[bridge].ports;
    let taken: Vec<u16> = names.iter().filter_map(|name| world.ports.get(name)?.ofport).collect();
    let wanted = request.parse().unwrap();
    if taken.contains(&wanted) { (1..).find(|n| !taken.contains(n)).unwrap() } else { wanted }
}
