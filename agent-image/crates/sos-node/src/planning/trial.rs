//! Uplinks on trial: putting a device on the bridge must not cut off the node's connections. LAN interfaces have the same trial.
//!
//! The plan refuses devices with a foreseeable conflict. For other devices, the addresses that the node must reach (`--anchor`) are probed
//! before and after the change. One uplink is added at a time, and an uplink that makes an anchor unreachable is removed again. The uplink
//! stays off for [`RETRY_AFTER`] or until the next config, whichever is earlier, and then until an anchor answers: while no anchor answers,
//! a trial cannot detect that the uplink cuts the node off again. The trial is recorded before the change, so that a restarted process
//! finishes the trial of a killed one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::NodeConfig;
use crate::planning::change::Change;

/// Time for which the anchors must answer after a change. Most losses show immediately; a cached address resolution may hide a loss for
/// some seconds, until a later probe.
pub const WATCH: Duration = Duration::from_secs(3);
/// Time after a change from which an anchor that still does not answer counts as lost, so that the change is undone. A port may need a
/// moment to come up.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Number of probes of an anchor before a change.
pub const ASKED: usize = 4;
/// Timeout of one probe.
pub const ANSWER: Duration = Duration::from_secs(1);
/// Time until an uplink that failed its trial is tried again: the anchor may have become unreachable for another reason.
pub const RETRY_AFTER: Duration = Duration::from_secs(600);
/// Interval of further probes if no anchor answers after [`RETRY_AFTER`].
pub const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of anchors.
pub const MAX_ANCHORS: usize = 4;

/// Parse ADDRESS:PORT. An IPv6 address may lack brackets, as in Kubernetes' environment variables.
///
/// # Errors
/// The text has another form.
pub fn parse_anchor(text: &str) -> Result<SocketAddr, String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let host: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(host, port.parse().ok()?))
    });
    parts.ok_or_else(|| format!("`{text}` is not ADDRESS:PORT with a numeric address"))
}

/// An anchor that was reached before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// The anchor.
    pub anchor: SocketAddr,
    /// True if the anchor answered every probe before the change. An anchor that did not (such as a service with a dead endpoint) need not
    /// answer every probe after the change either.
    pub steady: bool,
}

/// State kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Hash of the config that the record belongs to.
    pub hash: String,
    /// Uplinks on trial.
    pub trying: BTreeSet<String>,
    /// Anchors reached before the change.
    #[serde(default)]
    pub reached: Vec<Reached>,
    /// Uplinks that cut the node off, with the anchors lost.
    pub cut_off: BTreeMap<String, String>,
}

/// The record, and the time of the next try.
#[derive(Debug)]
pub struct Trials {
    record: Record,
    /// Time of the next try of uplinks that cut the node off.
    due: Instant,
    /// Uplinks that cut the node off and may be tried again now.
    released: BTreeSet<String>,
}

impl Trials {
    /// Start from a record.
    #[must_use]
    pub fn new(record: Record, now: Instant) -> Self {
        Self { record, due: now + RETRY_AFTER, released: BTreeSet::new() }
    }

    /// The record to keep on disk.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Uplinks that must stay off.
    #[must_use]
    pub fn cut_off(&self) -> BTreeMap<String, String> {
        let off = self.record.cut_off.iter().filter(|(name, _)| !self.released.contains(*name));
        off.map(|(name, lost)| (name.clone(), lost.clone())).collect()
    }

    /// Apply a config. True if the record has changed.
    pub fn configured(&mut self, config: &NodeConfig, now: Instant) -> bool {
        if self.record.hash == config.hash {
            return false;
        }
        self.record.hash.clone_from(&config.hash);
        self.record.cut_off.retain(|name, _| is_interface(config, name));
        self.due = now;
        true
    }

    /// True if it is time to probe the anchors, to allow uplinks that cut the node off another try.
    #[must_use]
    pub fn retry_due(&self, now: Instant) -> bool {
        now >= self.due && self.record.cut_off.keys().any(|name| !self.released.contains(name))
    }

    /// Record whether an anchor has answered. If so, uplinks that cut the node off may be tried again: only while an anchor answers can a
    /// trial detect another cut.
    pub fn retry(&mut self, answered: bool, now: Instant) {
        if answered {
            self.released = self.record.cut_off.keys().cloned().collect();
        } else {
            self.due = now + ASK_AGAIN;
        }
    }

    /// Record that no anchor answered when the uplink was to be tried. True if the uplink must stay off, because it has cut the node off
    /// before.
    pub fn hold_back(&mut self, uplink: &str, now: Instant) -> bool {
        self.released.remove(uplink);
        self.due = now + ASK_AGAIN;
        self.record.cut_off.contains_key(uplink)
    }

    /// Begin a trial.
    pub fn begin(&mut self, uplink: String, reached: Vec<Reached>) {
        self.record.trying.insert(uplink);
        self.record.reached = reached;
    }

    /// End a trial. `lost` names the unreachable anchors.
    pub fn end(&mut self, lost: Option<&str>, now: Instant) {
        self.record.reached.clear();
        for name in std::mem::take(&mut self.record.trying) {
            self.released.remove(&name);
            match lost {
                Some(lost) => drop(self.record.cut_off.insert(name, lost.to_owned())),
                None => drop(self.record.cut_off.remove(&name)),
            }
        }
        if lost.is_some() {
            self.due = now + RETRY_AFTER;
        }
    }
}

/// True for uplinks and LAN interfaces.
fn is_interface(config: &NodeConfig, name: &str) -> bool {
    let uplinks = config.uplinks.iter().map(|uplink| &uplink.name);
    uplinks.chain(config.lan.iter().map(|port| &port.name)).any(|there| there.as_str() == name)
}

/// The uplink to add to the bridge now, if any, and the changes to make now. At most one uplink is added in a round, and none while an uplink
/// is being removed: the removed uplink may be cutting the node off, and then no anchor answers until it has been removed.
#[must_use]
pub fn one_at_a_time(config: &NodeConfig, changes: &[Change]) -> (Option<String>, Vec<Change>) {
    let uplink = |change: &Change| match change {
        Change::AddPort { name, .. } if is_interface(config, name) => Some(name.clone()),
        _ => None,
    };
    let taken_off =
        |change: &Change| matches!(change, Change::DeletePort { name, .. } if is_interface(config, name));
    let mut waiting: Vec<String> = changes.iter().filter_map(uplink).collect();
    let first =
        if waiting.is_empty() || changes.iter().any(taken_off) { None } else { Some(waiting.remove(0)) };
    let now = changes.iter().filter(|change| {
        let about = match change {
            Change::AddPort { name, .. } | Change::SetLinkUp { name } => name,
            Change::SetNoFlood { port, .. } => port,
            Change::SetOffloads { device, .. } if device.netns.is_none() => &device.name,
            _ => return true,
        };
        !waiting.contains(about)
    });
    (first, now.cloned().collect())
}

/// Probe history of an anchor after a change.
#[derive(Debug, Clone)]
pub struct Watched {
    /// The anchor.
    pub reached: Reached,
    answered: Option<Duration>,
    silent: Option<Duration>,
}

impl Watched {
    /// Start without a history.
    #[must_use]
    pub fn new(reached: Reached) -> Self {
        Self { reached, answered: None, silent: None }
    }

    /// Record the result of a probe that was made `waited` after the change.
    pub fn asked(&mut self, answers: bool, waited: Duration) {
        *(if answers { &mut self.answered } else { &mut self.silent }) = Some(waited);
    }

    /// True if the anchor is as reachable as before: a steady anchor throughout [`WATCH`], any other anchor at least once in that time.
    fn well(&self, waited: Duration) -> bool {
        waited >= WATCH
            && if self.reached.steady {
                self.silent.is_none_or(|at| waited.saturating_sub(at) >= WATCH)
            } else {
                self.answered.is_some_and(|at| waited.saturating_sub(at) <= WATCH)
            }
    }

    /// True if the anchor may still become reachable.
    fn hopeful(&self, waited: Duration) -> bool {
        waited < PATIENCE || (self.answered > self.silent && waited < PATIENCE + WATCH)
    }
}

/// The lost anchors, `waited` after the change: empty if all are well, `None` if it is too early to tell.
#[must_use]
pub fn verdict(watched: &[Watched], waited: Duration) -> Option<Vec<SocketAddr>> {
    let not_well: Vec<&Watched> = watched.iter().filter(|anchor| !anchor.well(waited)).collect();
    let early = !not_well.is_empty() && not_well.iter().all(|anchor| anchor.hopeful(waited));
    (!early).then(|| not_well.iter().map(|anchor| anchor.reached.anchor).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planning::change::Place;

    #[test]
    fn parses_anchors_of_both_families() {
        assert_eq!(parse_anchor("10.96.0.1:443").unwrap(), "10.96.0.1:443".parse().unwrap());
        for text in ["[fd00::1]:443", "fd00::1:443"] {
            assert_eq!(parse_anchor(text).unwrap(), "[fd00::1]:443".parse().unwrap());
        }
        for text in ["kubernetes:443", "10.96.0.1", "10.96.0.1:x", ":443"] {
            assert!(parse_anchor(text).unwrap_err().contains(text));
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn reached(steady: bool) -> Reached {
        Reached { anchor: "10.96.0.1:443".parse().unwrap(), steady }
    }

    /// Seconds until a trial ends, and its success, if the anchor is probed once a second and answers as given.
    fn trial(steady: bool, answers: impl Fn(u32) -> bool) -> (u32, bool) {
        let mut watched = [Watched::new(reached(steady))];
        for second in 0.. {
            watched[0].asked(answers(second), SECOND * second);
            if let Some(lost) = verdict(&watched, SECOND * second) {
                return (second, lost.is_empty());
            }
        }
        unreachable!("a trial ends")
    }

    #[test]
    fn a_trial_ends_early_on_success_and_within_a_bound_on_failure() {
        assert_eq!(trial(true, |_| true), (3, true));
        assert_eq!(trial(true, |_| false), (10, false));
        assert_eq!(
            trial(true, |second| second >= 4),
            (6, true),
            "the anchor answers throughout the watch time"
        );
        assert_eq!(trial(true, |second| second >= 9), (11, true));
        assert_eq!(trial(true, |second| second % 3 == 0), (10, false), "two of three paths are cut off");
        assert_eq!(trial(false, |second| second % 3 == 0), (3, true), "the anchor answered as rarely before");
        assert_eq!(trial(false, |_| false), (10, false));
    }

    fn config(uplinks: &[&str]) -> NodeConfig {
        let document = include_bytes!("../../../../../spec/vectors/config/node/01-two-sites-edge1.json");
        let mut document: serde_json::Value = serde_json::from_slice(document).unwrap();
        let uplink = |(i, name)| serde_json::json!({"name": name, "ofport": 33001 + i, "base": false});
        document["uplinks"] = uplinks.iter().enumerate().map(uplink).collect();
        let mut config: NodeConfig = serde_json::from_value(document).unwrap();
        config.hash = format!("sha256:{uplinks:?}");
        config
    }

    /// Trials in which wan0 has failed.
    fn cut_off(config: &NodeConfig, now: Instant) -> Trials {
        let mut trials = Trials::new(Record::default(), now);
        assert!(trials.configured(config, now));
        trials.begin("wan0".to_owned(), vec![reached(true)]);
        assert!(trials.record().trying.contains("wan0") && trials.record().reached == [reached(true)]);
        trials.end(Some("10.96.0.1:443"), now);
        assert!(trials.record().trying.is_empty() && trials.record().reached.is_empty());
        assert_eq!(trials.cut_off()["wan0"], "10.96.0.1:443");
        trials
    }

    #[test]
    fn an_uplink_that_cut_the_node_off_stays_off_until_an_anchor_answers() {
        let start = Instant::now();
        let mut trials = cut_off(&config(&["wan0"]), start);
        assert!(!trials.retry_due(start + RETRY_AFTER - SECOND));
        let mut now = start + RETRY_AFTER;
        for _ in 0..100 {
            assert!(trials.retry_due(now), "{:?}", now - start);
            trials.retry(false, now);
            assert!(trials.cut_off().contains_key("wan0") && !trials.retry_due(now));
            now += ASK_AGAIN;
        }
        trials.retry(true, now);
        assert!(trials.cut_off().is_empty() && !trials.retry_due(now));
        assert!(trials.hold_back("wan0", now), "the anchor no longer answers");
        assert!(trials.cut_off().contains_key("wan0"));
        trials.retry(true, now + ASK_AGAIN);
        trials.begin("wan0".to_owned(), vec![reached(true)]);
        trials.end(None, now);
        assert!(trials.cut_off().is_empty() && trials.record().cut_off.is_empty());
        assert!(!trials.hold_back("wan0", now), "an uplink that has not cut the node off is added");
    }

    #[test]
    fn a_new_config_starts_a_new_trial_if_an_anchor_answers() {
        let start = Instant::now();
        let mut trials = cut_off(&config(&["wan0"]), start);
        assert!(!trials.configured(&config(&["wan0"]), start));
        assert!(trials.configured(&config(&["wan0", "wan1"]), start));
        assert!(trials.retry_due(start) && trials.cut_off().contains_key("wan0"));
        trials.retry(true, start);
        assert!(trials.cut_off().is_empty());
        assert!(trials.configured(&config(&["wan1"]), start));
        assert!(trials.record().cut_off.is_empty(), "a device that is no longer an uplink is forgotten");
    }

    #[test]
    fn one_uplink_is_added_at_a_time_and_none_during_a_removal() {
        let config = config(&["wan0", "wan1"]);
        let add = |name: &str| {
            let row = crate::observation::observed::Row::default;
            Change::AddPort {
                bridge: "b".into(),
                name: name.into(),
                port: row(),
                interface: row(),
                place: Place::Own,
            }
        };
        let quiet = |port: &str| Change::SetNoFlood { bridge: "b".into(), port: port.into(), no_flood: true };
        let off = Change::DeletePort { bridge: "b".into(), name: "wan2".into(), place: Place::Own };
        let changes =
            [off, add("sosag0"), add("wan0"), add("wan1"), quiet("sosag0"), quiet("wan0"), quiet("wan1")];
        let (tried, now) = one_at_a_time(&config, &changes);
        assert_eq!(tried.as_deref(), Some("wan0"));
        assert_eq!(now, [&changes[..3], &changes[4..6]].concat());
        let bad = Change::DeletePort { bridge: "b".into(), name: "wan0".into(), place: Place::Own };
        let up = |name: &str| Change::SetLinkUp { name: name.into() };
        let downs = [add("wan0"), up("wan0"), add("wan1"), up("wan1")];
        let (_, now) = one_at_a_time(&config, &downs);
        assert_eq!(now, downs[..2], "an interface is set up when it is added, not before");
        let (tried, now) = one_at_a_time(&config, &[bad.clone(), add("wan1"), quiet("wan1"), add("sosag0")]);
        assert_eq!((tried, now), (None, vec![bad, add("sosag0")]));
    }
}
