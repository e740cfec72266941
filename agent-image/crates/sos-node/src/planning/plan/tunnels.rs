//! The devices of tunnels.

use super::Planner;
use crate::config::Tunnel;
use crate::observation::observed::{Device, Link, Offloads, Vxlan, link_alias};
use crate::planning::change::Change;
use crate::planning::desired;

impl Planner<'_> {
    pub(super) fn tunnels(&mut self) {
        for tunnel in &self.config.tunnels {
            match self.observed.links.get(tunnel.name.as_str()) {
                None => self.add_tunnel(tunnel),
                Some(link) => self.mend_tunnel(tunnel, link),
            }
        }
    }

    fn add_tunnel(&mut self, tunnel: &Tunnel) {
        self.phases.links.push(Change::AddTunnel {
            name: tunnel.name.to_string(),
            vni: tunnel.vni,
            remote: tunnel.remote,
            udp_port: tunnel.udp_port,
            mtu: self.config.bridge.mtu,
            alias: link_alias(self.config.site_id),
        });
        if desired::offloads_must_be_off(self.config, self.observed) {
            let device = Device { netns: None, name: tunnel.name.to_string() };
            let which = Offloads { tx: true, gro: true };
            self.phases.offloads.push(Change::SetOffloads { device, which, on: false });
        }
    }

    fn mend_tunnel(&mut self, tunnel: &Tunnel, link: &Link) {
        let name = tunnel.name.to_string();
        let ours = self.observed.owns_link(&name, self.config.site_id);
        if !ours && foreign_tunnel(tunnel, link) {
            return; // `refusal` reports it.
        }
        if ours && !fits(tunnel, link) {
            self.phases.links.push(Change::DeleteLink { name });
            return self.add_tunnel(tunnel);
        }
        if !ours {
            let alias = link_alias(self.config.site_id);
            self.phases.links.push(Change::TagLink { name: name.clone(), alias });
        }
        let mtu = self.config.bridge.mtu;
        if link.mtu != mtu {
            self.phases.links.push(Change::SetLinkMtu { name, mtu });
        }
    }
}

fn fits(tunnel: &Tunnel, link: &Link) -> bool {
    let wanted = Vxlan { vni: tunnel.vni, remote: tunnel.remote, udp_port: tunnel.udp_port };
    link.vxlan.as_ref() == Some(&wanted)
}

/// True for a foreign device. A device without a mark but with the tunnel's parameters is ours: the process ended before it set the mark.
pub(super) fn foreign_tunnel(tunnel: &Tunnel, link: &Link) -> bool {
    link.alias.is_some() || !fits(tunnel, link)
}
