//! Sets of flows as disjoint boxes of client address, server address and server port.
//!
//! nft refuses overlapping elements in a set of concatenated intervals, and services may overlap as they like. So the
//! union of all services, minus what is disarmed for a while, is cut into boxes that do not overlap.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// Inclusive bounds in the three dimensions client address, server address, server port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Region {
    bounds: [(u32, u32); 3],
}

impl Region {
    /// A box from prefixes and an inclusive port range.
    ///
    /// # Panics
    /// If `first > last`; ranges of a checked configuration never are.
    #[must_use]
    pub fn new(clients: Ipv4Net, servers: Ipv4Net, ports: (u16, u16)) -> Self {
        assert!(ports.0 <= ports.1, "a checked port range is not empty");
        let range = |net: Ipv4Net| (u32::from(net.network()), u32::from(net.broadcast()));
        Self { bounds: [range(clients), range(servers), (ports.0.into(), ports.1.into())] }
    }

    /// Every client towards one server and port.
    #[must_use]
    pub fn of_server(server: Ipv4Addr, port: u16) -> Self {
        let address = u32::from(server);
        Self { bounds: [(0, u32::MAX), (address, address), (port.into(), port.into())] }
    }

    /// Inclusive range of client addresses.
    #[must_use]
    pub fn clients(&self) -> (Ipv4Addr, Ipv4Addr) {
        let (first, last) = self.bounds[0];
        (first.into(), last.into())
    }

    /// Inclusive range of server addresses.
    #[must_use]
    pub fn servers(&self) -> (Ipv4Addr, Ipv4Addr) {
        let (first, last) = self.bounds[1];
        (first.into(), last.into())
    }

    /// Inclusive range of server ports.
    #[must_use]
    pub fn ports(&self) -> (u16, u16) {
        let (first, last) = self.bounds[2];
        let port = |value: u32| u16::try_from(value).expect("made from u16 and only ever narrowed");
        (port(first), port(last))
    }

    /// Whether a flow lies inside.
    #[must_use]
    pub fn contains(&self, client: Ipv4Addr, server: Ipv4Addr, port: u16) -> bool {
        let point = [u32::from(client), u32::from(server), u32::from(port)];
        self.bounds.iter().zip(point).all(|((first, last), value)| (*first..=*last).contains(&value))
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.bounds.iter().zip(other.bounds).all(|(a, b)| a.0 <= b.1 && b.0 <= a.1)
    }

    /// What is left of this box without another: at most six boxes. Slab by slab: below and above in each dimension in
    /// turn, then narrowed to the part the two have in common.
    fn subtract(self, other: &Self, left: &mut Vec<Self>) {
        if !self.overlaps(other) {
            left.push(self);
            return;
        }
        let mut rest = self;
        for dimension in 0..3 {
            let (first, last) = rest.bounds[dimension];
            let (cut_first, cut_last) = other.bounds[dimension];
            if first < cut_first {
                let mut below = rest;
                below.bounds[dimension] = (first, cut_first - 1);
                left.push(below);
            }
            if last > cut_last {
                let mut above = rest;
                above.bounds[dimension] = (cut_last + 1, last);
                left.push(above);
            }
            rest.bounds[dimension] = (first.max(cut_first), last.min(cut_last));
        }
    }
}

/// The union of `wanted` without `excluded`, as disjoint boxes, sorted; at most `limit` of them. Returns also how many of
/// the wanted boxes did not fit any more: their flows stay plain, which is safe.
#[must_use]
pub fn disjoint(wanted: &[Region], excluded: &[Region], limit: usize) -> (Vec<Region>, usize) {
    let mut union: Vec<Region> = Vec::new();
    let mut left_out = 0;
    for region in wanted {
        let taken = union.iter().chain(excluded).filter(|other| other.overlaps(region));
        let mut pieces = vec![*region];
        for other in taken {
            let mut rest = Vec::with_capacity(pieces.len());
            pieces.iter().for_each(|piece| piece.subtract(other, &mut rest));
            pieces = rest;
            if pieces.len() > limit {
                break;
            }
        }
        if union.len() + pieces.len() > limit {
            left_out += 1;
        } else {
            union.extend(pieces);
        }
    }
    union.sort_unstable();
    (union, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Small numbers, so that boxes overlap, touch and nest often.
    fn region() -> impl Strategy<Value = Region> {
        let range = || (0u32..12, 0u32..6).prop_map(|(first, length)| (first, first + length));
        [range(), range(), range()].prop_map(|bounds| Region { bounds })
    }

    proptest! {
        #[test]
        fn is_the_union_without_the_excluded(
            wanted in prop::collection::vec(region(), 0..6),
            excluded in prop::collection::vec(region(), 0..4),
        ) {
            let (boxes, left_out) = disjoint(&wanted, &excluded, 10_000);
            prop_assert_eq!(left_out, 0);
            for x in 0..18 { for y in 0..18 { for z in 0..18u16 {
                let (client, server) = (Ipv4Addr::from(x), Ipv4Addr::from(y));
                let expected = wanted.iter().any(|r| r.contains(client, server, z))
                    && !excluded.iter().any(|r| r.contains(client, server, z));
                let hits = boxes.iter().filter(|r| r.contains(client, server, z)).count();
                prop_assert_eq!(hits, usize::from(expected));
            }}}
        }

        #[test]
        fn never_exceeds_the_limit(wanted in prop::collection::vec(region(), 0..12), limit in 0usize..10) {
            let (boxes, left_out) = disjoint(&wanted, &[], limit);
            prop_assert!(boxes.len() <= limit);
            if left_out == 0 {
                let all = disjoint(&wanted, &[], 10_000).0;
                prop_assert_eq!(boxes, all);
            }
        }
    }

    #[test]
    fn a_server_is_cut_out_of_its_prefix() {
        let service =
            Region::new("10.0.0.0/25".parse().unwrap(), "10.0.0.128/25".parse().unwrap(), (5000, 5999));
        let server = Ipv4Addr::new(10, 0, 0, 139);
        let (boxes, _) = disjoint(&[service], &[Region::of_server(server, 5003)], 100);
        let client = Ipv4Addr::new(10, 0, 0, 11);
        let armed = |server, port| boxes.iter().any(|r| r.contains(client, server, port));
        assert!(!armed(server, 5003));
        assert!(armed(server, 5002) && armed(server, 5004) && armed(Ipv4Addr::new(10, 0, 0, 140), 5003));
    }
}
