//! `mtu`: the largest IP packet that passes unfragmented, in both directions.
//!
//! Sends datagrams that routers must not fragment, of several sizes in one round and three times each. The server reports the
//! received sizes and answers with packets of the same size. TCP alone would not show the MTU, because after some seconds it
//! works around a black hole at a low rate.

use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Ipv4PathMtuDiscovery, ip_mtu, set_ip_mtu_discover};
use serde::Serialize;

use crate::transfer::wire::MAGIC;

/// Bytes of the IPv4 and UDP headers.
const HEADERS: u16 = 28;
/// Start of the search: every host must accept packets of this size (RFC 791).
const SMALLEST: u16 = 576;
/// Maximum number of sizes tried in one round between the largest that passed and the smallest that did not.
const AT_ONCE: u16 = 12;
/// Copies of each size, so that a loss of one in a hundred does not matter.
const COPIES: u8 = 3;
/// Maximum wait for the answers of one round.
const WAIT: Duration = Duration::from_millis(1500);
/// Length of a header: magic, kind, and size.
pub const HEAD: usize = 11;
const QUESTION: u8 = 0;
const HEARD: u8 = 1;
const BACK: u8 = 2;

/// Result; a size of 0 means that no packet passed.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// MTU of the local interface.
    pub local: u16,
    /// Largest packet towards the server.
    pub forward: u16,
    /// Largest packet back.
    pub back: u16,
    /// Reason for a missing result, or "".
    pub detail: String,
}

/// Open a socket that does not fragment: sending a packet beyond the interface's MTU fails.
///
/// # Errors
/// The system's error.
pub fn socket(at: SocketAddrV4) -> std::io::Result<UdpSocket> {
    let socket = UdpSocket::bind(at)?;
    set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)?;
    Ok(socket)
}

/// Answer a packet at the server: report its size, and send a packet of the same size.
pub fn answer(socket: &UdpSocket, packet: &[u8], from: SocketAddr) {
    let Some((QUESTION, size)) = read(packet) else { return };
    if usize::from(size) != packet.len() + usize::from(HEADERS) {
        return;
    }
    let _ = socket.send_to(&head(HEARD, size), from);
    let _ = socket.send_to(&filled(BACK, size), from);
}

/// Search with a server.
#[must_use]
pub fn find(server: SocketAddrV4) -> Report {
    let mut report = Report::default();
    if let Err(error) = search(server, &mut report) {
        report.detail = error.to_string();
    }
    report
}

fn search(server: SocketAddrV4, report: &mut Report) -> std::io::Result<()> {
    let socket = socket(SocketAddrV4::new(std::net::Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect(server)?;
    report.local = u16::try_from(ip_mtu(&socket)?).unwrap_or(u16::MAX);
    let (mut low, mut high) = (SMALLEST.min(report.local), report.local);
    let mut tried = vec![low, high];
    loop {
        let (forward, back) = round(&socket, &tried)?;
        (report.forward, report.back) = (report.forward.max(forward), report.back.max(back));
        let passed = report.forward.min(report.back);
        if passed < low {
            return Ok(());
        }
        low = passed;
        high = tried.iter().copied().filter(|size| *size > passed).min().unwrap_or(low).min(high);
        tried = between(low, high);
        if tried.is_empty() {
            return Ok(());
        }
        tried.push(high);
    }
}

/// Sizes above `low` and below `high`, a bounded number of them, evenly spread.
fn between(low: u16, high: u16) -> Vec<u16> {
    let gap = high.saturating_sub(low);
    let steps = AT_ONCE.min(gap.saturating_sub(1));
    (1..=steps)
        .map(|step| low + u16::try_from(u32::from(gap) * u32::from(step) / u32::from(steps + 1)).unwrap_or(0))
        .filter(|size| (low + 1..high).contains(size))
        .collect()
}

/// Send all sizes; returns the largest that arrived at the server, and the largest that came back.
fn round(socket: &UdpSocket, sizes: &[u16]) -> std::io::Result<(u16, u16)> {
    for _ in 0..COPIES {
        for size in sizes {
            match socket.send(&filled(QUESTION, *size)) {
                Err(error) if error.raw_os_error() == Some(Errno::MSGSIZE.raw_os_error()) => {}
                // an ICMP error about an earlier packet: the packet's missing answer shows that it did not pass
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {}
                other => _ = other?,
            }
        }
    }
    let (mut forward, mut back, mut packet) = (0, 0, vec![0; 65_536]);
    let (deadline, most) = (Instant::now() + WAIT, sizes.iter().copied().max().unwrap_or(0));
    while forward.min(back) < most {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        socket.set_read_timeout(Some(left))?;
        let Ok(length) = socket.recv(&mut packet) else { continue };
        match read(&packet[..length]) {
            Some((HEARD, size)) => forward = forward.max(size),
            Some((BACK, size)) if usize::from(size) == length + usize::from(HEADERS) => back = back.max(size),
            _ => {}
        }
    }
    Ok((forward, back))
}

fn head(kind: u8, size: u16) -> Vec<u8> {
    [MAGIC.as_slice(), &[kind], &size.to_be_bytes()].concat()
}

/// A packet of `size` bytes, headers included.
fn filled(kind: u8, size: u16) -> Vec<u8> {
    let mut packet = head(kind, size);
    packet.resize(usize::from(size.saturating_sub(HEADERS)).max(HEAD), 0x5a);
    packet
}

/// Kind and size of a packet; `None` for a packet that is not from a probe.
#[must_use]
pub fn read(packet: &[u8]) -> Option<(u8, u16)> {
    let (start, rest) = packet.split_at_checked(MAGIC.len())?;
    let [kind, high, low, ..] = rest else { return None };
    (start == MAGIC).then(|| (*kind, u16::from_be_bytes([*high, *low])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_search_narrows_and_ends(low in 576..9000_u16, gap in 0..9000_u16) {
            let (high, sizes) = (low + gap, between(low, low + gap));
            prop_assert!(sizes.len() <= AT_ONCE.into() && sizes.iter().all(|size| low < *size && *size < high));
            prop_assert_eq!(sizes.is_empty(), gap < 2);
        }

        #[test]
        fn packets_have_their_size_and_are_read(size in 576..9000_u16) {
            let packet = filled(QUESTION, size);
            prop_assert_eq!(packet.len(), usize::from(size - HEADERS));
            prop_assert_eq!(read(&packet), Some((QUESTION, size)));
        }

        #[test]
        fn strangers_are_not_answered(size in 576..9000_u16, at in 0..MAGIC.len(), bit in 0..8_u8, cut in 0..HEAD) {
            let mut packet = filled(QUESTION, size);
            prop_assert!(read(&packet[..cut]).is_none());
            packet[at] ^= 1_u8 << bit;
            prop_assert!(read(&packet).is_none());
        }
    }
}
