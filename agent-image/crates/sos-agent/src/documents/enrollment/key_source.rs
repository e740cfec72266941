//! Source of the agent's keys: a mounted folder, or the enrollment of a machine.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use sos_wire::KeyId;

use crate::documents::config::AgentConfig;
use crate::documents::config::keys::{AgentKeys, KeysError};
use crate::documents::config::source::SourceError;
use crate::documents::enrollment::Enrollment;

/// Source of an agent's keys. The agent reads it each second, so that a rotation needs no restart.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// A folder of key files.
    Folder(PathBuf),
    /// The enrollment file of a machine, and the id of the key that the cluster has used last; 0 if it is unknown.
    Enrollment(PathBuf, Arc<AtomicU16>),
}

/// Reason why the keys cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum KeySourceError {
    /// The key folder is unusable.
    #[error(transparent)]
    Folder(#[from] KeysError),
    /// The enrollment is unusable.
    #[error(transparent)]
    Enrollment(#[from] SourceError),
}

impl KeySource {
    /// Reads the keys for a configuration.
    ///
    /// # Errors
    /// The folder or the enrollment is unusable.
    pub fn load(&self, config: &AgentConfig) -> Result<AgentKeys, KeySourceError> {
        match self {
            Self::Folder(folder) => Ok(AgentKeys::load(folder)?),
            Self::Enrollment(file, agreed) => {
                let agreed = KeyId::new(agreed.load(Ordering::Relaxed));
                Ok(Enrollment::load(file)?.keys(config, agreed))
            }
        }
    }
}
