//! The bodies of orders (order.md clauses 3 to 7).

use std::net::{Ipv4Addr, SocketAddrV4};

use crate::cursor::{Cursor, put_address};
use crate::error::WireError;
use crate::id::{AgentId, SessionUuid};
use crate::marks::Marks;

/// Maximum number of sessions in one SessionReport chunk (order.md clause 7).
pub const MAX_REPORTED: usize = 64;
/// Maximum number of sessions in one FlowReport chunk (order.md clause 12).
pub const MAX_FLOWS: usize = 16;
/// The only transport of v1.
const TRANSPORT_TCP_PARALLEL: u8 = 1;

/// An enum whose values are numbers on the wire.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident: $int:ty, $field:literal { $($(#[$vdoc:meta])* $variant:ident = $value:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant = $value),+ }

        impl $name {
            /// The number on the wire.
            pub const fn code(self) -> $int {
                self as $int
            }

            /// Decode the number on the wire.
            ///
            /// # Errors
            /// [`WireError::Field`] for an undefined number.
            pub const fn from_code(code: $int) -> Result<Self, WireError> {
                match code {
                    $($value => Ok(Self::$variant),)+
                    _ => Err(WireError::Field($field)),
                }
            }
        }
    };
}

wire_enum! {
    /// The agent's side of the session.
    Role: u8, "role" {
        /// Beside the client.
        Ingress = 1,
        /// Beside the server.
        Egress = 2,
    }
}

wire_enum! {
    /// Congestion control of the streams.
    Congestion: u8, "congestion control" {
        /// The agent decides.
        Auto = 0,
        /// RFC 9438.
        Cubic = 1,
        /// The kernel's bbr.
        Bbr = 2,
        /// RFC 5681.
        Reno = 3,
    }
}

wire_enum! {
    /// Condition for Ready of the egress agent (order.md clause 3).
    Accept: u8, "accept" {
        /// Immediate; the agent connects to the server when the session starts.
        Early = 0,
        /// After the server has accepted the agent's connection.
        Confirmed = 1,
    }
}

wire_enum! {
    /// Reason for refusing a session (order.md clause 4).
    RefuseReason: u16, "refuse reason" {
        /// The agent is shutting down.
        Draining = 1,
        /// The agent has reached its limit of sessions.
        SessionLimit = 2,
        /// The agent has no memory for another session.
        MemoryLimit = 3,
        /// The other agent is not in the agent's own configuration, or (ingress agent) is not alive and willing.
        UnknownPeer = 4,
        /// The agent's own configuration does not cover the addresses.
        NotPermitted = 5,
        /// The agent does not support the transport.
        UnsupportedTransport = 6,
        /// The server recently left SYNs unanswered; connections to it stay plain for a while.
        ServerUnreachable = 7,
        /// (egress agent) The client's port is in use at the agent, so the agent cannot connect from the client's address.
        PortTaken = 8,
        /// The server answered the SYN with a reset.
        ServerRefused = 9,
        /// The SYN was answered by an ICMP error.
        ServerRejected = 10,
        /// The server did not answer the SYN in time.
        ServerSilent = 11,
    }
}

wire_enum! {
    /// Reason for the end of a session (order.md clause 6); also the reason in a Reset frame.
    EndReason: u16, "end reason" {
        /// Both directions ended.
        Finished = 0,
        /// The client reset its connection.
        ClientReset = 1,
        /// The server reset its connection.
        ServerReset = 2,
        /// The server refused the connection.
        ServerRefused = 3,
        /// The server did not answer.
        ServerUnreachable = 4,
        /// The other agent is unreachable, or does not know the session.
        PeerLost = 5,
        /// The client never connected.
        PreparationExpired = 6,
        /// A limit was reached, or the protocol was violated.
        InternalLimit = 7,
    }
}

/// Prepare for a client that is about to connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepare {
    /// The session.
    pub session: SessionUuid,
    /// The agent's side of the session.
    pub role: Role,
    /// Streams to use, 0 = the agent decides.
    pub streams: u16,
    /// Block size in bytes, 0 = the agent decides.
    pub block_bytes: u32,
    /// Reorder queue in bytes, 0 = the agent decides.
    pub queue_bytes: u32,
    /// Lifetime of the preparation until the client connects, in milliseconds.
    pub lease_ms: u32,
    /// The client's address and port.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
    /// Usable path labels: bit L = label L.
    pub labels: u32,
    /// Congestion control of the streams.
    pub congestion: Congestion,
    /// Condition for Ready.
    pub accept: Accept,
    /// DSCP and TTL of the client's SYN, for connecting to the server before the session starts.
    pub marks: Marks,
    /// The other agent.
    pub peer: AgentId,
    /// The other agent's address.
    pub peer_address: Ipv4Addr,
    /// The other agent's first stream port.
    pub peer_stream_port: u16,
}

impl Prepare {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0);
        out.extend_from_slice(&[self.role.code(), TRANSPORT_TCP_PARALLEL]);
        out.extend_from_slice(&self.streams.to_be_bytes());
        for field in [self.block_bytes, self.queue_bytes, self.lease_ms] {
            out.extend_from_slice(&field.to_be_bytes());
        }
        put_address(out, *self.client.ip());
        put_address(out, *self.server.ip());
        out.extend_from_slice(&self.client.port().to_be_bytes());
        out.extend_from_slice(&self.server.port().to_be_bytes());
        out.extend_from_slice(&self.labels.to_be_bytes());
        out.extend_from_slice(&[
            self.congestion.code(),
            self.accept.code(),
            self.marks.dscp,
            self.marks.ttl,
            0,
            0,
            0,
            0,
        ]);
        out.extend_from_slice(&self.peer.0);
        put_address(out, self.peer_address);
        out.extend_from_slice(&self.peer_stream_port.to_be_bytes());
        out.extend_from_slice(&[0; 14]);
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (session, role) = (SessionUuid(c.array()?), Role::from_code(c.u8()?)?);
        if c.u8()? != TRANSPORT_TCP_PARALLEL {
            return Err(WireError::Field("transport"));
        }
        let (streams, block_bytes, queue_bytes, lease_ms) = (c.u16()?, c.u32()?, c.u32()?, c.u32()?);
        let (client, server) = (c.address()?, c.address()?);
        let (client_port, server_port, labels) = (c.u16()?, c.u16()?, c.u32()?);
        let (congestion, accept) = (Congestion::from_code(c.u8()?)?, Accept::from_code(c.u8()?)?);
        let marks = Marks::new(c.u8()?, c.u8()?)?;
        c.skip(4)?;
        let (peer, peer_address, peer_stream_port) = (AgentId(c.array()?), c.address()?, c.u16()?);
        c.skip(14)?;
        Ok(Self {
            session,
            role,
            streams,
            block_bytes,
            queue_bytes,
            lease_ms,
            client: SocketAddrV4::new(client, client_port),
            server: SocketAddrV4::new(server, server_port),
            labels,
            congestion,
            accept,
            marks,
            peer,
            peer_address,
            peer_stream_port,
        })
    }
}

/// A session has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// The session.
    pub session: SessionUuid,
    /// The reason.
    pub reason: EndReason,
    /// Bytes from client to server.
    pub bytes_up: u64,
    /// Bytes from server to client.
    pub bytes_down: u64,
    /// Duration in milliseconds.
    pub duration_ms: u64,
}

impl Ended {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.session.0);
        out.extend_from_slice(&self.reason.code().to_be_bytes());
        out.extend_from_slice(&[0; 6]);
        for field in [self.bytes_up, self.bytes_down, self.duration_ms] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (session, reason) = (SessionUuid(c.array()?), EndReason::from_code(c.u16()?)?);
        c.skip(6)?;
        Ok(Self { session, reason, bytes_up: c.u64()?, bytes_down: c.u64()?, duration_ms: c.u64()? })
    }
}

/// One chunk of the list of sessions that an agent runs for one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionReport {
    /// Number of the report within the boot.
    pub report: u32,
    /// Index of this chunk, from 0.
    pub chunk: u16,
    /// Number of chunks of the report, at least 1.
    pub chunks: u16,
    /// At most 64 sessions.
    pub sessions: Vec<SessionUuid>,
}

impl SessionReport {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        put_chunk(out, self.report, (self.chunk, self.chunks), self.sessions.len(), MAX_REPORTED)?;
        self.sessions.iter().for_each(|session| out.extend_from_slice(&session.0));
        Ok(())
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (report, chunk, chunks, count) = take_chunk(c, MAX_REPORTED)?;
        let sessions = (0..count).map(|_| c.array().map(SessionUuid)).collect::<Result<_, _>>()?;
        Ok(Self { report, chunk, chunks, sessions })
    }
}

/// A session that an agent has started without an order, by its own configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReportedFlow {
    /// The session.
    pub session: SessionUuid,
    /// The agent's side of the session.
    pub role: Role,
    /// The client's address and port.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
    /// The other agent.
    pub peer: AgentId,
}

/// One chunk of the list of an agent's sessions without an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowReport {
    /// Number of the report within the boot.
    pub report: u32,
    /// Index of this chunk, from 0.
    pub chunk: u16,
    /// Number of chunks of the report, at least 1.
    pub chunks: u16,
    /// At most 16 sessions.
    pub flows: Vec<ReportedFlow>,
}

impl FlowReport {
    pub(crate) fn put(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        put_chunk(out, self.report, (self.chunk, self.chunks), self.flows.len(), MAX_FLOWS)?;
        for flow in &self.flows {
            out.extend_from_slice(&flow.session.0);
            out.extend_from_slice(&[flow.role.code(), 0, 0, 0]);
            out.extend_from_slice(&flow.client.port().to_be_bytes());
            out.extend_from_slice(&flow.server.port().to_be_bytes());
            put_address(out, *flow.client.ip());
            put_address(out, *flow.server.ip());
            out.extend_from_slice(&flow.peer.0);
        }
        Ok(())
    }

    pub(crate) fn take(c: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (report, chunk, chunks, count) = take_chunk(c, MAX_FLOWS)?;
        let flows = (0..count).map(|_| take_flow(c)).collect::<Result<_, _>>()?;
        Ok(Self { report, chunk, chunks, flows })
    }
}

fn take_flow(c: &mut Cursor<'_>) -> Result<ReportedFlow, WireError> {
    let (session, role) = (SessionUuid(c.array()?), Role::from_code(c.u8()?)?);
    c.skip(3)?;
    let (client_port, server_port) = (c.u16()?, c.u16()?);
    let (client, server) = (c.address()?, c.address()?);
    Ok(ReportedFlow {
        session,
        role,
        client: SocketAddrV4::new(client, client_port),
        server: SocketAddrV4::new(server, server_port),
        peer: AgentId(c.array()?),
    })
}

/// Write the header of every chunk of a report: report number, chunk and number of chunks, count.
fn put_chunk(
    out: &mut Vec<u8>,
    report: u32,
    (chunk, chunks): (u16, u16),
    count: usize,
    limit: usize,
) -> Result<(), WireError> {
    if count > limit {
        return Err(WireError::Length);
    }
    if chunk >= chunks {
        return Err(WireError::Field("chunk"));
    }
    out.extend_from_slice(&report.to_be_bytes());
    for field in [chunk, chunks, u16::try_from(count).expect("at most the limit")] {
        out.extend_from_slice(&field.to_be_bytes());
    }
    out.extend_from_slice(&[0; 6]);
    Ok(())
}

fn take_chunk(c: &mut Cursor<'_>, limit: usize) -> Result<(u32, u16, u16, usize), WireError> {
    let (report, chunk, chunks, count) = (c.u32()?, c.u16()?, c.u16()?, usize::from(c.u16()?));
    c.skip(6)?;
    if count > limit {
        return Err(WireError::Length);
    }
    if chunk >= chunks {
        return Err(WireError::Field("chunk"));
    }
    Ok((report, chunk, chunks, count))
}
