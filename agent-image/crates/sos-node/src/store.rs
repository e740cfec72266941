//! Files: the config handed to us, the last good one we keep, the status we write.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::config::{ConfigError, MAX_DOCUMENT_BYTES, NodeConfig};
use crate::status::Status;

/// Name of the last good config in the state folder.
const LAST_GOOD: &str = "node-config.json";
/// What the bridge's local port had (see [`crate::local`]).
pub const LOCAL_PORT: &str = "local-port.json";
/// Uplinks on trial (see [`crate::trial`]).
pub const UPLINKS: &str = "uplinks.json";

/// Where a node's config is: the path itself, or `<node>.json` in it if it is a folder.
#[must_use]
pub fn config_path(path: &Path, node: &str) -> PathBuf {
    if path.is_dir() { path.join(format!("{node}.json")) } else { path.to_owned() }
}

/// Reads a document, but no more than one byte over its bound; `None` if there is no such file.
///
/// # Errors
/// It cannot be read.
pub fn read_document(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_DOCUMENT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Parses a document that must be this node's.
///
/// # Errors
/// It is wrong, or another node's.
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
    /// Opens the folder, making it if it is not there.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(folder: &Path) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The last good config, if there is one that is still good.
    #[must_use]
    pub fn last_good(&self, node: &str) -> Option<NodeConfig> {
        let document = read_document(&self.folder.join(LAST_GOOD)).ok()??;
        parse_for(node, &document)
            .inspect_err(|error| tracing::warn!(%error, "the config kept is not usable"))
            .ok()
    }

    /// Keeps a config.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn keep(&self, document: &[u8]) -> std::io::Result<()> {
        write_atomically(&self.folder.join(LAST_GOOD), document)
    }

    /// Loads a value that [`Store::save`] has kept. One that cannot be read is none.
    #[must_use]
    pub fn load<T: serde::de::DeserializeOwned>(&self, name: &str) -> Option<T> {
        serde_json::from_slice(&read_document(&self.folder.join(name)).ok()??).ok()
    }

    /// Keeps a value.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn save(&self, name: &str, value: &impl serde::Serialize) -> std::io::Result<()> {
        write_atomically(&self.folder.join(name), &serde_json::to_vec(value)?)
    }

    /// Forgets the config kept, and what is kept besides: nothing of it is left on the node, so no later one can be older than it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(&self) -> std::io::Result<()> {
        for name in [LAST_GOOD, LOCAL_PORT, UPLINKS] {
            match std::fs::remove_file(self.folder.join(name)) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Writes the status file.
///
/// # Errors
/// It cannot be written.
pub fn write_status(path: &Path, status: &Status) -> std::io::Result<()> {
    let mut text = serde_json::to_vec_pretty(status)?;
    text.push(b'\n');
    write_atomically(path, &text)
}

/// Readers see the old content or the new one.
fn write_atomically(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".sos-node-").tempfile_in(folder)?;
    file.write_all(content)?;
    // A temporary file is its owner's alone; a status is for everybody.
    std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}
