//! Plain traffic: connections of services that this agent leaves to plain TCP, with reasons (spec/order.md clause 14).
//!
//! nft decides, and lists recent plain connections, each with the reason if nft knows it ([`Seen`]). This module knows the configuration,
//! so it finds the service of a connection, and the reason if no armed service covered it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use sos_wire::order::{MAX_PLAIN_ROWS, MAX_PLAIN_SAMPLES};
use sos_wire::{AgentId, PlainReason, PlainReport, PlainRow, PlainSample, ServiceMark};

use crate::documents::config::AgentConfig;
use crate::policy::arming::{self, Health};
use crate::policy::flow_key::FlowKey;
use crate::policy::flow_policy;

/// Maximum number of counters, one per service and reason; further combinations are not counted.
const MAX_COUNTERS: usize = 1_024;
/// Maximum number of connections kept for the next report; the latest are kept.
const MAX_KEPT: usize = 4 * MAX_PLAIN_SAMPLES;

/// A connection that nft has left plain, with the reason of nft's chain, or 0 if no armed service covers the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seen {
    /// The connection.
    pub flow: FlowKey,
    /// A [`PlainReason`], or 0.
    pub code: u16,
}

/// Parses `nft --json list set` of the connections that recently went plain. Skips elements of any other shape.
#[must_use]
pub fn parse_seen(json: &[u8]) -> BTreeSet<Seen> {
    let document: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let objects = document["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    let elements = objects.iter().filter_map(|object| object["set"]["elem"].as_array()).flatten();
    elements.filter_map(|element| seen(&element["elem"]["val"]["concat"])).collect()
}

fn seen(fields: &serde_json::Value) -> Option<Seen> {
    let address = |index: usize| fields[index].as_str()?.parse::<Ipv4Addr>().ok();
    let number = |index: usize| fields[index].as_u64().and_then(|value| u16::try_from(value).ok());
    let end = |index| Some(SocketAddrV4::new(address(index)?, number(index + 1)?));
    Some(Seen { flow: FlowKey { client: end(0)?, server: end(2)? }, code: number(4)? })
}

/// Service that covers a connection, and the reason why it went plain; `None` if no service of this agent covers it.
#[must_use]
pub fn attribute(
    config: &AgentConfig,
    health: Health,
    live: &BTreeSet<AgentId>,
    seen: Seen,
) -> Option<(ServiceMark, PlainReason)> {
    let service = flow_policy::ingress_service(config, seen.flow)?;
    let reason = if seen.code != 0 {
        PlainReason(seen.code)
    } else if health.draining {
        PlainReason::DRAINING
    } else if !arming::sessions_left(config, health) {
        PlainReason::SESSIONS
    } else if !arming::memory_left(config, health) {
        PlainReason::MEMORY
    } else if flow_policy::far_agent(config, service, Some(seen.flow), |id| live.contains(&id)).is_none() {
        PlainReason::NO_AGENT
    } else {
        PlainReason::NOT_ARMED
    };
    Some((ServiceMark::of(&service.id), reason))
}

/// Label for the metrics.
#[must_use]
pub fn label(reason: PlainReason) -> &'static str {
    match reason {
        PlainReason::ACCELERATED => "accelerated",
        PlainReason::OPTION => "Option",
        PlainReason::NO_AGENT => "NoAgent",
        PlainReason::DRAINING => "AgentDraining",
        PlainReason::SESSIONS => "AgentSessions",
        PlainReason::MEMORY => "AgentMemory",
        PlainReason::FULL => "Full",
        PlainReason::NO_ANSWER => "NoAnswer",
        PlainReason::NOT_PERMITTED => "AgentNotPermitted",
        PlainReason::SERVER_UNREACHABLE => "ServerUnreachable",
        PlainReason::SERVER_REFUSED => "ServerRefused",
        PlainReason::SERVER_SILENT => "ServerSilent",
        PlainReason::CLIENT_SILENT => "ClientSilent",
        PlainReason::PORT_TAKEN => "PortTaken",
        PlainReason::SHARE => "Share",
        _ => "NotArmed",
    }
}

/// Plain connections since the agent's start.
#[derive(Debug, Default)]
pub struct PlainTraffic {
    last: BTreeSet<Seen>,
    counts: BTreeMap<(ServiceMark, PlainReason), u64>,
    kept: Vec<PlainSample>,
}

impl PlainTraffic {
    /// Returns the connections of a listing that were not in the previous listing.
    pub fn new_ones(&mut self, listed: BTreeSet<Seen>) -> Vec<Seen> {
        let new = listed.difference(&self.last).copied().collect();
        self.last = listed;
        new
    }

    /// Counts one plain connection, or, with [`PlainReason::ACCELERATED`], one session that began without an order.
    pub fn count(&mut self, service: ServiceMark, reason: PlainReason) {
        let room = self.counts.len() < MAX_COUNTERS;
        if room || self.counts.contains_key(&(service, reason)) {
            *self.counts.entry((service, reason)).or_default() += 1;
        }
    }

    /// Counts one connection and keeps it for the next report.
    pub fn note(&mut self, flow: FlowKey, service: ServiceMark, reason: PlainReason) {
        self.count(service, reason);
        if self.kept.len() == MAX_KEPT {
            self.kept.remove(0);
        }
        self.kept.push(PlainSample { service, reason, client: flow.client, server: flow.server });
    }

    /// Returns reports of all counters and of the connections kept since the last call.
    pub fn reports(&mut self) -> Vec<PlainReport> {
        let row = |(&(service, reason), &count)| PlainRow { service, reason, count };
        let rows: Vec<PlainRow> = self.counts.iter().map(row).collect();
        let kept = std::mem::take(&mut self.kept);
        let (mut rows, mut samples) = (rows.chunks(MAX_PLAIN_ROWS), kept.chunks(MAX_PLAIN_SAMPLES));
        let next = || {
            let (rows, samples) = (rows.next(), samples.next());
            (rows.is_some() || samples.is_some()).then(|| PlainReport {
                rows: rows.unwrap_or_default().to_vec(),
                samples: samples.unwrap_or_default().to_vec(),
            })
        };
        let reports: Vec<_> = std::iter::from_fn(next).collect();
        // Without plain connections, send an empty report: it shows the controller that all connections of later reports are new.
        if reports.is_empty() { vec![PlainReport { rows: Vec::new(), samples: Vec::new() }] } else { reports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::config::tests::config;

    fn flow(port: u16) -> FlowKey {
        FlowKey {
            client: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 11), port),
            server: "10.0.0.139:5000".parse().unwrap(),
        }
    }

    #[test]
    fn parses_set_listings_of_nft() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1.0.6"}}, {"set": {"name": "plain_seen", "elem": [
            {"elem": {"val": {"concat": ["10.0.0.11", 40000, "10.0.0.139", 5000, 1]}, "timeout": 10, "expires": 9}},
            {"elem": {"val": {"concat": ["10.0.0.11", "ssh", "10.0.0.139", 5000, 1]}}}]}}]}"#;
        assert_eq!(parse_seen(json).into_iter().collect::<Vec<_>>(), [Seen { flow: flow(40_000), code: 1 }]);
        assert!(parse_seen(b"").is_empty());
    }

    #[test]
    fn the_reason_comes_from_the_chain_or_the_agents_state() {
        let config = config();
        let live = BTreeSet::from([config.peers[0].agents[0].id]);
        let health = |sessions, memory_mib: u64| Health {
            draining: false,
            backup: false,
            sessions,
            memory_bytes: memory_mib << 20,
        };
        let why = |health, live: &BTreeSet<AgentId>, code| {
            attribute(&config, health, live, Seen { flow: flow(1), code }).map(|(_, reason)| reason)
        };
        assert_eq!(why(health(0, 0), &live, 1), Some(PlainReason::OPTION));
        assert_eq!(why(health(0, 0), &live, 0), Some(PlainReason::NOT_ARMED));
        assert_eq!(why(health(0, 0), &BTreeSet::new(), 0), Some(PlainReason::NO_AGENT));
        assert_eq!(why(health(3_840, 0), &live, 0), Some(PlainReason::SESSIONS));
        assert_eq!(why(health(0, 1_000), &live, 0), Some(PlainReason::MEMORY));
        assert_eq!(why(Health { draining: true, ..health(0, 0) }, &live, 0), Some(PlainReason::DRAINING));
        let elsewhere =
            Seen { flow: FlowKey { server: "192.0.2.1:80".parse().unwrap(), ..flow(1) }, code: 1 };
        assert_eq!(attribute(&config, health(0, 0), &live, elsewhere), None);
    }

    #[test]
    fn a_connection_is_new_once() {
        let mut traffic = PlainTraffic::default();
        let seen =
            |ports: &[u16]| ports.iter().map(|p| Seen { flow: flow(*p), code: 0 }).collect::<BTreeSet<_>>();
        assert_eq!(traffic.new_ones(seen(&[1, 2])).len(), 2);
        assert_eq!(traffic.new_ones(seen(&[2, 3])), [Seen { flow: flow(3), code: 0 }]);
    }

    #[test]
    fn reports_hold_everything_up_to_the_bounds() {
        let mut traffic = PlainTraffic::default();
        for i in 0..2_000u16 {
            traffic.note(flow(i), ServiceMark::of(&i.to_string()), PlainReason::OPTION);
        }
        let reports = traffic.reports();
        assert_eq!(reports.iter().map(|r| r.rows.len()).sum::<usize>(), MAX_COUNTERS);
        assert_eq!(reports.iter().map(|r| r.samples.len()).sum::<usize>(), MAX_KEPT);
        assert_eq!(reports[3].samples.last().map(|s| s.client.port()), Some(1_999));
        assert!(traffic.reports().iter().all(|r| r.samples.is_empty()), "each connection is reported once");
    }
}
