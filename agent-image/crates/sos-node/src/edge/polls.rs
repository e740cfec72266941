//! The operator's polls: remembered on disk, and shown to the start script of Open vSwitch.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::edge::store::{OPERATOR, Store};
use crate::planning::orphan::{Operator, Step, Stop};

/// File in Open vSwitch's folder that makes its start script wait at SIGTERM until the file is gone (`agent-image/ovs/start.sh`). It exists
/// before SIGTERM, because both containers of a pod get SIGTERM at the same time.
const HOLD: &str = "sos-node.hold";

/// The operator's polls, and the stop of this process.
#[derive(Debug)]
pub struct Polls {
    store: Store,
    hold: PathBuf,
    silence: Duration,
    operator: Operator,
    /// True if a file says that an operator has polled this node.
    recorded: bool,
    /// True if the file [`HOLD`] exists; None if unknown.
    held: Option<bool>,
    stop: Option<Stop>,
}

impl Polls {
    /// Load the record of an earlier process. `silence`: time without a poll after which the operator counts as gone.
    #[must_use]
    pub fn load(store: &Store, ovs_rundir: &Path, silence: Duration, now: Instant) -> Self {
        let recorded = store.load(OPERATOR).unwrap_or(false);
        let operator = Operator::new(recorded, now);
        let hold = ovs_rundir.join(HOLD);
        Self { store: store.clone(), hold, silence, operator, recorded, held: None, stop: None }
    }

    /// Note the time of the last poll. The first poll is recorded on disk.
    pub fn note(&mut self, last: Option<Instant>) {
        let Some(last) = last else { return };
        self.operator.polled(last);
        if self.recorded {
            return;
        }
        match self.store.save(OPERATOR, &true) {
            Ok(()) => self.recorded = true,
            Err(error) => tracing::warn!(%error, "cannot write to the state folder"),
        }
    }

    /// Forget the operator after the removal of everything, as the next operator may not reach this node.
    pub fn forget(&mut self, now: Instant) {
        self.operator = Operator::new(false, now);
        self.recorded = false;
    }

    /// Make Open vSwitch's start script wait for this process if the operator is silent and there is a bridge to remove.
    pub fn hold_switch(&mut self, bridge: bool, now: Instant) {
        // After SIGTERM the decision follows from the state at that time.
        if self.stop.is_none() {
            self.set_held(bridge && self.operator.is_silent(self.silence, now));
        }
    }

    /// Let Open vSwitch's start script continue.
    pub fn release_switch(&mut self) {
        self.set_held(false);
    }

    fn set_held(&mut self, wanted: bool) {
        if self.held == Some(wanted) {
            return;
        }
        let done = if wanted { std::fs::write(&self.hold, b"") } else { std::fs::remove_file(&self.hold) };
        match done {
            Err(error) if wanted || error.kind() != ErrorKind::NotFound => {
                tracing::warn!(%error, path = %self.hold.display(), "cannot change the file");
            }
            _ => self.held = Some(wanted),
        }
    }

    /// The next step after SIGTERM, whose time is that of the first call. `in_use`: the node itself uses the bridge.
    pub fn step(&mut self, in_use: bool, now: Instant) -> Step {
        let silent = self.held == Some(true);
        let stop = self.stop.get_or_insert(Stop { since: now, silent });
        let step = stop.step(&self.operator, self.silence, in_use, now);
        let seconds = self.silence.as_secs();
        match step {
            Step::Remove => {
                tracing::warn!(seconds, "no operator polls: the site is gone, removing the bridge");
            }
            Step::LeaveInUse => {
                tracing::warn!(
                    seconds,
                    "no operator polls, but the node itself uses the bridge, which stays"
                );
            }
            Step::Leave | Step::Listen => {}
        }
        step
    }
}
