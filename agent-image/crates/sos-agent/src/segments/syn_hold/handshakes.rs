//! Handshakes of clients whose SYNs this agent has taken: a client that does not complete them is plain for a while
//! ([`super::client_backoff`]).
//!
//! A handshake stays incomplete if the agent's SYN-ACK does not reach the client (another VLAN, a filter, a path in one direction only) or
//! if the client's ACK does not reach the agent. A program that gives up, or a port scanner, answers the SYN-ACK with a reset and is not
//! silent. So after [`EXAMINE_AFTER`], the edge asks the kernel if the connection is still half-open. If the kernel has dropped it (an ICMP
//! error, too many half-open connections), retransmissions of the SYN show that the client still waits.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use crate::policy::flow_key::FlowKey;
use crate::segments::syn_hold::check_packet::reset;
use crate::segments::syn_hold::client_backoff::{Client, ClientBackoff, Source};
use crate::segments::syn_hold::syn::Syn;

/// Time within which a client must complete its handshake: the kernel retransmits its SYN-ACK to the client after 1, 3 and 7 s. The
/// controller allows the same time for an ordered session (`PREPARATION_MS`).
pub const COMPLETE_WITHIN: Duration = Duration::from_secs(8);
/// Age at which the kernel is asked about an incomplete handshake. With two retransmissions of its SYN-ACK, to which a crowded queue
/// limits it (reqsk_timer_handler), the kernel drops the connection after 7 s.
pub const EXAMINE_AFTER: Duration = Duration::from_secs(6);
/// Retransmissions of a SYN that show, without the kernel, that the client has received no answer: after 1 and 3 s.
const REPEATED: u8 = 2;
/// Maximum number of incomplete handshakes that are tracked: as many as the listener's backlog has. Further clients are accepted but never
/// count as silent.
pub const MAX_PENDING: usize = 4_096;
/// Maximum share of [`MAX_PENDING`] for one source, so that a flood of SYNs leaves slots for the clients of other sources.
pub const MAX_OF_SOURCE: usize = MAX_PENDING / 4;

/// A SYN of a client, as far as handshakes concern it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A new connection.
    New,
    /// A new connection with the ports of an incomplete handshake, whose reset is to be injected first.
    Reused(Vec<u8>),
    /// Retransmission of a SYN that the agent has taken: the SYN-ACK was lost.
    Repeated,
    /// The client is silent: its connections are plain.
    Silent,
}

/// Event of a deadline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Due {
    /// The kernel is to be asked about this connection.
    Examine(FlowKey),
    /// The handshake is given up; with the reset to inject if the client is silent.
    Over(FlowKey, Option<Vec<u8>>),
}

#[derive(Debug)]
struct Pending {
    client: Client,
    sequence: u32,
    due: Instant,
    begun: Instant,
    repeats: u8,
    examined: bool,
    /// True until the kernel has answered otherwise: on a kernel that does not answer, an incomplete handshake is enough.
    half_open: bool,
}

/// Incomplete handshakes, and the clients that are temporarily plain.
#[derive(Debug, Default)]
pub struct Handshakes {
    pending: BTreeMap<FlowKey, Pending>,
    by_due: BTreeSet<(Instant, FlowKey)>,
    of_source: BTreeMap<Source, usize>,
    backoff: ClientBackoff,
}

impl Handshakes {
    /// Handles a client's SYN.
    pub fn arrive(&mut self, syn: &Syn, client: Client, now: Instant) -> Arrival {
        if self.backoff.is_plain(client, now) {
            return Arrival::Silent;
        }
        match self.pending.get_mut(&syn.flow) {
            None => Arrival::New,
            Some(pending) if pending.sequence == syn.sequence() => {
                pending.repeats = pending.repeats.saturating_add(1);
                Arrival::Repeated
            }
            Some(_) => self.abandon(syn.flow).map_or(Arrival::New, Arrival::Reused),
        }
    }

    /// Tracks the handshake of a SYN that is reinjected for the listener.
    pub fn begin(&mut self, syn: &Syn, client: Client, now: Instant) {
        let of_source = self.of_source.get(&client.source).copied().unwrap_or_default();
        let is_full = self.pending.len() >= MAX_PENDING || of_source >= MAX_OF_SOURCE;
        if is_full || self.pending.contains_key(&syn.flow) {
            return;
        }
        let (sequence, due) = (syn.sequence(), now + EXAMINE_AFTER);
        let pending =
            Pending { client, sequence, due, begun: now, repeats: 0, examined: false, half_open: true };
        self.pending.insert(syn.flow, pending);
        self.by_due.insert((due, syn.flow));
        self.of_source.insert(client.source, of_source + 1);
    }

    /// Handles a client that has completed its handshake.
    pub fn complete(&mut self, flow: FlowKey) {
        if let Some(pending) = self.remove(flow) {
            self.backoff.succeeded(pending.client);
        }
    }

    /// Stops tracking a handshake whose connection becomes plain; returns the reset to inject.
    pub fn abandon(&mut self, flow: FlowKey) -> Option<Vec<u8>> {
        self.remove(flow).map(|pending| reset(flow.client, flow.server, pending.sequence.wrapping_add(1)))
    }

    /// Handles the kernel's answer to [`Due::Examine`].
    pub fn examined(&mut self, flow: FlowKey, half_open: bool) {
        if let Some(pending) = self.pending.get_mut(&flow) {
            pending.half_open = half_open;
        }
    }

    /// Handles deadlines.
    pub fn expire(&mut self, now: Instant) -> Vec<Due> {
        let end = FlowKey {
            client: SocketAddrV4::new(Ipv4Addr::BROADCAST, u16::MAX),
            server: SocketAddrV4::new(Ipv4Addr::BROADCAST, u16::MAX),
        };
        let late: Vec<_> = self.by_due.range(..=(now, end)).map(|(_, flow)| *flow).collect();
        late.into_iter().filter_map(|flow| self.due(flow, now)).collect()
    }

    fn due(&mut self, flow: FlowKey, now: Instant) -> Option<Due> {
        let pending = self.pending.get_mut(&flow)?;
        if !pending.examined {
            self.by_due.remove(&(pending.due, flow));
            (pending.examined, pending.due) = (true, pending.begun + COMPLETE_WITHIN);
            self.by_due.insert((pending.due, flow));
            return Some(Due::Examine(flow));
        }
        let pending = self.remove(flow)?;
        if !pending.half_open && pending.repeats < REPEATED {
            return Some(Due::Over(flow, None));
        }
        self.backoff.failed(pending.client, now);
        Some(Due::Over(flow, Some(reset(flow.client, flow.server, pending.sequence.wrapping_add(1)))))
    }

    /// Next deadline of [`Self::expire`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.by_due.first().map(|(due, _)| *due)
    }

    fn remove(&mut self, flow: FlowKey) -> Option<Pending> {
        let pending = self.pending.remove(&flow)?;
        self.by_due.remove(&(pending.due, flow));
        let source = pending.client.source;
        if let Some(count) = self.of_source.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.of_source.remove(&source);
            }
        }
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segments::syn_hold::client_backoff::tests::client;
    use crate::segments::syn_hold::client_backoff::{FIRST, PROVEN_FAILURES};
    use crate::segments::syn_hold::syn::tests::packet;
    use proptest::prelude::*;

    /// A SYN of a client, from this port.
    fn syn(client: Client, port: u16) -> Syn {
        let server = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 139), 80);
        Syn::parse(&packet(FlowKey { client: SocketAddrV4::new(client.address, port), server })).unwrap()
    }

    /// Passes a SYN, and takes it unless the client is silent.
    fn arrive(handshakes: &mut Handshakes, client: Client, port: u16, now: Instant) -> Arrival {
        let syn = syn(client, port);
        let arrival = handshakes.arrive(&syn, client, now);
        if arrival != Arrival::Silent {
            handshakes.begin(&syn, client, now);
        }
        arrival
    }

    /// Passes all deadlines of the handshakes begun at `now`; the kernel answers `half_open`. Returns true if a reset is to be injected.
    fn wait(handshakes: &mut Handshakes, now: Instant, half_open: bool) -> bool {
        for due in handshakes.expire(now + EXAMINE_AFTER) {
            let Due::Examine(flow) = due else { panic!("{due:?}") };
            handshakes.examined(flow, half_open);
        }
        let over = handshakes.expire(now + COMPLETE_WITHIN);
        over.iter().any(|due| matches!(due, Due::Over(_, Some(_))))
    }

    #[test]
    fn a_client_that_completes_no_handshake_is_plain_until_it_is_tried_again() {
        let (mut handshakes, now, client) = (Handshakes::default(), Instant::now(), client(1, 1));
        assert_eq!(arrive(&mut handshakes, client, 1, now), Arrival::New);
        assert_eq!(arrive(&mut handshakes, client, 1, now + Duration::from_secs(1)), Arrival::Repeated);
        let late = now + COMPLETE_WITHIN - Duration::from_millis(1);
        assert_eq!(handshakes.expire(late), [Due::Examine(syn(client, 1).flow)]);
        assert_eq!(arrive(&mut handshakes, client, 2, late), Arrival::New, "not plain yet");
        let segment = match &handshakes.expire(now + COMPLETE_WITHIN)[..] {
            [Due::Over(_, Some(segment))] => segment.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((&segment[24..28], segment[33]), (&[0, 0, 0, 8][..], 4), "a reset directly after the SYN");
        for port in 1..4 {
            assert_eq!(arrive(&mut handshakes, client, port, now + COMPLETE_WITHIN), Arrival::Silent);
        }
        assert!(handshakes.abandon(syn(client, 2).flow).is_some(), "the kernel still has this connection");
        let again = now + COMPLETE_WITHIN + FIRST;
        assert_eq!(arrive(&mut handshakes, client, 5, again), Arrival::New);
        assert!(wait(&mut handshakes, again, true));
        assert_eq!(arrive(&mut handshakes, client, 5, again + COMPLETE_WITHIN + FIRST), Arrival::Silent);
        assert!(handshakes.pending.is_empty() && handshakes.by_due.is_empty());
    }

    #[test]
    fn a_client_that_answers_with_a_reset_is_not_silent() {
        let (mut handshakes, now) = (Handshakes::default(), Instant::now());
        arrive(&mut handshakes, client(1, 1), 1, now);
        assert!(!wait(&mut handshakes, now, false));
        assert_eq!(arrive(&mut handshakes, client(1, 1), 2, now + COMPLETE_WITHIN), Arrival::New);
    }

    #[test]
    fn a_retransmitting_client_is_silent_even_if_the_kernel_has_dropped_its_connection() {
        let (mut handshakes, now) = (Handshakes::default(), Instant::now());
        for seconds in [0, 1, 3] {
            arrive(&mut handshakes, client(1, 1), 1, now + Duration::from_secs(seconds));
        }
        assert!(wait(&mut handshakes, now, false));
        assert_eq!(arrive(&mut handshakes, client(1, 1), 2, now + COMPLETE_WITHIN), Arrival::Silent);
    }

    #[test]
    fn a_completed_handshake_is_no_failure_and_proves_the_client() {
        let (mut handshakes, mut now, client) = (Handshakes::default(), Instant::now(), client(1, 1));
        arrive(&mut handshakes, client, 1, now);
        handshakes.complete(syn(client, 1).flow);
        assert!(!wait(&mut handshakes, now, true));
        for failures in 1..=PROVEN_FAILURES {
            assert_eq!(arrive(&mut handshakes, client, 2, now), Arrival::New, "{failures}");
            assert!(wait(&mut handshakes, now, true));
            now += COMPLETE_WITHIN;
        }
        assert_eq!(arrive(&mut handshakes, client, 2, now), Arrival::Silent);
    }

    #[test]
    fn a_reused_port_resets_the_earlier_connection() {
        let (mut handshakes, now, client) = (Handshakes::default(), Instant::now(), client(1, 1));
        arrive(&mut handshakes, client, 1, now);
        let mut later = syn(client, 1);
        later.packet[27] = 9;
        let Arrival::Reused(segment) = handshakes.arrive(&later, client, now) else { panic!("not reused") };
        assert_eq!(segment[24..28], [0, 0, 0, 8], "the reset is for the first SYN");
        handshakes.begin(&later, client, now);
        assert_eq!(handshakes.arrive(&later, client, now), Arrival::Repeated);
    }

    #[test]
    fn a_flood_with_forged_addresses_leaves_slots_for_other_sources() {
        let (mut handshakes, now) = (Handshakes::default(), Instant::now());
        for address in 0..10_000 {
            arrive(&mut handshakes, client(9, address), 1, now);
        }
        assert_eq!(handshakes.pending.len(), MAX_OF_SOURCE);
        let (silent, working) = (client(1, 1 << 24), client(2, 2 << 24));
        arrive(&mut handshakes, silent, 1, now);
        arrive(&mut handshakes, working, 1, now);
        handshakes.complete(syn(working, 1).flow);
        assert!(wait(&mut handshakes, now, true));
        let after = now + COMPLETE_WITHIN;
        assert_eq!(arrive(&mut handshakes, silent, 2, after), Arrival::Silent);
        assert_eq!(arrive(&mut handshakes, working, 2, after), Arrival::New);
        for source in 10..20 {
            let address = u32::from(source) << 16;
            (0..2_000).for_each(|n| _ = arrive(&mut handshakes, client(source, address + n), 1, after));
        }
        assert_eq!(handshakes.pending.len(), MAX_PENDING);
        handshakes.expire(after + EXAMINE_AFTER);
        handshakes.expire(after + COMPLETE_WITHIN);
        assert!(handshakes.pending.is_empty() && handshakes.of_source.is_empty());
    }

    #[derive(Debug, Clone)]
    enum Event {
        Arrive(u8, u32, u16),
        Complete(u32, u16),
        Abandon(u32, u16),
        Wait(u64, bool),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => (0u8..2, 0u32..4, 1u16..4).prop_map(|(source, address, port)| Event::Arrive(source, address, port)),
            1 => (0u32..3, 1u16..4).prop_map(|(address, port)| Event::Complete(address, port)),
            1 => (0u32..4, 1u16..4).prop_map(|(address, port)| Event::Abandon(address, port)),
            2 => (0u64..9_000, any::<bool>()).prop_map(|(ms, half_open)| Event::Wait(ms, half_open)),
        ]
    }

    proptest! {
        #[test]
        fn each_handshake_ends_once_and_only_silent_clients_become_plain(events in prop::collection::vec(event(), 0..150)) {
            let (mut handshakes, mut now) = (Handshakes::default(), Instant::now());
            let flow = |address, port| syn(client(0, address), port).flow;
            let mut failed = BTreeSet::new();
            for event in events {
                match event {
                    Event::Arrive(source, address, port) => {
                        let of = client(source, address);
                        if arrive(&mut handshakes, of, port, now) == Arrival::Silent {
                            prop_assert!(failed.contains(&of), "plain without a failed handshake");
                        }
                    }
                    Event::Complete(address, port) => handshakes.complete(flow(address, port)),
                    Event::Abandon(address, port) => {
                        let had = handshakes.pending.contains_key(&flow(address, port));
                        prop_assert_eq!(handshakes.abandon(flow(address, port)).is_some(), had);
                    }
                    Event::Wait(ms, half_open) => {
                        now += Duration::from_millis(ms);
                        let clients: BTreeMap<_, _> = handshakes.pending.iter().map(|(flow, p)| (*flow, p.client)).collect();
                        for due in handshakes.expire(now) {
                            match due {
                                Due::Examine(flow) => handshakes.examined(flow, half_open),
                                Due::Over(flow, Some(_)) => _ = failed.insert(clients[&flow]),
                                Due::Over(flow, None) => prop_assert!(!handshakes.pending.contains_key(&flow)),
                            }
                        }
                    }
                }
                prop_assert_eq!(handshakes.by_due.len(), handshakes.pending.len());
                prop_assert_eq!(handshakes.of_source.values().sum::<usize>(), handshakes.pending.len());
                prop_assert!(handshakes.pending.iter().all(|(flow, p)| handshakes.by_due.contains(&(p.due, *flow))));
            }
            handshakes.expire(now + COMPLETE_WITHIN);
            handshakes.expire(now + COMPLETE_WITHIN);
            prop_assert!(handshakes.pending.is_empty() && handshakes.next_timeout().is_none());
        }
    }
}
