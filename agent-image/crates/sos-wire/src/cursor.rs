//! Reader of fields in network byte order from a borrowed slice (README.md clause 1).

use std::net::Ipv4Addr;

use crate::error::WireError;

/// The prefix of an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Append an IPv4 address in 16 bytes (README.md clause 2).
pub(crate) fn put_address(out: &mut Vec<u8>, address: Ipv4Addr) {
    out.extend_from_slice(&MAPPED);
    out.extend_from_slice(&address.octets());
}

/// A position in a message. Reading past the end is an error, never a panic.
pub(crate) struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn slice(&mut self, len: usize) -> Result<&'a [u8], WireError> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(WireError::Truncated)?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(WireError::Truncated)?;
        self.0 = tail;
        Ok(*head)
    }

    pub(crate) fn skip(&mut self, len: usize) -> Result<(), WireError> {
        self.slice(len).map(|_| ())
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        Ok(u8::from_be_bytes(self.array()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Read an address; v1 accepts only IPv4-mapped addresses.
    pub(crate) fn address(&mut self) -> Result<Ipv4Addr, WireError> {
        let bytes: [u8; 16] = self.array()?;
        match bytes.strip_prefix(&MAPPED) {
            Some(&[a, b, c, d]) => Ok(Ipv4Addr::new(a, b, c, d)),
            _ => Err(WireError::Field("address")),
        }
    }

    /// Check the four magic bytes.
    pub(crate) fn magic(&mut self, expected: [u8; 4]) -> Result<(), WireError> {
        if self.array::<4>()? == expected { Ok(()) } else { Err(WireError::Magic) }
    }

    /// Check the version byte.
    pub(crate) fn version(&mut self) -> Result<(), WireError> {
        match self.u8()? {
            crate::id::VERSION => Ok(()),
            other => Err(WireError::Version(other)),
        }
    }

    /// Check that no bytes are left.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.0.is_empty() { Ok(()) } else { Err(WireError::Length) }
    }
}
