"""Passive measurement: connections measured from copies of three packets: SYN, the server's SYN-ACK and its FIN (docs/adr/0015).

For services that are observed, or accelerated in part, the clients' switch copies these packets to the controller and forwards them as
before. The entries are leases, a constant number per service. Round trip and duration are the times between the packets; the bytes of both
directions follow from the FIN's sequence and acknowledgement numbers. Accelerated and plain connections are measured at the same place in
the same way, so the two can be compared.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from sos_controller.core.config import Service
from sos_controller.core.openflow.flow_entries import FlowEntry, Goto, Output
from sos_controller.core.openflow.pipeline import (
    LEASE_S,
    PORT_CONTROLLER,
    PRIORITY_MEASURE,
    PRIORITY_OBSERVE,
    TABLE_FORWARD,
    TABLE_REDIRECT,
    TCP_ACK,
    TCP_FIN,
    TCP_SYN,
    Kind,
)
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.services.gain import ACCELERATED, PLAIN, Gain
from sos_controller.core.state import State, Switch
from sos_controller.core.tables.policies import Policy, answer_matches, compared, punt_matches
from sos_controller.core.types import DatapathId, FlowKey
from sos_controller.core.wire.packets import Syn, parse_segment, parse_syn

MAX_CONNECTIONS = 65_536
"""Maximum number of connections whose end is awaited; the oldest are dropped, and count only as begun."""
GROUP = "measure"
_SEQUENCES = 1 << 32


class _Open(NamedTuple):
    """An open connection."""

    service: str
    group: str
    began: float
    isn: int
    server_isn: int | None


class PassiveMeasurement:
    """Connections of compared services, and their measurements."""

    def __init__(self, state: State, limit: int = MAX_CONNECTIONS) -> None:
        self._state, self._limit = state, limit
        self._open: OrderedDict[FlowKey, _Open] = OrderedDict()
        self._services: dict[str, Gain] = {}

    def __len__(self) -> int:
        return len(self._open)

    def configure(self) -> None:
        """Forget services that are no longer compared, and request copies for the others."""
        wanted = {s.id for s in self._state.services if compared(s)}
        self._services = {service: self._services.get(service, Gain()) for service in sorted(wanted)}
        self._open = OrderedDict((key, found) for key, found in self._open.items() if found.service in wanted)
        self._request_copies()

    def comparison(self, service_id: str) -> Gain | None:
        """Return a service's measurements, None if it is not compared."""
        return self._services.get(service_id)

    def renew(self) -> None:
        """Renew the leases."""
        self._state.programmer.renew(GROUP, self._state.out)

    def punted(self, switch: Switch, syn: Syn, outcome: Outcome | None) -> None:
        """Record the decision about a SYN. `outcome`: None if the connection is accelerated."""
        service = self._service(switch, syn)
        if service is None or syn.key in self._open:
            return
        if outcome is None and service.mode == "Accelerate":
            self._begin(service, ACCELERATED, syn)
        elif outcome is Outcome.NO_SERVICE:  # the flow's hash assigned it to the plain group; other plain connections are not comparable
            self._begin(service, PLAIN, syn)

    def copied(self, switch: Switch, data: bytes) -> None:
        """Handle a packet copied by an entry of ours."""
        syn = parse_syn(data)
        if syn is not None:
            service = self._service(switch, syn)
            if service is not None and service.mode == "Observe" and not self._repeats(syn):
                self._begin(service, PLAIN, syn)
            return
        segment = parse_segment(data)
        found = self._open.get(segment.back) if segment is not None else None
        if segment is None or found is None:
            return
        comparison, now = self._services.get(found.service), self._state.now
        if segment.flags & TCP_SYN:
            if found.server_isn is None:
                self._open[segment.back] = found._replace(server_isn=segment.seq)
                if comparison is not None and segment.ack == (found.isn + 1) % _SEQUENCES:
                    comparison.answered(found.group, now - found.began, now)
        elif segment.flags & TCP_FIN:
            del self._open[segment.back]
            if comparison is not None and found.server_isn is not None:
                down = (segment.seq + segment.size - found.server_isn - 1) % _SEQUENCES
                up = (segment.ack - found.isn - 1) % _SEQUENCES
                comparison.ended(found.group, max(up, down), now - found.began, now)

    def forget(self, key: FlowKey) -> None:
        """Forget a connection whose acceleration was given up during set-up: it is in neither group."""
        self._open.pop(key, None)

    def _request_copies(self) -> None:
        """Request copies from the switches, except from a datapath with balances: a copied packet would bypass the balance's entries."""
        state, wanted = self._state, dict[DatapathId, list[FlowEntry]]()
        spreading = {b.number for b in state.config.balances} if state.config is not None else set()
        for policies in state.policies.by_site.values():
            for policy in (p for p in policies if compared(p.service) and p.service.id not in state.no_room):
                for datapath in state.sites[policy.service.from_.site].datapaths:
                    if datapath.number not in spreading:
                        wanted.setdefault(datapath.number, []).extend(self._entries(policy))
        state.programmer.set_group(GROUP, wanted, state.out)

    def _service(self, switch: Switch, syn: Syn) -> Service | None:
        if not self._services or switch.site is None:
            return None
        policy = self._state.policies.first(switch.site.name, syn)
        return policy.service if policy is not None and policy.service.id in self._services else None

    def _repeats(self, syn: Syn) -> bool:
        found = self._open.get(syn.key)
        return found is not None and found.isn == int.from_bytes(syn.isn, "big")

    def _begin(self, service: Service, group: str, syn: Syn) -> None:
        while len(self._open) >= self._limit:
            self._open.popitem(last=False)
        self._open.pop(syn.key, None)
        self._open[syn.key] = _Open(service.id, group, self._state.now, int.from_bytes(syn.isn, "big"), None)
        self._services[service.id].begun(group)

    def _entries(self, policy: Policy) -> list[FlowEntry]:
        cookie, copy = self._state.cookie(Kind.MEASURE), (Output(PORT_CONTROLLER), Goto(TABLE_FORWARD))
        first = punt_matches(policy) if policy.service.mode == "Observe" else []
        answers = answer_matches(policy, ((TCP_SYN | TCP_ACK, TCP_SYN | TCP_ACK), (TCP_FIN, TCP_FIN)))
        return [
            *(FlowEntry(TABLE_REDIRECT, PRIORITY_OBSERVE, match, copy, cookie, LEASE_S) for match in first),
            *(FlowEntry(TABLE_REDIRECT, PRIORITY_MEASURE, match, copy, cookie, LEASE_S) for match in answers),
        ]
