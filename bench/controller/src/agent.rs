//! Control-plane emulation of an SOS agent: beacons, answers to orders, ends of sessions, reports. It relays no bytes.

use std::collections::HashMap;

use sos_wire::beacon::Beacon;
use sos_wire::order::{Order, OrderBody, OrderHeader, UnverifiedOrder};
use sos_wire::{BootId, ControllerId, EndReason, Ended, Key, KeyId, MacAddress, SessionReport, SessionUuid};

use crate::config::Discovery;
use crate::network::AgentPlan;
use crate::openflow::packets::{FlowKey, Party, datagram};

/// Number of UUIDs in one chunk of a report (spec/order.md 7).
const CHUNK: usize = 64;
/// First stream port and number of stream ports of an agent; the ports define the path labels of its sessions.
const STREAM_PORTS: (u16, u16) = (10_000, 8);

/// Counters of orders.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Orders {
    /// Accepted preparations.
    pub prepared: u64,
    /// Released preparations.
    pub released: u64,
    /// Orders that are invalid or not signed for this agent.
    pub refused: u64,
}

/// One emulated agent.
#[derive(Debug)]
pub struct Agent {
    plan: AgentPlan,
    key_id: KeyId,
    keys: Keys,
    discovery: (Party, u16, u16),
    boot: BootId,
    controller: Option<ControllerId>,
    beacons: u64,
    sequence: u64,
    reports: u32,
    sessions: HashMap<SessionUuid, FlowKey>,
    flows: HashMap<FlowKey, SessionUuid>,
    /// Counters of orders.
    pub orders: Orders,
}

#[derive(Debug)]
struct Keys {
    beacon: Key,
    to_agent: Key,
    from_agent: Key,
}

impl Agent {
    /// Create an agent that has just started; `site_key` is the key of its site.
    pub fn new(plan: AgentPlan, site_key: &(KeyId, Key), discovery: &Discovery, boot: BootId) -> Self {
        let key = &site_key.1;
        let keys = Keys {
            beacon: key.beacon(plan.id),
            to_agent: key.order_to_agent(plan.id),
            from_agent: key.order_to_controller(plan.id),
        };
        let sink = Party { mac: discovery.mac.0, address: discovery.address };
        Self {
            plan,
            key_id: site_key.0,
            keys,
            discovery: (sink, discovery.beacon_port, discovery.order_port),
            boot,
            controller: None,
            beacons: 0,
            sequence: 0,
            reports: 0,
            sessions: HashMap::new(),
            flows: HashMap::new(),
            orders: Orders::default(),
        }
    }

    /// Site, addresses and switch port of the agent.
    pub fn plan(&self) -> &AgentPlan {
        &self.plan
    }

    /// Next beacon as a frame.
    pub fn beacon(&mut self, time_ms: u64) -> Vec<u8> {
        self.beacons += 1;
        let beacon = Beacon {
            key_id: self.key_id,
            site: self.plan.site,
            draining: false,
            willing: true,
            agent: self.plan.id,
            boot: self.boot,
            sequence: self.beacons,
            time_ms,
            sessions: u32::try_from(self.sessions.len()).unwrap_or(u32::MAX),
            // above the needs of any run, because the benchmark measures the controller and not the limits of agents
            session_limit: 10_000_000,
            bytes_per_second: 0,
            cpu_permille: 0,
            streams: 8,
            order_port: self.discovery.2,
            first_stream_port: STREAM_PORTS.0,
            stream_ports: STREAM_PORTS.1,
            address: self.plan.party.address,
            mac: MacAddress(self.plan.party.mac),
            capacity_bps: 0,
            name: self.plan.name.clone(),
            service_types: vec!["tcp-parallel".into()],
        };
        let bytes = beacon.encode(&self.keys.beacon).expect("a name of a node is short");
        datagram(self.plan.party, self.discovery.0, (self.discovery.2, self.discovery.1), &bytes)
    }

    /// Process an order; return the frame with the answer, if the order has one.
    pub fn obey(&mut self, payload: &[u8], time_ms: u64) -> Option<Vec<u8>> {
        let checked = UnverifiedOrder::parse(payload).and_then(|order| order.verify(&self.keys.to_agent));
        let Ok(order) = checked else {
            self.orders.refused += 1;
            return None;
        };
        self.controller = Some(order.header.controller);
        match order.body {
            OrderBody::Prepare(prepare) => {
                let ((client, server), ports) = (
                    (prepare.client.ip(), prepare.server.ip()),
                    (prepare.client.port(), prepare.server.port()),
                );
                let key =
                    [&client.octets()[..], &server.octets(), &ports.0.to_be_bytes(), &ports.1.to_be_bytes()]
                        .concat();
                let key: FlowKey = key.try_into().expect("4 + 4 + 2 + 2 bytes");
                self.sessions.insert(prepare.session, key);
                self.flows.insert(key, prepare.session);
                self.orders.prepared += 1;
                self.say(OrderBody::Ready(prepare.session), time_ms, order.header.sequence)
            }
            OrderBody::Release(session) => {
                self.orders.released += 1;
                self.forget(session);
                None
            }
            _ => None,
        }
    }

    /// Session that was prepared for a flow.
    pub fn session_of(&self, flow: &FlowKey) -> Option<SessionUuid> {
        self.flows.get(flow).copied()
    }

    /// Frame that reports the end of a session; None if the session belongs to another agent.
    pub fn end(&mut self, session: SessionUuid, time_ms: u64) -> Option<Vec<u8>> {
        self.forget(session)?;
        let ended = Ended {
            session,
            reason: EndReason::Finished,
            bytes_up: 1000,
            bytes_down: 100_000,
            duration_ms: 1000,
        };
        self.say(OrderBody::Ended(ended), time_ms, 0)
    }

    /// Complete list of sessions as frames; empty before a controller has sent an order.
    pub fn report(&mut self, time_ms: u64) -> Vec<Vec<u8>> {
        self.reports += 1;
        let all: Vec<SessionUuid> = self.sessions.keys().copied().collect();
        let mut chunks: Vec<Vec<SessionUuid>> = all.chunks(CHUNK).map(<[SessionUuid]>::to_vec).collect();
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let total = u16::try_from(chunks.len()).unwrap_or(u16::MAX);
        let body = |(i, sessions)| SessionReport { report: self.reports, chunk: i, chunks: total, sessions };
        let bodies: Vec<SessionReport> = (0..total).zip(chunks).map(body).collect();
        bodies
            .into_iter()
            .filter_map(|report| self.say(OrderBody::SessionReport(report), time_ms, 0))
            .collect()
    }

    fn forget(&mut self, session: SessionUuid) -> Option<()> {
        let flow = self.sessions.remove(&session)?;
        if self.flows.get(&flow) == Some(&session) {
            self.flows.remove(&flow);
        }
        Some(())
    }

    fn say(&mut self, body: OrderBody, time_ms: u64, reply_to: u64) -> Option<Vec<u8>> {
        let controller = self.controller?;
        self.sequence += 1;
        let (key_id, agent, boot, sequence) = (self.key_id, self.plan.id, self.boot, self.sequence);
        let header = OrderHeader { key_id, controller, agent, boot, sequence, time_ms, reply_to };
        let bytes =
            Order { header, body }.encode(&self.keys.from_agent).expect("bodies made here are in bounds");
        Some(datagram(self.plan.party, self.discovery.0, (self.discovery.2, self.discovery.2), &bytes))
    }
}
