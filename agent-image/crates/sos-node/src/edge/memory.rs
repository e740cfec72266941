//! State that outlives a pass, kept on disk if it must outlive the process.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::config::NodeConfig;
use crate::edge::store::{LOCAL_PORT, Store, UPLINKS};
use crate::observation::observed::{Link, Lost};
use crate::planning::local::{LocalPort, Routes};
use crate::planning::trial::{self, Reached, Trials, Watched};

/// Maximum duration of flow-restore-wait, after which this program makes Open vSwitch forward: a restore takes much less.
const RESTORE_PATIENCE: Duration = Duration::from_secs(30);
/// Number of attempts to restore the local port's addresses and routes, within about half a minute. Afterwards the port's current state is
/// accepted.
const GIVE_BACK_TRIES: u32 = 10;
/// Interval between probes of the anchors of a trial.
const TRY_EVERY: Duration = Duration::from_millis(250);

/// State that outlives a pass.
#[derive(Debug)]
pub struct Memory {
    store: Store,
    boot: String,
    local: Option<LocalPort>,
    /// Attempts to restore the port's addresses and routes.
    tries: u32,
    trials: Trials,
    waiting_since: Option<Instant>,
}

impl Memory {
    /// Load the state of an earlier process.
    #[must_use]
    pub fn load(store: &Store, now: Instant) -> Self {
        Self {
            store: store.clone(),
            // An unreadable boot id counts as empty; a reboot is then not detected.
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            local: store.load(LOCAL_PORT),
            tries: 0,
            trials: Trials::new(store.load(UPLINKS).unwrap_or_default(), now),
            waiting_since: None,
        }
    }

    /// True if addresses of the local port are known.
    #[must_use]
    pub fn knows_addresses(&self) -> bool {
        self.local.as_ref().is_some_and(|local| !local.addresses.is_empty())
    }

    /// Addresses and routes of the local port to restore. If none are lost, or after `GIVE_BACK_TRIES` attempts, the port's current state
    /// is remembered.
    pub fn local_port(&mut self, link: &Link, routes: Routes) -> Lost {
        let seen = LocalPort::observe(&self.boot, link, routes.made);
        let lost = seen.lost(self.local.as_ref());
        if !lost.is_empty() && self.tries < GIVE_BACK_TRIES {
            return lost;
        }
        if !lost.is_empty() {
            tracing::error!(
                ?lost,
                "giving up: addresses and routes of the bridge's local port cannot be restored"
            );
        }
        self.tries = 0;
        if self.local.as_ref() != Some(&seen) {
            if !routes.unknown.is_empty() {
                tracing::warn!(routes = ?routes.unknown, "these routes of the bridge's local port cannot be restored later");
            }
            self.keep(LOCAL_PORT, &seen);
            self.local = Some(seen);
        }
        Lost::default()
    }

    /// Count an attempt to restore.
    pub fn gave_back(&mut self) {
        self.tries += 1;
    }

    /// Delete all state after the removal of this program's objects, so that a bridge created later is treated as new.
    pub fn forget(&mut self, now: Instant) {
        self.local = None;
        self.tries = 0;
        self.trials = Trials::new(trial::Record::default(), now);
    }

    /// True if Open vSwitch has waited for its entries for too long.
    pub fn restore_overdue(&mut self, waits: bool, now: Instant) -> bool {
        if !waits {
            self.waiting_since = None;
            return false;
        }
        now.duration_since(*self.waiting_since.get_or_insert(now)) >= RESTORE_PATIENCE
    }

    /// Uplinks that must stay off the bridge, each with the anchors that it made unreachable.
    pub fn cut_off(
        &mut self,
        config: &NodeConfig,
        anchors: &[SocketAddr],
        now: Instant,
    ) -> BTreeMap<String, String> {
        if self.trials.configured(config, now) {
            self.keep(UPLINKS, self.trials.record());
        }
        if self.trials.retry_due(now) {
            // Without anchors there are no trials, so no answer is needed.
            self.trials.retry(anchors.is_empty() || anchors.iter().any(answers), now);
        }
        self.trials.cut_off()
    }

    /// Make a change, as a trial if it puts an uplink on the bridge and an anchor is reachable now.
    ///
    /// # Errors
    /// The change is not made: the uplink has cut the node off before, and without a reachable anchor a second cut would go unnoticed.
    pub fn on_trial<T>(
        &mut self,
        uplink: Option<String>,
        anchors: &[SocketAddr],
        change: impl FnOnce() -> T,
    ) -> Result<T, String> {
        let Some(uplink) = uplink.filter(|_| !anchors.is_empty()) else { return Ok(change()) };
        let reached = reach(anchors);
        if !reached.is_empty() {
            self.trials.begin(uplink, reached);
            self.keep(UPLINKS, self.trials.record());
            let made = change();
            self.conclude();
            return Ok(made);
        }
        if self.trials.hold_back(&uplink, Instant::now()) {
            return Err(format!(
                "{uplink} has cut the node off before and is not tried again until an anchor answers"
            ));
        }
        tracing::warn!(uplink, "no anchor answers: adding the uplink to the bridge without a trial");
        Ok(change())
    }

    /// Finish a trial that an earlier process began.
    pub fn finish_trial(&mut self) {
        if !self.trials.record().trying.is_empty() {
            self.conclude();
        }
    }

    fn conclude(&mut self) {
        let lost = watch(&self.trials.record().reached);
        let uplinks = &self.trials.record().trying;
        match &lost {
            Some(lost) => {
                tracing::error!(lost, ?uplinks, "the uplink cut the node off: removing it from the bridge");
            }
            None => tracing::info!(?uplinks, "the uplink passed its trial: the node is still connected"),
        }
        self.trials.end(lost.as_deref(), Instant::now());
        self.keep(UPLINKS, self.trials.record());
    }

    fn keep(&self, name: &str, value: &impl serde::Serialize) {
        if let Err(error) = self.store.save(name, value) {
            tracing::warn!(%error, name, "cannot write to the state folder");
        }
    }
}

/// The anchors reachable before a change. Each anchor is probed several times, because one packet may be lost or one of several paths may
/// be dead.
fn reach(anchors: &[SocketAddr]) -> Vec<Reached> {
    let mut counts = vec![0; anchors.len()];
    for round in 0..trial::ASKED {
        if round > 0 {
            std::thread::sleep(TRY_EVERY);
        }
        for (count, anchor) in counts.iter_mut().zip(anchors) {
            *count += usize::from(answers(anchor));
        }
    }
    let counted = anchors.iter().zip(counts).filter(|(_, count)| *count > 0);
    counted.map(|(anchor, count)| Reached { anchor: *anchor, steady: count == trial::ASKED }).collect()
}

/// Watch anchors after a change, for a bounded time. Returns the anchors that were unreachable at the end, if any.
fn watch(reached: &[Reached]) -> Option<String> {
    let start = Instant::now();
    let mut watched: Vec<Watched> = reached.iter().cloned().map(Watched::new).collect();
    loop {
        for anchor in &mut watched {
            let answers = answers(&anchor.reached.anchor);
            anchor.asked(answers, start.elapsed());
        }
        if let Some(lost) = trial::verdict(&watched, start.elapsed()) {
            let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
            return (!lost.is_empty()).then(|| lost.join(", "));
        }
        std::thread::sleep(TRY_EVERY);
    }
}

/// True if packets reach the anchor and return: a refusal is also an answer.
fn answers(anchor: &SocketAddr) -> bool {
    match TcpStream::connect_timeout(anchor, trial::ANSWER) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionRefused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::trial::{ASK_AGAIN, RETRY_AFTER};

    fn link(index: u32, addresses: &[&str]) -> Link {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        Link { index, addresses, ..Default::default() }
    }

    #[test]
    fn restoring_lost_addresses_is_tried_a_limited_number_of_times() {
        let folder = tempfile::tempdir().unwrap();
        let mut memory = Memory::load(&Store::open(folder.path()).unwrap(), Instant::now());
        let see = |memory: &mut Memory, link| memory.local_port(&link, Routes::default());
        assert!(see(&mut memory, link(7, &["10.0.0.1/24"])).is_empty());
        for _ in 0..GIVE_BACK_TRIES {
            assert_eq!(see(&mut memory, link(9, &[])).addresses, ["10.0.0.1/24"]);
            memory.gave_back();
        }
        assert!(see(&mut memory, link(9, &[])).is_empty(), "the current state is accepted");
        assert!(see(&mut memory, link(9, &["10.0.0.2/24"])).is_empty());
        assert!(!see(&mut memory, link(11, &[])).is_empty());
        memory.forget(Instant::now());
        assert!(
            see(&mut memory, link(12, &[])).is_empty(),
            "a bridge created later has no remembered addresses"
        );
    }

    #[test]
    fn an_uplink_that_cut_the_node_off_stays_off_while_no_anchor_answers() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let document = include_bytes!("../../../../../spec/vectors/config/node/01-two-sites-edge1.json");
        let config = NodeConfig::parse(document).unwrap();
        let uplink = config.uplinks[0].name.as_str().to_owned();
        let record = trial::Record {
            hash: config.hash.clone(),
            cut_off: [(uplink.clone(), "10.96.0.1:443".to_owned())].into(),
            ..trial::Record::default()
        };
        store.save(UPLINKS, &record).unwrap();
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let anchor = [server.local_addr().unwrap()];
        // A link-local address without an interface is unreachable.
        let silent = ["[fe80::1]:443".parse().unwrap()];

        let mut now = Instant::now();
        let mut memory = Memory::load(&store, now);
        for _ in 0..2 {
            now += RETRY_AFTER;
            assert!(memory.cut_off(&config, &silent, now).contains_key(&uplink));
        }
        now += ASK_AGAIN;
        assert!(memory.cut_off(&config, &anchor, now).is_empty(), "an anchor answers");
        let refused = memory.on_trial(Some(uplink.clone()), &silent, || panic!("the uplink must stay off"));
        assert!(refused.unwrap_err().contains("has cut the node off before"));
        assert!(memory.cut_off(&config, &anchor, Instant::now()).contains_key(&uplink));
        assert_eq!(
            memory.on_trial(Some("new".to_owned()), &silent, || 7),
            Ok(7),
            "an uplink that has not cut the node off is added"
        );
        assert!(memory.cut_off(&config, &anchor, now + RETRY_AFTER).is_empty());
        assert_eq!(memory.on_trial(Some(uplink), &anchor, || 7), Ok(7));
        assert_eq!(
            store.load::<trial::Record>(UPLINKS).unwrap().cut_off,
            BTreeMap::new(),
            "the uplink has passed its trial"
        );
    }
}
