//! SYNs held until the egress agent reports whether their server accepts (docs/adr/0053). Pure: returns the actions to take on packets.
//!
//! An *ask* is a request to the egress agent to connect to a server. With `accept: Learned`, all clients of a server share one ask: after
//! the server has accepted, it is a known server, and its clients need no connection opened ahead. With `Confirmed`, each client has an ask
//! of its own.
//!
//! To respect network policies, a SYN is held until a *check* shows that the plain path to the server is open ([`plain_path`],
//! docs/adr/0059). The egress agent is asked only afterwards, because it connects from inside the server's pod, where no policy applies.
//! With `Learned`, an answered check replaces the ask if the egress agent is beside the server: the answer shows that the server accepts. Any
//! other egress agent may be unable to connect although the server has answered the client's address, so it is asked.
//!
//! A client that does not complete its handshake after its SYN was taken is plain for a while ([`handshakes`]).

pub mod check_packet;
pub mod client_backoff;
pub mod handshakes;
pub mod injector;
pub mod known_servers;
pub mod plain_path;
pub mod step;
pub mod syn;

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use sos_wire::{AgentId, PlainReason, RefuseReason, SessionUuid};

use crate::documents::config::Accept;
use crate::policy::flow_key::FlowKey;
use crate::segments::syn_hold::client_backoff::Client;
use crate::segments::syn_hold::handshakes::{Arrival, COMPLETE_WITHIN, Due, Handshakes};
use crate::segments::syn_hold::known_servers::KnownServers;
use crate::segments::syn_hold::plain_path::{Answer, Path, PlainPaths, State};
use crate::segments::syn_hold::step::plain_reason;
pub use crate::segments::syn_hold::step::{Ask, Covered, Step, is_servers};
use crate::segments::syn_hold::syn::Syn;

/// Maximum number of SYNs held plus server connections opened ahead for clients that have not completed their handshakes. Further
/// connections go plain.
pub const MAX_HELD: usize = 1_024;
/// Maximum share of [`MAX_HELD`] for one server address and port, so that a flood of SYNs to one server leaves slots for other servers.
pub const MAX_OF_SERVER: usize = MAX_HELD / 4;
/// Time for which a SYN is held: an egress agent answers within 0.7 s and a round trip. Clients retransmit their SYN after 1 and 3 s (RFC
/// 6298): the first retransmission repeats the request, and before the second retransmission the connection is plain.
pub const HELD_FOR: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Asked {
    ask: Ask,
    shared: bool,
    until: Instant,
    /// SYNs that wait for the answer.
    waiting: BTreeMap<FlowKey, (Syn, Client)>,
}

/// A server connection that the egress agent has opened, while the client completes its handshake with this agent.
#[derive(Debug)]
struct Claim {
    session: SessionUuid,
    peer: AgentId,
    until: Instant,
}

/// All held SYNs and pending requests.
#[derive(Debug, Default)]
pub struct SynHold {
    asked: BTreeMap<SessionUuid, Asked>,
    held: BTreeMap<FlowKey, SessionUuid>,
    shared: BTreeMap<(SocketAddrV4, AgentId), SessionUuid>,
    claims: BTreeMap<FlowKey, Claim>,
    /// SYNs that wait for a check.
    unchecked: BTreeMap<FlowKey, (Syn, Covered)>,
    paths: PlainPaths,
    handshakes: Handshakes,
    of_server: BTreeMap<SocketAddrV4, usize>,
    /// Servers that accepted recently.
    pub known: KnownServers,
}

impl SynHold {
    /// Number of held SYNs and of server connections opened ahead that wait for their client.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len() + self.unchecked.len() + self.claims.len()
    }

    /// True while no SYN is held and no server connection opened ahead waits for its client.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Handles a client's SYN, or its retransmission.
    pub fn arrive(&mut self, syn: Syn, covered: Covered, now: Instant) -> Vec<Step> {
        match self.handshakes.arrive(&syn, covered.client(&syn), now) {
            Arrival::New => self.arrive_new(syn, covered, now),
            Arrival::Reused(reset) => {
                let new = self.arrive_new(syn, covered, now);
                std::iter::once(Step::Reset(reset)).chain(new).collect()
            }
            Arrival::Repeated => vec![Step::Take(syn.packet)],
            Arrival::Silent => self.leave_now(syn, PlainReason::CLIENT_SILENT),
        }
    }

    /// Handles a SYN that the agent has not taken before.
    fn arrive_new(&mut self, syn: Syn, covered: Covered, now: Instant) -> Vec<Step> {
        if let Some((waiting, _)) = self.unchecked.get_mut(&syn.flow) {
            *waiting = syn;
            return Vec::new();
        }
        let Some(sequence) = covered.check else {
            return self.arrive_checked(syn, covered, now).into_iter().collect();
        };
        let path = path(syn.flow);
        match self.paths.state(path, now) {
            State::Open { stale } => {
                let again = stale.then(|| self.paths.begin(path, sequence, now)).flatten().map(Step::Check);
                again.into_iter().chain(self.arrive_checked(syn, covered, now)).collect()
            }
            State::Closed => self.leave_now(syn, PlainReason::SERVER_SILENT),
            State::Unknown if self.is_full(syn.flow.server) => self.leave_now(syn, PlainReason::FULL),
            State::Unknown => {
                let check = self.paths.begin(path, sequence, now).map(Step::Check);
                if check.is_none() && !self.paths.is_pending(path) {
                    return self.leave_now(syn, PlainReason::FULL);
                }
                let release = self.stop_holding(syn.flow);
                *self.of_server.entry(syn.flow.server).or_default() += 1;
                self.unchecked.insert(syn.flow, (syn, covered));
                check.into_iter().chain(release).collect()
            }
        }
    }

    /// Makes a SYN plain, also if the agent has held or taken an earlier SYN of the connection.
    pub fn leave_now(&mut self, syn: Syn, reason: PlainReason) -> Vec<Step> {
        let flow = syn.flow;
        if self.unchecked.remove(&flow).is_some() {
            self.leave(flow.server);
        }
        let mut steps: Vec<_> = self.handshakes.abandon(flow).map(Step::Reset).into_iter().collect();
        steps.push(Step::Leave(syn.packet, reason));
        steps.extend(self.claim(flow).map(|(session, peer)| Step::Release(peer, session)));
        steps.extend(self.stop_holding(flow));
        steps
    }

    /// Reinjects a SYN for the listener, and waits for the client's handshake.
    fn take(&mut self, syn: Syn, client: Client, now: Instant) -> Step {
        self.handshakes.begin(&syn, client, now);
        Step::Take(syn.packet)
    }

    /// Removes an earlier SYN of a connection, held for the egress agent's answer; returns a Release if no other SYN waits for this answer.
    /// Such a SYN exists if, on its arrival, the path was open or was not checked.
    fn stop_holding(&mut self, flow: FlowKey) -> Option<Step> {
        let session = self.held.remove(&flow)?;
        self.leave(flow.server);
        let asked = self.asked.get_mut(&session)?;
        asked.waiting.remove(&flow);
        let peer = asked.ask.peer;
        asked.waiting.is_empty().then(|| {
            self.settle(session);
            Step::Release(peer, session)
        })
    }

    fn is_full(&self, server: SocketAddrV4) -> bool {
        self.len() >= MAX_HELD || self.of_server.get(&server).is_some_and(|count| *count >= MAX_OF_SERVER)
    }

    /// Handles a SYN whose plain path is open or is not checked.
    fn arrive_checked(&mut self, syn: Syn, covered: Covered, now: Instant) -> Option<Step> {
        let (server, client) = (syn.flow.server, covered.client(&syn));
        let known = covered.accept == Accept::Learned && self.known.contains(server, now);
        // A SYN with a claim is a retransmission: the egress agent has the connection, but this agent's SYN-ACK was lost.
        if covered.accept == Accept::Early || self.claims.contains_key(&syn.flow) {
            return Some(self.take(syn, client, now));
        }
        if let Some(session) = self.held.get(&syn.flow).copied() {
            return self.repeat(session, syn, client);
        }
        if known {
            return Some(self.take(syn, client, now));
        }
        if self.is_full(server) {
            return Some(Step::Leave(syn.packet, PlainReason::FULL));
        }
        self.hold(syn, covered, now).map(Step::Ask)
    }

    /// Handles the retransmission of a held SYN: repeats the request of its connection, since the request or its answer may have been lost
    /// with a stream.
    fn repeat(&mut self, session: SessionUuid, syn: Syn, client: Client) -> Option<Step> {
        let asked = self.asked.get_mut(&session)?;
        let again = asked.ask.flow == syn.flow;
        asked.waiting.insert(syn.flow, (syn, client));
        again.then_some(Step::Ask(asked.ask))
    }

    fn hold(&mut self, syn: Syn, covered: Covered, now: Instant) -> Option<Ask> {
        let (server, client) = ((syn.flow.server, covered.peer), covered.client(&syn));
        *self.of_server.entry(syn.flow.server).or_default() += 1;
        let shared = covered.accept == Accept::Learned;
        let waits_for = self.shared.get(&server).copied().filter(|_| shared);
        if let Some(asked) = waits_for.and_then(|session| self.asked.get_mut(&session)) {
            self.held.insert(syn.flow, asked.ask.session);
            asked.waiting.insert(syn.flow, (syn, client));
            return None;
        }
        let ask = Ask { session: covered.session, peer: covered.peer, flow: syn.flow, marks: syn.marks };
        self.held.insert(syn.flow, ask.session);
        if shared {
            self.shared.insert(server, ask.session);
        }
        let waiting = BTreeMap::from([(syn.flow, (syn, client))]);
        self.asked.insert(ask.session, Asked { ask, shared, until: now + HELD_FOR, waiting });
        Some(ask)
    }

    /// Handles the egress agent's answer; `refused` is `None` if the server has accepted.
    pub fn answer(
        &mut self,
        peer: AgentId,
        session: SessionUuid,
        refused: Option<RefuseReason>,
        now: Instant,
    ) -> Vec<Step> {
        let of_peer = self.asked.get(&session).is_some_and(|asked| asked.ask.peer == peer);
        match refused {
            Some(reason) if of_peer => self.refuse(session, reason),
            Some(_) => Vec::new(),
            None if of_peer => self.accept(session, now),
            // The answer is late, and the client is already plain. A repeated answer has a claim and is ignored below.
            None if self.claims.values().all(|claim| claim.session != session) => {
                vec![Step::Release(peer, session)]
            }
            None => Vec::new(),
        }
    }

    fn accept(&mut self, session: SessionUuid, now: Instant) -> Vec<Step> {
        let Some(Asked { ask, waiting, .. }) = self.settle(session) else { return Vec::new() };
        self.known.note(ask.flow.server, now);
        let claim = Claim { session, peer: ask.peer, until: now + COMPLETE_WITHIN };
        self.claims.insert(ask.flow, claim);
        *self.of_server.entry(ask.flow.server).or_default() += 1;
        waiting.into_values().map(|(syn, client)| self.take(syn, client, now)).collect()
    }

    /// Handles the answer to a check.
    pub fn checked(&mut self, answer: Answer, now: Instant) -> Vec<Step> {
        match self.paths.answer(answer, now) {
            None => Vec::new(),
            Some(false) => self.close(answer.path, PlainReason::SERVER_REFUSED),
            Some(true) => {
                let (server, waiting) = (answer.path.server, self.take_unchecked(answer.path));
                if self.known.contains(server, now) || waiting.iter().any(|(_, covered)| covered.beside) {
                    self.known.note(server, now);
                }
                waiting
                    .into_iter()
                    .filter_map(|(syn, covered)| self.arrive_checked(syn, covered, now))
                    .collect()
            }
        }
    }

    fn take_unchecked(&mut self, of: Path) -> Vec<(Syn, Covered)> {
        let flows: Vec<_> = self.unchecked.keys().filter(|flow| path(**flow) == of).copied().collect();
        let take = |flow: FlowKey| {
            self.leave(flow.server);
            self.unchecked.remove(&flow)
        };
        flows.into_iter().filter_map(take).collect()
    }

    /// Makes all SYNs that wait for the check of a path plain. The server stays known: a policy that forbids one pod's connections must not
    /// delay the connections of other pods.
    fn close(&mut self, of: Path, reason: PlainReason) -> Vec<Step> {
        self.take_unchecked(of).into_iter().map(|(syn, _)| Step::Leave(syn.packet, reason)).collect()
    }

    fn refuse(&mut self, session: SessionUuid, reason: RefuseReason) -> Vec<Step> {
        let Some(Asked { ask, waiting, .. }) = self.settle(session) else { return Vec::new() };
        if is_servers(reason) {
            self.known.forget(ask.flow.server);
        }
        waiting.into_values().map(|(syn, _)| Step::Leave(syn.packet, plain_reason(reason))).collect()
    }

    /// Handles a failure to ask the egress agent.
    pub fn fail(&mut self, session: SessionUuid) -> Vec<Step> {
        let asked = self.settle(session);
        let waiting = asked.into_iter().flat_map(|asked| asked.waiting.into_values());
        waiting.map(|(syn, _)| Step::Leave(syn.packet, PlainReason::NO_AGENT)).collect()
    }

    /// Handles deadlines: a SYN held for too long goes plain.
    pub fn expire(&mut self, now: Instant) -> Vec<Step> {
        let late: Vec<_> = self.asked.values().filter(|a| a.until <= now).map(|a| a.ask.session).collect();
        let (again, closed) = self.paths.expire(now);
        let mut steps: Vec<_> = again.into_iter().map(Step::Check).collect();
        steps.extend(closed.into_iter().flat_map(|path| self.close(path, PlainReason::SERVER_SILENT)));
        for asked in late.into_iter().filter_map(|session| self.settle(session)) {
            steps.push(Step::Release(asked.ask.peer, asked.ask.session));
            let waiting = asked.waiting.into_values();
            steps.extend(waiting.map(|(syn, _)| Step::Leave(syn.packet, PlainReason::NO_ANSWER)));
        }
        for due in self.handshakes.expire(now) {
            steps.extend(self.due(due));
        }
        let late: Vec<_> =
            self.claims.iter().filter(|(_, c)| c.until <= now).map(|(flow, _)| *flow).collect();
        for (session, peer) in late.into_iter().filter_map(|flow| self.claim(flow)) {
            steps.push(Step::Release(peer, session));
        }
        steps
    }

    /// Handles the deadline of a handshake.
    fn due(&mut self, due: Due) -> Vec<Step> {
        let (flow, reset) = match due {
            Due::Examine(flow) => return vec![Step::Examine(flow)],
            Due::Over(flow, reset) => (flow, reset.map(Step::Reset)),
        };
        let release = self.claim(flow).map(|(session, peer)| Step::Release(peer, session));
        reset.into_iter().chain(release).collect()
    }

    /// Handles the kernel's answer to [`Step::Examine`].
    pub fn examined(&mut self, flow: FlowKey, half_open: bool) {
        self.handshakes.examined(flow, half_open);
    }

    /// Handles a client that has completed its handshake.
    pub fn completed(&mut self, flow: FlowKey) {
        self.handshakes.complete(flow);
    }

    /// Next deadline of [`Self::expire`].
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        let own = self.asked.values().map(|a| a.until).chain(self.claims.values().map(|c| c.until));
        own.chain(self.paths.next_timeout()).chain(self.handshakes.next_timeout()).min()
    }

    /// Takes the server connection opened ahead for a client that has completed its handshake; returns its session and the egress agent.
    pub fn claim(&mut self, flow: FlowKey) -> Option<(SessionUuid, AgentId)> {
        let claim = self.claims.remove(&flow)?;
        self.leave(flow.server);
        Some((claim.session, claim.peer))
    }

    /// Removes an ask and its SYNs.
    fn settle(&mut self, session: SessionUuid) -> Option<Asked> {
        let asked = self.asked.remove(&session)?;
        let server = (asked.ask.flow.server, asked.ask.peer);
        if asked.shared && self.shared.get(&server) == Some(&session) {
            self.shared.remove(&server);
        }
        for flow in asked.waiting.keys() {
            self.held.remove(flow);
            self.leave(flow.server);
        }
        Some(asked)
    }

    fn leave(&mut self, server: SocketAddrV4) {
        if let Some(count) = self.of_server.get_mut(&server) {
            *count -= 1;
            if *count == 0 {
                self.of_server.remove(&server);
            }
        }
    }
}

fn path(flow: FlowKey) -> Path {
    Path { client: *flow.client.ip(), server: flow.server }
}

#[cfg(test)]
mod tests;
