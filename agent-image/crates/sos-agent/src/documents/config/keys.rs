//! Keys of an agent, from its key folder (spec/README.md clauses 4 and 5, spec/card.md clause 2).

use std::collections::BTreeMap;
use std::path::Path;

use sos_wire::{
    AgentId, Key, KeyFile, KeyId, Keyring, PairingId, SENDING_FILE, SiteId, WireError, sending_to,
};

/// Maximum number of files read from a key folder: one pair key for each peer site, and two during a rotation.
pub const MAX_FILES: usize = 4_096;
/// Maximum size of a key file: 64 hex digits and surrounding white space.
const MAX_FILE_BYTES: u64 = 256;

/// The site key, the pair keys and the card keys of one agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentKeys {
    site: Keyring,
    pairs: BTreeMap<SiteId, Keyring>,
    cards: BTreeMap<PairingId, Keyring>,
}

/// Reason for rejecting a key folder.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The folder or a file in it cannot be read.
    #[error("{path}: {error}")]
    Read {
        /// Path.
        path: String,
        /// Error.
        error: std::io::Error,
    },
    /// A key file does not contain 64 hex digits.
    #[error("{path}: must hold 64 hex digits")]
    Content {
        /// Path.
        path: String,
    },
    /// The file that names the sending key contains no key id.
    #[error("{path}: must hold a key id, 1 to 65535")]
    Sending {
        /// Path.
        path: String,
    },
    /// More than [`MAX_FILES`] files.
    #[error("{path}: holds more than {MAX_FILES} files")]
    TooMany {
        /// Path.
        path: String,
    },
    /// The key of the agent's own site is missing.
    #[error("{path}: holds no key file named site-<keyid>")]
    NoSiteKey {
        /// Path.
        path: String,
    },
}

impl AgentKeys {
    /// Reads a key folder. Files not named like an agent's keys are ignored, since mounted folders contain other files.
    ///
    /// # Errors
    /// The folder cannot be read, a key is malformed, or there is no site key.
    pub fn load(folder: &Path) -> Result<Self, KeysError> {
        let path = folder.display().to_string();
        let failed = |error| KeysError::Read { path: path.clone(), error };
        let mut keys = Self::default();
        let (mut agreed, mut agreed_with) = (None, BTreeMap::new());
        for (count, entry) in std::fs::read_dir(folder).map_err(failed)?.enumerate() {
            if count >= MAX_FILES {
                return Err(KeysError::TooMany { path });
            }
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_str().unwrap_or_default();
            if let Some(file) = KeyFile::parse(name) {
                keys.insert(file, read_key(&entry.path())?);
            } else if name == SENDING_FILE {
                agreed = Some(read_id(&entry.path())?);
            } else if let Some(site) = sending_to(name) {
                agreed_with.insert(site, read_id(&entry.path())?);
            }
        }
        if let Some(id) = agreed {
            keys.site.agree(id);
            keys.pairs.values_mut().for_each(|ring| ring.agree(id));
        }
        for (site, id) in agreed_with {
            keys.agree(site, id);
        }
        if keys.site.is_empty() { Err(KeysError::NoSiteKey { path }) } else { Ok(keys) }
    }

    /// Adds a key under the name of its file. Site keys of other sites are ignored, since only the controller uses them.
    pub fn insert(&mut self, file: KeyFile, key: Key) {
        match file {
            KeyFile::OwnSite(id) => self.site.insert(id, key),
            KeyFile::Pair(site, id) => self.pairs.entry(site).or_default().insert(id, key),
            KeyFile::Card(pairing, id) => self.cards.entry(pairing).or_default().insert(id, key),
            KeyFile::Site(..) => {}
        }
    }

    /// Sets the highest id of the keys to send with to a site.
    pub fn agree(&mut self, site: SiteId, id: KeyId) {
        if let Some(ring) = self.pairs.get_mut(&site) {
            ring.agree(id);
        }
    }

    /// Signing key of beacons.
    #[must_use]
    pub fn beacon(&self, agent: AgentId) -> Option<(KeyId, Key)> {
        self.site.sending().map(|(id, key)| (id, key.beacon(agent)))
    }

    /// Signing key of orders to controllers.
    #[must_use]
    pub fn order_to_controller(&self, agent: AgentId) -> Option<(KeyId, Key)> {
        self.site.sending().map(|(id, key)| (id, key.order_to_controller(agent)))
    }

    /// Key by which an order from a controller must be signed.
    ///
    /// # Errors
    /// [`WireError::UnknownKey`].
    pub fn order_to_agent(&self, agent: AgentId, id: KeyId) -> Result<Key, WireError> {
        self.site.find(id).map(|key| key.order_to_agent(agent))
    }

    /// Keys shared with a peer site.
    #[must_use]
    pub fn pair(&self, site: SiteId) -> Keyring {
        self.pairs.get(&site).cloned().unwrap_or_default()
    }

    /// Key by which an Offer of a pairing must be signed. An Answer is signed with the key of its Offer, so an agent chooses no card key.
    ///
    /// # Errors
    /// [`WireError::UnknownKey`] if the pairing has no key with this id.
    pub fn card(&self, pairing: PairingId, id: KeyId) -> Result<Key, WireError> {
        let ring = self.cards.get(&pairing).ok_or(WireError::UnknownKey(id.as_u16()))?;
        ring.find(id).cloned()
    }
}

fn read_key(path: &Path) -> Result<Key, KeysError> {
    Key::parse_hex(&read_text(path)?).map_err(|_| KeysError::Content { path: path.display().to_string() })
}

fn read_id(path: &Path) -> Result<KeyId, KeysError> {
    let id = read_text(path)?.trim().parse().ok().and_then(KeyId::new);
    id.ok_or_else(|| KeysError::Sending { path: path.display().to_string() })
}

fn read_text(path: &Path) -> Result<String, KeysError> {
    use std::io::Read as _;
    let mut text = String::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
    read.map_err(|error| KeysError::Read { path: path.display().to_string(), error })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

    #[test]
    fn reads_its_own_keys_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["site-1", "site-3", "pair-2-1", "site-2-9", "..data"] {
            std::fs::write(dir.path().join(name), if name == "..data" { "junk" } else { HEX }).unwrap();
        }
        let keys = AgentKeys::load(dir.path()).unwrap();
        let agent = AgentId([1; 16]);
        assert_eq!(keys.beacon(agent).unwrap().0, KeyId::new(3).unwrap());
        assert!(keys.order_to_agent(agent, KeyId::new(1).unwrap()).is_ok());
        assert!(keys.order_to_agent(agent, KeyId::new(9).unwrap()).is_err());
        assert!(!keys.pair(SiteId(2)).is_empty());
        assert!(keys.pair(SiteId(3)).is_empty());
    }

    #[test]
    fn a_card_key_belongs_to_one_pairing() {
        let dir = tempfile::tempdir().unwrap();
        let (pairing, id) = (PairingId([0xab; 16]), |n| KeyId::new(n).unwrap());
        for name in ["site-1".to_owned(), format!("card-{pairing}-2"), format!("card-{pairing}-3")] {
            std::fs::write(dir.path().join(name), HEX).unwrap();
        }
        let keys = AgentKeys::load(dir.path()).unwrap();
        assert!(keys.card(pairing, id(2)).is_ok() && keys.card(pairing, id(3)).is_ok());
        assert_eq!(keys.card(pairing, id(1)), Err(WireError::UnknownKey(1)));
        assert_eq!(keys.card(PairingId([1; 16]), id(2)), Err(WireError::UnknownKey(2)));
    }

    #[test]
    fn an_announced_key_is_accepted_but_not_used_for_sending() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["site-1", "site-2", "pair-2-1", "pair-2-2"] {
            std::fs::write(dir.path().join(name), HEX).unwrap();
        }
        std::fs::write(dir.path().join("sending"), "1\n").unwrap();
        let (keys, agent, id) =
            (AgentKeys::load(dir.path()).unwrap(), AgentId([1; 16]), |n| KeyId::new(n).unwrap());
        assert_eq!(keys.beacon(agent).unwrap().0, id(1));
        assert_eq!(keys.order_to_controller(agent).unwrap().0, id(1));
        assert_eq!(keys.pair(SiteId(2)).sending().unwrap().0, id(1));
        assert!(keys.order_to_agent(agent, id(2)).is_ok() && keys.pair(SiteId(2)).find(id(2)).is_ok());
        std::fs::write(dir.path().join("sending"), "0").unwrap();
        assert!(AgentKeys::load(dir.path()).unwrap_err().to_string().contains("sending: must hold a key id"));
    }

    #[test]
    fn names_the_invalid_file_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(AgentKeys::load(dir.path()), Err(KeysError::NoSiteKey { .. })));
        std::fs::write(dir.path().join("site-1"), "secret but too short").unwrap();
        let error = AgentKeys::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("site-1") && !error.contains("secret"), "{error}");
    }
}
