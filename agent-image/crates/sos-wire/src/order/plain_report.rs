//! The body of a PlainReport (order.md clause 14).

use std::net::SocketAddrV4;

use crate::cursor::{Cursor, put_address};
use crate::error::WireError;
use crate::order::path_report::ServiceMark;

/// Maximum number of counters in one PlainReport.
pub const MAX_PLAIN_ROWS: usize = 16;
/// Maximum number of connections in one PlainReport.
pub const MAX_PLAIN_SAMPLES: usize = 16;

/// Reason for leaving a covered connection to plain TCP: a number of the closed set of northbound.md clause 4, for reasons that an agent
/// can determine. Unknown numbers are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlainReason(pub u16);

impl PlainReason {
    /// Not plain: accelerated by the agent's own configuration, without an order.
    pub const ACCELERATED: Self = Self(0);
    /// An MPTCP, TCP MD5 or TCP-AO option.
    pub const OPTION: Self = Self(1);
    /// The agent holds the maximum number of SYNs.
    pub const FULL: Self = Self(4);
    /// No agent of the egress site is alive and willing.
    pub const NO_AGENT: Self = Self(5);
    /// The egress agent did not answer in time.
    pub const NO_ANSWER: Self = Self(8);
    /// The agent is draining.
    pub const DRAINING: Self = Self(10);
    /// The agent has reached its session limit.
    pub const SESSIONS: Self = Self(11);
    /// The agent has reached its memory limit.
    pub const MEMORY: Self = Self(12);
    /// The egress agent's configuration does not cover the connection.
    pub const NOT_PERMITTED: Self = Self(14);
    /// The server left SYNs unanswered recently.
    pub const SERVER_UNREACHABLE: Self = Self(16);
    /// The client did not complete its recent handshakes with the agent.
    pub const CLIENT_SILENT: Self = Self(17);
    /// The agent or the switch is not armed for the service.
    pub const NOT_ARMED: Self = Self(18);
    /// The agent needs the client's port for a listener of its own.
    pub const PORT_TAKEN: Self = Self(22);
    /// The server, or a firewall, refused the connection.
    pub const SERVER_REFUSED: Self = Self(28);
    /// The server left the egress agent's SYN unanswered.
    pub const SERVER_SILENT: Self = Self(29);
    /// The services of the namespace have used up their share of the sessions.
    pub const SHARE: Self = Self(30);
}

/// Count of a service's connections with the same reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainRow {
    /// The service.
    pub service: ServiceMark,
    /// The reason.
    pub reason: PlainReason,
    /// Connections since the sender's boot.
    pub count: u64,
}

/// One connection that went plain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlainSample {
    /// The service.
    pub service: ServiceMark,
    /// The reason.
    pub reason: PlainReason,
    /// The client's address and port.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
}

/// Covered connections that an ingress agent has left to plain TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainReport {
    /// At most 16 counters.
    pub rows: Vec<PlainRow>,
    /// At most 16 connections.
    pub samples: Vec<PlainSample>,
}

impl PlainReport {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        if self.rows.len() > MAX_PLAIN_ROWS || self.samples.len() > MAX_PLAIN_SAMPLES {
            return Err(WireError::Length);
        }
        for count in [self.rows.len(), self.samples.len()] {
            out.extend_from_slice(&u16::try_from(count).expect("at most 16").to_be_bytes());
        }
        out.extend_from_slice(&[0; 4]);
        for row in &self.rows {
            out.extend_from_slice(&row.service.0);
            out.extend_from_slice(&row.reason.0.to_be_bytes());
            out.extend_from_slice(&[0; 6]);
            out.extend_from_slice(&row.count.to_be_bytes());
        }
        for sample in &self.samples {
            out.extend_from_slice(&sample.service.0);
            for field in [sample.reason.0, 0, sample.client.port(), sample.server.port()] {
                out.extend_from_slice(&field.to_be_bytes());
            }
            put_address(out, *sample.client.ip());
            put_address(out, *sample.server.ip());
        }
        Ok(())
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (rows, samples) = (usize::from(c.u16()?), usize::from(c.u16()?));
        c.skip(4)?;
        if rows > MAX_PLAIN_ROWS || samples > MAX_PLAIN_SAMPLES {
            return Err(WireError::Length);
        }
        Ok(Self {
            rows: (0..rows).map(|_| take_row(c)).collect::<Result<_, _>>()?,
            samples: (0..samples).map(|_| take_sample(c)).collect::<Result<_, _>>()?,
        })
    }
}

fn take_row(c: &mut Cursor<'_>) -> Result<PlainRow, WireError> {
    let (service, reason) = (ServiceMark(c.array()?), PlainReason(c.u16()?));
    c.skip(6)?;
    Ok(PlainRow { service, reason, count: c.u64()? })
}

fn take_sample(c: &mut Cursor<'_>) -> Result<PlainSample, WireError> {
    let (service, reason) = (ServiceMark(c.array()?), PlainReason(c.u16()?));
    c.skip(2)?;
    let (client_port, server_port) = (c.u16()?, c.u16()?);
    let client = SocketAddrV4::new(c.address()?, client_port);
    Ok(PlainSample { service, reason, client, server: SocketAddrV4::new(c.address()?, server_port) })
}
