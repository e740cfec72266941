"""Pairs of agents, the paths between them, and the entries that carry labelled streams (spec/node-config.md 8, 9)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import networkx as nx

from sos_controller.core.openflow.flow_entries import Action, FlowEntry, ForgetPort, Match, Output, SetEthDst, SetEthSrc
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    MAX_LABELS,
    PRIORITY_PATH,
    PROTO_TCP,
    PROTO_UDP,
    TABLE_REDIRECT,
    TUNNEL_PORTS,
    path_mac,
    shared,
)
from sos_controller.core.tables.agents import Agent
from sos_controller.core.topology.path_cache import PathCache
from sos_controller.core.topology.paths import Path
from sos_controller.core.types import AgentId, DatapathId, PortNo

MAX_PAIRS = 65_536
"""Maximum number of pairs: a pair number has 16 bits of the path MAC address. Further pairs get no labelled paths, and so no sessions."""

PairKey = tuple[AgentId, AgentId]
"""The lower id first."""
SitePair = tuple[str, str]
"""Sites of the clients and of the servers of a service."""


class Pair(NamedTuple):
    """Two agents and the path of each label, from the lower agent id to the higher. Label 0 has the cheapest path; with fewer paths than
    labels, labels share paths."""

    low: AgentId
    high: AgentId
    number: int
    paths: tuple[Path, ...]

    @property
    def label_mask(self) -> int:
        """Return the mask of labels with a path of their own, as orders encode it."""
        return sum(1 << label for label, path in enumerate(self.paths) if path not in self.paths[:label])

    @property
    def dpids(self) -> frozenset[DatapathId]:
        """Return every datapath with entries of the pair."""
        return frozenset(dpid for path in self.paths for dpid in path.dpids)


def pair_key(one: AgentId, other: AgentId) -> PairKey:
    """Return the two ids in order."""
    return (one, other) if one < other else (other, one)


class PairNumbers:
    """Pair numbers. They are derived from agent ids, so that most numbers stay the same after a restart; on collision, the next free
    number."""

    def __init__(self) -> None:
        self._numbers: dict[PairKey, int] = {}
        self._taken: set[int] = set()

    def number(self, pair: PairKey) -> int | None:
        """Return the pair's number; None if all are taken."""
        found = self._numbers.get(pair)
        if found is not None or len(self._taken) >= MAX_PAIRS:
            return found
        found = int.from_bytes(hashlib.sha256(pair[0] + pair[1]).digest()[:2], "big")
        while found in self._taken:
            found = (found + 1) % MAX_PAIRS
        self._numbers[pair] = found
        self._taken.add(found)
        return found

    def keep(self, pairs: Iterable[PairKey]) -> None:
        """Free the numbers of all other pairs."""
        kept = set(pairs)
        for pair in [p for p in self._numbers if p not in kept]:
            self._taken.discard(self._numbers.pop(pair))


def plan(cache: PathCache, ends: tuple[Agent, Agent], number: int, labels: int, before: Pair | None) -> Pair | None:
    """Return the pair with its current paths. If there is no path, keep the earlier paths between the same datapaths: entries are moved,
    never dropped without a replacement."""
    low, high = ends
    count = max(min(labels, low.beacon.stream_ports, high.beacon.stream_ports, MAX_LABELS), 1)
    found = cache.disjoint(low.location.dpid, high.location.dpid, count)
    if not found:
        dpids = (low.location.dpid, high.location.dpid)
        same = before is not None and before.paths and (before.paths[0].source, before.paths[0].target) == dpids
        return before if same else None
    return Pair(low.agent_id, high.agent_id, number, assign(found, count, before.paths if before is not None else ()))


def assign(found: tuple[Path, ...], labels: int, before: tuple[Path, ...]) -> tuple[Path, ...]:
    """Assign a path to each label: the cheapest to label 0, and to other labels their former path if it still exists, so that only failed
    paths move."""
    given: dict[int, Path] = {0: found[0]}
    for label, path in enumerate(before[:labels]):
        if label not in given and path in found and path not in given.values():
            given[label] = path
    rest = [path for path in found if path not in given.values()]
    for label in range(labels):
        if label not in given and rest:
            given[label] = rest.pop(0)
        elif label not in given:
            given[label] = before[label] if label < len(before) and before[label] in found else found[label % len(found)]
    return tuple(given[label] for label in range(labels))


def has_path(g: nx.MultiGraph, pair: Pair) -> bool:
    """Return whether the path of label 0 lies on links that exist now."""
    return all(g.has_edge(used.a.dpid, used.b.dpid, used) for used in pair.paths[0].links)


def entries(pair: Pair, low: Agent, high: Agent, cookie: int, *, datagrams: bool = False) -> dict[DatapathId, list[FlowEntry]]:
    """Return path entries of all labels in both directions. A direction has two entries at its first switch and one at each later switch,
    independent of the number of streams. With `datagrams`, the first switch has one more entry, for streams over QUIC."""
    made: dict[DatapathId, list[FlowEntry]] = {}
    for label, path in enumerate(pair.paths):
        back = Path(path.target, path.source, tuple((b, a) for a, b in reversed(path.steps)), path.cost)
        macs = (path_mac(label, pair.number, 0), path_mac(label, pair.number, 1))
        for here, there, way, (own, other) in ((low, high, path, macs), (high, low, back, macs[::-1])):
            out = Output(way.steps[0][0].port_no)
            marked: tuple[Action, ...] = (SetEthSrc(own), SetEthDst(other), out)
            made.setdefault(way.source, []).extend(_entry(m, marked, cookie) for m in _outgoing(here, there, label, datagrams=datagrams))
            match = Match(eth_src=own, eth_dst=other)
            for (_, into), (leave, _) in zip(way.steps, way.steps[1:], strict=False):
                made.setdefault(into.dpid, []).append(_entry(match, _across(into.port_no, leave.port_no), cookie))
            restored = (SetEthSrc(here.beacon.mac), SetEthDst(there.beacon.mac), Output(there.location.port_no))
            made.setdefault(way.target, []).append(_entry(match, restored, cookie))
    return made


def _across(into: PortNo, leave: PortNo) -> tuple[Action, ...]:
    """Forward from one port of a switch to another. Between two tunnels, clear the ingress port first: tunnels are protected ports, and
    Open vSwitch would drop the packet."""
    out = Output(leave)
    return (ForgetPort(), out) if into in TUNNEL_PORTS and leave in TUNNEL_PORTS else (out,)


def _outgoing(here: Agent, there: Agent, label: int, *, datagrams: bool) -> Iterator[Match]:
    """Match packets that leave an agent on streams of a label: streams that the agent opened (by the peer's port) and streams that it
    accepted (by its own port). Over QUIC, both ends of a connection use their stream ports."""
    own, other = here.beacon.first_stream_port + label, there.beacon.first_stream_port + label
    between = Match(
        in_port=here.location.port_no,
        eth_type=ETH_IPV4,
        ip_proto=PROTO_TCP,
        ipv4_src=(here.beacon.address, 0xFFFFFFFF),
        ipv4_dst=(there.beacon.address, 0xFFFFFFFF),
    )
    yield msgspec.structs.replace(between, tcp_dst=(other, 0xFFFF))
    yield msgspec.structs.replace(between, tcp_src=(own, 0xFFFF))
    if datagrams:
        yield msgspec.structs.replace(between, ip_proto=PROTO_UDP, udp_dst=other)


def _entry(match: Match, actions: tuple[Action, ...], cookie: int) -> FlowEntry:
    return FlowEntry(TABLE_REDIRECT, shared(PRIORITY_PATH, cookie), match, actions, cookie)
