//! Uplinks on trial: putting a device on the bridge must not cost the node its connections.
//!
//! What can be seen beforehand is refused by the plan. For the rest the addresses that the node must reach (`--anchor`) are tried before
//! and after: an uplink after which one of them is lost is taken off again and stays off for [`RETRY_AFTER`] or until the next
//! config. That an uplink is on trial is written down before the change, so that a program which was killed in between finishes the trial.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::change::Change;
use crate::config::NodeConfig;

/// How long the anchors are watched after a change: what is cut off shows at once, what an address resolution still hides for some
/// seconds shows as soon as it is asked again.
pub const WATCH: Duration = Duration::from_secs(3);
/// How long an anchor may be away after a change before the change is taken back. A port that comes up may cost a moment.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Longest wait for one answer of an anchor.
pub const ANSWER: Duration = Duration::from_secs(1);
/// An uplink is tried again after this time: the anchor may have been away by itself.
pub const RETRY_AFTER: Duration = Duration::from_secs(600);
/// Most anchors.
pub const MAX_ANCHORS: usize = 4;

/// Reads ADDRESS:PORT. The address may be an IPv6 one without brackets, as Kubernetes writes it into the environment.
///
/// # Errors
/// It is something else.
pub fn parse_anchor(text: &str) -> Result<SocketAddr, String> {
    let parts = text.rsplit_once(':').and_then(|(host, port)| {
        let host: IpAddr = host.trim_matches(['[', ']']).parse().ok()?;
        Some(SocketAddr::new(host, port.parse().ok()?))
    });
    parts.ok_or_else(|| format!("`{text}` is not ADDRESS:PORT with a numeric address"))
}

/// What is kept on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Hash of the config it is about.
    pub hash: String,
    /// Uplinks that were about to be put on the bridge and are not known to be harmless yet.
    pub trying: BTreeSet<String>,
    /// Uplinks that cut the node off, and what was lost.
    pub cut_off: BTreeMap<String, String>,
}

/// The record and the time that matters for it.
#[derive(Debug)]
pub struct Trials {
    record: Record,
    since: Instant,
}

impl Trials {
    /// Takes up a record.
    #[must_use]
    pub fn new(record: Record, now: Instant) -> Self {
        Self { record, since: now }
    }

    /// What is to be kept on disk.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Uplinks that must stay off, for a config at a moment.
    pub fn cut_off(&mut self, config: &NodeConfig, now: Instant) -> &BTreeMap<String, String> {
        let over = now.duration_since(self.since) >= RETRY_AFTER;
        if self.record.hash != config.hash || (over && !self.record.cut_off.is_empty()) {
            let hash = config.hash.clone();
            let trying = std::mem::take(&mut self.record.trying);
            self.record = Record { hash, trying, cut_off: BTreeMap::new() };
        }
        &self.record.cut_off
    }

    /// A trial begins.
    pub fn begin(&mut self, uplinks: BTreeSet<String>) {
        self.record.trying.extend(uplinks);
    }

    /// It ends. `lost` is what could not be reached any more.
    pub fn end(&mut self, lost: Option<&str>, now: Instant) {
        let tried = std::mem::take(&mut self.record.trying);
        if let Some(lost) = lost {
            self.record.cut_off.extend(tried.into_iter().map(|name| (name, lost.to_owned())));
            self.since = now;
        }
    }
}

/// Uplinks that changes put on the bridge.
#[must_use]
pub fn uplinks_put_on(config: &NodeConfig, changes: &[Change]) -> BTreeSet<String> {
    let put_on = |change: &Change| match change {
        Change::AddPort { name, .. } => Some(name.clone()),
        _ => None,
    };
    let uplink = |name: &String| config.uplinks.iter().any(|uplink| uplink.name.as_str() == name);
    changes.iter().filter_map(put_on).filter(uplink).collect()
}

/// Whether a trial goes on, `waited` after the change.
#[must_use]
pub fn goes_on(all_reached: bool, waited: Duration) -> bool {
    waited < if all_reached { WATCH } else { PATIENCE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_of_both_families() {
        assert_eq!(parse_anchor("10.96.0.1:443").unwrap(), "10.96.0.1:443".parse().unwrap());
        for text in ["[fd00::1]:443", "fd00::1:443"] {
            assert_eq!(parse_anchor(text).unwrap(), "[fd00::1]:443".parse().unwrap());
        }
        for text in ["kubernetes:443", "10.96.0.1", "10.96.0.1:x", ":443"] {
            assert!(parse_anchor(text).unwrap_err().contains(text));
        }
    }

    #[test]
    fn a_trial_ends_early_when_all_is_well_and_in_time_when_not() {
        assert!(goes_on(true, WATCH - Duration::from_millis(1)) && !goes_on(true, WATCH));
        assert!(goes_on(false, PATIENCE - Duration::from_millis(1)) && !goes_on(false, PATIENCE));
    }

    #[test]
    fn what_cut_the_node_off_stays_off_until_the_next_config_or_for_a_while() {
        let start = Instant::now();
        let mut config =
            NodeConfig::parse(include_bytes!("../../../../spec/vectors/config/node/01-two-sites-edge1.json"))
                .unwrap();
        let mut trials = Trials::new(Record::default(), start);
        assert!(trials.cut_off(&config, start).is_empty());
        trials.begin(["wan0".to_owned()].into());
        assert!(trials.record().trying.contains("wan0"));
        trials.end(Some("10.96.0.1:443"), start);
        assert!(trials.record().trying.is_empty());
        assert_eq!(trials.cut_off(&config, start)["wan0"], "10.96.0.1:443");
        let kept = trials.record().clone();
        assert!(trials.cut_off(&config, start + RETRY_AFTER).is_empty());
        let mut again = Trials::new(kept, start);
        config.hash = "sha256:other".into();
        assert!(again.cut_off(&config, start).is_empty());
        again.begin(["wan0".to_owned()].into());
        again.end(None, start);
        assert!(again.cut_off(&config, start).is_empty());
    }
}
