//! A machine outside Kubernetes: its enrollment, and the exchange by which it receives its agent-config (spec/card.md section 5).
//!
//! 1. [`Enrollment::load`] reads the file that `kubectl sos enroll` wrote: the machine's name and site, the pairing's keys, and agents of
//!    the cluster.
//! 2. [`state::State`] keeps the machine's installation id and the last agent-config received.
//! 3. [`offer::Dialogue`] composes Offers with a report of the machine, and judges Answers, which carry the agent-config.
//! 4. [`key_source::KeySource`] reads the keys, from the enrollment or from a folder.
//!
//! [`crate::tasks::enrollment`] is the edge: sockets, clock, files. The rest of the agent sees an ordinary configuration file, and keys derived
//! from the enrollment ([`Enrollment::keys`]).

pub mod key_source;
pub mod offer;
pub mod state;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::Path;

use serde::{Deserialize, Deserializer};
use sos_daemon::document::{self, ConfigError};
use sos_wire::{Key, KeyFile, KeyId, PairingId, SiteId};

use crate::documents::config::keys::AgentKeys;
use crate::documents::config::source::{SourceError, read};
use crate::documents::config::{AgentConfig, from_text, site_id};

/// Maximum number of agents in an enrollment.
pub const MAX_AGENTS: usize = 64;
/// Maximum number of keys in an enrollment: two during a rotation, with room for keys that were not removed.
pub const MAX_KEYS: usize = 8;
/// Maximum length of a machine's name: a DNS label.
const MAX_NAME: usize = 63;
const VERSION: &str = "v1alpha1";

/// Content of the enrollment file.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Enrollment {
    /// Always `v1alpha1`.
    pub version: String,
    /// Name of the machine: the node of its agent-config.
    pub machine: String,
    /// Id of the machine's site.
    #[serde(rename = "siteID", deserialize_with = "site_id")]
    pub site: SiteId,
    /// The pairing with the cluster.
    #[serde(deserialize_with = "from_text")]
    pub pairing: PairingId,
    /// Secrets of the pairing by key id.
    #[serde(deserialize_with = "secrets")]
    pub keys: BTreeMap<KeyId, Key>,
    /// Agents of the cluster for the first exchange.
    pub agents: Vec<SocketAddrV4>,
}

impl std::fmt::Debug for Enrollment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Enrollment").field("machine", &self.machine).finish_non_exhaustive()
    }
}

fn secrets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<KeyId, Key>, D::Error> {
    use serde::de::Error as _;
    let texts: BTreeMap<u16, String> = BTreeMap::deserialize(deserializer)?;
    let secret = |(id, text): (u16, String)| {
        let id = KeyId::new(id).ok_or_else(|| D::Error::custom("a key id is not 0"))?;
        Ok((id, Key::parse_hex(&text).map_err(|_| D::Error::custom("a key has 64 hex digits"))?))
    };
    texts.into_iter().map(secret).collect()
}

impl Enrollment {
    /// Reads and checks the enrollment file.
    ///
    /// # Errors
    /// The file cannot be read, or its first error with its JSON path.
    pub fn load(path: &Path) -> Result<Self, SourceError> {
        let text = read(path)?;
        Self::parse(&text).map_err(|error| SourceError::Config { path: path.to_owned(), error })
    }

    /// Parses and checks an enrollment.
    ///
    /// # Errors
    /// The first error, with its JSON path.
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        let found: Self = document::parse(text)?;
        found.check()?;
        Ok(found)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let bounds = [
            (self.version == VERSION, "version", format!("must be {VERSION}")),
            (
                (1..=MAX_NAME).contains(&self.machine.len()),
                "machine",
                format!("must have 1 to {MAX_NAME} characters"),
            ),
            ((1..=MAX_KEYS).contains(&self.keys.len()), "keys", format!("must hold 1 to {MAX_KEYS} keys")),
            (
                (1..=MAX_AGENTS).contains(&self.agents.len()),
                "agents",
                format!("must list 1 to {MAX_AGENTS} agents"),
            ),
        ];
        let wrong = bounds.into_iter().find(|(holds, ..)| !holds);
        wrong.map_or(Ok(()), |(_, field, message)| Err(ConfigError::new(field, message)))
    }

    /// The agent's keys for a configuration: pair keys with the sites that the configuration names, derived from the pairing's secrets. The key
    /// of the machine's own site, which an agent without a bridge never uses on the wire, is derived in the same way.
    ///
    /// `agreed`: the newest key that the cluster has used, to send with; without it, the oldest key.
    #[must_use]
    pub fn keys(&self, config: &AgentConfig, agreed: Option<KeyId>) -> AgentKeys {
        let mut keys = AgentKeys::default();
        let oldest = self.keys.first_key_value().map(|(id, _)| *id);
        for (id, secret) in &self.keys {
            keys.insert(KeyFile::OwnSite(*id), secret.site(self.site));
            for peer in &config.peers {
                keys.insert(KeyFile::Pair(peer.site_id, *id), secret.pair(self.site, peer.site_id));
            }
        }
        if let Some(id) = agreed.or(oldest) {
            config.peers.iter().for_each(|peer| keys.agree(peer.site_id, id));
        }
        keys
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::documents::config::tests::config;
    use serde_json::{Value, json};

    fn document() -> Value {
        json!({
            "version": "v1alpha1", "machine": "edge1", "siteID": 9, "pairing": "11".repeat(16),
            "keys": {"1": "07".repeat(32)}, "agents": ["192.0.2.1:14790", "192.0.2.2:14790"],
        })
    }

    /// An enrollment of the node of the tests' configuration.
    pub(crate) fn enrollment() -> Enrollment {
        Enrollment::parse(document().to_string().as_bytes()).unwrap()
    }

    #[test]
    fn errors_name_the_field() {
        let changes = [
            ("/version", json!("v2"), "version: must be v1alpha1"),
            ("/machine", json!(""), "machine: must have 1 to 63 characters"),
            ("/machine", json!("m".repeat(64)), "machine: must have 1 to 63 characters"),
            ("/siteID", json!(0), "siteID: "),
            ("/pairing", json!("zz"), "pairing: "),
            ("/keys", json!({}), "keys: must hold 1 to 8 keys"),
            ("/keys", json!({"0": "07".repeat(32)}), "keys: a key id is not 0"),
            ("/keys", json!({"1": "07"}), "keys: a key has 64 hex digits"),
            ("/agents", json!([]), "agents: must list 1 to 64 agents"),
            ("/agents", json!(["192.0.2.1"]), "agents[0]: "),
            ("/agents", json!(vec!["192.0.2.1:1"; 65]), "agents: must list 1 to 64 agents"),
        ];
        for (pointer, value, expected) in changes {
            let mut changed = document();
            *changed.pointer_mut(pointer).unwrap() = value;
            let error = Enrollment::parse(changed.to_string().as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error} is not {expected}");
        }
        let mut more = document();
        more["token"] = json!("x");
        assert!(Enrollment::parse(more.to_string().as_bytes()).is_err(), "unknown fields are refused");
    }

    #[test]
    fn no_key_is_printed() {
        assert!(!format!("{:?}", enrollment()).contains("07"));
    }

    #[test]
    fn pair_keys_are_those_of_the_cluster() {
        let config = config();
        let keys = enrollment().keys(&config, None);
        let peer = config.peers[0].site_id;
        let (id, key) = keys.pair(peer).sending().map(|(id, key)| (id, key.clone())).unwrap();
        // The cluster derives the pair key with the sites in the other order (spec/card.md clause 2).
        assert_eq!((id.as_u16(), key), (1, Key::new([7; 32]).pair(peer, SiteId(9))));
    }

    #[test]
    fn a_new_key_is_used_to_send_when_the_cluster_has_used_it() {
        let (config, mut enrollment) = (config(), enrollment());
        let peer = config.peers[0].site_id;
        let new = KeyId::new(2).unwrap();
        enrollment.keys.insert(new, Key::new([8; 32]));
        for (agreed, sends) in [(None, 1), (KeyId::new(1), 1), (Some(new), 2)] {
            let ring = enrollment.keys(&config, agreed).pair(peer);
            assert_eq!(ring.sending().unwrap().0.as_u16(), sends);
            assert!(ring.find(new).is_ok(), "accepted at any time");
        }
    }
}
