//! Outcomes of a connection, one word each, for `kubectl sos diagnose`.

use std::io::{Error, ErrorKind};

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word.
    pub word: &'static str,
    /// The system's message, or the position in the transfer.
    pub detail: String,
}

impl Failure {
    /// Build a failure from both parts.
    #[must_use]
    pub fn new(word: &'static str, detail: impl Into<String>) -> Self {
        Self { word, detail: detail.into() }
    }

    /// Build a failure from an error while connecting.
    #[must_use]
    pub fn opening(error: &Error) -> Self {
        let word = match error.kind() {
            ErrorKind::ConnectionRefused => "refused",
            ErrorKind::TimedOut | ErrorKind::WouldBlock => "unanswered",
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "unreachable",
            ErrorKind::ConnectionReset => "reset",
            _ => "error",
        };
        Self::new(word, error.to_string())
    }

    /// Build a failure from an error while transferring bytes.
    #[must_use]
    pub fn moving(error: &Error) -> Self {
        let word = match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => "stalled",
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => "reset",
            ErrorKind::UnexpectedEof => "cut",
            ErrorKind::InvalidData => "corrupt",
            _ => "error",
        };
        Self::new(word, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeout_has_different_words_before_and_after_the_handshake() {
        let error = Error::from(ErrorKind::WouldBlock);
        assert_eq!((Failure::opening(&error).word, Failure::moving(&error).word), ("unanswered", "stalled"));
        assert_eq!(Failure::moving(&Error::from(ErrorKind::UnexpectedEof)).word, "cut");
    }
}
