//! The beacon: an agent's periodic announcement (beacon.md).

use std::net::Ipv4Addr;

use crate::cursor::{Cursor, put_address};
use crate::error::WireError;
use crate::id::{AgentId, BootId, KeyId, MacAddress, SiteId, VERSION};
use crate::keys::{Key, TAG_LEN};

/// Maximum length of a beacon in bytes.
pub const MAX_LEN: usize = 512;
/// Bytes before the name.
const FIXED_LEN: usize = 120;
const MAGIC: [u8; 4] = *b"SOSB";
const TYPE: u8 = 1;
const DRAINING: u16 = 1;
const WILLING: u16 = 2;

/// One announcement of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beacon {
    /// Id of the beacon key that signs the beacon.
    pub key_id: KeyId,
    /// Site that the agent claims.
    pub site: SiteId,
    /// The agent accepts no new sessions and is shutting down.
    pub draining: bool,
    /// The agent is healthy and below its limits.
    pub willing: bool,
    /// The agent.
    pub agent: AgentId,
    /// Boot id of the agent's process.
    pub boot: BootId,
    /// Sequence number of the beacon in the boot, from 1.
    pub sequence: u64,
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// Open sessions.
    pub sessions: u32,
    /// Limit of sessions.
    pub session_limit: u32,
    /// Bytes relayed per second, mean over the last interval.
    pub bytes_per_second: u64,
    /// CPU usage, thousandths of one core.
    pub cpu_permille: u16,
    /// Open streams.
    pub streams: u16,
    /// UDP port for orders.
    pub order_port: u16,
    /// TCP port of path label 0.
    pub first_stream_port: u16,
    /// Number of stream ports: one per path label.
    pub stream_ports: u16,
    /// The agent's address on the site's network.
    pub address: Ipv4Addr,
    /// The agent's MAC address on the site's network.
    pub mac: MacAddress,
    /// Bits per second that the agent can relay, 0 = unknown.
    pub capacity_bps: u64,
    /// The node's name, 1 to 63 bytes.
    pub name: String,
    /// Service types, 1 to 8, each 1 to 31 bytes of ASCII.
    pub service_types: Vec<String>,
}

impl Beacon {
    /// Encode the beacon and sign it with the agent's beacon key.
    ///
    /// # Errors
    /// [`WireError::Field`] if a name or service type is out of bounds, [`WireError::Length`] over 512 bytes.
    pub fn encode(&self, key: &Key) -> Result<Vec<u8>, WireError> {
        let name_len = bounded(self.name.len(), 63).ok_or(WireError::Field("name"))?;
        let type_count = bounded(self.service_types.len(), 8).ok_or(WireError::Field("service types"))?;
        let tail = self.service_types.iter().map(|t| 1 + t.len()).sum::<usize>() + self.name.len();
        let total = FIXED_LEN + tail + TAG_LEN;
        if total > MAX_LEN {
            return Err(WireError::Length);
        }
        let mut out = Vec::with_capacity(total);
        self.put_identity(&mut out, u16::try_from(total).expect("at most 512"));
        self.put_load(&mut out);
        out.extend_from_slice(&[name_len, type_count, 0, 0, 0, 0]);
        put_address(&mut out, self.address);
        out.extend_from_slice(&self.mac.0);
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.capacity_bps.to_be_bytes());
        out.extend_from_slice(self.name.as_bytes());
        for service_type in &self.service_types {
            let len = bounded(service_type.len(), 31).filter(|_| service_type.is_ascii());
            out.push(len.ok_or(WireError::Field("service type"))?);
            out.extend_from_slice(service_type.as_bytes());
        }
        let tag = key.tag(&[&out]);
        out.extend_from_slice(&tag);
        Ok(out)
    }

    fn put_identity(&self, out: &mut Vec<u8>, total: u16) {
        let flags = if self.draining { DRAINING } else { 0 } | if self.willing { WILLING } else { 0 };
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, TYPE]);
        for field in [self.key_id.as_u16(), self.site.0, flags, total, 0] {
            out.extend_from_slice(&field.to_be_bytes());
        }
        out.extend_from_slice(&self.agent.0);
        for field in [self.boot.0, self.sequence, self.time_ms] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }

    fn put_load(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sessions.to_be_bytes());
        out.extend_from_slice(&self.session_limit.to_be_bytes());
        out.extend_from_slice(&self.bytes_per_second.to_be_bytes());
        for field in
            [self.cpu_permille, self.streams, self.order_port, self.first_stream_port, self.stream_ports]
        {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}

/// Returns the length as a byte if it is 1 to `max`.
fn bounded(len: usize, max: u8) -> Option<u8> {
    u8::try_from(len).ok().filter(|len| (1..=max).contains(len))
}

/// A beacon before verification: only the fields needed to find the key.
#[derive(Debug, Clone, Copy)]
pub struct UnverifiedBeacon<'a> {
    bytes: &'a [u8],
    /// Key id in the beacon.
    pub key_id: KeyId,
    /// Site in the beacon.
    pub site: SiteId,
    /// Agent in the beacon.
    pub agent: AgentId,
}

impl<'a> UnverifiedBeacon<'a> {
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
        match c.u8()? {
            TYPE => {}
            other => return Err(WireError::Type(other)),
        }
        let (key_id, site) = (c.u16()?, SiteId(c.u16()?));
        c.skip(2)?;
        if usize::from(c.u16()?) != bytes.len() || bytes.len() < FIXED_LEN + TAG_LEN {
            return Err(WireError::Length);
        }
        c.skip(2)?;
        Ok(Self { bytes, key_id: KeyId::decode(key_id)?, site, agent: AgentId(c.array()?) })
    }

    /// Check the tag with the agent's beacon key and decode the rest.
    ///
    /// # Errors
    /// [`WireError::Tag`], or the invalid field.
    pub fn verify(self, key: &Key) -> Result<Beacon, WireError> {
        let (message, tag) = self.bytes.split_at(self.bytes.len() - TAG_LEN);
        key.check(&[message], tag)?;
        self.decode(message)
    }

    fn decode(self, message: &[u8]) -> Result<Beacon, WireError> {
        let mut c = Cursor::new(message);
        c.skip(10)?;
        let flags = c.u16()?;
        c.skip(20)?;
        let (boot, sequence, time_ms) = (BootId(c.u64()?), c.u64()?, c.u64()?);
        let (sessions, session_limit, bytes_per_second) = (c.u32()?, c.u32()?, c.u64()?);
        let (cpu_permille, streams, order_port) = (c.u16()?, c.u16()?, c.u16()?);
        let (first_stream_port, stream_ports) = (c.u16()?, c.u16()?);
        let (name_len, type_count) = (c.u8()?, c.u8()?);
        c.skip(4)?;
        let (address, mac) = (c.address()?, MacAddress(c.array()?));
        c.skip(2)?;
        let capacity_bps = c.u64()?;
        let name = text(&mut c, name_len, 63).ok_or(WireError::Field("name"))?;
        if !(1..=8).contains(&type_count) {
            return Err(WireError::Field("service types"));
        }
        let service_types = (0..type_count).map(|_| service_type(&mut c)).collect::<Result<_, _>>()?;
        c.end()?;
        Ok(Beacon {
            key_id: self.key_id,
            site: self.site,
            draining: flags & DRAINING != 0,
            willing: flags & WILLING != 0,
            agent: self.agent,
            boot,
            sequence,
            time_ms,
            sessions,
            session_limit,
            bytes_per_second,
            cpu_permille,
            streams,
            order_port,
            first_stream_port,
            stream_ports,
            address,
            mac,
            capacity_bps,
            name,
            service_types,
        })
    }
}

fn service_type(c: &mut Cursor<'_>) -> Result<String, WireError> {
    let len = c.u8()?;
    text(c, len, 31).filter(|t| t.is_ascii()).ok_or(WireError::Field("service type"))
}

fn text(c: &mut Cursor<'_>, len: u8, max: u8) -> Option<String> {
    if !(1..=max).contains(&len) {
        return None;
    }
    String::from_utf8(c.slice(usize::from(len)).ok()?.to_vec()).ok()
}
