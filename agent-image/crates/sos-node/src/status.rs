//! Status of a node (spec/node-config.md, section 4).

use serde::Serialize;

use crate::config::{NodeConfig, Presence};
use crate::observation::observed::Observed;
use crate::observation::reject::Rejected;
use crate::planning::desired::{self, PortKind};
use crate::planning::plan::Plan;
use crate::planning::problem::Problem;

/// Maximum number of problems named in a message; further problems are only counted.
const MAX_NAMED_PROBLEMS: usize = 8;

/// Progress of the node towards its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum State {
    /// There is no config yet.
    Pending,
    /// Changes are outstanding, or Open vSwitch does not answer; the daemon retries.
    Progressing,
    /// Everything is as configured, except missing devices.
    Ready,
    /// The node differs from the config until an administrator acts.
    Failed,
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum PortState {
    /// On the bridge, with a carrier.
    Up,
    /// On the bridge, without a carrier.
    Down,
    /// The device does not exist yet.
    Waiting,
    /// The port must not be on the bridge.
    Refused,
    /// Open vSwitch reports an error, or the port number is wrong.
    Error,
}

impl PortState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Up, Self::Down, Self::Waiting, Self::Refused, Self::Error];
}

/// A port of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PortStatus {
    /// Its name.
    pub name: String,
    /// Kind of the port: `Uplink`, `Lan`, `Tunnel`, `Agent` or `Reject`.
    pub kind: &'static str,
    /// Its actual OpenFlow port number.
    pub ofport: Option<u16>,
    /// Its state.
    pub state: PortState,
}

/// A controller of the config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ControllerStatus {
    /// Its target.
    pub target: String,
    /// True if the bridge is connected to it.
    pub connected: bool,
}

/// The status file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// The node.
    pub node: String,
    /// Its site.
    pub site: String,
    /// Generation of the config in force.
    pub generation: u64,
    /// Its hash.
    pub hash: String,
    /// State of the node.
    pub state: State,
    /// The reason, for administrators.
    pub message: String,
    /// Datapath id, 16 hexadecimal digits.
    pub datapath_id: String,
    /// The bridge, if it exists.
    pub bridge: Option<String>,
    /// Ports of the config.
    pub ports: Vec<PortStatus>,
    /// Controllers of the config.
    pub controllers: Vec<ControllerStatus>,
    /// Version of Open vSwitch, empty if unknown.
    pub ovs_version: String,
    /// Counters of the reject port; not part of the file.
    #[serde(skip)]
    pub rejected: Rejected,
    /// True if the config is applied and its bridge, if any, exists: the answer of `/readyz`.
    pub applied: bool,
}

impl Status {
    /// Status without a config.
    #[must_use]
    pub fn pending(node: &str, message: String) -> Self {
        Self {
            node: node.to_owned(),
            site: String::new(),
            generation: 0,
            hash: String::new(),
            state: State::Pending,
            message,
            datapath_id: String::new(),
            bridge: None,
            ports: vec![],
            controllers: vec![],
            ovs_version: String::new(),
            rejected: Rejected::default(),
            applied: false,
        }
    }

    /// Status if Open vSwitch does not answer.
    #[must_use]
    pub fn unreachable(config: &NodeConfig, error: &str) -> Self {
        let empty = Observed::default();
        let plan = Plan::default();
        let status = Self::describe(config, &empty, &plan, &[error.to_owned()]);
        Self { applied: false, ..status }
    }

    /// Status after a pass. `errors` are the errors of commands that failed in the pass.
    #[must_use]
    pub fn describe(config: &NodeConfig, observed: &Observed, plan: &Plan, errors: &[String]) -> Self {
        let name = config.bridge.name.as_str();
        let there = observed.owns_bridge(name, config.site_id);
        let waits = plan.problems.iter().any(|problem| matches!(problem, Problem::RestoreWait));
        let settled = plan.changes.is_empty() && errors.is_empty() && !waits;
        Self {
            node: config.node.clone(),
            site: config.site.clone(),
            generation: config.generation,
            hash: config.hash.clone(),
            state: state(plan, settled),
            message: message(config, plan, errors),
            datapath_id: config.bridge.datapath_id.to_string(),
            bridge: there.then(|| name.to_owned()),
            ports: ports(config, observed, plan),
            controllers: controllers(config, observed),
            ovs_version: observed.ovs.version.clone(),
            rejected: observed.rejected.unwrap_or_default(),
            applied: settled && (there || config.state == Presence::Absent),
        }
    }
}

fn state(plan: &Plan, settled: bool) -> State {
    let in_use = |problem: &Problem| matches!(problem, Problem::BridgeInUse { .. });
    if plan.problems.iter().any(Problem::is_fault) {
        State::Failed
    } else if !settled || plan.problems.iter().any(in_use) {
        State::Progressing
    } else {
        State::Ready
    }
}

fn message(config: &NodeConfig, plan: &Plan, errors: &[String]) -> String {
    let mut parts: Vec<String> = errors.to_vec();
    if parts.is_empty() && !plan.changes.is_empty() {
        parts.push(format!("{} changes are outstanding", plan.changes.len()));
    }
    parts.extend(plan.problems.iter().take(MAX_NAMED_PROBLEMS).map(ToString::to_string));
    if let Some(more) = plan.problems.len().checked_sub(MAX_NAMED_PROBLEMS).filter(|more| *more > 0) {
        parts.push(format!("and {more} more"));
    }
    match (parts.is_empty(), config.state) {
        (true, Presence::Present) => "as configured".to_owned(),
        (true, Presence::Absent) => "removed".to_owned(),
        _ => parts.join("; "),
    }
}

fn ports(config: &NodeConfig, observed: &Observed, plan: &Plan) -> Vec<PortStatus> {
    let status = |port: desired::DesiredPort| PortStatus {
        state: port_state(&port.name, observed, plan),
        kind: match port.kind {
            PortKind::Uplink => "Uplink",
            PortKind::Lan => "Lan",
            PortKind::Tunnel => "Tunnel",
            PortKind::Agent => "Agent",
            PortKind::Reject => "Reject",
        },
        ofport: observed.ports.get(&port.name).and_then(|port| port.ofport),
        name: port.name,
    };
    desired::ports(config).into_iter().map(status).collect()
}

fn port_state(name: &str, observed: &Observed, plan: &Plan) -> PortState {
    let told =
        plan.problems.iter().filter(|problem| problem.port() == Some(name)).find_map(
            |problem| match problem {
                Problem::Refused { .. } => Some(PortState::Refused),
                Problem::Waiting { .. } => Some(PortState::Waiting),
                Problem::PortNumber { .. } | Problem::PortError { .. } => Some(PortState::Error),
                _ => None,
            },
        );
    told.unwrap_or_else(|| match (observed.links.get(name), observed.ports.contains_key(name)) {
        (None, _) => PortState::Waiting,
        (Some(link), true) if link.up && link.carrier => PortState::Up,
        _ => PortState::Down,
    })
}

fn controllers(config: &NodeConfig, observed: &Observed) -> Vec<ControllerStatus> {
    let bridge = observed.bridges.get(config.bridge.name.as_str());
    let connected = |target: &str| {
        let mut there = bridge.into_iter().flat_map(|bridge| &bridge.controllers);
        there.any(|controller| controller.target == target && controller.connected)
    };
    let wanted = desired::controllers(config).into_iter().map(|controller| controller.target);
    wanted.map(|target| ControllerStatus { connected: connected(&target), target }).collect()
}
