//! Frames of streams (frame.md section 2).

use std::net::SocketAddrV4;

use bytes::{BufMut, Bytes, BytesMut};

use crate::cursor::{Cursor, put_address};
use crate::error::WireError;
use crate::id::{SessionNumber, SessionUuid};
use crate::marks::Marks;
use crate::order::body::{EndReason, RefuseReason};
use crate::stream::payload::Payload;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 32;
/// Maximum size of a frame's payload in bytes (frame.md clause 4).
pub const MAX_PAYLOAD: usize = 262_144;
/// Bytes that a sender may send in a direction before the first Ack (frame.md clause 9).
pub const INITIAL_CREDIT: u64 = 262_144;
const OPEN_LEN: usize = 64;
const RESET_LEN: usize = 2;
const UUID_LEN: usize = 16;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The session, or [`SessionNumber::NONE`] for the stream itself.
    pub session: SessionNumber,
    /// Content of the frame.
    pub body: Body,
}

/// Content of a frame (frame.md clause 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Start a session.
    Open {
        /// Credit granted to the acceptor, as a byte offset.
        credit: u64,
        /// The original addresses.
        open: Open,
    },
    /// The server has accepted the connection.
    Opened {
        /// Credit granted to the opener.
        credit: u64,
    },
    /// Bytes of a direction.
    Data {
        /// Position of the first byte in the direction.
        offset: u64,
        /// 1 to 262,144 bytes.
        payload: Payload,
    },
    /// Bytes of a direction, compressed; equivalent to Data after decompression.
    Compressed {
        /// Position of the first byte in the direction.
        offset: u64,
        /// Uncompressed length in bytes, 2 to 262,144.
        length: u32,
        /// One zstd frame, shorter than `length`.
        payload: Bytes,
    },
    /// Acknowledgement and credit.
    Ack {
        /// All bytes before this offset have arrived; a Fin counts as one more byte.
        offset: u64,
        /// Credit: the peer may send bytes below this offset.
        credit: u64,
        /// Received bytes that the host has not acknowledged.
        backlog: Backlog,
    },
    /// End of a direction.
    Fin {
        /// Total bytes of the direction.
        offset: u64,
    },
    /// Abort the session.
    Reset {
        /// The reason.
        reason: EndReason,
    },
    /// Liveness check of the stream.
    Ping {
        /// Echoed.
        opaque: u64,
    },
    /// Answer to Ping.
    Pong {
        /// Copied from the Ping.
        opaque: u64,
    },
    /// Request that the other agent open no more sessions.
    GoAway,
    /// Request the liveness of the receiver's host, because the sender's host sends keepalive probes.
    Probe {
        /// Echoed.
        opaque: u64,
    },
    /// Liveness of the sender's host.
    HostState {
        /// Copied from the Probe that this frame answers; 0 = unsolicited.
        opaque: u64,
        /// The host has left data unacknowledged for too long.
        silent: bool,
    },
    /// DSCP and TTL of the packets of the sender's host.
    Marks {
        /// Offset of the first byte to which the marks apply.
        offset: u64,
        /// Number of the change within a direction, from 1 and below 2^48; a higher number is a later change.
        change: u64,
        /// The marks from that position on.
        marks: Marks,
    },
    /// Willingness to accept sessions.
    Willing {
        /// Current count of changes.
        changes: Willingness,
    },
    /// Request a connection to the server before the session starts, to learn whether the server accepts it.
    Connect {
        /// Content of the session's Open.
        open: Open,
    },
    /// The answer to Connect.
    Connected {
        /// The session.
        session: SessionUuid,
        /// Reason for the failure; `None` = the server has accepted.
        refused: Option<RefuseReason>,
    },
    /// Close the connection of a Connect because its session will not start.
    Release {
        /// The session.
        session: SessionUuid,
    },
}

/// Number of times that an agent has changed between accepting and refusing new sessions; an agent starts as accepting (frame.md section
/// 6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Willingness(pub u64);

impl Willingness {
    /// True if the agent accepts new sessions.
    pub const fn holds(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// The count after one more change.
    #[must_use]
    pub const fn changed(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Bytes that an agent has received and that its host has not acknowledged, in KiB, rounded up. The maximum value stands for that amount or
/// more (frame.md clause 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog(pub u16);

impl Backlog {
    const UNIT: u64 = 1024;

    /// From a number of bytes.
    pub fn of(bytes: u64) -> Self {
        Self(u16::try_from(bytes.div_ceil(Self::UNIT)).unwrap_or(u16::MAX))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0) * Self::UNIT
    }
}

/// The opener's description of the flow (frame.md clause 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Names the session across controllers and agents.
    pub session: SessionUuid,
    /// The client's address and port, which the server sees as its peer unless the service has `source: Agent`.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
    /// DSCP and TTL of the client's packets.
    pub marks: Marks,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Maximum number of bytes that each agent holds per direction, 0 = the agents decide.
    pub queue_bytes: u32,
}

impl Open {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(OPEN_LEN);
        out.extend_from_slice(&self.session.0);
        put_address(&mut out, *self.client.ip());
        put_address(&mut out, *self.server.ip());
        out.extend_from_slice(&self.client.port().to_be_bytes());
        out.extend_from_slice(&self.server.port().to_be_bytes());
        out.extend_from_slice(&[self.marks.dscp, self.marks.ttl, 0, 0]);
        out.extend_from_slice(&self.block_bytes.to_be_bytes());
        out.extend_from_slice(&self.queue_bytes.to_be_bytes());
        out
    }

    fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut c = Cursor::new(payload);
        let (session, client, server) = (SessionUuid(c.array()?), c.address()?, c.address()?);
        let (client_port, server_port, marks) = (c.u16()?, c.u16()?, Marks::new(c.u8()?, c.u8()?)?);
        c.skip(2)?;
        let (block_bytes, queue_bytes) = (c.u32()?, c.u32()?);
        if client_port == 0 || server_port == 0 {
            return Err(WireError::Field("port"));
        }
        let (client, server) =
            (SocketAddrV4::new(client, client_port), SocketAddrV4::new(server, server_port));
        Ok(Self { session, client, server, marks, block_bytes, queue_bytes })
    }
}

/// The type byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Open = 1,
    Opened = 2,
    Data = 3,
    Ack = 4,
    Fin = 5,
    Reset = 6,
    Ping = 7,
    Pong = 8,
    GoAway = 9,
    Compressed = 10,
    Willing = 11,
    Probe = 12,
    HostState = 13,
    Marks = 14,
    Connect = 15,
    Connected = 16,
    Release = 17,
}

impl Kind {
    const fn from_code(code: u8) -> Result<Self, WireError> {
        Ok(match code {
            1 => Self::Open,
            2 => Self::Opened,
            3 => Self::Data,
            4 => Self::Ack,
            5 => Self::Fin,
            6 => Self::Reset,
            7 => Self::Ping,
            8 => Self::Pong,
            9 => Self::GoAway,
            10 => Self::Compressed,
            11 => Self::Willing,
            12 => Self::Probe,
            13 => Self::HostState,
            14 => Self::Marks,
            15 => Self::Connect,
            16 => Self::Connected,
            17 => Self::Release,
            other => return Err(WireError::Type(other)),
        })
    }

    const fn of_stream(self) -> bool {
        matches!(
            self,
            Self::Ping
                | Self::Pong
                | Self::GoAway
                | Self::Willing
                | Self::Connect
                | Self::Connected
                | Self::Release
        )
    }

    /// Check a payload length.
    fn check_len(self, len: usize) -> Result<(), WireError> {
        let fits = match self {
            Self::Open | Self::Connect => len == OPEN_LEN,
            Self::Connected | Self::Release => len == UUID_LEN,
            Self::Data => (1..=MAX_PAYLOAD).contains(&len),
            Self::Compressed => (1..MAX_PAYLOAD).contains(&len),
            Self::Reset => len == RESET_LEN,
            _ => len == 0,
        };
        if fits { Ok(()) } else { Err(WireError::Length) }
    }

    /// Check the credit field of a frame with a payload of `len` bytes. In Compressed the field holds the uncompressed length, in HostState
    /// a boolean, in Marks the change and the marks, in Connected the reason for a refusal or 0.
    fn check_credit(self, credit: u64, len: usize) -> Result<(), WireError> {
        match self {
            Self::Compressed if !(len as u64 + 1..=MAX_PAYLOAD as u64).contains(&credit) => {
                Err(WireError::Field("length"))
            }
            Self::HostState if credit > 1 => Err(WireError::Field("host state")),
            Self::Marks => split_change(credit).map(|_| ()),
            Self::Connected => refusal(credit).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Number of the direction's bytes in the frame, before compression.
    const fn carried(self, credit: u64, len: usize) -> u64 {
        if matches!(self, Self::Compressed) { credit } else { len as u64 }
    }
}

/// Split the credit field of a Marks frame into the number of the change and the marks.
fn split_change(credit: u64) -> Result<(u64, Marks), WireError> {
    let marks = Marks::from_bits((credit & u64::from(u16::MAX)) as u16)?;
    match credit >> Marks::BITS {
        0 => Err(WireError::Field("change")),
        change => Ok((change, marks)),
    }
}

/// Decode the result of a Connect.
fn refusal(code: u64) -> Result<Option<RefuseReason>, WireError> {
    if code == 0 {
        return Ok(None);
    }
    let code = u16::try_from(code).map_err(|_| WireError::Field("refuse reason"))?;
    RefuseReason::from_code(code).map(Some)
}

impl Frame {
    /// Append the header, and the payload of all frames but Data and Compressed, whose payload the caller appends.
    ///
    /// # Panics
    /// If a Data payload is empty or longer than [`MAX_PAYLOAD`], or if a compressed payload is not shorter than its uncompressed length.
    /// The sender cuts and compresses blocks within these bounds.
    pub fn encode_head(&self, out: &mut BytesMut) {
        let (kind, offset, credit) = match &self.body {
            Body::Open { credit, .. } => (Kind::Open, 0, *credit),
            Body::Opened { credit } => (Kind::Opened, 0, *credit),
            Body::Data { offset, .. } => (Kind::Data, *offset, 0),
            Body::Compressed { offset, length, .. } => (Kind::Compressed, *offset, u64::from(*length)),
            Body::Ack { offset, credit, .. } => (Kind::Ack, *offset, *credit),
            Body::Fin { offset } => (Kind::Fin, *offset, 0),
            Body::Reset { .. } => (Kind::Reset, 0, 0),
            Body::Ping { opaque } => (Kind::Ping, *opaque, 0),
            Body::Pong { opaque } => (Kind::Pong, *opaque, 0),
            Body::GoAway => (Kind::GoAway, 0, 0),
            Body::Willing { changes } => (Kind::Willing, changes.0, 0),
            Body::Probe { opaque } => (Kind::Probe, *opaque, 0),
            Body::HostState { opaque, silent } => (Kind::HostState, *opaque, u64::from(*silent)),
            Body::Marks { offset, change, marks } => {
                (Kind::Marks, *offset, change << Marks::BITS | u64::from(marks.to_bits()))
            }
            Body::Connect { .. } => (Kind::Connect, 0, 0),
            Body::Connected { refused, .. } => {
                (Kind::Connected, 0, refused.map_or(0, |reason| reason.code().into()))
            }
            Body::Release { .. } => (Kind::Release, 0, 0),
        };
        let payload = self.payload_len();
        let fits = kind.check_len(payload).and_then(|()| kind.check_credit(credit, payload));
        assert!(fits.is_ok(), "payload of {payload} bytes in a {kind:?} frame");
        out.reserve(HEADER_LEN + OPEN_LEN);
        let backlog = if let Body::Ack { backlog, .. } = &self.body { backlog.0 } else { 0 };
        out.put_slice(&[kind as u8, 0]);
        out.put_u16(backlog);
        out.put_u32(u32::try_from(payload).expect("checked against the bound"));
        out.put_u64(self.session.0);
        out.put_u64(offset);
        out.put_u64(credit);
        match &self.body {
            Body::Open { open, .. } | Body::Connect { open } => out.put_slice(&open.encode()),
            Body::Connected { session, .. } | Body::Release { session } => out.put_slice(&session.0),
            Body::Reset { reason } => out.put_u16(reason.code()),
            _ => {}
        }
    }

    /// Payload length on the wire of a Data or Compressed frame.
    pub fn data_len(&self) -> Option<usize> {
        match &self.body {
            Body::Data { payload, .. } => Some(payload.len()),
            Body::Compressed { payload, .. } => Some(payload.len()),
            _ => None,
        }
    }

    /// Append the whole frame.
    ///
    /// # Panics
    /// Like [`Self::encode_head`], and if the payload is not in memory.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_head(out);
        match &self.body {
            Body::Data { payload, .. } => out.put_slice(payload.bytes().expect("in memory")),
            Body::Compressed { payload, .. } => out.put_slice(payload),
            _ => {}
        }
    }

    /// Length on the wire.
    pub fn wire_len(&self) -> usize {
        HEADER_LEN + self.payload_len()
    }

    fn payload_len(&self) -> usize {
        match &self.body {
            Body::Open { .. } | Body::Connect { .. } => OPEN_LEN,
            Body::Connected { .. } | Body::Release { .. } => UUID_LEN,
            Body::Data { payload, .. } => payload.len(),
            Body::Compressed { payload, .. } => payload.len(),
            Body::Reset { .. } => RESET_LEN,
            _ => 0,
        }
    }
}

/// A header whose lengths have been checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    kind: Kind,
    pub(crate) payload_len: usize,
    session: SessionNumber,
    offset: u64,
    credit: u64,
    backlog: u16,
}

impl Header {
    /// Check the header as far as possible without the payload (frame.md clause 13).
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, WireError> {
        let mut c = Cursor::new(bytes);
        let kind = Kind::from_code(c.u8()?)?;
        c.skip(1)?;
        let backlog = c.u16()?;
        let payload_len = usize::try_from(c.u32()?).map_err(|_| WireError::Length)?;
        kind.check_len(payload_len)?;
        let (session, offset, credit) = (SessionNumber(c.u64()?), c.u64()?, c.u64()?);
        if kind.of_stream() != (session == SessionNumber::NONE) {
            return Err(WireError::Field("session number"));
        }
        // The offset of Ping, Pong, Probe and HostState is opaque. In other frames the end of the payload, plus one for Fin, must also be a
        // valid offset.
        kind.check_credit(credit, payload_len)?;
        let end = offset.checked_add(kind.carried(credit, payload_len) + 1);
        if end.is_none() && !matches!(kind, Kind::Ping | Kind::Pong | Kind::Probe | Kind::HostState) {
            return Err(WireError::Field("offset"));
        }
        Ok(Self { kind, payload_len, session, offset, credit, backlog })
    }

    /// Split a Data header: return a header for the first `len` bytes and keep the rest in this header. `len` must be less than the payload
    /// length.
    pub(crate) fn split_off(&mut self, len: usize) -> Option<Self> {
        (self.kind == Kind::Data).then(|| {
            let part = Self { payload_len: len, ..*self };
            self.payload_len -= len;
            self.offset += len as u64;
            part
        })
    }

    /// Payload length of a Data frame.
    pub(crate) fn data_len(&self) -> Option<usize> {
        (self.kind == Kind::Data).then_some(self.payload_len)
    }

    /// Complete a Data header with a payload of `payload_len` bytes, in memory or elsewhere.
    pub(crate) fn carry(self, payload: Payload) -> Frame {
        Frame { session: self.session, body: Body::Data { offset: self.offset, payload } }
    }

    /// Complete the header with `payload`, which has `payload_len` bytes.
    pub(crate) fn complete(self, payload: Bytes) -> Result<Frame, WireError> {
        let Self { offset, credit, .. } = self;
        let body = match self.kind {
            Kind::Open => Body::Open { credit, open: Open::decode(&payload)? },
            Kind::Opened => Body::Opened { credit },
            Kind::Data => Body::Data { offset, payload: payload.into() },
            Kind::Compressed => {
                let length = u32::try_from(credit).map_err(|_| WireError::Field("length"))?;
                Body::Compressed { offset, length, payload }
            }
            Kind::Ack => Body::Ack { offset, credit, backlog: Backlog(self.backlog) },
            Kind::Fin => Body::Fin { offset },
            Kind::Reset => Body::Reset { reason: EndReason::from_code(Cursor::new(&payload).u16()?)? },
            Kind::Ping => Body::Ping { opaque: offset },
            Kind::Pong => Body::Pong { opaque: offset },
            Kind::GoAway => Body::GoAway,
            Kind::Willing => Body::Willing { changes: Willingness(offset) },
            Kind::Probe => Body::Probe { opaque: offset },
            Kind::HostState => Body::HostState { opaque: offset, silent: credit == 1 },
            Kind::Marks => {
                let (change, marks) = split_change(credit)?;
                Body::Marks { offset, change, marks }
            }
            Kind::Connect => Body::Connect { open: Open::decode(&payload)? },
            Kind::Connected => Body::Connected {
                session: SessionUuid(Cursor::new(&payload).array()?),
                refused: refusal(credit)?,
            },
            Kind::Release => Body::Release { session: SessionUuid(Cursor::new(&payload).array()?) },
        };
        Ok(Frame { session: self.session, body })
    }
}
