//! Detection of half-open connections after a peer agent is lost, at sites without bridges (docs/adr/0068).
//!
//! The kernel of a killed agent resets its connections. A node that fails resets none, and the reset of a node that lost its site's virtual
//! address may be lost: a host there that only receives would wait forever, since this agent has reset the connection's other host. So this
//! agent sends the far host an empty segment with out-of-window numbers, from the address of its own host. The far host answers with a
//! challenge ACK (RFC 9293, 3.10.7.4). That ACK takes the plain path to this agent's host, which resets the unknown connection with the
//! acknowledged sequence number (3.10.7.1), and the far host accepts this reset.
//!
//! A host without such a connection answers with a reset that matches no connection, so a superfluous segment does no harm. At sites with
//! bridges, the controller does the same.
//!
//! Pure: [`prober`] sends.

pub mod prober;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use sos_wire::{EndReason, Role};

use crate::policy::flow_key::FlowKey;
use crate::segments::syn_hold::check_packet;

/// Time of each segment after the end of the session, and its sequence number. The two numbers alternate, because no window of less than 2
/// GiB contains both. The last segment follows when every usual program has moved a virtual address.
const PROBES: [(Duration, u32); 4] = [
    (Duration::ZERO, 0),
    (Duration::from_secs(2), 0x8000_0000),
    (Duration::from_secs(10), 0),
    (Duration::from_secs(30), 0x8000_0000),
];
/// Maximum number of connections probed at a time; further connections are not probed.
const MAX_PROBED: usize = 65_536;

/// Ends of a segment: this agent's host, and the far host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Host of this agent's site.
    pub own: SocketAddrV4,
    /// Host of the peer's site.
    pub far: SocketAddrV4,
}

/// Ends of the segments after a session; `None` if the far host's connection cannot be half-open.
#[must_use]
pub fn probed(flow: FlowKey, role: Role, reason: EndReason) -> Option<Ends> {
    let FlowKey { client, server } = flow;
    let ends = match role {
        Role::Ingress => Ends { own: client, far: server },
        Role::Egress => Ends { own: server, far: client },
    };
    (reason == EndReason::PeerLost).then_some(ends)
}

/// Segments to send.
#[derive(Debug, Default)]
pub struct Probes {
    /// By time and a number that is used once: the ends, the end of the session, and the index of the segment.
    due: BTreeMap<(Instant, u64), (Ends, Instant, usize)>,
    begun: u64,
}

impl Probes {
    /// Adds the segments after a session that is over. Returns false above [`MAX_PROBED`].
    pub fn begin(&mut self, ends: Ends, now: Instant) -> bool {
        let has_room = self.due.len() < MAX_PROBED;
        if has_room {
            self.begun += 1;
            self.due.insert((now + PROBES[0].0, self.begun), (ends, now, 0));
        }
        has_room
    }

    /// Time of the next segment.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes a segment that is due: its ends and the packet.
    pub fn poll(&mut self, now: Instant) -> Option<(Ends, Vec<u8>)> {
        let first = self.due.first_entry().filter(|first| first.key().0 <= now)?;
        let ((_, number), (ends, over, index)) = first.remove_entry();
        if let Some((after, _)) = PROBES.get(index + 1) {
            self.due.insert((over + *after, number), (ends, over, index + 1));
        }
        Some((ends, check_packet::acknowledgement(ends.own, ends.far, PROBES[index].1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> FlowKey {
        FlowKey { client: "10.0.0.11:40000".parse().unwrap(), server: "10.0.0.139:80".parse().unwrap() }
    }

    fn ends() -> Ends {
        Ends { own: flow().server, far: flow().client }
    }

    #[test]
    fn the_far_host_of_a_lost_peer_is_probed() {
        let FlowKey { client, server } = flow();
        let (lost, egress) = (EndReason::PeerLost, Role::Egress);
        assert_eq!(probed(flow(), egress, lost), Some(ends()));
        assert_eq!(probed(flow(), Role::Ingress, lost), Some(Ends { own: client, far: server }));
        for reason in [EndReason::Finished, EndReason::ClientReset, EndReason::ServerReset] {
            assert_eq!(probed(flow(), egress, reason), None);
        }
    }

    /// Sequence numbers of the segments that are due at a time.
    fn numbers(probes: &mut Probes, now: Instant) -> Vec<u32> {
        let packets = std::iter::from_fn(|| probes.poll(now));
        packets.map(|(_, packet)| u32::from_be_bytes(packet[24..28].try_into().unwrap())).collect()
    }

    #[test]
    fn each_connection_gets_all_segments_in_time() {
        let (mut probes, now, second) = (Probes::default(), Instant::now(), Duration::from_secs(1));
        assert!(probes.begin(ends(), now) && probes.begin(ends(), now));
        for (after, number) in PROBES {
            assert_eq!(probes.next_timeout(), Some(now + after));
            assert_eq!(numbers(&mut probes, now + after), [number; 2]);
        }
        assert_eq!((probes.next_timeout(), numbers(&mut probes, now + 99 * second)), (None, vec![]));
    }

    #[test]
    fn one_of_two_segments_is_outside_every_window() {
        assert!(PROBES.windows(2).all(|pair| pair[0].1.wrapping_sub(pair[1].1) == 0x8000_0000));
        assert!(PROBES.is_sorted_by_key(|(after, _)| *after));
    }

    #[test]
    fn the_number_of_probed_connections_is_bounded() {
        let (mut probes, now) = (Probes::default(), Instant::now());
        assert!((0..MAX_PROBED).all(|_| probes.begin(ends(), now)));
        assert!(!probes.begin(ends(), now));
    }

    #[test]
    fn a_segment_is_an_empty_acknowledgement_with_a_valid_checksum() {
        let (mut probes, now) = (Probes::default(), Instant::now());
        probes.begin(ends(), now);
        let (_, packet) = probes.poll(now).unwrap();
        assert_eq!((packet.len(), packet[33]), (40, 0x10));
        assert_eq!((&packet[12..16], &packet[16..20]), (&[10, 0, 0, 139][..], &[10, 0, 0, 11][..]));
        assert_eq!(&packet[20..24], &[0, 80, 0x9c, 0x40][..]);
        assert!(check_packet::is_intact(&packet));
    }
}
