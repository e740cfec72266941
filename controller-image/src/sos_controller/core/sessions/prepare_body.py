"""Bodies of Prepare orders. All fields except UUID and flow are the same for all sessions with the same transport between two agents, and
rendered once, for all services and beacons with the same values."""

from __future__ import annotations

from typing import NamedTuple

from sos_controller.core.config import Transport
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.sessions import Session
from sos_controller.core.types import Address
from sos_controller.core.wire import order
from sos_controller.core.wire.beacon import Beacon
from sos_controller.core.wire.order import Prepare, Role

PREPARATION_MS = 8_000
"""Lifetime of a preparation: less than the 10 s after which a report may end the session."""
MAX_FORMS = 8_192

_Asked = tuple[int, int, int]
"""Accept setting, and DSCP and TTL of a server connection that is opened before the session's Open."""


class _Form(NamedTuple):
    """Constant parts of a body, before and after UUID and flow."""

    before: bytes
    after: bytes


_Values = tuple[Transport, bytes, Address, int, Role, int, _Asked]
"""All values in the constant parts."""


class PrepareBody:
    """Renderer of Prepare bodies."""

    def __init__(self) -> None:
        self._forms: dict[_Values, _Form] = {}

    def body(self, session: Session, other: Agent, role: Role) -> bytes:
        """Render the body for an agent in this role, with `other` as its peer agent."""
        asks = session.confirms and role is Role.EGRESS
        asked: _Asked = (order.ACCEPT_CONFIRMED, session.dscp, session.ttl) if asks else (order.ACCEPT_EARLY, 0, 0)
        said, transport, labels = other.beacon, session.transport, session.labels
        values = (transport, said.agent_id, said.address, said.first_stream_port, role, labels, asked)
        form = self._forms.get(values)
        if form is None:
            form = self._form(said, role, transport, labels, asked)
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            self._forms[values] = form
        return order.fill_prepare(form.before, form.after, session.uuid, session.key)

    @staticmethod
    def _form(other: Beacon, role: Role, transport: Transport, labels: int, asked: _Asked) -> _Form:
        accept, dscp, ttl = asked
        sample = Prepare(
            uuid=bytes(16), role=role, streams=transport.streams, block_bytes=transport.block_bytes, queue_bytes=transport.queue_bytes,
            lease_ms=PREPARATION_MS, client=Address(0), server=Address(0), client_port=0, server_port=0, labels=labels,
            congestion=order.CONGESTION[transport.congestion_control], accept=accept, dscp=dscp, ttl=ttl, peer_id=other.agent_id,
            peer_address=other.address, peer_stream_port=other.first_stream_port,
        )  # fmt: skip
        return _Form(*order.prepare_form(sample))
