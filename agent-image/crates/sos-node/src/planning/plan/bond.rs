//! The bond of the base uplinks (spec/node-config.md clause 42).

use std::collections::BTreeSet;

use super::{Planner, missing};
use crate::observation::observed::{BOND, Observed, Port, Row};
use crate::planning::change::{Change, Place};
use crate::planning::desired::{self, DesiredPort};

impl Planner<'_> {
    /// Correct the row of a bond that keeps a member; a bond without members is removed, and created with the correct row.
    pub(super) fn bond(&mut self) {
        let (Some(wanted), Some(current)) = (desired::bond_row(self.config), &self.observed.bond) else {
            return;
        };
        let stays = self.observed.ports.iter().any(|(name, port)| port.bonded && !self.taken_off(name));
        let port = missing(wanted, current);
        if stays && !port.is_empty() && self.observed.owns_bond(self.config.site_id) {
            let (name, interface) = (BOND.to_owned(), Row::new());
            self.phases.database.push(Change::SetPort { name, port, interface });
        }
    }
}

/// Place of an observed port.
pub(super) fn place_of(port: &Port) -> Place {
    if port.bonded { Place::Bond { alone: false } } else { Place::Own }
}

/// Rows of a port that is added: of the port or bond, and of the interface.
pub(super) fn rows(port: &DesiredPort, own: Row, bond: Option<Row>) -> (Row, Row) {
    match bond.filter(|_| port.bonded) {
        Some(bond) => (bond, port.interface_row().into_iter().chain(own).collect()),
        None => (own, port.interface_row()),
    }
}

/// Mark the changes that create or remove the bond with a member, given the order of execution.
pub(super) fn settle(changes: &mut [Change], observed: &Observed, site_id: u16) {
    let ours = observed.owns_bond(site_id);
    let bonded = observed.ports.iter().filter(|(_, port)| port.bonded && ours);
    let mut members: BTreeSet<String> = bonded.map(|(name, _)| name.clone()).collect();
    for change in changes {
        match change {
            Change::DeletePort { name, place: Place::Bond { alone }, .. } => {
                members.remove(name);
                *alone = members.is_empty();
            }
            Change::AddPort { name, place: Place::Bond { alone }, .. } => {
                *alone = members.is_empty();
                members.insert(name.clone());
            }
            _ => {}
        }
    }
}
