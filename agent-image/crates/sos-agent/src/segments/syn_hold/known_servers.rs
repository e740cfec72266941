//! Servers that recently accepted a connection: further clients need not wait (spec.accept Learned).

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

/// Time for which a server stays known, as at the controller (docs/adr/0044).
pub const KNOWN_FOR: Duration = Duration::from_secs(300);
/// Maximum number of known servers; above that the server that accepted longest ago is removed.
pub const MAX_KNOWN: usize = 16_384;

/// Addresses and ports, with their expiry.
#[derive(Debug, Default)]
pub struct KnownServers {
    until: BTreeMap<SocketAddrV4, Instant>,
    order: BTreeSet<(Instant, SocketAddrV4)>,
}

impl KnownServers {
    /// Notes that a server has accepted a connection.
    pub fn note(&mut self, server: SocketAddrV4, now: Instant) {
        self.forget(server);
        if self.until.len() >= MAX_KNOWN
            && let Some((_, oldest)) = self.order.first().copied()
        {
            self.forget(oldest);
        }
        self.until.insert(server, now + KNOWN_FOR);
        self.order.insert((now + KNOWN_FOR, server));
    }

    /// Removes a server that has refused a connection or has not answered.
    pub fn forget(&mut self, server: SocketAddrV4) {
        if let Some(until) = self.until.remove(&server) {
            self.order.remove(&(until, server));
        }
    }

    /// True if a server accepted recently.
    #[must_use]
    pub fn contains(&self, server: SocketAddrV4, now: Instant) -> bool {
        self.until.get(&server).is_some_and(|until| now < *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn server(number: u32) -> SocketAddrV4 {
        SocketAddrV4::new(Ipv4Addr::from(number), 80)
    }

    #[test]
    fn a_server_is_known_for_five_minutes_after_it_last_accepted() {
        let (mut known, now) = (KnownServers::default(), Instant::now());
        known.note(server(1), now);
        known.note(server(1), now + Duration::from_secs(60));
        assert!(known.contains(server(1), now + KNOWN_FOR));
        assert!(!known.contains(server(1), now + KNOWN_FOR + Duration::from_secs(60)));
        assert!(!known.contains(SocketAddrV4::new(Ipv4Addr::from(1), 81), now));
        known.forget(server(1));
        assert!(!known.contains(server(1), now));
    }

    #[test]
    fn the_server_that_accepted_longest_ago_is_evicted() {
        let (mut known, now) = (KnownServers::default(), Instant::now());
        for number in 0..=u32::try_from(MAX_KNOWN).unwrap() {
            known.note(server(number), now + Duration::from_nanos(number.into()));
        }
        assert_eq!((known.until.len(), known.order.len()), (MAX_KNOWN, MAX_KNOWN));
        assert!(!known.contains(server(0), now) && known.contains(server(1), now));
    }
}
