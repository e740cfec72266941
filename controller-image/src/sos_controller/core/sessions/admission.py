"""Admission: the decision whether a SYN gets a session, and the memory of decisions for plain TCP (thesis 3.4).

A SYN gets a `Route`, or goes plain for the reason behind its `Outcome`. A decision for plain TCP is remembered by (4-tuple, ISN) as long as
the SYN may be retransmitted, so that the retransmission goes plain, too.
"""

from __future__ import annotations

from typing import Final

from sos_controller.core.config import Service
from sos_controller.core.plain.outcome import AgentRefusal, Outcome
from sos_controller.core.plain.reason import PlainReason
from sos_controller.core.services.plan import Plan
from sos_controller.core.sessions.routes import Route, Routes
from sos_controller.core.sessions.server_lookup import ServerLookup
from sos_controller.core.state import MAX_PLAIN, State, Switch
from sos_controller.core.tables.policies import accelerated, accelerates
from sos_controller.core.types import Location
from sos_controller.core.wire.packets import Syn

PLAIN_S: Final = 130.0
"""Lifetime of a plain decision: it outlives all retransmissions of its SYN (RFC 6298 with 6 retries: 127 s)."""
_ASKED_AGAIN: Final = frozenset((Outcome.SERVER_UNREACHABLE, Outcome.SERVER_ELSEWHERE))
"""Back-off reasons that do not refuse a connection whose service requires acceleration: set-up tries the server again, and holds the
SYN."""


class Admission:
    """Decisions about SYNs."""

    def __init__(self, state: State, plan: Plan) -> None:
        self._state, self._plan, self._routes = state, plan, Routes(state, plan)
        self._server_lookup = ServerLookup(state)
        self.leaving = False
        """No SYN is admitted any more."""

    def decide(self, switch: Switch, location: Location, syn: Syn) -> Route | Outcome:
        """Return the route of a new session, or the outcome of a SYN that stays plain."""
        state, site = self._state, switch.site
        policy = None if site is None else state.policies.first(site.name, syn)
        required = policy is not None and bool(policy.service.require)
        service = policy.service if policy is not None and accelerates(policy.service, syn.key) else None
        if syn.key + syn.isn in state.plain and not required:
            if service is not None:
                state.plain_backoff.repeated(syn, service.to.site)
            return Outcome.DECIDED
        if syn.special:
            return Outcome.OPTION
        if self.leaving:
            return Outcome.LEAVING
        if service is None:
            return Outcome.NO_SERVICE
        refused = self._no_room(service, location, syn) or state.plain_backoff.why(syn, location, service.to.site, state.now)
        if refused is not None and not (required and service.accept != "Early" and refused in _ASKED_AGAIN):
            return refused
        self._server_lookup.look_for(service.to.site, syn.server)
        return self._routes.choose(service, switch.dpid, syn)

    def _no_room(self, service: Service, location: Location, syn: Syn) -> Outcome | None:
        """Return the reason why a service, a port, or the two hosts, cannot have one more session; None if there is none."""
        state = self._state
        if state.sessions.full or state.programmer.busy:
            return Outcome.FULL
        if not state.sessions.allows(location):
            return Outcome.PORT_SHARE
        if self._plan.fragments.is_plain(syn.client, syn.server):
            return Outcome.FRAGMENTS
        return None if state.shares.allows(service.id, state.sessions.by_group, self._plan.capacity) else Outcome.SHARE

    def remember(self, decision: bytes, outcome: Outcome | AgentRefusal) -> None:
        """Count a SYN that goes plain, and keep the decision as long as the SYN may be retransmitted."""
        state = self._state
        state.count("syns", outcome.text)
        if decision not in state.plain:
            if len(state.plain) >= MAX_PLAIN:
                state.plain.popitem(last=False)
            state.plain[decision] = state.now + PLAIN_S

    def tick(self) -> None:
        """Forget old decisions."""
        plain, now = self._state.plain, self._state.now
        while plain and next(iter(plain.values())) <= now:
            plain.popitem(last=False)

    def count_plain(self, switch: Switch, syn: Syn, outcome: Outcome) -> None:
        """Count a plain connection for the service that covers it, and for a service hidden by that service."""
        state, site = self._state, switch.site
        covering = [] if site is None else state.policies.covering(site.name, syn, 2)
        if not covering or outcome is Outcome.DECIDED:  # a retransmission of a SYN that has been counted
            return
        first = covering[0].service
        reason = outcome.reason
        if outcome is Outcome.NO_SERVICE:
            reason = _left_out(first)
            for hidden in (policy.service for policy in covering[1:] if accelerated(policy.service) and not accelerated(first)):
                state.plain_traffic.plain(hidden.id, PlainReason.SHADOWED, syn.key, state.now)
        if reason is not None:
            state.plain_traffic.plain(first.id, reason, syn.key, state.now)


def _left_out(service: Service) -> PlainReason:
    """Return the reason why a service does not accelerate a connection that it covers. A service with requirements never has a control
    group: the compiler sets its percent to 0 while the streams of its sites are not encrypted (docs/adr/0061)."""
    if service.mode == "Observe":
        return PlainReason.OBSERVED
    return PlainReason.NOT_ENCRYPTED if service.require else PlainReason.PERCENT
