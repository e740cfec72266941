//! Errors in documents.

/// An error in a document: JSON path and description.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConfigError {
    /// JSON path of the field; `.` for the document itself.
    pub path: String,
    /// The error.
    pub message: String,
}

impl ConfigError {
    /// Builds an error at a path; an empty path stands for the document.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        let path = Some(path.into()).filter(|path| !path.is_empty());
        Self { path: path.unwrap_or_else(|| ".".to_owned()), message: message.into() }
    }
}
