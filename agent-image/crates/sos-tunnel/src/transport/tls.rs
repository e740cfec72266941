//! Encrypted streams: TLS 1.3 between agents, each end authenticated by a raw public key (RFC 7250) that is derived from the pair key
//! (frame.md section 4).
//!
//! rustls performs the handshake ([`handshake`]). Its ciphers seal and open the stream's records in two halves that share nothing
//! ([`record`]): reading and writing are different tasks, and bytes are copied once. Unused features of TLS are off: no certificates, no
//! older version, no resumption, no early data, no key update. A stream whose keys are used up ends and is redialed.

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

/// First byte of a TLS connection: a handshake record. A plain stream begins with the `S` of its Hello.
pub(crate) const FIRST_BYTE: u8 = 0x16;

/// Reason for the failure of encryption.
#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("tls: {0}")]
    Tls(#[from] rustls::Error),
    #[error("tls: closed in the handshake")]
    Closed,
    #[error("tls: too many bytes in the handshake")]
    TooLong,
}

/// Name of the pair key that authenticates a peer: the other site, and the key's id.
pub(crate) type PairKeyName = (SiteId, KeyId);

/// TLS server name by which the dialer names the pair key: the name of the acceptor's key file, which contains the dialer's site.
pub(crate) fn server_name((site, id): PairKeyName) -> String {
    KeyFile::Pair(site, id).to_string()
}

fn parse_server_name(name: &str) -> Option<PairKeyName> {
    match KeyFile::parse(name)? {
        KeyFile::Pair(site, id) => Some((site, id)),
        KeyFile::OwnSite(_) | KeyFile::Site(..) | KeyFile::Card(..) => None,
    }
}
