//! Keys: derivation, key folders, tags (README.md clauses 4, 5 and 8).

use std::collections::BTreeMap;
use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use zeroize::{Zeroize as _, Zeroizing};

use crate::error::WireError;
use crate::id::{AgentId, KeyId, PairingId, SiteId, parse_hex};

/// Bytes of an authentication tag.
pub const TAG_LEN: usize = 32;

/// A secret of 32 bytes. Never printed; overwritten on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Endpoint of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEndpoint {
    /// The agent that connects.
    Dialer,
    /// The agent that accepts.
    Acceptor,
}

impl Key {
    /// From the secret itself.
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// Parse a file of a key folder: 64 hex digits, surrounding white space ignored.
    pub fn parse_hex(text: &str) -> Result<Self, WireError> {
        parse_hex(text.trim()).map(Self).ok_or(WireError::Field("key"))
    }

    /// One block of HKDF-Expand (RFC 5869, 2.3): HMAC-SHA256(key, info || 0x01).
    pub fn expand(&self, info: &[u8]) -> Self {
        Self(self.tag(&[info, &[1]]))
    }

    /// Derive the key of a site from the master key.
    pub fn site(&self, site: SiteId) -> Self {
        self.expand(&[b"sos/site/".as_slice(), &site.0.to_be_bytes()].concat())
    }

    /// Derive the key of a pair of sites, in either order, from the master key.
    pub fn pair(&self, a: SiteId, b: SiteId) -> Self {
        let (low, high) = (a.min(b), a.max(b));
        self.expand(&[b"sos/pair/".as_slice(), &low.0.to_be_bytes(), &high.0.to_be_bytes()].concat())
    }

    /// Derive the key that signs Offers and Answers from a pairing's secret (card.md clause 2).
    pub fn card(&self) -> Self {
        self.expand(b"sos/card")
    }

    /// Derive the key of an agent's beacons from its site's key.
    pub fn beacon(&self, agent: AgentId) -> Self {
        self.expand(&[b"sos/beacon/".as_slice(), &agent.0].concat())
    }

    /// Derive the key of orders from a controller to an agent from the agent's site's key.
    pub fn order_to_agent(&self, agent: AgentId) -> Self {
        self.expand(&[b"sos/order/c2a/".as_slice(), &agent.0].concat())
    }

    /// Derive the key of orders from an agent to a controller from the agent's site's key.
    pub fn order_to_controller(&self, agent: AgentId) -> Self {
        self.expand(&[b"sos/order/a2c/".as_slice(), &agent.0].concat())
    }

    /// Derive, from the pair key, the Ed25519 private key that authenticates one end of an encrypted stream. Both ends derive both keys.
    pub fn stream_identity(&self, endpoint: StreamEndpoint) -> Zeroizing<[u8; 32]> {
        let info = match endpoint {
            StreamEndpoint::Dialer => b"sos/tls/dialer".as_slice(),
            StreamEndpoint::Acceptor => b"sos/tls/acceptor",
        };
        Zeroizing::new(self.tag(&[info, &[1]]))
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// HMAC-SHA256 over the concatenated parts.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> [u8; TAG_LEN] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Compare a tag in constant time.
    pub(crate) fn check(&self, parts: &[&[u8]], tag: &[u8]) -> Result<(), WireError> {
        self.mac(parts).verify_slice(tag).map_err(|_| WireError::Tag)
    }
}

/// Content of a file of a key folder, from its name (README.md clause 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyFile {
    /// `site-<keyid>` at an agent: the key of its own site.
    OwnSite(KeyId),
    /// `site-<site id>-<keyid>` at the controller: the key of a site.
    Site(SiteId, KeyId),
    /// `pair-<site id>-<keyid>` at an agent: the key of the pair of the agent's site and the named site.
    Pair(SiteId, KeyId),
    /// `card-<pairing id>-<keyid>` at an agent: the card key of a pairing (card.md clause 2).
    Card(PairingId, KeyId),
}

impl KeyFile {
    /// Parse a file name. Numbers are decimal, without sign or leading zeros, and pairing ids have lower-case digits, so that a key has one
    /// name; any other name is `None`.
    pub fn parse(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("card-") {
            return parse_card(rest);
        }
        let mut parts = name.split('-');
        let (kind, numbers) = (parts.next()?, parts.map(parse_decimal).collect::<Option<Vec<u16>>>()?);
        match (kind, numbers.as_slice()) {
            ("site", &[key]) => Some(Self::OwnSite(KeyId::new(key)?)),
            ("site", &[site, key]) => Some(Self::Site(SiteId(site), KeyId::new(key)?)),
            ("pair", &[site, key]) => Some(Self::Pair(SiteId(site), KeyId::new(key)?)),
            _ => None,
        }
    }
}

fn parse_card(rest: &str) -> Option<KeyFile> {
    let (pairing, key) = rest.split_once('-')?;
    let canonical = !pairing.bytes().any(|b| b.is_ascii_uppercase());
    let pairing = pairing.parse().ok().filter(|_| canonical)?;
    Some(KeyFile::Card(pairing, KeyId::new(parse_decimal(key)?)?))
}

fn parse_decimal(text: &str) -> Option<u16> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

impl fmt::Display for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnSite(key) => write!(f, "site-{}", key.as_u16()),
            Self::Site(site, key) => write!(f, "site-{}-{}", site.0, key.as_u16()),
            Self::Pair(site, key) => write!(f, "pair-{}-{}", site.0, key.as_u16()),
            Self::Card(pairing, key) => write!(f, "card-{pairing}-{}", key.as_u16()),
        }
    }
}

/// Name of the file in a key folder that holds the id of the signing key, if that is not the highest id.
pub const SENDING_FILE: &str = "sending";

/// The peer site of a file `sending-<site id>`, which holds the id of the key to send with to that site.
pub fn sending_to(name: &str) -> Option<SiteId> {
    let number = name.strip_prefix(SENDING_FILE)?.strip_prefix('-')?;
    parse_decimal(number).map(SiteId)
}

/// Keys for one purpose, by id: a sender uses the newest key known everywhere, a receiver the key named in the message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring {
    keys: BTreeMap<KeyId, Key>,
    agreed: Option<KeyId>,
}

impl Keyring {
    /// Add or replace a key.
    pub fn insert(&mut self, id: KeyId, key: Key) {
        self.keys.insert(id, key);
    }

    /// Set the highest key id to send with; keys with a higher id are only announced.
    pub fn agree(&mut self, id: KeyId) {
        self.agreed = Some(id);
    }

    /// The key to send with: the highest id, or the highest id up to the agreed one.
    pub fn sending(&self) -> Option<(KeyId, &Key)> {
        let agreed = self.agreed.and_then(|agreed| self.keys.range(..=agreed).next_back());
        agreed.or_else(|| self.keys.last_key_value()).map(|(id, key)| (*id, key))
    }

    /// Find the key of an id.
    ///
    /// # Errors
    /// [`WireError::UnknownKey`].
    pub fn find(&self, id: KeyId) -> Result<&Key, WireError> {
        self.keys.get(&id).ok_or(WireError::UnknownKey(id.as_u16()))
    }

    /// True if there is no key.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl FromIterator<(KeyId, Key)> for Keyring {
    fn from_iter<I: IntoIterator<Item = (KeyId, Key)>>(keys: I) -> Self {
        Self { keys: keys.into_iter().collect(), agreed: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_read_strictly() {
        let key = KeyId::new(7).unwrap();
        assert_eq!(KeyFile::parse("site-7"), Some(KeyFile::OwnSite(key)));
        assert_eq!(KeyFile::parse("site-2-7"), Some(KeyFile::Site(SiteId(2), key)));
        assert_eq!(KeyFile::parse("pair-2-7"), Some(KeyFile::Pair(SiteId(2), key)));
        for bad in [
            "",
            "site",
            "site-",
            "site-0",
            "site-07",
            "site-+7",
            "pair-7",
            "pair-2-0",
            "site-70000",
            "pair-1-2-3",
            "card-7",
            "card-00112233445566778899aabbccddeeff",
            "card-00112233445566778899aabbccddeeff-0",
            "card-00112233445566778899aabbccddeeff-1-2",
            "card-00112233445566778899AABBCCDDEEFF-1",
            "card-00112233445566778899aabbccddee-1",
            "..data",
        ] {
            assert_eq!(KeyFile::parse(bad), None, "{bad}");
        }
        let card = KeyFile::Card(PairingId([0xab; 16]), key);
        for file in
            [KeyFile::OwnSite(key), KeyFile::Site(SiteId(0), key), KeyFile::Pair(SiteId(9), key), card]
        {
            assert_eq!(KeyFile::parse(&file.to_string()), Some(file));
        }
    }

    #[test]
    fn keyring_sends_with_the_newest_agreed_key_and_finds_keys_by_id() {
        let id = |n| KeyId::new(n).unwrap();
        let mut ring: Keyring =
            [(id(2), Key::new([2; 32])), (id(1), Key::new([1; 32]))].into_iter().collect();
        assert_eq!(ring.sending(), Some((id(2), &Key::new([2; 32]))));
        ring.agree(id(1));
        assert_eq!(ring.sending(), Some((id(1), &Key::new([1; 32]))));
        assert!(ring.find(id(2)).is_ok());
        assert_eq!(ring.find(id(3)), Err(WireError::UnknownKey(3)));
    }

    #[test]
    fn a_key_is_not_printed_and_its_file_is_read_with_a_newline() {
        let key = Key::parse_hex(&format!("{}\n", "ab".repeat(32))).unwrap();
        assert_eq!(key, Key::new([0xab; 32]));
        assert_eq!(format!("{key:?}"), "Key(..)");
        assert!(Key::parse_hex("ab").is_err());
    }
}
