//! Records of an encrypted stream, one half for each direction (RFC 8446, 5).

use std::io;
use std::ops::Range;

use bytes::BytesMut;
use rustls::crypto::cipher::{
    InboundOpaqueMessage, MessageDecrypter, MessageEncrypter, OutboundChunks, OutboundPlainMessage,
};
use rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite};

use super::TlsError;

/// Bytes of a record's header: type, version, length.
const HEADER: usize = 5;
/// Maximum number of payload bytes of a record.
pub(crate) const MAX_PLAIN: usize = 16 << 10;
/// Maximum number of bytes of a record after its header.
const MAX_SEALED: usize = MAX_PLAIN + 256;
/// The version in every record.
const VERSION: [u8; 2] = [3, 3];
/// Bytes of records read at a time: as many as a plain stream's buffer holds.
const INCOMING: usize = 256 << 10;
/// Buffer size: [`INCOMING`] bytes and a partial record.
const CAPACITY: usize = INCOMING + HEADER + MAX_SEALED;

/// Key of one direction, with the number of the next record.
pub(super) type Secrets = (u64, ConnectionTrafficSecrets);

/// Seals bytes into records.
pub(crate) struct Sealer {
    cipher: Box<dyn MessageEncrypter>,
    next: u64,
    /// Maximum number of records under one key.
    limit: u64,
}

impl Sealer {
    pub(super) fn new((next, secrets): Secrets, suite: SupportedCipherSuite) -> Result<Self, TlsError> {
        let tls13 = tls13(suite)?;
        let (key, iv) = key_and_iv(secrets)?;
        // Half of the cipher's limit, 128 GiB of full records, leaves a wide margin and is still rarely reached.
        let limit = tls13.common.confidentiality_limit / 2;
        Ok(Self { cipher: tls13.aead_alg.encrypter(key, iv), next, limit })
    }

    /// Appends records with at most `most` of the first bytes of `chunks`; returns the number of these bytes.
    pub(crate) fn seal(
        &mut self,
        chunks: &[&[u8]],
        most: usize,
        records: &mut Vec<Vec<u8>>,
    ) -> io::Result<usize> {
        let (mut rest, _) = OutboundChunks::new(chunks).split_at(most);
        let total = rest.len();
        while !rest.is_empty() {
            if self.next >= self.limit {
                return Err(io::Error::other("tls: the key is used up"));
            }
            let (payload, behind) = rest.split_at(MAX_PLAIN);
            rest = behind;
            let (typ, version) = (ContentType::ApplicationData, ProtocolVersion::TLSv1_2);
            let message = OutboundPlainMessage { typ, version, payload };
            let sealed = self.cipher.encrypt(message, self.next).map_err(io::Error::other)?;
            self.next += 1;
            records.push(sealed.encode());
        }
        Ok(total)
    }

    #[cfg(test)]
    pub(super) fn records_left(&self) -> u64 {
        self.limit - self.next
    }

    #[cfg(test)]
    pub(super) fn use_up_to(&mut self, left: u64) {
        self.limit = self.next + left;
    }
}

/// Opens records.
pub(crate) struct Opener {
    cipher: Box<dyn MessageDecrypter>,
    next: u64,
    /// Bytes read: opened bytes up to `opened`, then records and possibly a partial record. Of the opened bytes only `plain` is still needed.
    pub(crate) incoming: BytesMut,
    plain: Range<usize>,
    opened: usize,
}

impl Opener {
    /// `early`: bytes that the handshake has already opened; `rest`: the bytes after them.
    pub(super) fn new(
        (next, secrets): Secrets,
        suite: SupportedCipherSuite,
        early: &[u8],
        rest: &[u8],
    ) -> Result<Self, TlsError> {
        let (key, iv) = key_and_iv(secrets)?;
        let mut incoming = BytesMut::with_capacity(CAPACITY);
        incoming.extend_from_slice(early);
        incoming.extend_from_slice(rest);
        let (plain, opened) = (0..early.len(), early.len());
        Ok(Self { cipher: tls13(suite)?.aead_alg.decrypter(key, iv), next, incoming, plain, opened })
    }

    /// Appends at most `most` payload bytes of whole records to `out`; returns their number, which is less than `most` only if no whole record
    /// is left.
    pub(crate) fn open(&mut self, out: &mut BytesMut, most: usize) -> io::Result<usize> {
        let mut moved = 0;
        loop {
            let n = self.plain.len().min(most - moved);
            out.extend_from_slice(&self.incoming[self.plain.start..self.plain.start + n]);
            self.plain.start += n;
            moved += n;
            if moved == most || !self.open_record()? {
                return Ok(moved);
            }
        }
    }

    /// Opens the next record in place; returns false if the record is incomplete.
    fn open_record(&mut self) -> io::Result<bool> {
        let Some(header) = self.incoming.get(self.opened..self.opened + HEADER) else { return Ok(false) };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if header[0] != u8::from(ContentType::ApplicationData)
            || header[1..3] != VERSION
            || length > MAX_SEALED
        {
            return Err(invalid("not a record of application data"));
        }
        let from = self.opened + HEADER;
        let Some(sealed) = self.incoming.get_mut(from..from + length) else { return Ok(false) };
        let message =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, sealed);
        let plain = self.cipher.decrypt(message, self.next).map_err(io::Error::other)?;
        if plain.typ != ContentType::ApplicationData {
            return Err(invalid("a record of another type than application data"));
        }
        // In TLS 1.3 nothing precedes the sealed bytes: the opened bytes start at the same position.
        self.plain = from..from + plain.payload.len();
        self.opened = from + length;
        self.next += 1;
        Ok(true)
    }

    /// Moves the unopened bytes to the front, so that at least [`INCOMING`] more bytes fit. All opened bytes must have been taken.
    pub(crate) fn make_room(&mut self) -> usize {
        debug_assert!(self.plain.is_empty());
        let (from, end) = (self.opened, self.incoming.len());
        if from > 0 {
            self.incoming.copy_within(from..end, 0);
            self.incoming.truncate(end - from);
        }
        (self.plain, self.opened) = (0..0, 0);
        self.incoming.capacity() - self.incoming.len()
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("tls: {what}"))
}

fn tls13(suite: SupportedCipherSuite) -> Result<&'static rustls::Tls13CipherSuite, TlsError> {
    suite.tls13().ok_or_else(|| rustls::Error::General("not TLS 1.3".to_owned()).into())
}

fn key_and_iv(
    secrets: ConnectionTrafficSecrets,
) -> Result<(rustls::crypto::cipher::AeadKey, rustls::crypto::cipher::Iv), TlsError> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(rustls::Error::General("a cipher that was not offered".to_owned()).into()),
    }
}
