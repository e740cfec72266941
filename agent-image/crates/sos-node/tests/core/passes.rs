//! Plans and passes on a node in memory.

use crate::support::base_flows;
use crate::support::fake::FakeNode;
use sos_node::config::NodeConfig;
use sos_node::edge::node::MAX_ROUNDS;
use sos_node::observation::observed::Link;
use sos_node::planning::plan::{Plan, plan};

/// The plan of a node in its present state.
pub(crate) fn planned(config: &NodeConfig, node: &FakeNode) -> Plan {
    plan(config, &base_flows(config), &node.observe(config))
}

/// Make the changes of one pass, and return its first plan.
pub(crate) fn reconcile(config: &NodeConfig, node: &mut FakeNode) -> Plan {
    let first = planned(config, node);
    make(&first, node);
    for _ in 1..MAX_ROUNDS {
        make(&planned(config, node), node);
    }
    first
}

/// Make the changes of a plan.
pub(crate) fn make(plan: &Plan, node: &mut FakeNode) {
    for change in &plan.changes {
        node.apply(change);
    }
}

/// A device that is up.
pub(crate) fn link() -> Link {
    Link { up: true, carrier: true, mtu: 1500, ..Link::default() }
}
