//! Reasons to keep a port off the bridge.

use super::{Planner, tunnels};
use crate::observation::observed::{Link, Observed};
use crate::planning::desired::{DesiredPort, PortKind};
use crate::planning::trial::RETRY_AFTER;

/// Maximum number of stacked devices that are followed downwards.
const MAX_STACK: usize = 8;

impl Planner<'_> {
    pub(super) fn refusal(
        &self,
        port: &DesiredPort,
        link: Option<&Link>,
        attached: Option<&str>,
    ) -> Option<String> {
        if let Some(bridge) = attached.filter(|b| *b != self.bridge_name() && !self.owns_port(&port.name)) {
            return Some(format!("it is on bridge {bridge}"));
        }
        let link = link?;
        if let Some(master) = link.master.as_deref().filter(|master| *master != "ovs-system") {
            return Some(format!("it belongs to {master}"));
        }
        match port.kind {
            PortKind::Uplink | PortKind::Lan => self.cuts_off(&port.name, link),
            PortKind::Tunnel => {
                let tunnel = self.config.tunnels.iter().find(|tunnel| tunnel.name.as_str() == port.name)?;
                let ours = self.observed.owns_link(&port.name, self.config.site_id);
                (!ours && tunnels::foreign_tunnel(tunnel, link))
                    .then(|| "a device of that name is not ours".to_owned())
            }
            PortKind::Reject => (!self.observed.owns_link(&port.name, self.config.site_id))
                .then(|| "a device of that name is not ours".to_owned()),
            PortKind::Agent => None,
        }
    }

    /// The node's own use of a device, if any. A bridge that contained the device would receive its packets and interrupt this use.
    fn cuts_off(&self, name: &str, link: &Link) -> Option<String> {
        if let Some(lost) = self.observed.cut_off.get(name) {
            let minutes = RETRY_AFTER.as_secs() / 60;
            return Some(format!(
                "with it on the bridge, the node no longer reached {lost}; it is tried again every {minutes} minutes \
                 while the site has this interface"
            ));
        }
        if let Some(use_) = use_of(link) {
            return Some(format!("it carries {use_}"));
        }
        let above = self.observed.links.iter().filter(|(above, _)| stands_on(self.observed, above, name));
        above
            .filter_map(|(above, link)| {
                Some(format!("{above}, which is stacked on it, carries {}", use_of(link)?))
            })
            .next()
    }
}

fn use_of(link: &Link) -> Option<String> {
    if link.default_route {
        return Some("the node's default route".to_owned());
    }
    if let Some(address) = link.addresses.first() {
        return Some(format!("the address {address}"));
    }
    link.routes.first().map(|route| format!("the node's route to {route}"))
}

/// True if a device is stacked on another device, directly or through further devices.
fn stands_on(observed: &Observed, above: &str, below: &str) -> bool {
    let mut name = above;
    for _ in 0..MAX_STACK {
        match observed.links.get(name).and_then(|link| link.lower.as_deref()) {
            Some(lower) if lower == below => return true,
            Some(lower) => name = lower,
            None => return false,
        }
    }
    false
}
