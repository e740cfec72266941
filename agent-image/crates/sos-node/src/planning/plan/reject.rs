//! The veth pair at which connections that must not be plain are reset.

use super::Planner;
use crate::observation::observed::link_alias;
use crate::planning::change::Change;

impl Planner<'_> {
    pub(super) fn reject(&mut self) {
        let Some(port) = &self.config.reject_port else { return };
        let (name, peer) = (port.name.to_string(), port.peer.to_string());
        if !self.observed.links.contains_key(&name) {
            let alias = link_alias(self.config.site_id);
            self.phases.links.push(Change::AddReject { name, peer, alias });
        } else if self.observed.owns_link(&name, self.config.site_id) && self.observed.rejected.is_none() {
            self.phases.links.push(Change::SetRejectRules { peer });
        }
    }
}
