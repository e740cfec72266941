//! Frames: what streams carry (frame.md section 2).

use std::net::SocketAddrV4;

use bytes::{BufMut, Bytes, BytesMut};

use crate::cursor::{Cursor, put_address};
use crate::error::WireError;
use crate::id::{SessionNumber, SessionUuid};
use crate::marks::Marks;
use crate::order_body::{EndReason, RefuseReason};
use crate::payload::Payload;

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 32;
/// Most bytes in a frame's payload (frame.md clause 4).
pub const MAX_PAYLOAD: usize = 262_144;
/// Bytes a sender may send in a direction before it has heard anything (frame.md clause 9).
pub const INITIAL_CREDIT: u64 = 262_144;
const OPEN_LEN: usize = 64;
const RESET_LEN: usize = 2;
const UUID_LEN: usize = 16;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The session, or [`SessionNumber::NONE`] for the stream itself.
    pub session: SessionNumber,
    /// What it says.
    pub body: Body,
}

/// What a frame says (frame.md clause 6).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// A session begins.
    Open {
        /// The limit granted to the acceptor, a byte offset.
        credit: u64,
        /// The original addresses.
        open: Open,
    },
    /// The server has accepted.
    Opened {
        /// The limit granted to the opener.
        credit: u64,
    },
    /// Bytes of a direction.
    Data {
        /// Position of the first byte in the direction.
        offset: u64,
        /// 1 to 262,144 bytes.
        payload: Payload,
    },
    /// Bytes of a direction, compressed: as good as Data once they are not any more.
    Compressed {
        /// Position of the first byte in the direction.
        offset: u64,
        /// How many bytes they are when they are not compressed, 2 to 262,144.
        length: u32,
        /// One zstd frame, shorter than `length`.
        payload: Bytes,
    },
    /// What has arrived, and how far may be sent.
    Ack {
        /// All before it has arrived; the end of a direction counts as one more byte.
        offset: u64,
        /// The other side may send bytes below this offset.
        credit: u64,
        /// How much of what has arrived this side's host has not acknowledged yet.
        backlog: Backlog,
    },
    /// No more bytes in this direction.
    Fin {
        /// Bytes sent in all.
        offset: u64,
    },
    /// The session is over at once.
    Reset {
        /// Why.
        reason: EndReason,
    },
    /// Are you there?
    Ping {
        /// Echoed.
        opaque: u64,
    },
    /// Yes.
    Pong {
        /// As in the Ping.
        opaque: u64,
    },
    /// Open no more sessions towards me.
    GoAway,
    /// Is the other end's host there? This end's asks.
    Probe {
        /// Echoed.
        opaque: u64,
    },
    /// Whether this end's host answers.
    HostState {
        /// As in the Probe that it answers; 0 = unasked.
        opaque: u64,
        /// It has left data unacknowledged for too long.
        silent: bool,
    },
    /// DSCP and TTL of the packets of this side's host.
    Marks {
        /// Position of the first byte in the direction that they hold for.
        offset: u64,
        /// Counts the changes of a direction from 1, below 2^48: of two the higher is the later.
        change: u64,
        /// From there on.
        marks: Marks,
    },
    /// Whether sessions are welcome for now.
    Willing {
        /// As of now.
        changes: Willingness,
    },
    /// Connect to a server for a session that has not begun: does it accept?
    Connect {
        /// Contents of its Open.
        open: Open,
    },
    /// The answer to Connect.
    Connected {
        /// The session.
        session: SessionUuid,
        /// Why there is no connection; `None` = the server has accepted.
        refused: Option<RefuseReason>,
    },
    /// The session of a Connect will not begin: close the connection.
    Release {
        /// The session.
        session: SessionUuid,
    },
}

/// How often it has changed in an agent's life whether it takes new sessions. It begins with taking them (frame.md section 6).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Willingness(pub u64);

impl Willingness {
    /// Whether the agent takes new sessions.
    pub const fn holds(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// After one more change.
    #[must_use]
    pub const fn changed(self) -> Self {
        Self(self.0 + 1)
    }
}

/// Bytes that have arrived at an agent and that its host has not acknowledged, in KiB and rounded up; the largest means that or more (frame.md
/// clause 8).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog(pub u16);

impl Backlog {
    const UNIT: u64 = 1024;

    /// Of so many bytes.
    pub fn of(bytes: u64) -> Self {
        Self(u16::try_from(bytes.div_ceil(Self::UNIT)).unwrap_or(u16::MAX))
    }

    /// In bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0) * Self::UNIT
    }
}

/// What the opener says about the flow (frame.md clause 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Open {
    /// Names the session across controllers and agents.
    pub session: SessionUuid,
    /// The client's address and port, which the server is to see.
    pub client: SocketAddrV4,
    /// The server's address and port.
    pub server: SocketAddrV4,
    /// DSCP and TTL of the client's packets.
    pub marks: Marks,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Most bytes that each agent may hold in each direction, 0 = the agents decide.
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

    /// Whether a payload may have this length.
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

    /// Whether the field may have this value beside a payload of `len` bytes: of Compressed it is the length that `len` bytes stand for, of
    /// HostState a truth value, of Marks what they are, of Connected the reason of a refusal or 0.
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

    /// Bytes of the direction that the frame carries.
    const fn carried(self, credit: u64, len: usize) -> u64 {
        if matches!(self, Self::Compressed) { credit } else { len as u64 }
    }
}

/// A change's number and what the marks are from then on.
fn split_change(credit: u64) -> Result<(u64, Marks), WireError> {
    let marks = Marks::from_bits((credit & u64::from(u16::MAX)) as u16)?;
    match credit >> Marks::BITS {
        0 => Err(WireError::Field("change")),
        change => Ok((change, marks)),
    }
}

/// The result of a Connect, as a number.
fn refusal(code: u64) -> Result<Option<RefuseReason>, WireError> {
    if code == 0 {
        return Ok(None);
    }
    let code = u16::try_from(code).map_err(|_| WireError::Field("refuse reason"))?;
    RefuseReason::from_code(code).map(Some)
}

impl Frame {
    /// Appends the header and every payload but that of Data and Compressed, which the caller writes behind it.
    ///
    /// # Panics
    /// If a Data payload is empty or longer than [`MAX_PAYLOAD`], or a compressed one not shorter than what it stands for: the sender cuts
    /// and compresses blocks inside these bounds.
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

    /// How many bytes of a direction a Data or Compressed frame has, as they travel.
    pub fn data_len(&self) -> Option<usize> {
        match &self.body {
            Body::Data { payload, .. } => Some(payload.len()),
            Body::Compressed { payload, .. } => Some(payload.len()),
            _ => None,
        }
    }

    /// Appends the whole frame.
    ///
    /// # Panics
    /// As [`Self::encode_head`], and if its payload is not in memory.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_head(out);
        match &self.body {
            Body::Data { payload, .. } => out.put_slice(payload.bytes().expect("in memory")),
            Body::Compressed { payload, .. } => out.put_slice(payload),
            _ => {}
        }
    }

    /// Bytes on the wire.
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
    /// Checks everything that can be checked without the payload (frame.md clause 13).
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
        // Ping's offset is opaque; elsewhere the end of what it carries, and Fin's one more, must be an offset too.
        kind.check_credit(credit, payload_len)?;
        let end = offset.checked_add(kind.carried(credit, payload_len) + 1);
        if end.is_none() && !matches!(kind, Kind::Ping | Kind::Pong | Kind::Probe | Kind::HostState) {
            return Err(WireError::Field("offset"));
        }
        Ok(Self { kind, payload_len, session, offset, credit, backlog })
    }

    /// Of a Data frame the header of its first `len` bytes, which must be fewer than it has; this one is for the rest from now on.
    pub(crate) fn split_off(&mut self, len: usize) -> Option<Self> {
        (self.kind == Kind::Data).then(|| {
            let part = Self { payload_len: len, ..*self };
            self.payload_len -= len;
            self.offset += len as u64;
            part
        })
    }

    /// Of a Data frame the bytes of its payload.
    pub(crate) fn data_len(&self) -> Option<usize> {
        (self.kind == Kind::Data).then_some(self.payload_len)
    }

    /// Of a Data frame the frame, with a payload of `payload_len` bytes wherever they are.
    pub(crate) fn carry(self, payload: Payload) -> Frame {
        Frame { session: self.session, body: Body::Data { offset: self.offset, payload } }
    }

    /// Puts header and payload together; `payload` has `payload_len` bytes.
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
