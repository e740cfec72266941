//! The state folder of an enrolled machine: its installation id, and the last agent-config received.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sos_daemon::files::{self, Access};
use sos_wire::{InstallationId, PairingId};

use crate::documents::config::source::LAST_GOOD;

const IDENTITY: &str = "machine.json";
const RECEIVED: &str = "received.json";

/// Reason why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct StateError {
    /// Path.
    pub path: PathBuf,
    /// Error.
    pub error: std::io::Error,
}

#[derive(Serialize, Deserialize)]
struct Identity {
    pairing: String,
    installation: String,
}

/// Files of an enrolled machine.
#[derive(Debug)]
pub struct State {
    folder: PathBuf,
    /// Id of the machine in exchanges: random, and kept for as long as the pairing, so that no other machine can receive the configuration
    /// with a copy of the enrollment.
    pub installation: InstallationId,
}

impl State {
    /// Opens the folder. A new pairing gets the installation id `fresh`, and removes the configuration of an earlier pairing.
    ///
    /// # Errors
    /// The folder cannot be created, read or written.
    pub fn open(folder: &Path, pairing: PairingId, fresh: InstallationId) -> Result<Self, StateError> {
        let path = folder.join(IDENTITY);
        let failed = |error| StateError { path: path.clone(), error };
        std::fs::create_dir_all(folder).map_err(failed)?;
        if let Some(installation) = known(&path, pairing).map_err(failed)? {
            return Ok(Self { folder: folder.to_owned(), installation });
        }
        for stale in [RECEIVED, LAST_GOOD] {
            match std::fs::remove_file(folder.join(stale)) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        let identity = Identity { pairing: pairing.to_string(), installation: fresh.to_string() };
        files::replace(&path, &serde_json::to_vec(&identity).expect("plain data"), Access::Owner)
            .map_err(failed)?;
        Ok(Self { folder: folder.to_owned(), installation: fresh })
    }

    /// Path of the agent-config that was received last.
    #[must_use]
    pub fn received(&self) -> PathBuf {
        self.folder.join(RECEIVED)
    }

    /// Stores an agent-config.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn store(&self, document: &[u8]) -> Result<(), StateError> {
        let path = self.received();
        files::replace(&path, document, Access::Owner).map_err(|error| StateError { path, error })
    }
}

/// The installation id of this pairing; `None` if the file is missing, damaged, or of another pairing.
fn known(path: &Path, pairing: PairingId) -> std::io::Result<Option<InstallationId>> {
    let Some(text) = files::read_document_if_present(path)? else { return Ok(None) };
    let identity = serde_json::from_slice::<Identity>(&text).ok();
    let same = identity.filter(|identity| identity.pairing == pairing.to_string());
    Ok(same.and_then(|identity| identity.installation.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRING: PairingId = PairingId([1; 16]);
    const FIRST: InstallationId = InstallationId([2; 16]);
    const SECOND: InstallationId = InstallationId([3; 16]);

    #[test]
    fn the_installation_id_lasts_as_long_as_the_pairing() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("state");
        let state = State::open(&folder, PAIRING, FIRST).unwrap();
        assert_eq!(state.installation, FIRST);
        state.store(b"document").unwrap();
        std::fs::write(folder.join(LAST_GOOD), "document").unwrap();
        assert_eq!(State::open(&folder, PAIRING, SECOND).unwrap().installation, FIRST);
        assert_eq!(std::fs::read(state.received()).unwrap(), b"document");

        assert_eq!(State::open(&folder, PairingId([9; 16]), SECOND).unwrap().installation, SECOND);
        assert!(!state.received().exists() && !folder.join(LAST_GOOD).exists(), "of the earlier pairing");
    }

    #[test]
    fn a_damaged_identity_is_replaced_and_an_unusable_folder_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(IDENTITY), "{").unwrap();
        assert_eq!(State::open(dir.path(), PAIRING, FIRST).unwrap().installation, FIRST);
        let file = dir.path().join(IDENTITY);
        let error = State::open(&file, PAIRING, FIRST).unwrap_err().to_string();
        assert!(error.contains("machine.json"), "{error}");
    }
}
