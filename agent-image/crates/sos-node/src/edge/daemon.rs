//! The main loop: the config in force, the schedule of passes, the status.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sos_daemon::bugs::fence;
use sos_daemon::document::ConfigError;
use sos_daemon::files;

use crate::config::{NodeConfig, Presence, Refusal, supersedes};
use crate::edge::memory::Memory;
use crate::edge::node::{Fingerprint, Node, Pass, Target, TargetError};
use crate::edge::polls::Polls;
use crate::edge::store::{self, Store};
use crate::edge::watch::Watch;
use crate::encode::Ovs;
use crate::planning::orphan::{REMOVAL, Step};
use crate::planning::problem::Problem;
#[cfg(test)]
use crate::provoked;
use crate::schedule::Schedule;
use crate::status::{State, Status};

/// Interval between checks of Open vSwitch's sockets and the device list.
pub const TICK: Duration = Duration::from_millis(250);
/// Interval between checks of the config file. The content is compared, not the file's attributes: an update of a mounted `ConfigMap`
/// replaces a symbolic link.
const CONFIG_PERIOD: Duration = Duration::from_secs(1);

/// Message of the status after a panic.
const BUG: &str = "a bug of sos-node: report its log and the node-config";

/// Options of the command line.
#[derive(Debug, Clone)]
pub struct Options {
    /// A config file, or a folder with `<node>.json`.
    pub config: PathBuf,
    /// This node's name.
    pub node: String,
    /// Folder of the last good config.
    pub state: PathBuf,
    /// Folder of Open vSwitch's sockets.
    pub ovs_rundir: PathBuf,
    /// Folder of certificates for TLS with controllers.
    pub openflow_tls: Option<PathBuf>,
    /// Path of the status file.
    pub status_file: Option<PathBuf>,
    /// Addresses that must stay reachable when uplinks change.
    pub anchors: Vec<SocketAddr>,
    /// Time without a poll by the operator after which SIGTERM removes the bridge.
    pub orphaned_after: Duration,
}

/// Reason why a config was not put in force.
#[derive(Debug, thiserror::Error)]
pub enum OfferError {
    /// The config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The config is older than the one in force, or differs under the same generation.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The config could not be read, checked or stored; the next check of the file retries.
    #[error("{0}")]
    Later(String),
}

/// The state of the loop.
#[derive(Debug)]
pub struct Daemon {
    options: Options,
    node: Node,
    store: Store,
    watch: Watch,
    schedule: Schedule<(Fingerprint, u64)>,
    config_due: Instant,
    /// The last document read, so that an unchanged document is not checked twice.
    seen: Option<Vec<u8>>,
    /// The error in the last document read, if any.
    objection: Option<String>,
    in_force: Option<Target>,
    /// A config of another site, and its document. It is put in force after all objects of the former site are removed.
    successor: Option<(Target, Vec<u8>)>,
    /// True after the removal of all objects: then a config with a lower generation is accepted, too.
    removed: bool,
    polls: Polls,
    /// True if the bridge's local port has addresses of the node, as far as the last pass has seen.
    in_use: bool,
    /// Start of the removal of a bridge whose site has no operator any more. No config is read from then on.
    removing: Option<Instant>,
}

/// Result of one tick.
#[derive(Debug)]
pub struct Ticked {
    /// Status after the pass.
    pub status: Status,
    /// Kinds of changes made.
    pub made: Vec<&'static str>,
    /// True if nothing failed and nothing is outstanding.
    pub well: bool,
}

impl Daemon {
    /// Restore the config that was in force before, if any.
    ///
    /// # Errors
    /// The state folder cannot be created.
    pub fn new(options: Options, now: Instant) -> std::io::Result<Self> {
        let store = Store::open(&options.state)?;
        let kept = fence(|| store.last_good(&options.node).map(Target::new)).flatten();
        let in_force = kept.and_then(|target| {
            target.inspect_err(|error| tracing::warn!(%error, "the last good config is not usable")).ok()
        });
        let memory = Memory::load(&store, now);
        let node = Node {
            ovs: Ovs { rundir: options.ovs_rundir.clone() },
            tls: options.openflow_tls.clone(),
            anchors: options.anchors.clone(),
            memory,
        };
        let watch = Watch::start(node.ovs.database_socket());
        let schedule = Schedule::new(now);
        let polls = Polls::load(&store, &options.ovs_rundir, options.orphaned_after, now);
        Ok(Self {
            options,
            node,
            store,
            watch,
            schedule,
            config_due: now,
            seen: None,
            objection: None,
            in_force,
            successor: None,
            removed: false,
            polls,
            in_use: true,
            removing: None,
        })
    }

    /// True if a config is in force.
    #[must_use]
    pub fn has_config(&self) -> bool {
        self.in_force.is_some()
    }

    /// Check the config file now.
    ///
    /// # Errors
    /// A new document was not put in force.
    pub fn reload(&mut self, now: Instant) -> Result<(), OfferError> {
        self.config_due = now + CONFIG_PERIOD;
        let path = files::document_path(&self.options.config, &self.options.node);
        let later = |error: std::io::Error| OfferError::Later(format!("{}: {error}", path.display()));
        let Some(document) = files::read_with_parts_if_present(&path).map_err(later)? else {
            return Err(OfferError::Later(format!("{}: there is no such file", path.display())));
        };
        if self.seen.as_ref() == Some(&document) {
            return Ok(());
        }
        let offered =
            fence(|| self.offer(&document, now)).unwrap_or_else(|| Err(ConfigError::new(".", BUG).into()));
        if !matches!(offered, Err(OfferError::Later(_))) {
            self.seen = Some(document);
            self.objection = offered.as_ref().err().map(|error| format!("{}: {error}", path.display()));
        }
        offered
    }

    fn offer(&mut self, document: &[u8], now: Instant) -> Result<(), OfferError> {
        #[cfg(test)]
        provoked::at("offer");
        let config = store::parse_for(&self.options.node, document)?;
        let in_force = self.successor.as_ref().map(|(target, _)| target).or(self.in_force.as_ref());
        if !supersedes(&config, in_force.filter(|_| !self.removed).map(|target| &target.config))? {
            return Ok(());
        }
        let target = Target::new(config).map_err(|error| match error {
            TargetError::Config(error) => OfferError::Config(error),
            TargetError::Command(error) => OfferError::Later(error.to_string()),
        })?;
        self.schedule.wake(now);
        self.successor = None;
        match &self.in_force {
            Some(former) if former.config.site_id != target.config.site_id && !self.removed => {
                self.successor = Some((target, document.to_vec()));
                self.in_force = Some(Target { config: former.config.absent(), flows: vec![] });
                Ok(())
            }
            _ => self.enforce(target, document),
        }
    }

    fn enforce(&mut self, target: Target, document: &[u8]) -> Result<(), OfferError> {
        self.store.keep(document).map_err(|error| OfferError::Later(error.to_string()))?;
        tracing::info!(generation = target.config.generation, hash = target.config.hash, "config in force");
        self.in_force = Some(target);
        self.removed = false;
        Ok(())
    }

    /// Note the time of the operator's last poll.
    pub fn polled(&mut self, last: Option<Instant>) {
        if self.has_bridge() {
            self.polls.note(last);
        }
    }

    /// True if the config in force has a bridge.
    fn has_bridge(&self) -> bool {
        self.in_force.as_ref().is_some_and(|target| target.config.state == Presence::Present)
    }

    /// Called at every tick after SIGTERM; true if the program may exit. It removes the bridge first if the site has no operator any more.
    pub fn may_exit(&mut self, now: Instant) -> bool {
        if let Some(began) = self.removing {
            return self.removed || now.duration_since(began) >= REMOVAL;
        }
        match self.polls.step(self.in_use, now) {
            Step::Leave | Step::LeaveInUse => return true,
            Step::Listen => return false,
            Step::Remove => {}
        }
        self.removing = Some(now);
        self.successor = None;
        let former = self.in_force.take();
        self.in_force = former.map(|former| Target { config: former.config.absent(), flows: vec![] });
        self.schedule.wake(now);
        false
    }

    /// End of the program.
    pub fn end(&mut self) {
        self.polls.release_switch();
        match self.removing {
            Some(_) if self.removed => tracing::info!("ending; the bridge is removed"),
            Some(_) => tracing::error!("ending; the bridge could not be removed"),
            None => tracing::info!("ending; the switch stays as it is"),
        }
    }

    /// Run a pass if one is due; `None` if not. A panic counts as a failed pass.
    pub fn tick(&mut self, now: Instant) -> Option<Ticked> {
        fence(|| self.act(now)).unwrap_or_else(|| {
            self.schedule.ended(false, now + now.elapsed());
            let status = self.in_force.as_ref().map(|target| Status::unreachable(&target.config, BUG));
            let status = status.unwrap_or_else(|| Status::pending(&self.options.node, BUG.to_owned()));
            Some(self.publish(Ticked { status, made: vec![], well: false }))
        })
    }

    fn act(&mut self, now: Instant) -> Option<Ticked> {
        #[cfg(test)]
        provoked::at("act");
        self.polls.hold_switch(self.has_bridge(), now);
        if now >= self.config_due
            && self.removing.is_none()
            && let Err(error) = self.reload(now)
            && self.in_force.is_none()
        {
            return Some(self.pending(error.to_string()));
        }
        let target = self.in_force.as_ref()?;
        let fingerprint = self.node.fingerprint(Some(target.config.bridge.name.as_str()));
        self.schedule.observe((fingerprint, self.watch.changes()), now);
        if !self.schedule.is_due(now) {
            return None;
        }
        let result = self.node.pass(target).map_err(|error| error.to_string());
        let config = target.config.clone();
        let ticked = match result {
            Ok(pass) => self.after(&config, pass),
            Err(error) => {
                let status = Status::unreachable(&config, &error);
                Ticked { status, made: vec![], well: false }
            }
        };
        // Count from the end of the pass: a long pass must not be followed immediately by the next.
        self.schedule.ended(ticked.well, now + now.elapsed());
        Some(self.publish(ticked))
    }

    fn pending(&self, message: String) -> Ticked {
        let ticked =
            Ticked { status: Status::pending(&self.options.node, message), made: vec![], well: false };
        self.publish(ticked)
    }

    fn after(&mut self, config: &NodeConfig, pass: Pass) -> Ticked {
        let status = Status::describe(config, &pass.observed, &pass.plan, &pass.errors);
        let local = pass.observed.links.get(config.bridge.name.as_str());
        self.in_use = local.is_some_and(|link| !link.addresses.is_empty());
        // A switch that waits for its restored entries will change soon: repeat the pass after the short wait for failures.
        let waits = pass.plan.problems.contains(&Problem::RestoreWait);
        let well = pass.errors.is_empty() && pass.plan.changes.is_empty() && !waits;
        let mut ticked = Ticked { status, made: pass.made, well };
        if config.state == Presence::Absent && well && pass.plan.problems.is_empty() {
            self.after_removal(&mut ticked);
        }
        ticked
    }

    fn after_removal(&mut self, ticked: &mut Ticked) {
        let outcome = match self.successor.take() {
            Some((target, document)) => {
                ticked.well = false;
                ticked.status.applied = false;
                ticked.status.state = State::Progressing;
                ticked.status.message =
                    format!("site {} is removed, the config of the new site follows", ticked.status.site);
                self.node.memory.forget(Instant::now());
                self.enforce(target, &document).map_err(|error| error.to_string())
            }
            None if self.removed => Ok(()),
            None => {
                self.node.memory.forget(Instant::now());
                self.polls.forget(Instant::now());
                self.store.forget().map_err(|error| error.to_string())
            }
        };
        match outcome {
            Ok(()) => {
                self.removed = self.in_force.as_ref().is_some_and(|t| t.config.state == Presence::Absent);
            }
            Err(error) => tracing::warn!(error, "cannot write to the state folder"),
        }
    }

    fn publish(&self, mut ticked: Ticked) -> Ticked {
        if let Some(objection) = &self.objection {
            // The config in force stays applied, but a newer one was rejected.
            ticked.status.message = format!("{objection}; in force: {}", ticked.status.message);
            ticked.status.state = State::Failed;
        }
        if let Some(path) = &self.options.status_file
            && let Err(error) = store::write_status(path, &ticked.status)
        {
            tracing::warn!(%error, path = %path.display(), "cannot write the status file");
        }
        ticked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(folder: &std::path::Path) -> Daemon {
        let options = Options {
            config: folder.join("config.json"),
            node: "edge1".to_owned(),
            state: folder.join("state"),
            ovs_rundir: folder.to_owned(),
            openflow_tls: None,
            status_file: None,
            anchors: vec![],
            orphaned_after: Duration::ZERO,
        };
        Daemon::new(options, Instant::now()).unwrap()
    }

    #[test]
    fn a_document_that_causes_a_panic_is_rejected_and_checked_once() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = daemon(folder.path());
        std::fs::write(folder.path().join("config.json"), "{}").unwrap();
        provoked::AT.set(Some("offer"));
        let error = daemon.reload(Instant::now()).unwrap_err();
        assert!(error.to_string().contains(BUG), "{error}");
        assert!(daemon.reload(Instant::now()).is_ok(), "the same document is not checked again");
        provoked::AT.set(None);
        std::fs::write(folder.path().join("config.json"), "[]").unwrap();
        let error = daemon.reload(Instant::now()).unwrap_err();
        assert!(!error.to_string().contains(BUG), "the next document is checked: {error}");
    }

    #[test]
    fn a_panic_is_a_failed_pass_and_delays_the_next_pass() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = daemon(folder.path());
        let now = Instant::now();
        provoked::AT.set(Some("act"));
        let ticked = daemon.tick(now).unwrap();
        assert!(!ticked.well && ticked.status.message.contains(BUG), "{}", ticked.status.message);
        assert!(!daemon.schedule.is_due(now), "the failed pass is not repeated at the next tick");
        provoked::AT.set(None);
        let ticked = daemon.tick(now + CONFIG_PERIOD).unwrap();
        assert!(!ticked.status.message.contains(BUG), "{}", ticked.status.message);
    }
}
