//! Source of the configuration: a file that may change at any time, and its last good copy (spec/node-config.md, introduction).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use sos_daemon::document::ConfigError;
use sos_daemon::files::{self, Access, document_path};
use tracing::warn;

use crate::documents::config::AgentConfig;

/// Name of the last good copy in the state folder.
pub(crate) const LAST_GOOD: &str = "agent-config.json";

/// Reason why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be read.
    #[error("{}: {error}", path.display())]
    Read {
        /// Path.
        path: PathBuf,
        /// Error.
        error: std::io::Error,
    },
    /// The document is invalid.
    #[error("{}: {error}", path.display())]
    Config {
        /// Path.
        path: PathBuf,
        /// Error, with its JSON path.
        error: ConfigError,
    },
}

/// Verdict on a new document while another document is in force.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The document is already in force.
    Same,
    /// The document has a lower generation, or has other content with the generation in force.
    Stale,
    /// The document changes a setting that is applied only at start; names the field.
    NeedsRestart(&'static str),
    /// Put the document in force.
    Take,
}

/// Judges a new document (controller-config.md clause 1).
#[must_use]
pub fn judge(current: &AgentConfig, next: &AgentConfig) -> Verdict {
    if next.generation == current.generation && next.hash == current.hash {
        return Verdict::Same;
    }
    if next.generation <= current.generation {
        return Verdict::Stale;
    }
    current.restart_reason(next).map_or(Verdict::Take, Verdict::NeedsRestart)
}

/// Reads and parses one document, with its parts.
///
/// # Errors
/// The file cannot be read, or is invalid or for another node.
pub fn load(path: &Path, node: &str) -> Result<AgentConfig, SourceError> {
    let text = read(path)?;
    parse(path, &text, node)
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, SourceError> {
    files::read_with_parts(path).map_err(|error| SourceError::Read { path: path.to_owned(), error })
}

fn parse(path: &Path, text: &[u8], node: &str) -> Result<AgentConfig, SourceError> {
    let wrong = |error| SourceError::Config { path: path.to_owned(), error };
    let config = AgentConfig::parse(text).map_err(wrong)?;
    if config.node != node {
        let message = format!("is for node {:?}, not {node:?}", config.node);
        return Err(wrong(ConfigError { path: "node".to_owned(), message }));
    }
    Ok(config)
}

/// A watched configuration file, with its last good copy.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    node: String,
    last_good: PathBuf,
    seen: Vec<u8>,
}

impl Source {
    /// A source that keeps its last good copy in `state`.
    #[must_use]
    pub fn new(path: &Path, node: &str, state: &Path) -> Self {
        Self {
            path: path.to_owned(),
            node: node.to_owned(),
            last_good: state.join(LAST_GOOD),
            seen: Vec::new(),
        }
    }

    /// The configuration at start: from the file, or else from the last good copy.
    ///
    /// # Errors
    /// The error in the file, if there is no good copy either.
    pub fn start(&mut self) -> Result<AgentConfig, SourceError> {
        let path = document_path(&self.path, &self.node);
        let error = match read(&path).and_then(|text| parse(&path, &text, &self.node).map(|c| (text, c))) {
            Ok((text, config)) => {
                self.keep(&text);
                self.seen = text;
                return Ok(config);
            }
            Err(error) => error,
        };
        let config = load(&self.last_good, &self.node).map_err(|_| &error);
        match config {
            Ok(config) => {
                warn!(%error, generation = config.generation, "continuing with the last good configuration");
                Ok(config)
            }
            Err(_) => Err(error),
        }
    }

    /// Polls the file; `None` if its content has not changed. Each document is returned once, valid or not.
    ///
    /// # Errors
    /// The file cannot be read, or its new content is invalid. A missing file is no error: an update of a mounted file briefly removes it.
    pub fn poll(&mut self) -> Option<Result<AgentConfig, SourceError>> {
        let path = document_path(&self.path, &self.node);
        let text = match read(&path) {
            Ok(text) => text,
            Err(SourceError::Read { error, .. }) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => return Some(Err(error)),
        };
        if text == self.seen {
            return None;
        }
        // Set before parsing, so that a document that makes the parser panic is parsed only once.
        self.seen = text;
        Some(parse(&path, &self.seen, &self.node))
    }

    /// Saves the document last read as the last good copy.
    pub fn keep_seen(&self) {
        self.keep(&self.seen);
    }

    /// A failure is not fatal: the copy only matters if the agent starts without the file.
    fn keep(&self, text: &[u8]) {
        let made = self.last_good.parent().map_or(Ok(()), std::fs::create_dir_all);
        if let Err(error) = made.and_then(|()| files::replace(&self.last_good, text, Access::Owner)) {
            warn!(path = %self.last_good.display(), %error, "cannot keep a copy of the configuration");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::{config, document, sealed};
    use serde_json::json;

    fn write(path: &Path, generation: u64) {
        let mut value = document();
        value["generation"] = json!(generation);
        value["drainSeconds"] = json!(generation);
        std::fs::write(path, sealed(value)).unwrap();
    }

    #[test]
    fn a_folder_holds_a_file_per_node() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("edge1.json"), 3);
        let mut source = Source::new(dir.path(), "edge1", &dir.path().join("state"));
        assert_eq!(source.start().unwrap().generation, 3);
        let missing = Source::new(dir.path(), "edge9", &dir.path().join("state9")).start().unwrap_err();
        assert!(missing.to_string().contains("edge9.json"), "{missing}");
    }

    #[test]
    fn another_nodes_document_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        write(&path, 3);
        let error = load(&path, "edge2").unwrap_err().to_string();
        assert!(error.contains("x.json: node: "), "{error}");
    }

    #[test]
    fn starts_with_the_last_good_copy() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge1.json");
        let state = dir.path().join("state");
        write(&path, 3);
        Source::new(&path, "edge1", &state).start().unwrap();
        std::fs::write(&path, "{").unwrap();
        assert_eq!(Source::new(&path, "edge1", &state).start().unwrap().generation, 3);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Source::new(&path, "edge1", &state).start().unwrap().generation, 3);
    }

    #[test]
    fn a_change_is_seen_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("edge1.json");
        write(&path, 3);
        let mut source = Source::new(&path, "edge1", &dir.path().join("state"));
        source.start().unwrap();
        assert!(source.poll().is_none());
        write(&path, 4);
        assert_eq!(source.poll().unwrap().unwrap().generation, 4);
        assert!(source.poll().is_none());
        std::fs::write(&path, "{").unwrap();
        assert!(source.poll().unwrap().is_err());
        assert!(source.poll().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(source.poll().is_none());
    }

    #[test]
    fn only_newer_generations_are_taken() {
        let current = config();
        let mut next = current.clone();
        assert_eq!(judge(&current, &next), Verdict::Same);
        next.hash = "sha256:other".to_owned();
        assert_eq!(judge(&current, &next), Verdict::Stale);
        next.generation = 11;
        assert_eq!(judge(&current, &next), Verdict::Stale);
        next.generation = 13;
        assert_eq!(judge(&current, &next), Verdict::Take);
        next.interface.as_mut().unwrap().mtu = 9000;
        assert_eq!(judge(&current, &next), Verdict::NeedsRestart("interface"));
    }
}
