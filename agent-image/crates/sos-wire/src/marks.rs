//! IP header fields of a host's packets, which the agent beside the other host copies to its own packets (frame.md section 8).

use crate::error::WireError;

/// Maximum DSCP: six bits (RFC 2474, section 3).
const MAX_DSCP: u8 = 63;

/// DSCP and TTL of a host's packets on arrival at the agent beside the host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Marks {
    /// Differentiated services codepoint (RFC 2474), 0 to 63.
    pub dscp: u8,
    /// Time to live (RFC 791); 0 = unknown.
    pub ttl: u8,
}

impl Marks {
    /// Bits of [`Self::to_bits`].
    pub const BITS: u32 = 16;

    /// Build from values received from the network.
    ///
    /// # Errors
    /// A DSCP of more than 6 bits.
    pub(crate) const fn new(dscp: u8, ttl: u8) -> Result<Self, WireError> {
        if dscp > MAX_DSCP { Err(WireError::Field("dscp")) } else { Ok(Self { dscp, ttl }) }
    }

    /// The marks behind a number of routers: each router decrements the TTL by one (RFC 791, 3.2). The result is at least 1, so that
    /// packets still arrive.
    #[must_use]
    pub fn behind(self, routers: u8) -> Self {
        let ttl = if self.ttl == 0 { 0 } else { self.ttl.saturating_sub(routers).max(1) };
        Self { ttl, ..self }
    }

    /// TTL in the upper byte, DSCP in the lower.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        u16::from_be_bytes([self.ttl, self.dscp])
    }

    pub(crate) const fn from_bits(bits: u16) -> Result<Self, WireError> {
        let [ttl, dscp] = bits.to_be_bytes();
        Self::new(dscp, ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routers_lower_a_known_ttl_but_never_to_zero() {
        let behind = |ttl, routers| Marks { dscp: 46, ttl }.behind(routers);
        assert_eq!(behind(64, 1), Marks { dscp: 46, ttl: 63 });
        assert_eq!((behind(64, 0).ttl, behind(1, 1).ttl, behind(0, 1).ttl), (64, 1, 0));
    }
}
