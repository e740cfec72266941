"""Fragments of a session's segments are redirected to the agent; if that is impossible, connections of the two hosts are plain
(docs/adr/0052).

Only the first fragment of a segment has ports, and Open vSwitch does not match ports of fragments at all (ovs-ofctl(8), "set-frags
normal"), so a fragment matches no session's entry. The fragment would reach the other host, whose connection has other sequence numbers,
and the segment would be lost.

Switches copy fragments between the hosts of a service to the controller. After the first copy, fragments from one host to the other are
redirected to the agent of their sessions. The agent's kernel reassembles them, delivers the segments of the agent's sessions and forwards
the rest. This works for one agent only: if several agents serve the two hosts, or the agent needs ports rewritten, the sessions are reset
and the hosts' connections are plain for PLAIN_S.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from sos_controller.core.commands import Apply
from sos_controller.core.config import Site
from sos_controller.core.openflow.flow_entries import Action, FlowEntry, Goto, LearnSource, Match, Output, SetEthDst
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    FRAGMENT,
    PORT_CONTROLLER,
    PRIORITY_FRAGMENT,
    PRIORITY_REDIRECTED,
    PROTO_TCP,
    TABLE_FORWARD,
    TABLE_REDIRECT,
    Kind,
    shared,
)
from sos_controller.core.pairs.pair_selection import Candidate
from sos_controller.core.state import State
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.policies import fragment_matches
from sos_controller.core.tables.sessions import FINAL, Session
from sos_controller.core.types import Address, AgentId, DatapathId, Prefix
from sos_controller.core.wire.packets import ipv4_destination, ipv4_source

MAX_PER_SECOND: Final = 1_000
"""Maximum number of fragments processed per second; further fragments are only forwarded, and a later fragment of the same hosts is
processed instead."""
MAX_REDIRECTED: Final = 1_024
"""Maximum number of host pairs whose fragments are redirected; connections of further pairs are made plain."""
MAX_PLAIN: Final = 4_096
"""Maximum number of plain host pairs; the oldest are dropped, and detected again."""
PLAIN_S: Final = 600.0
"""Time for which a host pair is plain: a path that fragments packets usually does so for longer than a connection lasts, but may be
repaired."""
QUIET_S: Final = 2
"""Hard timeout of the entry that stops copies of fragments between hosts without a session: a plain connection may send many fragments."""
KEEP_S: Final = 60.0
"""Time for which fragments are still redirected after the last session of their hosts."""

_EXACT: Final = 0xFFFFFFFF
Pair = tuple[Address, Address]
"""Sender and receiver."""


class Redirection(NamedTuple):
    """Target of redirected fragments, and the time at which the redirection ends unless a session still needs it."""

    agent: AgentId
    site: str
    until: float


class Quiet(NamedTuple):
    """Switch and end of an entry that stops copies of a pair's fragments."""

    dpid: DatapathId
    until: float


class Fragments:
    """Pairs of hosts that have sent fragments."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._quiet: dict[Pair, Quiet] = {}  # bounded by MAX_PER_SECOND copies in QUIET_S
        self._redirected: dict[Pair, Redirection] = {}
        self._plain: OrderedDict[Pair, float] = OrderedDict()
        self._second, self._taken = 0, 0

    def configure(self) -> None:
        """Request copies of fragments at both sites of all reactive services."""
        state = self._state
        cookie = state.cookie(Kind.FRAGMENT)
        actions: tuple[Action, ...] = (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD))
        wanted: dict[DatapathId, dict[Match, FlowEntry]] = {}
        known: dict[tuple[tuple[Prefix, ...], tuple[Prefix, ...], bool], dict[Match, FlowEntry]] = {}  # many services share their prefixes
        priority = shared(PRIORITY_FRAGMENT, cookie)
        for policy in (p for policies in state.policies.by_site.values() for p in policies):
            service = policy.service
            if not state.has_entries(service) or state.is_proactive(service):
                continue
            for name, ingress in ((service.from_.site, True), (service.to.site, False)):
                alike = policy.clients, policy.servers, ingress
                if alike not in known:
                    matches = fragment_matches(policy, ingress)
                    known[alike] = {match: FlowEntry(TABLE_REDIRECT, priority, match, actions, cookie) for match in matches}
                for dpid in _bridges(state.sites.get(name)):
                    wanted.setdefault(dpid, {}).update(known[alike])
        state.programmer.set_group("fragments", {dpid: entries.values() for dpid, entries in wanted.items()}, state.out)

    def replan(self) -> None:
        """Follow the agents of redirected fragments."""
        for pair in list(self._redirected):
            self._lead(pair)

    def copied(self, dpid: DatapathId, data: bytes) -> list[Session]:
        """Handle a fragment copied by a switch. Return the sessions that cannot continue because of the fragment."""
        state = self._state
        source, target, claim = ipv4_source(data), ipv4_destination(data), state.claims.get(dpid)
        if int(state.now) != self._second:
            self._second, self._taken = int(state.now), 0
        self._taken += 1
        if source is None or target is None or claim is None or self._taken > MAX_PER_SECOND:
            return []
        theirs = self._sessions(source, target)
        if not theirs:
            self._hush(dpid, (source, target))
            return []
        if self._redirect((source, target), claim[0].name):
            return []
        state.count("fragments", "plain")
        self._hush(dpid, (source, target))  # the reset takes time; if it is lost, the next copy repeats it
        self._plain[_ends(source, target)] = state.now + PLAIN_S
        if len(self._plain) > MAX_PLAIN:
            self._plain.popitem(last=False)
        return [session for _, _, session in theirs]

    def begun(self, session: Session) -> None:
        """Follow the fragments of a new session at once, if plain connections of its hosts have just sent fragments: their switch sends no
        copies for up to QUIET_S."""
        state = self._state
        for pair in ((session.client, session.server), (session.server, session.client)):
            quiet = self._quiet.pop(pair, None)
            claim = None if quiet is None or quiet.until <= state.now or pair in self._redirected else state.claims.get(quiet.dpid)
            if quiet is not None and claim is not None and not self._redirect(pair, claim[0].name):
                state.out.append(Apply(quiet.dpid, (), (self._quiet_entry(pair),), 0, False))

    def is_plain(self, client: Address, server: Address) -> bool:
        """Return whether connections between two hosts are plain because of their fragments."""
        until = self._plain.get(_ends(client, server)) if self._plain else None
        return until is not None and self._state.now < until

    def keep(self, candidates: tuple[Candidate, ...], client: Address, server: Address) -> tuple[Candidate, ...]:
        """Keep only candidates whose agents would also get the fragments of a new session."""
        ingress, egress = self._redirected.get((client, server)), self._redirected.get((server, client))
        if ingress is None and egress is None:
            return candidates
        return tuple(
            c for c in candidates if (ingress is None or c.ingress == ingress.agent) and (egress is None or c.egress == egress.agent)
        )

    def tick(self) -> None:
        """Stop redirecting to agents that are gone, or that have had no session of the two hosts for KEEP_S."""
        state = self._state
        while self._quiet and next(iter(self._quiet.values())).until <= state.now:
            del self._quiet[next(iter(self._quiet))]
        for pair, led in list(self._redirected.items()):
            agent = state.agents.get(led.agent)
            if any(agent_id == led.agent for agent_id, _, _ in self._sessions(*pair)):
                self._redirected[pair] = led._replace(until=state.now + KEEP_S)
            if agent is None or agent.silent or led.until <= state.now:
                del self._redirected[pair]
                state.programmer.set_group(("fragments", *pair), {}, state.out)

    def _sessions(self, source: Address, target: Address) -> list[tuple[AgentId, bool, Session]]:
        """Return sessions of two hosts, each with the agent that receives packets from the first host to the second."""
        found = []
        for session in self._state.sessions.of_host(source):
            if session.state not in FINAL and {session.client, session.server} == {source, target}:
                ingress = session.client == source
                found.append((session.ingress if ingress else session.egress, ingress, session))
        return found

    def _redirect(self, pair: Pair, site: str) -> bool:
        """Redirect fragments to the agent of the pair's sessions. Return False if that is impossible."""
        state, theirs = self._state, self._sessions(*pair)
        agents = {agent for agent, _, _ in theirs}
        rewritten = any(state.rewritten_port(agent, ingress, 1) for agent, ingress, _ in theirs)
        if len(agents) != 1 or rewritten or len(self._redirected) >= MAX_REDIRECTED:
            return False
        self._redirected[pair] = Redirection(agents.pop(), site, state.now + KEEP_S)
        self._lead(pair)
        state.count("fragments", "led")
        return True

    def _lead(self, pair: Pair) -> None:
        """Install redirect entries at all switches of the sender's site, since the sender may move between them."""
        state, led = self._state, self._redirected[pair]
        agent = state.agents.get(led.agent)
        if agent is not None:
            entries = {dpid: [self._entry(dpid, pair, agent)] for dpid in _bridges(state.sites.get(led.site))}
            state.programmer.set_group(("fragments", *pair), entries, state.out)

    def _entry(self, dpid: DatapathId, pair: Pair, agent: Agent) -> FlowEntry:
        towards, where, cookie = SetEthDst(agent.beacon.mac), agent.location, self._state.cookie(Kind.FRAGMENT)
        here: tuple[Action, ...] = (LearnSource(), towards, Output(where.port_no))
        actions = here if dpid == where.dpid else (towards, Goto(TABLE_FORWARD))
        return FlowEntry(TABLE_REDIRECT, shared(PRIORITY_REDIRECTED, cookie), _between(pair), actions, cookie)

    def _hush(self, dpid: DatapathId, pair: Pair) -> None:
        self._quiet.pop(pair, None)  # the oldest comes first
        self._quiet[pair] = Quiet(dpid, self._state.now + QUIET_S)
        self._state.out.append(Apply(dpid, (self._quiet_entry(pair),), (), 0, False))

    def _quiet_entry(self, pair: Pair) -> FlowEntry:
        cookie = self._state.cookie(Kind.FRAGMENT)
        return FlowEntry(TABLE_REDIRECT, shared(PRIORITY_REDIRECTED, cookie), _between(pair), (Goto(TABLE_FORWARD),), cookie, QUIET_S)


def _between(pair: Pair) -> Match:
    source, target = ((address, _EXACT) for address in pair)
    return Match(eth_type=ETH_IPV4, ip_proto=PROTO_TCP, ipv4_src=source, ipv4_dst=target, ip_frag=FRAGMENT)


def _ends(one: Address, other: Address) -> Pair:
    return (one, other) if one < other else (other, one)


def _bridges(site: Site | None) -> Iterable[DatapathId]:
    """Return the switches of a site that are certainly Open vSwitch."""
    return [] if site is None else [d.number for d in site.datapaths if d.forwarding == "Node"]
