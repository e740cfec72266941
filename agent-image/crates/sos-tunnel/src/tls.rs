//! Encrypted streams: TLS 1.3 between agents, each end proved by a raw public key (RFC 7250) that follows from the pair key (frame.md
//! section 4).
//!
//! rustls makes the handshake ([`handshake`]). The records of the stream itself are sealed and opened by its ciphers in two halves that share
//! nothing ([`record`]): reading and writing are different tasks, and bytes are copied once. What TLS could do besides there is not: no
//! certificates, no older version, no resumption, no early data, no update of keys under way. A stream whose keys are used up ends and is
//! dialed anew.

mod config;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod handshake;
mod identity;
mod record;
#[cfg(test)]
mod tests;

use std::io;

use sos_wire::{KeyFile, KeyId, SiteId};
use thiserror::Error;

pub(crate) use config::{Expected, FindKey, quic_client, quic_server};
pub(crate) use handshake::{accept, dial};
pub(crate) use record::{Opener, Sealer};

/// The first byte of a TLS connection: a record of the handshake. A plain stream begins with the `S` of its Hello.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// Why a connection did not become encrypted.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    #[error("tls: closed in the handshake")]
    Closed,
    #[error("tls: more in the handshake than belongs there")]
    TooLong,
}

/// The pair key that proves a peer: that which is shared with this site, by its id.
pub(crate) type PairKeyName = (SiteId, KeyId);

/// How the dialer names the pair key, in the server name: as the file of the acceptor that holds it is named, by the dialer's site.
pub(crate) fn server_name((site, id): PairKeyName) -> String {
    KeyFile::Pair(site, id).to_string()
}

fn parse_server_name(name: &str) -> Option<PairKeyName> {
    match KeyFile::parse(name)? {
        KeyFile::Pair(site, id) => Some((site, id)),
        KeyFile::OwnSite(_) | KeyFile::Site(..) => None,
    }
}
