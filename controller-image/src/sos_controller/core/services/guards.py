"""Guards: entries that send packets of agents and of other switches to plain forwarding, before any entry of a service applies.

A node's bridge gets them when it joins the graph of the plan for the first time: until then no path leads there, and its base table has
guards of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Match
from sos_controller.core.openflow.pipeline import ETH_IPV4, PRIORITY_GUARD, TABLE_FORWARD, TABLE_REDIRECT, Kind, shared
from sos_controller.core.pairs.agent_pairs import SitePair
from sos_controller.core.state import State
from sos_controller.core.types import Address, DatapathId, PortNo

_EXACT = 0xFFFFFFFF


class _Guarded(NamedTuple):
    """Ports and addresses of a datapath's guards."""

    ports: tuple[PortNo, ...]
    addresses: tuple[Address, ...]


class Guards:
    """Guards of the connected datapaths of all sites with services."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._peers: dict[str, set[str]] = {}
        self._installed: dict[DatapathId, _Guarded] = {}
        self._joined: set[DatapathId] = set()
        """Datapaths that have been in the graph."""

    def configure(self, pairs: Iterable[SitePair]) -> None:
        """Set the pairs of sites that services connect."""
        self._peers = {}
        for one, other in pairs:
            self._peers.setdefault(one, {one}).add(other)
            self._peers.setdefault(other, {other}).add(one)

    def replan(self) -> None:
        """Replace the guards of datapaths whose ports or addresses have changed."""
        state, wanted = self._state, self._wanted()
        for dpid in sorted(self._installed.keys() - wanted.keys()):
            state.programmer.set_group(("guards", dpid), {}, state.out)
        for dpid, guarded in wanted.items():
            if self._installed.get(dpid) != guarded:
                state.programmer.set_group(("guards", dpid), {dpid: self._entries(guarded)}, state.out)
        self._installed = wanted

    def _wanted(self) -> dict[DatapathId, _Guarded]:
        state, addresses, ports = self._state, self._addresses(), dict[DatapathId, set[PortNo]]()
        for agent in state.agents.all():
            ports.setdefault(agent.location.dpid, set()).add(agent.location.port_no)
        found = {}
        self._joined.update(state.graph)
        self._joined &= state.claims.keys()
        for dpid, (site, claim) in state.claims.items():
            if site.name in addresses and dpid in state.switches and (claim.forwarding != "Node" or dpid in self._joined):
                links = state.topology.ports_of(dpid) - state.topology.tunnel_ports(dpid)  # the base table guards tunnels
                found[dpid] = _Guarded(tuple(sorted(links | ports.get(dpid, set()))), addresses[site.name])
        return found

    def _addresses(self) -> dict[str, tuple[Address, ...]]:
        """Return, for each site of a service, the addresses of the site's own agents and of the agents of all sites to which services
        connect it."""
        state = self._state
        declared = {s.name: {a.ip for a in s.agents} for s in state.sites.values()}
        for agent in state.agents.all():
            declared.setdefault(state.agent_sites.get(agent.agent_id, ""), set()).add(agent.beacon.address)
        return {site: tuple(sorted(a for p in peers for a in declared.get(p, ()))) for site, peers in self._peers.items()}

    def _entries(self, guarded: _Guarded) -> list[FlowEntry]:
        matches = [Match(in_port=port) for port in guarded.ports]
        for address in guarded.addresses:
            matches.append(Match(eth_type=ETH_IPV4, ipv4_src=(address, _EXACT)))
            matches.append(Match(eth_type=ETH_IPV4, ipv4_dst=(address, _EXACT)))
        cookie = self._state.cookie(Kind.GUARD)
        return [FlowEntry(TABLE_REDIRECT, shared(PRIORITY_GUARD, cookie), m, (Goto(TABLE_FORWARD),), cookie) for m in matches]
