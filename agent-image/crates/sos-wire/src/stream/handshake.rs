//! The handshake of a stream: Hello, Welcome, Confirm (frame.md section 1).
//!
//! Each side proves possession of the pair key by a tag over the other side's fresh nonce, so a recorded handshake cannot be replayed. The
//! dialer proves possession last, so a Hello without a valid Confirm costs the acceptor one HMAC and no state.

use crate::cursor::Cursor;
use crate::error::WireError;
use crate::id::{AgentId, BootId, KeyId, SiteId, VERSION};
use crate::keys::{Key, TAG_LEN};

/// Bytes of a Hello.
pub const HELLO_LEN: usize = 64;
/// Bytes of a Welcome.
pub const WELCOME_LEN: usize = 96;
/// Bytes of a Confirm.
pub const CONFIRM_LEN: usize = 40;

const MAGIC: [u8; 4] = *b"SOSF";
const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const CONFIRM: u8 = 3;

/// Optional features of an agent; unknown bits are ignored (frame.md clause 2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Accepts Compressed frames on this stream (frame.md section 4).
    pub const COMPRESSED: Self = Self(1);
    /// Accepts Willing frames on this stream (frame.md section 6).
    pub const WILLING: Self = Self(2);
    /// Accepts Probe and HostState frames on this stream (frame.md section 7).
    pub const LIVENESS: Self = Self(4);
    /// Accepts Marks frames on this stream (frame.md section 8).
    pub const MARKS: Self = Self(8);
    /// Accepts Connect, Connected and Release frames on this stream (frame.md section 9).
    pub const CONNECT: Self = Self(16);

    /// Union of both sets of features.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all features of `other` are included.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The dialer's first message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Id of the pair key of the handshake.
    pub key_id: KeyId,
    /// The dialer's site.
    pub site: SiteId,
    /// Path label of the stream.
    pub label: u8,
    /// Stream number, unique within one boot of the dialer.
    pub stream_no: u32,
    /// The dialer.
    pub agent: AgentId,
    /// Boot id of the dialer.
    pub boot: BootId,
    /// Random.
    pub nonce: [u8; 16],
    /// The sender's features.
    pub capabilities: Capabilities,
}

/// The acceptor's decision about the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WelcomeStatus {
    /// Accepted.
    Accepted,
    /// The acceptor is shutting down.
    Draining,
    /// The dialer has reached its limit of streams.
    TooManyStreams,
    /// The acceptor does not have the named key; this answer carries no tag.
    UnknownKey,
    /// The acceptor requires encryption.
    EncryptedOnly,
}

/// The acceptor's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Copied from the Hello.
    pub key_id: KeyId,
    /// The acceptor's site.
    pub site: SiteId,
    /// The decision.
    pub status: WelcomeStatus,
    /// Copied from the Hello.
    pub stream_no: u32,
    /// The acceptor.
    pub agent: AgentId,
    /// Boot id of the acceptor.
    pub boot: BootId,
    /// Random.
    pub nonce: [u8; 16],
    /// The sender's features.
    pub capabilities: Capabilities,
}

/// The 64 bytes common to Hello and Welcome. `detail` is the label or the status.
struct Head {
    kind: u8,
    detail: u8,
    key_id: KeyId,
    site: SiteId,
    stream_no: u32,
    agent: AgentId,
    boot: BootId,
    nonce: [u8; 16],
    capabilities: Capabilities,
}

impl Head {
    fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = VERSION;
        out[5] = self.kind;
        out[6..8].copy_from_slice(&self.key_id.as_u16().to_be_bytes());
        out[8..10].copy_from_slice(&self.site.0.to_be_bytes());
        out[10] = self.detail;
        out[12..16].copy_from_slice(&self.stream_no.to_be_bytes());
        out[16..32].copy_from_slice(&self.agent.0);
        out[32..40].copy_from_slice(&self.boot.0.to_be_bytes());
        out[40..56].copy_from_slice(&self.nonce);
        out[56..].copy_from_slice(&self.capabilities.0.to_be_bytes());
        out
    }

    fn decode(bytes: &[u8], expected: u8) -> Result<Self, WireError> {
        let mut c = Cursor::new(bytes);
        c.magic(MAGIC)?;
        c.version()?;
        let kind = c.u8()?;
        if kind != expected {
            return Err(WireError::Type(kind));
        }
        let (key_id, site, detail) = (KeyId::decode(c.u16()?)?, SiteId(c.u16()?), c.u8()?);
        c.skip(1)?;
        let (stream_no, agent, boot) = (c.u32()?, AgentId(c.array()?), BootId(c.u64()?));
        let (nonce, capabilities) = (c.array()?, Capabilities(c.u64()?));
        Ok(Self { kind, detail, key_id, site, stream_no, agent, boot, nonce, capabilities })
    }
}

impl Hello {
    /// Encode the Hello.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let Self { key_id, site, label, stream_no, agent, boot, nonce, capabilities } = *self;
        Head { kind: HELLO, detail: label, key_id, site, stream_no, agent, boot, nonce, capabilities }
            .encode()
    }

    /// Decode a Hello. Its content is not authenticated yet.
    ///
    /// # Errors
    /// Magic, version, type, or key id 0.
    pub fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        let Head { detail: label, key_id, site, stream_no, agent, boot, nonce, capabilities, .. } =
            Head::decode(bytes, HELLO)?;
        Ok(Self { key_id, site, label, stream_no, agent, boot, nonce, capabilities })
    }
}

impl Welcome {
    /// Encode the Welcome to `hello`. Without a key ([`WelcomeStatus::UnknownKey`]) the tag is zero.
    pub fn encode(&self, key: Option<&Key>, hello: &[u8; HELLO_LEN]) -> [u8; WELCOME_LEN] {
        let Self { key_id, site, status, stream_no, agent, boot, nonce, capabilities } = *self;
        let detail = status.code();
        let head = Head { kind: WELCOME, detail, key_id, site, stream_no, agent, boot, nonce, capabilities };
        let head = head.encode();
        let mut out = [0; WELCOME_LEN];
        out[..HELLO_LEN].copy_from_slice(&head);
        if let Some(key) = key {
            out[HELLO_LEN..].copy_from_slice(&key.tag(&[b"sos/stream/welcome", hello, &head]));
        }
        out
    }

    /// Decode the Welcome to `hello` and check its tag.
    ///
    /// # Errors
    /// [`WireError::UnknownKey`] if that is the status, [`WireError::Tag`], or a field that contradicts the Hello.
    pub fn verify(bytes: &[u8; WELCOME_LEN], key: &Key, hello: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        let (head, tag) = bytes.split_at(HELLO_LEN);
        let Head { detail, key_id, site, stream_no, agent, boot, nonce, capabilities, .. } =
            Head::decode(head, WELCOME)?;
        let status = WelcomeStatus::from_code(detail)?;
        if status == WelcomeStatus::UnknownKey {
            return Err(WireError::UnknownKey(key_id.as_u16()));
        }
        key.check(&[b"sos/stream/welcome", hello, head], tag)?;
        let asked = Hello::decode(hello)?;
        if stream_no != asked.stream_no || key_id != asked.key_id {
            return Err(WireError::Field("stream number"));
        }
        Ok(Self { key_id, site, status, stream_no, agent, boot, nonce, capabilities })
    }
}

impl WelcomeStatus {
    const fn code(self) -> u8 {
        match self {
            Self::Accepted => 0,
            Self::Draining => 1,
            Self::TooManyStreams => 2,
            Self::UnknownKey => 3,
            Self::EncryptedOnly => 4,
        }
    }

    const fn from_code(code: u8) -> Result<Self, WireError> {
        match code {
            0 => Ok(Self::Accepted),
            1 => Ok(Self::Draining),
            2 => Ok(Self::TooManyStreams),
            3 => Ok(Self::UnknownKey),
            4 => Ok(Self::EncryptedOnly),
            _ => Err(WireError::Field("status")),
        }
    }
}

/// Encode the Confirm of a handshake.
pub fn encode_confirm(
    key_id: KeyId,
    key: &Key,
    hello: &[u8; HELLO_LEN],
    welcome: &[u8; WELCOME_LEN],
) -> [u8; CONFIRM_LEN] {
    let mut out = [0; CONFIRM_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4] = VERSION;
    out[5] = CONFIRM;
    out[6..8].copy_from_slice(&key_id.as_u16().to_be_bytes());
    out[8..].copy_from_slice(&key.tag(&[b"sos/stream/confirm", hello, welcome]));
    out
}

/// Check the Confirm of a handshake.
///
/// # Errors
/// Magic, version, type or tag.
pub fn verify_confirm(
    bytes: &[u8; CONFIRM_LEN],
    key: &Key,
    hello: &[u8; HELLO_LEN],
    welcome: &[u8; WELCOME_LEN],
) -> Result<(), WireError> {
    let mut c = Cursor::new(bytes);
    c.magic(MAGIC)?;
    c.version()?;
    match c.u8()? {
        CONFIRM => {}
        other => return Err(WireError::Type(other)),
    }
    c.skip(2)?;
    key.check(&[b"sos/stream/confirm", hello, welcome], c.slice(TAG_LEN)?)
}
