//! Emulation of the complete network: sends SYNs, processes the controller's reactions, and counts. No sockets, no clock.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use sos_wire::SessionUuid;

use crate::agent::Agent;
use crate::load::{Load, Pacer};
use crate::network::{Lane, Network, Place};
use crate::openflow::packets::{self, FlowKey, ethertype};
use crate::openflow::switch::{Deed, Switch};
use crate::openflow::wire::WireError;
use crate::stats::Latencies;

/// Limit of unanswered SYNs over all switches; further SYNs are withheld and counted.
pub const MAX_OUTSTANDING: usize = 1 << 20;
/// Limit of SYNs sent in one iteration, so that sending does not starve reading.
const BURST: u64 = 4096;
const LLDP: u16 = 0x88CC;

/// Counts of a lane.
#[derive(Debug, Default, Clone)]
pub struct Counts {
    /// SYNs sent to the controller.
    pub sent: u64,
    /// SYNs that the controller released, either to an agent or plainly.
    pub answered: u64,
    /// Answered SYNs that were released to an agent.
    pub redirected: u64,
    /// SYNs that were not answered in time.
    pub lost: u64,
    /// Latency from a SYN to the packet-out that releases it.
    pub answer: Latencies,
    /// Latency from a SYN to the entry for its flow at the client's switch.
    pub entry: Latencies,
}

/// An unanswered SYN.
#[derive(Debug)]
struct Pending {
    lane: usize,
    sent: Duration,
    flow: FlowKey,
}

/// Parameters of the emulation.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A SYN that is not answered within this time is lost.
    pub patience: Duration,
    /// Duration of sessions; None means unlimited.
    pub hold: Option<Duration>,
    /// True if servers announce themselves to the network.
    pub announce_servers: bool,
    /// True if SYNs are sent to the controller even without a matching entry, as with an empty table.
    pub always_punt: bool,
}

/// State of the emulation: switches, links, hosts and agents.
#[derive(Debug)]
pub struct World {
    /// Switches, in the order of the network.
    pub switches: Vec<Switch>,
    /// Counts of each lane.
    pub counts: Vec<Counts>,
    /// Unanswered SYNs of each lane.
    pub outstanding: Vec<u32>,
    /// Agents.
    pub agents: Vec<Agent>,
    /// SYNs that were not sent because too many SYNs were unanswered.
    pub withheld: u64,
    /// SYNs that reached an agent without a preparation.
    pub unprepared: u64,
    /// LLDP frames that crossed a link.
    pub probes: u64,
    lanes: Vec<Lane>,
    /// Cookie of each lane's SYNs, and the version of its switch's table that the cookie is from. All clients of a lane are in one prefix
    /// of its service, so the same entry matches all its SYNs.
    cookies: Vec<Option<(u64, u64)>>,
    wires: HashMap<Place, Place>,
    agent_at: HashMap<Place, usize>,
    pending: HashMap<u32, Pending>,
    flows: HashMap<FlowKey, u32>,
    sent_order: VecDeque<(Duration, u32)>,
    ending: VecDeque<(Duration, SessionUuid)>,
    pacer: Pacer,
    next_lane: usize,
    number: u32,
    settings: Settings,
    order_port: u16,
}

impl World {
    /// Create an emulation whose switches have just connected.
    pub fn new(network: Network, agents: Vec<Agent>, settings: Settings, order_port: u16) -> Self {
        let lanes = network.lanes;
        let agent_at = agents.iter().enumerate().map(|(i, a)| (a.plan().place, i)).collect();
        Self {
            switches: network.switches.into_iter().map(Switch::new).collect(),
            counts: vec![Counts::default(); lanes.len()],
            outstanding: vec![0; lanes.len()],
            cookies: vec![None; lanes.len()],
            agents,
            withheld: 0,
            unprepared: 0,
            probes: 0,
            lanes,
            wires: network.wires,
            agent_at,
            pending: HashMap::new(),
            flows: HashMap::new(),
            sent_order: VecDeque::new(),
            ending: VecDeque::new(),
            pacer: Pacer::default(),
            next_lane: 0,
            number: 0,
            settings,
            order_port,
        }
    }

    /// Sources of SYNs.
    pub fn lanes(&self) -> &[Lane] {
        &self.lanes
    }

    /// Number of unanswered SYNs.
    pub fn unanswered(&self) -> usize {
        self.pending.len()
    }

    /// Reset the counts, and restart the offered load from zero.
    pub fn reset(&mut self) {
        self.counts.fill(Counts::default());
        self.withheld = 0;
        self.pacer = Pacer::default();
    }

    /// Announce clients, and also servers unless they must stay unknown.
    pub fn announce(&mut self) {
        for lane in &self.lanes {
            let servers = self.settings.announce_servers.then_some((lane.server_place, lane.server));
            let clients = lane.clients.iter().map(|client| (lane.place, *client));
            for (place, host) in clients.chain(servers) {
                self.switches[place.switch].packet_in(u64::MAX, place.port, &packets::announcement(host));
            }
        }
    }

    /// Send beacons of all agents; with `report` also their lists of sessions.
    pub fn beacons(&mut self, time_ms: u64, report: bool) {
        for agent in &mut self.agents {
            let place = agent.plan().place;
            let mut frames = vec![agent.beacon(time_ms)];
            if report {
                frames.extend(agent.report(time_ms));
            }
            frames
                .iter()
                .for_each(|frame| self.switches[place.switch].packet_in(u64::MAX, place.port, frame));
        }
    }

    /// True if every switch has been described and would send the SYNs of its lanes to the controller.
    pub fn ready(&self) -> bool {
        let wants = |lane: &Lane| {
            let frame = packets::syn(lane.clients[0], lane.server, (1024, lane.server_port), 0);
            self.settings.always_punt
                || self.switches[lane.place.switch].table.punts(lane.place.port, &frame).is_some()
        };
        self.switches.iter().all(|s| s.described) && self.lanes.iter().all(wants)
    }

    /// Send the SYNs that are due `elapsed` after the start of the load.
    pub fn offer(&mut self, load: Load, now: Duration, elapsed: Duration) {
        match load {
            Load::Rate(rate) => {
                for _ in 0..self.pacer.due(rate, elapsed, BURST) {
                    let lane = self.next_lane;
                    self.next_lane = (lane + 1) % self.lanes.len();
                    self.send(lane, now);
                }
            }
            Load::Outstanding(window) => {
                for lane in 0..self.lanes.len() {
                    (self.outstanding[lane]..window).for_each(|_| self.send(lane, now));
                }
            }
        }
    }

    fn send(&mut self, index: usize, now: Duration) {
        if self.pending.len() >= MAX_OUTSTANDING {
            self.withheld += 1;
            return;
        }
        self.number = self.number.wrapping_add(1);
        let (number, lane) = (self.number, &self.lanes[index]);
        let round = number as usize / self.lanes.len();
        let client = lane.clients[round % lane.clients.len()];
        let port = 1024 + u16::try_from(round / lane.clients.len() % 64_000).expect("fits");
        let frame = packets::syn(client, lane.server, (port, lane.server_port), number);
        let flow = packets::flow_key(&frame).expect("it is TCP");
        let switch = &mut self.switches[lane.place.switch];
        let version = switch.table.version();
        let cookie = match self.cookies[index] {
            Some((then, cookie)) if then == version => cookie,
            _ => switch.table.punts(lane.place.port, &frame).unwrap_or(u64::MAX),
        };
        self.cookies[index] = Some((version, cookie));
        switch.packet_in(cookie, lane.place.port, &frame);
        self.pending.insert(number, Pending { lane: index, sent: now, flow });
        self.flows.insert(flow, number);
        self.sent_order.push_back((now, number));
        self.outstanding[index] += 1;
        self.counts[index].sent += 1;
    }

    /// Process bytes that the controller sent to a switch.
    ///
    /// # Errors
    /// The bytes are not OpenFlow 1.3.
    pub fn receive(
        &mut self,
        switch: usize,
        bytes: &[u8],
        now: Duration,
        time_ms: u64,
    ) -> Result<(), WireError> {
        let mut deeds = Vec::new();
        self.switches[switch].receive(bytes, &mut deeds)?;
        for deed in deeds {
            match deed {
                Deed::Entry(flow) => self.entry(switch, &flow, now),
                Deed::Sent { port, frame } => self.sent(Place { switch, port }, &frame, now, time_ms),
            }
        }
        Ok(())
    }

    fn entry(&mut self, switch: usize, flow: &FlowKey, now: Duration) {
        let Some(pending) = self.flows.get(flow).and_then(|number| self.pending.get(number)) else { return };
        if self.lanes[pending.lane].place.switch == switch {
            self.counts[pending.lane].entry.record(now.saturating_sub(pending.sent));
        }
    }

    /// Process a packet that a switch sent: an LLDP frame crosses its link, a SYN counts as answered, an order reaches its agent.
    fn sent(&mut self, from: Place, frame: &[u8], now: Duration, time_ms: u64) {
        if let Some(to) = self.wires.get(&from).copied()
            && ethertype(frame) == LLDP
        {
            self.probes += 1;
            self.switches[to.switch].packet_in(u64::MAX, to.port, frame);
        }
        let agent = self.agent_at.get(&from).copied();
        if let Some(number) = packets::syn_number(frame) {
            self.answered(number, agent, now);
        } else if let (Some(agent), Some((port, payload))) = (agent, packets::parse_datagram(frame)) {
            let answer =
                if port == self.order_port { self.agents[agent].obey(payload, time_ms) } else { None };
            if let Some(answer) = answer {
                self.switches[from.switch].packet_in(u64::MAX, from.port, &answer);
            }
        }
    }

    /// Number of answered SYNs of all lanes.
    pub fn answered_in_all(&self) -> u64 {
        self.counts.iter().map(|counts| counts.answered).sum()
    }

    fn answered(&mut self, number: u32, agent: Option<usize>, now: Duration) {
        let Some(pending) = self.pending.remove(&number) else { return };
        self.flows.remove(&pending.flow);
        self.outstanding[pending.lane] -= 1;
        let counts = &mut self.counts[pending.lane];
        counts.answered += 1;
        counts.answer.record(now.saturating_sub(pending.sent));
        let Some(agent) = agent else { return };
        counts.redirected += 1;
        match (self.agents[agent].session_of(&pending.flow), self.settings.hold) {
            (None, _) => self.unprepared += 1,
            (Some(session), Some(hold)) => self.ending.push_back((now + hold, session)),
            (Some(_), None) => (),
        }
    }

    /// Advance time: end sessions, and time out SYNs.
    pub fn pass(&mut self, now: Duration, time_ms: u64) {
        while self.ending.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, session)) = self.ending.pop_front() else { return };
            for agent in &mut self.agents {
                if let Some(frame) = agent.end(session, time_ms) {
                    let place = agent.plan().place;
                    self.switches[place.switch].packet_in(u64::MAX, place.port, &frame);
                }
            }
        }
        let patience = self.settings.patience;
        while self.sent_order.front().is_some_and(|(sent, _)| *sent + patience <= now) {
            let Some((_, number)) = self.sent_order.pop_front() else { return };
            if let Some(pending) = self.pending.remove(&number) {
                self.flows.remove(&pending.flow);
                self.outstanding[pending.lane] -= 1;
                self.counts[pending.lane].lost += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests;
