//! The body of a PathReport (order.md clause 13).

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::id::AgentId;

/// Maximum number of paths in one PathReport.
pub const MAX_PATH_ROWS: usize = 16;
/// Maximum number of services in one PathReport.
pub const MAX_SERVICE_ROWS: usize = 16;

/// Short id of a service: the first 8 bytes of the SHA-256 of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceMark(pub [u8; 8]);

impl ServiceMark {
    /// The mark of a service.
    #[must_use]
    pub fn of(service_id: &str) -> Self {
        use sha2::{Digest, Sha256};
        let digest = Sha256::digest(service_id.as_bytes());
        Self(digest[..8].try_into().expect("a SHA-256 has 32 bytes"))
    }
}

/// Statistics of one path: a label towards another agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRow {
    /// The other agent.
    pub peer: AgentId,
    /// The path label.
    pub label: u8,
    /// Established streams.
    pub streams: u16,
    /// Round trip in microseconds, 0 = unknown.
    pub rtt_us: u32,
    /// Minimum recent round trip in microseconds, 0 = unknown.
    pub min_rtt_us: u32,
    /// Bytes from hosts passed to streams.
    pub sent: u64,
    /// Bytes for hosts received from streams.
    pub received: u64,
}

/// Statistics of one service at an ingress agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ServiceRow {
    /// The service.
    pub service: ServiceMark,
    /// Open sessions.
    pub sessions: u32,
    /// Bytes from clients to servers.
    pub up: u64,
    /// Bytes from servers to clients.
    pub down: u64,
}

/// Counters of an agent at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathReport {
    /// Milliseconds since the sender's boot, monotonic.
    pub sampled_ms: u64,
    /// At most 16 paths.
    pub paths: Vec<PathRow>,
    /// At most 16 services.
    pub services: Vec<ServiceRow>,
}

impl PathReport {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        if self.paths.len() > MAX_PATH_ROWS || self.services.len() > MAX_SERVICE_ROWS {
            return Err(WireError::Length);
        }
        out.extend_from_slice(&self.sampled_ms.to_be_bytes());
        for count in [self.paths.len(), self.services.len()] {
            out.extend_from_slice(&u16::try_from(count).expect("at most 16").to_be_bytes());
        }
        out.extend_from_slice(&[0; 4]);
        self.paths.iter().for_each(|row| row.put(out));
        self.services.iter().for_each(|row| row.put(out));
        Ok(())
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (sampled_ms, paths, services) = (c.u64()?, usize::from(c.u16()?), usize::from(c.u16()?));
        c.skip(4)?;
        if paths > MAX_PATH_ROWS || services > MAX_SERVICE_ROWS {
            return Err(WireError::Length);
        }
        Ok(Self {
            sampled_ms,
            paths: (0..paths).map(|_| PathRow::take(c)).collect::<Result<_, _>>()?,
            services: (0..services).map(|_| ServiceRow::take(c)).collect::<Result<_, _>>()?,
        })
    }
}

impl PathRow {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.peer.0);
        out.extend_from_slice(&[self.label, 0]);
        out.extend_from_slice(&self.streams.to_be_bytes());
        for field in [self.rtt_us, self.min_rtt_us, 0] {
            out.extend_from_slice(&field.to_be_bytes());
        }
        for field in [self.sent, self.received] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (peer, label) = (AgentId(c.array()?), c.u8()?);
        c.skip(1)?;
        let (streams, rtt_us, min_rtt_us) = (c.u16()?, c.u32()?, c.u32()?);
        c.skip(4)?;
        Ok(Self { peer, label, streams, rtt_us, min_rtt_us, sent: c.u64()?, received: c.u64()? })
    }
}

impl ServiceRow {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.service.0);
        out.extend_from_slice(&self.sessions.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        for field in [self.up, self.down] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (service, sessions) = (ServiceMark(c.array()?), c.u32()?);
        c.skip(4)?;
        Ok(Self { service, sessions, up: c.u64()?, down: c.u64()? })
    }
}
