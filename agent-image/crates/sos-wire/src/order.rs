//! Orders between controllers and agents (order.md): header, tag and body.
//!
//! Order of calls: [`UnverifiedOrder::parse`] checks the header, `verify` checks the tag and decodes the body; [`Order::encode`] does the
//! opposite. Both call the bodies' own functions:
//!
//! | module | contains |
//! |---|---|
//! | `body` | the bodies of orders, except the two below |
//! | `path_report` | the report about paths and services |
//! | `plain_report` | the report about plain connections |

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::id::{AgentId, BootId, ControllerId, KeyId, SessionUuid, VERSION};
use crate::keys::{Key, TAG_LEN};

pub(crate) mod body;
mod path_report;
mod plain_report;

pub use body::{
    Accept, Congestion, EndReason, Ended, FlowReport, MAX_FLOWS, MAX_REPORTED, Prepare, RefuseReason,
    ReportedFlow, Role, SessionReport,
};
pub use path_report::{MAX_PATH_ROWS, MAX_SERVICE_ROWS, PathReport, PathRow, ServiceMark, ServiceRow};
pub use plain_report::{MAX_PLAIN_ROWS, MAX_PLAIN_SAMPLES, PlainReason, PlainReport, PlainRow, PlainSample};

/// Maximum length of an order in bytes.
pub const MAX_LEN: usize = 1400;
const HEADER_LEN: usize = 64;
const MAGIC: [u8; 4] = *b"SOSO";

/// Header of every order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderHeader {
    /// Id of the order key that signs the order.
    pub key_id: KeyId,
    /// The controller, as sender or receiver.
    pub controller: ControllerId,
    /// The agent, as sender or receiver.
    pub agent: AgentId,
    /// Boot id of the sender.
    pub boot: BootId,
    /// Sequence number of the order in the sender's boot, from 1.
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Sequence of the order being answered, 0 = none.
    pub reply_to: u64,
}

/// Content of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderBody {
    /// Controller to agent: a client is about to connect.
    Prepare(Prepare),
    /// Agent to controller: prepared.
    Ready(SessionUuid),
    /// Like Ready, and the server has accepted the connection.
    Accepted(SessionUuid),
    /// Agent to controller: not prepared.
    Refused(SessionUuid, RefuseReason),
    /// Controller to agent: release an unused preparation.
    Release(SessionUuid),
    /// Agent to controller: a session has ended.
    Ended(Ended),
    /// Controller to agent: acknowledges an end.
    EndedAck(SessionUuid),
    /// Agent to controller: a chunk of the list of sessions.
    SessionReport(SessionReport),
    /// Controller to agent: request reports of the sessions without an order.
    Watch,
    /// Agent to controller: a chunk of the list of sessions without an order.
    FlowReport(FlowReport),
    /// Agent to controller: traffic of paths and services.
    PathReport(PathReport),
    /// Agent to controller: connections left to plain TCP.
    PlainReport(PlainReport),
    /// Controller to agent: reset a running session.
    Abort(SessionUuid),
}

impl OrderBody {
    /// The type byte.
    pub fn code(&self) -> u8 {
        match self {
            Self::Prepare(_) => 1,
            Self::Ready(_) | Self::Accepted(_) => 2,
            Self::Refused(..) => 3,
            Self::Release(_) => 4,
            Self::Ended(_) => 5,
            Self::EndedAck(_) => 6,
            Self::SessionReport(_) => 7,
            Self::Watch => 8,
            Self::FlowReport(_) => 9,
            Self::PathReport(_) => 10,
            Self::PlainReport(_) => 11,
            Self::Abort(_) => 12,
        }
    }

    /// True for orders from a controller to an agent: the direction selects the key (order.md clause 2).
    pub fn is_to_agent(&self) -> bool {
        is_to_agent(self.code())
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        match self {
            Self::Prepare(prepare) => prepare.put(out),
            Self::Ready(session)
            | Self::Release(session)
            | Self::EndedAck(session)
            | Self::Abort(session) => {
                out.extend_from_slice(&session.0);
            }
            Self::Accepted(session) => {
                out.extend_from_slice(&session.0);
                out.extend_from_slice(&[ACCEPTED, 0, 0, 0, 0, 0, 0, 0]);
            }
            Self::Refused(session, reason) => {
                out.extend_from_slice(&session.0);
                out.extend_from_slice(&reason.code().to_be_bytes());
                out.extend_from_slice(&[0; 6]);
            }
            Self::Ended(ended) => ended.put(out),
            Self::SessionReport(report) => report.put(out)?,
            Self::Watch => {}
            Self::FlowReport(report) => report.put(out)?,
            Self::PathReport(report) => report.put(out)?,
            Self::PlainReport(report) => report.put(out)?,
        }
        Ok(())
    }

    fn take(code: u8, c: &mut Cursor<'_>) -> Result<Self, WireError> {
        Ok(match code {
            1 => Self::Prepare(Prepare::take(c)?),
            2 => take_ready(c)?,
            3 => {
                let body = Self::Refused(SessionUuid(c.array()?), RefuseReason::from_code(c.u16()?)?);
                c.skip(6)?;
                body
            }
            4 => Self::Release(SessionUuid(c.array()?)),
            5 => Self::Ended(Ended::take(c)?),
            6 => Self::EndedAck(SessionUuid(c.array()?)),
            7 => Self::SessionReport(SessionReport::take(c)?),
            8 => Self::Watch,
            9 => Self::FlowReport(FlowReport::take(c)?),
            10 => Self::PathReport(PathReport::take(c)?),
            11 => Self::PlainReport(PlainReport::take(c)?),
            12 => Self::Abort(SessionUuid(c.array()?)),
            other => return Err(WireError::Type(other)),
        })
    }
}

/// Flag in a Ready: the server has accepted.
const ACCEPTED: u8 = 1;

fn take_ready(c: &mut Cursor<'_>) -> Result<OrderBody, WireError> {
    let session = SessionUuid(c.array()?);
    if c.is_at_end() {
        return Ok(OrderBody::Ready(session));
    }
    if c.u8()? != ACCEPTED {
        return Err(WireError::Field("ready"));
    }
    c.skip(7)?;
    Ok(OrderBody::Accepted(session))
}

const fn is_to_agent(code: u8) -> bool {
    matches!(code, 1 | 4 | 6 | 8 | 12)
}

/// One order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Key id, sender, receiver, time, and the sequence of the answered order.
    pub header: OrderHeader,
    /// Content of the order.
    pub body: OrderBody,
}

impl Order {
    /// Encode the order and sign it. `key` is the order key of the body's direction.
    ///
    /// # Errors
    /// A field or the whole order is out of bounds.
    pub fn encode(&self, key: &Key) -> Result<Vec<u8>, WireError> {
        let mut body = Vec::new();
        self.body.put(&mut body)?;
        if HEADER_LEN + body.len() + TAG_LEN > MAX_LEN {
            return Err(WireError::Length);
        }
        let header = &self.header;
        let mut out = Vec::with_capacity(HEADER_LEN + body.len() + TAG_LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, self.body.code()]);
        out.extend_from_slice(&header.key_id.as_u16().to_be_bytes());
        out.extend_from_slice(&header.controller.0.to_be_bytes());
        out.extend_from_slice(&u16::try_from(body.len()).expect("at most 1,400").to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&header.agent.0);
        for field in [header.boot.0, header.sequence, header.time_ms, header.reply_to] {
            out.extend_from_slice(&field.to_be_bytes());
        }
        out.extend_from_slice(&body);
        let tag = key.tag(&[&out]);
        out.extend_from_slice(&tag);
        Ok(out)
    }
}

/// An order before verification: only the fields needed to find the key.
#[derive(Debug, Clone, Copy)]
pub struct UnverifiedOrder<'a> {
    bytes: &'a [u8],
    code: u8,
    /// Key id in the order.
    pub key_id: KeyId,
    /// Controller in the order.
    pub controller: ControllerId,
    /// Agent in the order.
    pub agent: AgentId,
}

impl<'a> UnverifiedOrder<'a> {
    /// Check length, magic, version and type.
    ///
    /// # Errors
    /// The first check that fails.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() > MAX_LEN {
            return Err(WireError::Length);
        }
        let mut c = Cursor::new(bytes);
        c.magic(MAGIC)?;
        c.version()?;
        let code = c.u8()?;
        if !(1..=12).contains(&code) {
            return Err(WireError::Type(code));
        }
        let (key_id, controller) = (c.u16()?, ControllerId(c.u32()?));
        if usize::from(c.u16()?) + HEADER_LEN + TAG_LEN != bytes.len() {
            return Err(WireError::Length);
        }
        c.skip(2)?;
        Ok(Self { bytes, code, key_id: KeyId::decode(key_id)?, controller, agent: AgentId(c.array()?) })
    }

    /// True if orders of this type go from a controller to an agent: the direction selects the key.
    pub fn is_to_agent(&self) -> bool {
        is_to_agent(self.code)
    }

    /// Check the tag with the order key of the order's direction and decode the rest.
    ///
    /// # Errors
    /// [`WireError::Tag`], or the invalid field.
    pub fn verify(self, key: &Key) -> Result<Order, WireError> {
        let (message, tag) = self.bytes.split_at(self.bytes.len() - TAG_LEN);
        key.check(&[message], tag)?;
        let mut c = Cursor::new(message);
        c.skip(32)?;
        let header = OrderHeader {
            key_id: self.key_id,
            controller: self.controller,
            agent: self.agent,
            boot: BootId(c.u64()?),
            sequence: c.u64()?,
            time_ms: c.u64()?,
            reply_to: c.u64()?,
        };
        let body = OrderBody::take(self.code, &mut c)?;
        c.end()?;
        Ok(Order { header, body })
    }
}
