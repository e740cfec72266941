//! Files: the given config, the last good config, the status.

use std::path::{Path, PathBuf};

use sos_daemon::document::ConfigError;
use sos_daemon::files::{Access, read_document_if_present, replace};

use crate::config::NodeConfig;
use crate::status::Status;

/// Name of the last good config in the state folder.
const LAST_GOOD: &str = "node-config.json";
/// State of the bridge's local port (see [`crate::planning::local`]).
pub const LOCAL_PORT: &str = "local-port.json";
/// Uplinks on trial (see [`crate::planning::trial`]).
pub const UPLINKS: &str = "uplinks.json";
/// True if an operator has polled this node (see [`crate::planning::orphan`]).
pub const OPERATOR: &str = "operator.json";

/// Parse a document, which must be for this node.
///
/// # Errors
/// The document is invalid, or for another node.
pub fn parse_for(node: &str, document: &[u8]) -> Result<NodeConfig, ConfigError> {
    let config = NodeConfig::parse(document)?;
    if config.node != node {
        return Err(ConfigError::new("node", format!("is `{}`, this node is `{node}`", config.node)));
    }
    Ok(config)
}

/// The state folder.
#[derive(Debug, Clone)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// Open the folder; create it if it does not exist.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The last good config, if it is still valid.
    #[must_use]
    pub fn last_good(&self, node: &str) -> Option<NodeConfig> {
        let document = read_document_if_present(&self.folder.join(LAST_GOOD)).ok()??;
        parse_for(node, &document)
            .inspect_err(|error| tracing::warn!(%error, "the last good config is not usable"))
            .ok()
    }

    /// Store a config as the last good config.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, document: &[u8]) -> std::io::Result<()> {
        replace(&self.folder.join(LAST_GOOD), document, Access::All)
    }

    /// Load a value of [`Store::save`]. None if it cannot be read.
    #[must_use]
    pub fn load<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&read_document_if_present(&self.folder.join(name)).ok()??).ok()
    }

    /// Store a value.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, name: &str, value: &impl serde::Serialize) -> std::io::Result<()> {
        replace(&self.folder.join(name), &serde_json::to_vec(value)?, Access::All)
    }

    /// Delete the stored config and state after everything on the node was removed, so that the next config is accepted whatever its
    /// generation.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self) -> std::io::Result<()> {
        for name in [LAST_GOOD, LOCAL_PORT, UPLINKS, OPERATOR] {
            match std::fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Write the status file.
///
/// # Errors
/// It cannot be written.
pub fn write_status(path: &Path, status: &Status) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(status)?;
    text.push(b'\n');
    replace(path, &text, Access::All)
}
