//! What can become of a connection, in one word each: `kubectl sos diagnose` decides by them.

use std::io::{Error, ErrorKind};

/// How something failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word.
    pub word: &'static str,
    /// The system's words, or where in the transfer it was.
    pub detail: String,
}

impl Failure {
    /// Both parts.
    #[must_use]
    pub fn new(word: &'static str, detail: impl Into<String>) -> Self {
        Self { word, detail: detail.into() }
    }

    /// While a connection is opened.
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

    /// While bytes move.
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
    fn a_time_out_is_another_thing_before_and_after_the_handshake() {
        let error = Error::from(ErrorKind::WouldBlock);
        assert_eq!((Failure::opening(&error).word, Failure::moving(&error).word), ("unanswered", "stalled"));
        assert_eq!(Failure::moving(&Error::from(ErrorKind::UnexpectedEof)).word, "cut");
    }
}
