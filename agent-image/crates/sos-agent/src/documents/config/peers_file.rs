//! The watched file of peer clusters (spec/card.md clause 12).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::peers::Peers;
use super::source::{SourceError, read};

/// Result of the last read, so that each change is reported once.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Missing,
    Content(Vec<u8>),
    Unreadable(String),
}

/// A file that may appear, change and disappear at any time.
#[derive(Debug)]
pub struct PeersFile {
    path: PathBuf,
    seen: Seen,
}

impl PeersFile {
    /// A file that has not been read yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: Seen::Missing }
    }

    /// Polls the file; `None` if it has not changed, `Some(Ok(None))` if it has disappeared. Each content is returned once, valid or not.
    ///
    /// # Errors
    /// The file cannot be read, or its content is invalid.
    pub fn poll(&mut self) -> Option<Result<Option<Peers>, SourceError>> {
        let (seen, error) = match read(&self.path) {
            Ok(text) => (Seen::Content(text), None),
            Err(SourceError::Read { error, .. }) if error.kind() == ErrorKind::NotFound => {
                (Seen::Missing, None)
            }
            Err(error) => (Seen::Unreadable(error.to_string()), Some(error)),
        };
        if seen == self.seen {
            return None;
        }
        // Set before parsing, so that a document that makes the parser panic is parsed only once.
        self.seen = seen;
        match (&self.seen, error) {
            (_, Some(error)) => Some(Err(error)),
            (Seen::Content(text), None) => Some(self.parse(text).map(Some)),
            (Seen::Missing | Seen::Unreadable(_), None) => Some(Ok(None)),
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Peers, SourceError> {
        Peers::parse(text).map_err(|error| SourceError::Config { path: self.path.clone(), error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"version": "v1alpha1", "port": 1, "installation": "00000000000000000000000000000001", "peers": []}"#;

    #[test]
    fn each_change_is_reported_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers.json");
        let mut file = PeersFile::new(&path);
        assert!(file.poll().is_none(), "a missing file is the initial state");
        std::fs::write(&path, DOCUMENT).unwrap();
        assert_eq!(file.poll().unwrap().unwrap().unwrap().port.get(), 1);
        assert!(file.poll().is_none());
        std::fs::write(&path, "{").unwrap();
        let error = file.poll().unwrap().unwrap_err().to_string();
        assert!(error.contains("peers.json"), "{error}");
        assert!(file.poll().is_none());
        std::fs::remove_file(&path).unwrap();
        assert!(file.poll().unwrap().unwrap().is_none());
        assert!(file.poll().is_none());
        std::fs::create_dir(&path).unwrap();
        assert!(file.poll().unwrap().is_err(), "a folder cannot be read");
        assert!(file.poll().is_none());
    }
}
