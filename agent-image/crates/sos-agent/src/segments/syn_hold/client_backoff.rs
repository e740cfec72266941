//! Back-off of clients that do not complete their handshakes with this agent: their connections are plain for increasing times
//! (docs/adr/0046). Same rule as the controller's for reactive services (`core/plain/backoff.py`).
//!
//! Any host can forge another host's SYNs. So a client is identified by its address and by the sender of its SYNs, a sender has a limited
//! share of each table, and a client that has completed a handshake is plain for [`FIRST`] at most before it is tried again.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use sos_wire::ServiceMark;

/// First back-off; doubled at each further failure, up to [`LONGEST`].
pub const FIRST: Duration = Duration::from_secs(30);
/// Longest back-off: a repaired network is noticed within an hour.
pub const LONGEST: Duration = Duration::from_secs(3_600);
/// Age at which failures no longer count.
pub const FORGOTTEN_AFTER: Duration = Duration::from_secs(2 * 3_600);
/// Consecutive failures that make a proven client plain: one lost handshake must not.
pub const PROVEN_FAILURES: u32 = 3;
/// Maximum number of failing, and of proven, clients; the least recently recorded is dropped, and tried again.
pub const MAX_KEPT: usize = 4_096;
/// Maximum share of [`MAX_KEPT`] for one source, so that forged addresses evict no clients of other sources.
pub const MAX_OF_SOURCE: usize = MAX_KEPT / 4;

/// Sender of SYNs in the client's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// Source MAC address: the client's, or that of a router between client and agent. Zeros if unknown.
    Mac([u8; 6]),
    /// The pod with this address, whose SYNs do not leave its network namespace.
    Pod(Ipv4Addr),
}

/// A client, as far as a service concerns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    /// Sender of its SYNs.
    pub source: Source,
    /// Its address.
    pub address: Ipv4Addr,
    /// The service. A handshake with one service's servers proves nothing for other addresses, which a firewall may treat differently.
    pub service: ServiceMark,
}

/// Failing clients with the end of each back-off, and clients that have completed a handshake.
#[derive(Debug, Default)]
pub struct ClientBackoff {
    failing: Recent<Failing>,
    proven: Recent<()>,
}

#[derive(Debug, Clone, Copy)]
struct Failing {
    failures: u32,
    times: u32,
    until: Option<Instant>,
    at: Instant,
}

impl ClientBackoff {
    /// Records a handshake that the client did not complete.
    pub fn failed(&mut self, client: Client, now: Instant) {
        let recent = self.failing.get(client).filter(|found| now.duration_since(found.at) < FORGOTTEN_AFTER);
        let before = recent.copied().unwrap_or(Failing { failures: 0, times: 0, until: None, at: now });
        // The handshake began before the back-off.
        if before.until.is_some_and(|until| now < until) {
            return;
        }
        let proven = self.proven.get(client).is_some();
        let needed = if proven { PROVEN_FAILURES } else { 1 };
        let failures = before.failures + 1;
        let after = if failures < needed {
            Failing { failures, until: None, at: now, ..before }
        } else {
            let times = if proven { 1 } else { before.times.saturating_add(1) };
            Failing { failures: 0, times, until: Some(now + length(times)), at: now }
        };
        self.failing.put(client, after);
    }

    /// Records a completed handshake: forgets all failures.
    pub fn succeeded(&mut self, client: Client) {
        self.failing.remove(client);
        self.proven.put(client, ());
    }

    /// True if a client's connections must be plain.
    #[must_use]
    pub fn is_plain(&self, client: Client, now: Instant) -> bool {
        self.failing.get(client).and_then(|found| found.until).is_some_and(|until| now < until)
    }
}

/// Length of the back-off with this number, from 1.
fn length(times: u32) -> Duration {
    // Beyond 2^7, the back-off has its maximum.
    (FIRST * (1 << times.saturating_sub(1).min(7))).min(LONGEST)
}

/// Values of clients. At [`MAX_OF_SOURCE`], the oldest of the source is dropped, at [`MAX_KEPT`] the oldest of all.
#[derive(Debug)]
struct Recent<V> {
    values: BTreeMap<Client, (u64, V)>,
    by_age: BTreeMap<u64, Client>,
    by_source: BTreeMap<Source, BTreeMap<u64, Client>>,
    number: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Self { values: BTreeMap::new(), by_age: BTreeMap::new(), by_source: BTreeMap::new(), number: 0 }
    }
}

impl<V> Recent<V> {
    fn get(&self, client: Client) -> Option<&V> {
        self.values.get(&client).map(|(_, value)| value)
    }

    fn put(&mut self, client: Client, value: V) {
        self.remove(client);
        let of_source = self.by_source.get(&client.source);
        let full = of_source.filter(|clients| clients.len() >= MAX_OF_SOURCE);
        let dropped = full.and_then(|clients| clients.values().next().copied());
        let oldest = || self.by_age.values().next().copied().filter(|_| self.values.len() >= MAX_KEPT);
        if let Some(dropped) = dropped.or_else(oldest) {
            self.remove(dropped);
        }
        self.number += 1;
        self.values.insert(client, (self.number, value));
        self.by_age.insert(self.number, client);
        self.by_source.entry(client.source).or_default().insert(self.number, client);
    }

    fn remove(&mut self, client: Client) {
        let Some((number, _)) = self.values.remove(&client) else { return };
        self.by_age.remove(&number);
        if let Some(clients) = self.by_source.get_mut(&client.source) {
            clients.remove(&number);
            if clients.is_empty() {
                self.by_source.remove(&client.source);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) fn client(source: u8, address: u32) -> Client {
        let source = Source::Mac([source; 6]);
        Client { source, address: Ipv4Addr::from(address), service: ServiceMark([1; 8]) }
    }

    #[test]
    fn each_failure_doubles_the_time_up_to_an_hour() {
        let (mut backoff, mut now) = (ClientBackoff::default(), Instant::now());
        for seconds in [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
            backoff.failed(client(1, 1), now);
            let end = now + Duration::from_secs(seconds);
            assert!(backoff.is_plain(client(1, 1), end - Duration::from_millis(1)), "{seconds}");
            assert!(!backoff.is_plain(client(1, 1), end), "{seconds}");
            now = end;
        }
        now += FORGOTTEN_AFTER;
        backoff.failed(client(1, 1), now);
        assert!(!backoff.is_plain(client(1, 1), now + FIRST), "old failures are forgotten");
    }

    #[test]
    fn a_failure_from_before_the_back_off_does_not_extend_it() {
        let (mut backoff, now) = (ClientBackoff::default(), Instant::now());
        backoff.failed(client(1, 1), now);
        backoff.failed(client(1, 1), now + Duration::from_secs(5));
        assert!(!backoff.is_plain(client(1, 1), now + FIRST));
    }

    #[test]
    fn a_proven_client_is_plain_only_after_three_failures_and_only_for_the_first_time() {
        let (mut backoff, mut now) = (ClientBackoff::default(), Instant::now());
        backoff.failed(client(1, 1), now);
        backoff.succeeded(client(1, 1));
        assert!(!backoff.is_plain(client(1, 1), now), "a completed handshake ends the back-off");
        for _ in 0..3 {
            for count in 1..=PROVEN_FAILURES {
                assert!(!backoff.is_plain(client(1, 1), now), "{count}");
                backoff.failed(client(1, 1), now);
            }
            assert!(backoff.is_plain(client(1, 1), now + FIRST - Duration::from_millis(1)));
            now += FIRST;
        }
    }

    #[test]
    fn sources_and_services_are_separate() {
        let (mut backoff, now) = (ClientBackoff::default(), Instant::now());
        backoff.failed(client(1, 1), now);
        assert!(!backoff.is_plain(client(2, 1), now), "SYNs with the address of another host");
        assert!(!backoff.is_plain(Client { service: ServiceMark([2; 8]), ..client(1, 1) }, now));
    }

    #[test]
    fn a_flood_of_one_source_evicts_no_other_source() {
        let (mut backoff, now) = (ClientBackoff::default(), Instant::now());
        backoff.failed(client(1, 1), now);
        backoff.succeeded(client(1, 2));
        for address in 0..10_000 {
            backoff.failed(client(9, address), now);
        }
        assert_eq!(backoff.failing.values.len(), MAX_OF_SOURCE + 1);
        assert!(backoff.is_plain(client(1, 1), now));
        assert!(!backoff.is_plain(client(9, 0), now) && backoff.is_plain(client(9, 9_999), now));
        for source in 10..20 {
            (0..2_000).for_each(|address| backoff.failed(client(source, address), now));
        }
        assert_eq!(backoff.failing.values.len(), MAX_KEPT);
        assert!(backoff.proven.get(client(1, 2)).is_some());
    }

    proptest! {
        #[test]
        fn the_indices_of_a_table_agree(events in prop::collection::vec((0u8..3, 0u32..40, any::<bool>()), 0..200)) {
            let mut table = Recent::default();
            for (source, address, put) in events {
                let client = client(source, address);
                if put { table.put(client, address) } else { table.remove(client) }
                prop_assert_eq!(table.get(client).copied(), put.then_some(address));
                prop_assert_eq!(table.by_age.len(), table.values.len());
                prop_assert_eq!(table.by_source.values().map(BTreeMap::len).sum::<usize>(), table.values.len());
                prop_assert!(table.by_age.iter().all(|(number, client)| table.values[client].0 == *number));
            }
        }
    }
}
