//! Identifiers of agents, sites, installations, pairings, keys, boots and sessions.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::error::WireError;

/// The version byte of every message (README.md clause 3).
pub const VERSION: u8 = 1;

/// Id of an agent (README.md clause 6). Printed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub [u8; 16]);

impl AgentId {
    /// Derive the id from the names of the site, the agent pool and the node.
    pub fn derive(site: &str, pool: &str, node: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(format!("sos/agent/{site}/{pool}/{node}")).into();
        let mut id = [0; 16];
        id.copy_from_slice(&digest[..16]);
        Self(id)
    }
}

/// Id of a session across controllers and agents. Printed in the usual form with dashes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionUuid(pub [u8; 16]);

/// Id of a session between two agents during one boot of each (frame.md clause 5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionNumber(pub u64);

impl SessionNumber {
    /// Set if the opener's agent id is the higher of the two.
    pub const OPENER_IS_HIGHER: u64 = 1 << 63;
    /// Session number of frames that belong to the stream itself.
    pub const NONE: Self = Self(0);

    /// The `count`-th session (from 1) that `opener` opens towards `peer` in this boot.
    pub fn new(count: u64, opener: AgentId, peer: AgentId) -> Self {
        let bit = if opener > peer { Self::OPENER_IS_HIGHER } else { 0 };
        Self((count & !Self::OPENER_IS_HIGHER) | bit)
    }

    /// True if `opener` may use this number for a session that it opens towards `peer`.
    pub fn opened_by(self, opener: AgentId, peer: AgentId) -> bool {
        (self.0 & Self::OPENER_IS_HIGHER != 0) == (opener > peer) && self.0 & !Self::OPENER_IS_HIGHER != 0
    }
}

/// Id of a site; chosen by the operator and stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SiteId(pub u16);

/// Id of a key; never 0 (README.md clause 4). A higher id is a newer key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(NonZeroU16);

impl KeyId {
    /// The id, or `None` for 0.
    pub const fn new(id: u16) -> Option<Self> {
        match NonZeroU16::new(id) {
            Some(id) => Some(Self(id)),
            None => None,
        }
    }

    /// The number itself.
    pub const fn as_u16(self) -> u16 {
        self.0.get()
    }

    pub(crate) fn decode(id: u16) -> Result<Self, WireError> {
        Self::new(id).ok_or(WireError::UnknownKey(0))
    }
}

/// Start time of a process in nanoseconds since 1970, which orders its boots (README.md clause 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId(pub u64);

/// Id of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ControllerId(pub u32);

/// Id of a pairing of two installations (card.md clause 1). Printed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairingId(pub [u8; 16]);

/// Id of an installation of SOS: the UID of its cluster's namespace `kube-system` (card.md clause 3). Printed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstallationId(pub [u8; 16]);

/// An Ethernet address. Printed as `02:53:00:5f:0c:12`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for PairingId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for InstallationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}

impl fmt::Display for SessionUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, part) in [0..4, 4..6, 6..8, 8..10, 10..16].into_iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "-" })?;
            write_hex(f, &self.0[part])?;
        }
        Ok(())
    }
}

impl fmt::Display for SessionNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, byte) in self.0.iter().enumerate() {
            write!(f, "{}{byte:02x}", if i == 0 { "" } else { ":" })?;
        }
        Ok(())
    }
}

macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}
debug_as_display!(AgentId, PairingId, InstallationId, SessionUuid, SessionNumber, MacAddress);

/// Decode `N` bytes from exactly `2 * N` hex digits.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = u8::try_from(high * 16 + low).ok()?;
    }
    Some(out)
}

impl FromStr for AgentId {
    type Err = WireError;

    /// Takes exactly 32 hex digits.
    fn from_str(text: &str) -> Result<Self, WireError> {
        parse_hex(text).map(Self).ok_or(WireError::Field("agent id"))
    }
}

impl FromStr for PairingId {
    type Err = WireError;

    /// Takes exactly 32 hex digits.
    fn from_str(text: &str) -> Result<Self, WireError> {
        parse_hex(text).map(Self).ok_or(WireError::Field("pairing id"))
    }
}

impl FromStr for InstallationId {
    type Err = WireError;

    /// Takes exactly 32 hex digits.
    fn from_str(text: &str) -> Result<Self, WireError> {
        parse_hex(text).map(Self).ok_or(WireError::Field("installation id"))
    }
}

impl FromStr for SessionUuid {
    type Err = WireError;

    /// Takes 32 hex digits, with or without dashes.
    fn from_str(text: &str) -> Result<Self, WireError> {
        parse_hex(&text.replace('-', "")).map(Self).ok_or(WireError::Field("uuid"))
    }
}

impl FromStr for MacAddress {
    type Err = WireError;

    /// Takes six groups of two hex digits with colons between them.
    fn from_str(text: &str) -> Result<Self, WireError> {
        let well_formed = text.len() == 17 && text.bytes().skip(2).step_by(3).all(|b| b == b':');
        let digits = if well_formed { parse_hex(&text.replace(':', "")) } else { None };
        digits.map(Self).ok_or(WireError::Field("mac"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printed_and_read_back() {
        let agent = AgentId::derive("west", "default", "edge1");
        assert_eq!(agent.to_string().parse(), Ok(agent));
        let uuid = SessionUuid(*b"0123456789abcdef");
        assert_eq!(uuid.to_string(), "30313233-3435-3637-3839-616263646566");
        assert_eq!(uuid.to_string().parse(), Ok(uuid));
        let mac = MacAddress([2, 0x53, 0, 0x5f, 0x0c, 0x12]);
        assert_eq!(mac.to_string(), "02:53:00:5f:0c:12");
        assert_eq!(mac.to_string().parse(), Ok(mac));
    }

    #[test]
    fn malformed_names_are_refused() {
        assert!("zz".parse::<AgentId>().is_err());
        assert!("02:53:00:5f:0c".parse::<MacAddress>().is_err());
        assert!("02-53-00-5f-0c-12".parse::<MacAddress>().is_err());
        assert!("é".repeat(16).parse::<AgentId>().is_err());
    }

    #[test]
    fn session_number_identifies_the_opener() {
        let (low, high) = (AgentId([1; 16]), AgentId([2; 16]));
        assert_eq!(SessionNumber::new(5, low, high), SessionNumber(5));
        assert_eq!(SessionNumber::new(5, high, low), SessionNumber((1 << 63) + 5));
        assert!(SessionNumber(5).opened_by(low, high));
        assert!(!SessionNumber(5).opened_by(high, low));
        assert!(!SessionNumber(1 << 63).opened_by(high, low), "counting starts at 1");
    }
}
