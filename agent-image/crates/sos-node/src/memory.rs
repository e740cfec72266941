//! What a pass must know from the ones before it, kept on disk where it must outlive this program.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::config::NodeConfig;
use crate::local::{LocalPort, Lost};
use crate::store::{LOCAL_PORT, Store, UPLINKS};
use crate::trial::{self, Trials};

/// How long Open vSwitch may wait for its entries before it is told to forward: whoever restores them has given up long before.
const RESTORE_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tries of the anchors of a trial.
const TRY_EVERY: Duration = Duration::from_millis(250);

/// See the top of this file.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    boot: String,
    local: Option<LocalPort>,
    /// What was lost was given back as far as that went; what is there now is what counts.
    restored: bool,
    trials: Trials,
    waiting_since: Option<Instant>,
}

impl Memory {
    /// Takes up what an earlier life has left.
    #[must_use]
    pub fn load(store: &Store, now: Instant) -> Self {
        Self {
            store: store.clone(),
            // Without it every start counts as one after a boot: nothing is given back.
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            local: store.load(LOCAL_PORT),
            restored: false,
            trials: Trials::new(store.load(UPLINKS).unwrap_or_default(), now),
            waiting_since: None,
        }
    }

    /// Whether anything is known of addresses of the local port.
    #[must_use]
    pub fn knows_addresses(&self) -> bool {
        self.local.as_ref().is_some_and(|local| !local.addresses.is_empty())
    }

    /// What the local port has lost; what it has is remembered once nothing is lost.
    pub fn local_port(&mut self, link: &crate::observed::Link, routes: Vec<String>) -> Lost {
        let seen = LocalPort::observe(&self.boot, link, routes);
        let lost = seen.lost(self.local.as_ref());
        if !lost.is_empty() && !self.restored {
            return lost;
        }
        self.restored = false;
        if self.local.as_ref() != Some(&seen) {
            self.keep(LOCAL_PORT, &seen);
            self.local = Some(seen);
        }
        Lost::default()
    }

    /// What was lost was tried to be given back.
    pub fn gave_back(&mut self) {
        self.restored = true;
    }

    /// Whether Open vSwitch waits for its entries for too long.
    pub fn restore_overdue(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            self.waiting_since = None;
            return false;
        }
        now.duration_since(*self.waiting_since.get_or_insert(now)) >= RESTORE_PATIENCE
    }

    /// Uplinks that must stay off the bridge.
    pub fn cut_off(&mut self, config: &NodeConfig, now: Instant) -> BTreeMap<String, String> {
        self.trials.cut_off(config, now).clone()
    }

    /// Makes a change on trial, if there is an anchor that can be reached now.
    pub fn on_trial<T>(
        &mut self,
        uplinks: BTreeSet<String>,
        anchors: &[SocketAddr],
        change: impl FnOnce() -> T,
    ) -> T {
        let reached: Vec<SocketAddr> =
            if uplinks.is_empty() { vec![] } else { anchors.iter().copied().filter(answers).collect() };
        if reached.is_empty() {
            return change();
        }
        self.trials.begin(uplinks);
        self.keep(UPLINKS, self.trials.record());
        let made = change();
        self.conclude(&reached);
        made
    }

    /// Ends a trial that an earlier life of this program has begun.
    pub fn finish_trial(&mut self, anchors: &[SocketAddr]) {
        if !self.trials.record().trying.is_empty() {
            self.conclude(anchors);
        }
    }

    fn conclude(&mut self, anchors: &[SocketAddr]) {
        let lost = watch(anchors);
        let uplinks = &self.trials.record().trying;
        match &lost {
            Some(lost) => {
                tracing::error!(lost, ?uplinks, "the node is cut off: the uplinks are taken off again");
            }
            None => tracing::info!(?uplinks, "the uplinks leave the node connected"),
        }
        self.trials.end(lost.as_deref(), Instant::now());
        self.keep(UPLINKS, self.trials.record());
    }

    fn keep(&self, name: &str, value: &impl serde::Serialize) {
        if let Err(error) = self.store.save(name, value) {
            tracing::warn!(%error, name, "the state folder");
        }
    }
}

/// Watches anchors after a change, for a bounded time. What could not be reached at its end, if anything.
fn watch(anchors: &[SocketAddr]) -> Option<String> {
    let start = Instant::now();
    loop {
        let lost: Vec<String> =
            anchors.iter().filter(|anchor| !answers(anchor)).map(ToString::to_string).collect();
        if !trial::goes_on(lost.is_empty(), start.elapsed()) {
            return (!lost.is_empty()).then(|| lost.join(", "));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// Whether packets get there and back: a refusal is an answer, too.
fn answers(anchor: &SocketAddr) -> bool {
    match TcpStream::connect_timeout(anchor, trial::ANSWER) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}
