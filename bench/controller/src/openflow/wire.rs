//! OpenFlow 1.3 for a switch: parses a controller's messages by slicing, and writes a switch's messages to a buffer.
//!
//! Clause numbers refer to OpenFlow Switch Specification 1.3.5. No function allocates more than its message.

use thiserror::Error;

/// Version byte of OpenFlow 1.3.
pub const VERSION: u8 = 4;
/// Size of `ofp_header` in bytes.
pub const HEADER: usize = 8;
/// Output to the controller (7.2.1).
pub const PORT_CONTROLLER: u32 = 0xFFFF_FFFD;
/// First reserved port number.
pub const PORT_RESERVED: u32 = 0xFFFF_FF00;
/// Buffer id that means "no buffered packet" (7.3.7).
pub const NO_BUFFER: u32 = 0xFFFF_FFFF;

/// Bytes from a controller that are not OpenFlow 1.3.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// A different version of OpenFlow.
    #[error("OpenFlow version {0} instead of 4")]
    Version(u8),
    /// An invalid length.
    #[error("impossible length in a message of type {0}")]
    Length(u8),
}

/// A message of a controller.
#[derive(Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Hello (7.5.1).
    Hello,
    /// Echo request with its payload (7.5.2).
    Echo(&'a [u8]),
    /// Features request (7.3.1).
    Features,
    /// Get-config request (7.3.2).
    GetConfig,
    /// Packet-out (7.3.7).
    PacketOut(PacketOut<'a>),
    /// Flow-mod (7.3.4.2).
    FlowMod(FlowMod<'a>),
    /// Multipart request: type and body (7.3.5).
    Multipart(u16, &'a [u8]),
    /// Barrier request (7.3.8).
    Barrier,
    /// Role request: role and generation (7.3.9).
    Role(u32, u64),
    /// Get-async request (7.3.10).
    GetAsync,
    /// Queue-get-config request for a port (7.3.6).
    QueueConfig(u32),
    /// Messages without a reply: echo replies, set-config, group, meter, port and table mods, set-async, errors.
    Silent,
    /// Any other message, which is answered by an error.
    Unknown,
}

/// A packet to send.
#[derive(Debug, PartialEq, Eq)]
pub struct PacketOut<'a> {
    /// Nominal ingress port.
    pub in_port: u32,
    /// Action list.
    pub actions: &'a [u8],
    /// Frame of the packet.
    pub data: &'a [u8],
}

/// A change of the flow table.
#[derive(Debug, PartialEq, Eq)]
pub struct FlowMod<'a> {
    /// Cookie of the new entry, or of the entries to change.
    pub cookie: u64,
    /// Mask of the cookie for modify and delete.
    pub cookie_mask: u64,
    /// Table; 255 means all tables (delete only).
    pub table: u8,
    /// Command: 0 add, 1 modify, 2 modify strict, 3 delete, 4 delete strict.
    pub command: u8,
    /// Idle and hard timeout in seconds.
    pub timeouts: (u16, u16),
    /// Priority.
    pub priority: u16,
    /// Flags, such as send-flow-removed.
    pub flags: u16,
    /// OXM fields without header and padding.
    pub oxms: &'a [u8],
    /// Instruction list.
    pub instructions: &'a [u8],
}

/// Length of the first message of a buffer; None while the message is incomplete.
///
/// # Errors
/// The version is different, or the length is below the length of a header.
pub fn frame(buffer: &[u8]) -> Result<Option<usize>, WireError> {
    if buffer.len() < HEADER {
        return Ok(None);
    }
    let length = usize::from(u16_at(buffer, 2));
    // a Hello may have a higher version; the reply determines the negotiated version (6.3.1)
    if buffer[0] != VERSION && buffer[1] != 0 {
        return Err(WireError::Version(buffer[0]));
    }
    if length < HEADER {
        return Err(WireError::Length(buffer[1]));
    }
    Ok((length <= buffer.len()).then_some(length))
}

/// Parse the transaction id and request of a complete message.
///
/// # Errors
/// A length inside the message is invalid.
pub fn parse(message: &[u8]) -> Result<(u32, Request<'_>), WireError> {
    let kind = message[1];
    let short = |bytes: usize| if message.len() < bytes { Err(WireError::Length(kind)) } else { Ok(()) };
    let request = match kind {
        0 => Request::Hello,
        2 => Request::Echo(&message[HEADER..]),
        5 => Request::Features,
        7 => Request::GetConfig,
        13 => Request::PacketOut(packet_out(message)?),
        14 => Request::FlowMod(flow_mod(message)?),
        18 => {
            short(16)?;
            Request::Multipart(u16_at(message, 8), &message[16..])
        }
        20 => Request::Barrier,
        22 => {
            short(12)?;
            Request::QueueConfig(u32_at(message, 8))
        }
        24 => {
            short(24)?;
            Request::Role(u32_at(message, 8), u64_at(message, 16))
        }
        26 => Request::GetAsync,
        1 | 3 | 9 | 15 | 16 | 17 | 28 | 29 => Request::Silent,
        _ => Request::Unknown,
    };
    Ok((u32_at(message, 4), request))
}

fn packet_out(message: &[u8]) -> Result<PacketOut<'_>, WireError> {
    let error = WireError::Length(message[1]);
    if message.len() < 24 {
        return Err(error);
    }
    let end = 24 + usize::from(u16_at(message, 16));
    if end > message.len() {
        return Err(error);
    }
    Ok(PacketOut { in_port: u32_at(message, 12), actions: &message[24..end], data: &message[end..] })
}

fn flow_mod(message: &[u8]) -> Result<FlowMod<'_>, WireError> {
    let error = WireError::Length(message[1]);
    if message.len() < 56 {
        return Err(error);
    }
    let length = usize::from(u16_at(message, 50));
    let end = 48 + length.next_multiple_of(8);
    if length < 4 || end > message.len() {
        return Err(error);
    }
    Ok(FlowMod {
        cookie: u64_at(message, 8),
        cookie_mask: u64_at(message, 16),
        table: message[24],
        command: message[25],
        timeouts: (u16_at(message, 26), u16_at(message, 28)),
        priority: u16_at(message, 30),
        flags: u16_at(message, 44),
        oxms: &message[52..48 + length],
        instructions: &message[end..],
    })
}

/// Output ports of an action list, in order (7.2.5).
pub fn outputs(actions: &[u8]) -> impl Iterator<Item = u32> + '_ {
    items(actions).filter(|(kind, body)| *kind == 0 && body.len() >= 4).map(|(_, body)| u32_at(body, 0))
}

/// True if an instruction list sends packets to the controller (7.2.4).
pub fn reaches_controller(instructions: &[u8]) -> bool {
    items(instructions)
        .filter(|(kind, body)| (*kind == 3 || *kind == 4) && body.len() >= 4)
        .any(|(_, body)| outputs(&body[4..]).any(|port| port == PORT_CONTROLLER))
}

/// Iterate over type and body of the items of a list, up to the first invalid length.
fn items(mut list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = if list.len() < 4 { 0 } else { usize::from(u16_at(list, 2)) };
        if length < 4 || length > list.len() {
            return None;
        }
        let (item, rest) = list.split_at(length);
        list = rest;
        Some((u16_at(item, 0), &item[4..]))
    })
}

/// Big-endian number of two bytes at an offset that the caller has checked.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// Big-endian number of four bytes at an offset that the caller has checked.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

/// Big-endian number of eight bytes at an offset that the caller has checked.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

/// Append a message: the header, then the output of `body`.
pub fn put(out: &mut Vec<u8>, kind: u8, xid: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[VERSION, kind, 0, 0]);
    out.extend_from_slice(&xid.to_be_bytes());
    body(out);
    let length = u16::try_from(out.len() - start).expect("switch messages are kept below 64 KiB");
    out[start + 2..start + 4].copy_from_slice(&length.to_be_bytes());
}

/// Append Hello with the only supported version.
pub fn put_hello(out: &mut Vec<u8>) {
    put(out, 0, 1, |b| b.extend_from_slice(&[0, 1, 0, 8, 0, 0, 0, 1 << VERSION]));
}

/// Append a features reply (7.3.1): 254 tables, flow and port statistics.
pub fn put_features(out: &mut Vec<u8>, xid: u32, dpid: u64) {
    put(out, 6, xid, |b| {
        b.extend_from_slice(&dpid.to_be_bytes());
        b.extend_from_slice(&[0, 0, 0, 0, 254, 0, 0, 0, 0, 0, 0, 0x07, 0, 0, 0, 0]);
    });
}

/// Append a packet-in (7.4.1) with a complete frame.
pub fn put_packet_in(out: &mut Vec<u8>, cookie: u64, in_port: u32, data: &[u8]) {
    put(out, 10, 0, |b| {
        b.extend_from_slice(&NO_BUFFER.to_be_bytes());
        b.extend_from_slice(&u16::try_from(data.len()).expect("a frame is short").to_be_bytes());
        // the reason is "action" with an entry and "no match" without one, where the cookie is u64::MAX; the table is 0
        b.extend_from_slice(&[u8::from(cookie != u64::MAX), 0]);
        b.extend_from_slice(&cookie.to_be_bytes());
        b.extend_from_slice(&[0, 1, 0, 12, 0x80, 0, 0, 4]);
        b.extend_from_slice(&in_port.to_be_bytes());
        b.extend_from_slice(&[0; 6]);
        b.extend_from_slice(data);
    });
}

/// Append one part of a multipart reply (7.3.5).
pub fn put_multipart(out: &mut Vec<u8>, xid: u32, kind: u16, more: bool, body: &[u8]) {
    put(out, 19, xid, |b| {
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&[0, u8::from(more), 0, 0, 0, 0]);
        b.extend_from_slice(body);
    });
}

/// Append an error (7.4.4) with the first 64 bytes of the message that caused it.
pub fn put_error(out: &mut Vec<u8>, xid: u32, kind: u16, code: u16, about: &[u8]) {
    put(out, 1, xid, |b| {
        b.extend_from_slice(&kind.to_be_bytes());
        b.extend_from_slice(&code.to_be_bytes());
        b.extend_from_slice(&about[..about.len().min(64)]);
    });
}

/// Append a port that is up (7.2.1): copper, 10 Gbit/s.
pub fn put_port(out: &mut Vec<u8>, number: u32, mac: [u8; 6], name: &str) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&mac);
    out.extend_from_slice(&[0; 2]);
    let mut padded = [0; 16];
    let bytes = &name.as_bytes()[..name.len().min(15)];
    padded[..bytes.len()].copy_from_slice(bytes);
    out.extend_from_slice(&padded);
    // config 0, state LIVE, current feature 10 Gbit/s full duplex over copper; speeds in kbit/s
    for field in [0_u32, 4, 0x840, 0, 0, 0, 10_000_000, 10_000_000] {
        out.extend_from_slice(&field.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn incomplete_messages_have_no_length_and_invalid_headers_fail() {
        let mut out = Vec::new();
        put_features(&mut out, 7, 0xABCD);
        assert_eq!(out.len(), 32);
        assert_eq!(frame(&out), Ok(Some(32)));
        assert_eq!(frame(&out[..31]), Ok(None));
        assert_eq!(frame(&[1, 5, 0, 8, 0, 0, 0, 0]), Err(WireError::Version(1)));
        assert_eq!(frame(&[4, 5, 0, 7, 0, 0, 0, 0]), Err(WireError::Length(5)));
    }

    #[test]
    fn ports_have_64_bytes_and_names_are_truncated() {
        let mut out = Vec::new();
        put_port(&mut out, 3, [2, 0, 0, 0, 0, 3], "a-very-long-port-name");
        assert_eq!((out.len(), &out[16..32]), (64, b"a-very-long-por\0".as_slice()));
    }

    #[test]
    fn outputs_to_the_controller_are_found_in_instructions() {
        let mut instructions = vec![0, 1, 0, 8, 5, 0, 0, 0];
        assert!(!reaches_controller(&instructions));
        instructions.extend_from_slice(&[0, 4, 0, 24, 0, 0, 0, 0, 0, 0, 0, 16]);
        instructions.extend_from_slice(&PORT_CONTROLLER.to_be_bytes());
        instructions.extend_from_slice(&[0xFF, 0xFF, 0, 0, 0, 0, 0, 0]);
        assert!(reaches_controller(&instructions));
    }

    proptest! {
        #[test]
        fn any_message_of_a_controller_is_parsed_without_panic(kind in 0_u8..40, body in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut message = Vec::new();
            put(&mut message, kind, 1, |b| b.extend_from_slice(&body));
            if let Ok((_, Request::FlowMod(change))) = parse(&message) {
                reaches_controller(change.instructions);
            }
            if let Ok((_, Request::PacketOut(packet))) = parse(&message) {
                prop_assert!(outputs(packet.actions).count() <= packet.actions.len() / 4);
            }
        }
    }
}
