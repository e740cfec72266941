//! Shares: maximum fraction of this agent's sessions for the services of one namespace (spec/node-config.md clause 41, docs/adr/0049).
//!
//! A share is checked while a client can still go plain: at the ingress agent while the client's SYN is held, at the egress agent when it is
//! asked to connect. From then until the session begins, the connection is counted as *reserved*, so that a burst keeps to the share.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sos_wire::SessionUuid;

use crate::documents::config::{AgentConfig, Service};
use crate::policy::flow_key::FlowKey;

/// Time after which a reservation without a session ends: longer than a held SYN waits for the plain path and for the egress agent.
pub const RESERVED_FOR: Duration = Duration::from_secs(3);
/// Maximum number of reservations; beyond it, connections of namespaces with a share are plain.
const MAX_RESERVED: usize = 4_096;

type Namespace = Arc<str>;

/// Sessions and reservations by namespace.
#[derive(Debug, Default)]
pub struct SessionShares {
    sessions: BTreeMap<SessionUuid, Namespace>,
    reserved: BTreeMap<FlowKey, (Namespace, Instant)>,
    /// Reservations in the order of their ends. An entry whose reservation has been used or renewed is skipped.
    ends: VecDeque<(Instant, FlowKey)>,
    counts: BTreeMap<Namespace, u32>,
}

impl SessionShares {
    /// Reserves a session for a connection. False if the service's namespace has used up its share; true for a namespace without a share.
    pub fn reserve(&mut self, config: &AgentConfig, service: &Service, flow: FlowKey, now: Instant) -> bool {
        self.expire(now);
        let namespace = service.namespace();
        let Some(percent) = config.share(namespace) else { return true };
        if let Some((_, until)) = self.reserved.get_mut(&flow) {
            *until = now + RESERVED_FOR;
            self.ends.push_back((now + RESERVED_FOR, flow));
            return true;
        }
        let used = self.counts.get(namespace).copied().unwrap_or_default();
        let over = u64::from(used) * 100 >= u64::from(percent) * u64::from(config.limits.sessions);
        if over || self.reserved.len() >= MAX_RESERVED {
            return false;
        }
        let namespace = self.add(namespace);
        self.reserved.insert(flow, (namespace, now + RESERVED_FOR));
        self.ends.push_back((now + RESERVED_FOR, flow));
        true
    }

    /// Counts a session of a service, in place of its reservation.
    pub fn begin(&mut self, session: SessionUuid, service: &Service, flow: FlowKey) {
        self.release(flow);
        let namespace = self.add(service.namespace());
        if let Some(before) = self.sessions.insert(session, namespace) {
            self.remove(&before);
        }
    }

    /// Removes a session that is over.
    pub fn finish(&mut self, session: SessionUuid) {
        if let Some(namespace) = self.sessions.remove(&session) {
            self.remove(&namespace);
        }
    }

    /// Removes the reservation of a connection that went plain.
    pub fn release(&mut self, flow: FlowKey) {
        if let Some((namespace, _)) = self.reserved.remove(&flow) {
            self.remove(&namespace);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((end, flow)) = self.ends.front().copied().filter(|(end, _)| *end <= now) {
            self.ends.pop_front();
            if self.reserved.get(&flow).is_some_and(|(_, until)| *until <= end) {
                self.release(flow);
            }
        }
    }

    fn add(&mut self, namespace: &str) -> Namespace {
        let known = self.counts.get_key_value(namespace).map(|(known, _)| Arc::clone(known));
        let namespace = known.unwrap_or_else(|| Arc::from(namespace));
        *self.counts.entry(Arc::clone(&namespace)).or_default() += 1;
        namespace
    }

    fn remove(&mut self, namespace: &Namespace) {
        if let Some(count) = self.counts.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::Share;
    use crate::documents::config::tests::config;
    use proptest::prelude::*;

    fn limited(percent: u8) -> AgentConfig {
        let mut config = config();
        config.limits.sessions = 100;
        config.shares = vec![Share { namespace: "default".into(), percent }];
        config
    }

    fn flow(client_port: u16) -> FlowKey {
        FlowKey {
            client: format!("10.0.0.11:{client_port}").parse().unwrap(),
            server: "10.0.0.139:5000".parse().unwrap(),
        }
    }

    fn uuid(number: u16) -> SessionUuid {
        SessionUuid(u128::from(number).to_be_bytes())
    }

    #[test]
    fn a_namespace_gets_its_share_and_not_more() {
        let (config, now) = (limited(10), Instant::now());
        let mut shares = SessionShares::default();
        let service = &config.services[0];
        let granted = (0..50).filter(|port| shares.reserve(&config, service, flow(*port), now)).count();
        assert_eq!(granted, 10);
        assert!(shares.reserve(&config, service, flow(3), now), "a retransmitted SYN keeps its reservation");
        (0..10).for_each(|port| shares.begin(uuid(port), service, flow(port)));
        assert!(!shares.reserve(&config, service, flow(60), now));
        shares.finish(uuid(4));
        assert!(shares.reserve(&config, service, flow(61), now));
        assert!(!shares.reserve(&config, service, flow(62), now));
    }

    #[test]
    fn a_reservation_without_a_session_ends() {
        let (config, now) = (limited(1), Instant::now());
        let mut shares = SessionShares::default();
        let service = &config.services[0];
        assert!(shares.reserve(&config, service, flow(1), now));
        let renewed = now + RESERVED_FOR / 2;
        assert!(shares.reserve(&config, service, flow(1), renewed));
        assert!(!shares.reserve(&config, service, flow(2), now + RESERVED_FOR), "it was renewed");
        assert!(shares.reserve(&config, service, flow(2), renewed + RESERVED_FOR));
        shares.release(flow(2));
        assert!(shares.reserve(&config, service, flow(3), renewed + RESERVED_FOR));
    }

    #[test]
    fn other_namespaces_are_not_limited() {
        let mut config = limited(1);
        config.shares[0].namespace = "shop".into();
        let mut shares = SessionShares::default();
        let granted = |port| shares.reserve(&config, &config.services[0], flow(port), Instant::now());
        assert!((0..200).all(granted));
    }

    proptest! {
        #[test]
        fn counts_are_the_sessions_and_reservations(acts in prop::collection::vec((0u8..4, 0u16..8, 0u64..2_000), 0..200)) {
            let config = limited(5);
            let (mut shares, service) = (SessionShares::default(), &config.services[0]);
            let mut now = Instant::now();
            for (act, number, ms) in acts {
                now += Duration::from_millis(ms);
                match act {
                    0 => _ = shares.reserve(&config, service, flow(number), now),
                    1 => shares.begin(uuid(number), service, flow(number)),
                    2 => shares.finish(uuid(number)),
                    _ => shares.release(flow(number)),
                }
                let counted: u32 = shares.counts.values().sum();
                prop_assert_eq!(counted as usize, shares.sessions.len() + shares.reserved.len());
            }
            now += RESERVED_FOR;
            shares.expire(now);
            prop_assert!(shares.reserved.is_empty() && shares.ends.is_empty());
        }
    }
}
