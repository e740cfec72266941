//! One pass over the node: observe, plan, apply, observe again. This is an edge module; [`crate::planning::plan`] makes every decision.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use sos_daemon::document::ConfigError;

use crate::config::NodeConfig;
use crate::edge::command::{CommandError, run};
use crate::edge::memory::Memory;
use crate::encode::{self, Ovs};
use crate::observation::flow::{self, Flow, FlowParseError};
use crate::observation::link;
use crate::observation::observed::{Device, Lost, Observed, Offloads, TlsFolder};
use crate::observation::ovsdb::{self, DatabaseError};
use crate::observation::reject;
use crate::planning::change::Change;
use crate::planning::datapath;
use crate::planning::desired;
use crate::planning::local;
use crate::planning::plan::{Plan, plan};
use crate::planning::trial;

/// Maximum number of failures kept for the status of a pass.
const MAX_ERRORS: usize = 4;
/// Maximum number of rounds (observe, plan, apply) in one pass. Two rounds are enough unless the node changes meanwhile. The second round
/// adds ports whose devices the first round created, and ports that the first round removed because their device was replaced.
pub const MAX_ROUNDS: usize = 2;

/// Reason why the node could not be observed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A command failed, most often because Open vSwitch is not running.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// Unexpected output of ovs-vsctl.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// Unexpected output of ovs-ofctl.
    #[error(transparent)]
    Flow(#[from] FlowParseError),
    /// Unexpected output of ip.
    #[error("unexpected answer of ip: {0}")]
    Link(#[from] serde_json::Error),
}

/// Reason why a config did not become a [`Target`].
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The config's base entries are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The config could not be checked.
    #[error(transparent)]
    Command(CommandError),
}

/// A config with its base entries as Open vSwitch prints them.
#[derive(Debug, Clone)]
pub struct Target {
    /// The config.
    pub config: NodeConfig,
    /// Its base entries.
    pub flows: Vec<Flow>,
}

impl Target {
    /// Normalise the base entries with ovs-ofctl.
    ///
    /// # Errors
    /// ovs-ofctl rejects the entries, or cannot be run.
    pub fn new(config: NodeConfig) -> Result<Self, TargetError> {
        let printed = match run(&Ovs::parse_flows(flow::encode_base_flows(&config))) {
            Ok(printed) => printed,
            Err(CommandError::Failed { complaint, .. }) => return Err(unreadable_flow(&complaint).into()),
            Err(error) => return Err(TargetError::Command(error)),
        };
        let flows = flow::parse_base_flows(&config, &printed)?;
        Ok(Self { config, flows })
    }
}

/// Map an error of ovs-ofctl, which names the line, to its entry: `ovs-ofctl: -:3: unknown keyword foo`.
fn unreadable_flow(complaint: &str) -> ConfigError {
    let located = complaint.split_once("-:").and_then(|(_, rest)| {
        let (line, what) = rest.split_once(": ")?;
        Some((line.parse::<usize>().ok()?.checked_sub(1)?, what.to_owned()))
    });
    match located {
        Some((index, what)) => ConfigError::new(format!("baseFlows[{index}]"), what),
        None => ConfigError::new("baseFlows", complaint),
    }
}

/// Findings and changes of a pass.
#[derive(Debug)]
pub struct Pass {
    /// The observed node after the pass.
    pub observed: Observed,
    /// Outstanding changes after the pass.
    pub plan: Plan,
    /// Changes made, as [`Change::kind`].
    pub made: Vec<&'static str>,
    /// Failures, at most `MAX_ERRORS`.
    pub errors: Vec<String>,
}

/// Cheap observation that shows whether a pass is due: Open vSwitch's sockets (a restarted daemon creates new sockets) and the list of
/// devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fingerprint {
    sockets: Vec<Option<(u64, i64, i64)>>,
    devices: BTreeMap<u32, String>,
}

/// The node this program runs on.
#[derive(Debug)]
pub struct Node {
    /// Its Open vSwitch.
    pub ovs: Ovs,
    /// Folder of certificates for TLS with controllers.
    pub tls: Option<PathBuf>,
    /// Addresses that must stay reachable when uplinks change.
    pub anchors: Vec<SocketAddr>,
    /// Its state across passes.
    pub memory: Memory,
}

impl Node {
    /// Take a fingerprint.
    #[must_use]
    pub fn fingerprint(&self, bridge: Option<&str>) -> Fingerprint {
        let paths = [Some(self.ovs.database_socket()), bridge.map(|bridge| self.ovs.bridge_socket(bridge))];
        let identity = |path: std::path::PathBuf| {
            let meta = std::fs::metadata(path).ok()?;
            Some((meta.ino(), meta.ctime(), meta.ctime_nsec()))
        };
        let sockets = paths.into_iter().flatten().map(identity).collect();
        let devices = nix::net::if_::if_nameindex();
        let devices = devices.iter().flat_map(|list| list.iter());
        let devices =
            devices.map(|device| (device.index(), device.name().to_string_lossy().into_owned())).collect();
        Fingerprint { sockets, devices }
    }

    /// Bring the node as close to the target as possible.
    ///
    /// # Errors
    /// The node cannot be observed. Failed changes are listed in [`Pass::errors`]; the remaining changes are still made.
    pub fn pass(&mut self, target: &Target) -> Result<Pass, NodeError> {
        self.memory.finish_trial();
        let (observed, plan) = self.compare(target)?;
        let mut pass = Pass { observed, plan, made: vec![], errors: vec![] };
        for _ in 0..MAX_ROUNDS {
            if pass.plan.changes.is_empty() || !pass.errors.is_empty() {
                break;
            }
            pass.made.extend(pass.plan.changes.iter().map(Change::kind));
            pass.errors = self.carry_out(&target.config, &pass.plan.changes);
            (pass.observed, pass.plan) = self.compare(target)?;
        }
        Ok(pass)
    }

    fn carry_out(&mut self, config: &NodeConfig, changes: &[Change]) -> Vec<String> {
        let (uplink, changes) = if self.anchors.is_empty() {
            (None, changes.to_vec())
        } else {
            trial::one_at_a_time(config, changes)
        };
        let lines = self.ovs.encode(&changes);
        let errors = self.memory.on_trial(uplink, &self.anchors, || run_all(&lines));
        let errors = errors.unwrap_or_else(|error| vec![error]);
        if changes.iter().any(|change| matches!(change, Change::AddAddress { .. } | Change::AddRoute { .. }))
        {
            self.memory.gave_back();
        }
        errors
    }

    /// Observe and plan. Foreign entries, of which there may be many, are read only if there are entries to install: they matter only if
    /// they have the key of one of our entries.
    fn compare(&mut self, target: &Target) -> Result<(Observed, Plan), NodeError> {
        let mut observed = self.observe(&target.config)?;
        let first = plan(&target.config, &target.flows, &observed);
        let bridge = target.config.bridge.name.as_str();
        let edits = first.changes.iter().any(|change| matches!(change, Change::EditFlows { .. }));
        if !edits || !observed.bridges.contains_key(bridge) {
            return Ok((observed, first));
        }
        observed.flows = flow::parse_dump(&run(&self.ovs.dump_flows(bridge, true))?)?;
        let second = plan(&target.config, &target.flows, &observed);
        Ok((observed, second))
    }

    fn observe(&mut self, config: &NodeConfig) -> Result<Observed, NodeError> {
        let database = ovsdb::parse(&run(&self.ovs.list())?)?;
        // Routes are read only if there are interfaces to check, as some nodes have many routes.
        let routes = if config.uplinks.is_empty() && config.lan.is_empty() {
            Ok(<[String; 2]>::default())
        } else {
            per_family(encode::show_routes)
        };
        let [ipv4, ipv6] = routes?;
        let links = link::parse_links(&run(&encode::show_links())?, &[&ipv4, &ipv6])?;
        let mut observed = Observed {
            ovs: database.ovs,
            ssl: database.ssl,
            tls: self.tls.as_deref().map(tls_folder),
            bridges: database.bridges,
            ports: database.ports,
            bond: database.bond,
            links,
            ..Observed::default()
        };
        let bridge = config.bridge.name.as_str();
        if observed.owns_bridge(bridge, config.site_id) {
            observed.flows = flow::parse_dump(&run(&self.ovs.dump_flows(bridge, false))?)?;
            let ports = encode::parse_ports(&run(&self.ovs.show(bridge))?);
            observed.no_flood = ports.iter().map(|(name, flags)| (name.clone(), flags.no_flood)).collect();
            observed.no_packet_in =
                ports.into_iter().map(|(name, flags)| (name, flags.no_packet_in)).collect();
            observed.stranded = self.stranded(config, &observed)?;
            observed.lost = self.lost(bridge, &observed)?;
        }
        if datapath::asks_for_kernel(config, &observed) {
            let printed = run(&Ovs::show_kernel_datapaths());
            observed.kernel_datapath = printed.is_ok();
            observed.kernel_ports = datapath::parse_ports(&printed.unwrap_or_default());
        }
        if config.reject_port.is_some() {
            // nft reports a missing table as an error, which counts as missing rules.
            observed.rejected =
                run(&encode::show_reject_rules()).ok().and_then(|printed| reject::parse(&printed));
        }
        observed.cut_off = self.memory.cut_off(config, &self.anchors, Instant::now());
        observed.restore_overdue = self.memory.restore_overdue(observed.ovs.restore_wait, Instant::now());
        let devices = desired::offload_devices(config, &observed);
        observed.offloads =
            devices.into_iter().filter_map(|device| Some((device.clone(), offloads(&device)?))).collect();
        Ok(observed)
    }

    /// Ports of departed agents to which entries still output.
    fn stranded(&self, config: &NodeConfig, observed: &Observed) -> Result<BTreeSet<u16>, NodeError> {
        let gone = config.agent_ports.iter().filter(|port| !observed.links.contains_key(port.name.as_str()));
        let mut stranded = BTreeSet::new();
        for port in gone {
            let printed = run(&self.ovs.dump_redirects(config.bridge.name.as_str(), port.ofport))?;
            if !flow::parse_dump(&printed)?.is_empty() {
                stranded.insert(port.ofport);
            }
        }
        Ok(stranded)
    }

    fn lost(&mut self, bridge: &str, observed: &Observed) -> Result<Lost, NodeError> {
        let Some(link) = observed.links.get(bridge) else { return Ok(Lost::default()) };
        let mut routes = local::Routes::default();
        if self.memory.knows_addresses() || !link.addresses.is_empty() {
            let printed = per_family(|family| encode::show_routes_of(family, bridge))?;
            for (family, printed) in encode::FAMILIES.iter().zip(printed) {
                local::parse_routes(&mut routes, family, &printed)?;
            }
        }
        Ok(self.memory.local_port(link, routes))
    }
}

/// Output of a command for each address family. On a kernel without IPv6, ip reports an error for this family, which counts as an empty
/// output.
fn per_family(command: impl Fn(&str) -> encode::CommandLine) -> Result<[String; 2], CommandError> {
    let [ipv4, ipv6] = encode::FAMILIES;
    Ok([run(&command(ipv4))?, run(&command(ipv6)).unwrap_or_default()])
}

/// Check the files of a folder of certificates. Open vSwitch logs errors of its own, but does not report them.
fn tls_folder(path: &Path) -> TlsFolder {
    let files = desired::TLS_FILES.iter().map(|(_, file)| path.join(file));
    let problem = |file: PathBuf| match std::fs::read(&file) {
        Ok(content) if content.is_empty() => Some(format!("{} is empty", file.display())),
        Ok(_) => None,
        Err(error) => Some(format!("{} cannot be read: {error}", file.display())),
    };
    TlsFolder { path: path.display().to_string(), unreadable: files.into_iter().find_map(problem) }
}

/// Run all commands, even after failures; returns at most a few errors.
fn run_all(lines: &[encode::CommandLine]) -> Vec<String> {
    let mut errors = vec![];
    for line in lines {
        tracing::debug!(program = line.program, args = ?line.args, stdin = line.stdin, "run");
        if let Err(error) = run(line) {
            tracing::warn!(%error, "change failed");
            errors.push(error.to_string());
        }
    }
    errors.truncate(MAX_ERRORS);
    errors
}

/// Offloads of a device; none if the device has disappeared, since a pod's namespace disappears before its port.
fn offloads(device: &Device) -> Option<Offloads> {
    let printed =
        run(&encode::show_offloads(device)).inspect_err(|error| tracing::debug!(%error, "offloads")).ok()?;
    link::parse_offloads(&printed).inspect_err(|error| tracing::debug!(%error, "offloads")).ok()
}
