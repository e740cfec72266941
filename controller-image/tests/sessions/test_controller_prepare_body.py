"""Test that cached Prepare bodies equal freshly rendered bodies."""

from __future__ import annotations

import msgspec
from controller_world import World, syn_frame
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.config import Transport
from sos_controller.core.sessions.prepare_body import PrepareBody
from sos_controller.core.tables.agents import Agent
from sos_controller.core.tables.sessions import AGENTS_DECIDE, Session
from sos_controller.core.types import Address, AgentId, Location, PortNo, flow_key, parse_address
from sos_controller.core.wire import order
from sos_controller.core.wire.order import Prepare, Role

ports, addresses, uuids = st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF).map(Address), st.binary(min_size=16, max_size=16)
prepares = st.builds(
    Prepare, uuid=uuids, role=st.sampled_from(Role), streams=st.integers(0, 255), block_bytes=st.integers(0, 2**32 - 1),
    queue_bytes=st.integers(0, 2**32 - 1), lease_ms=st.integers(0, 2**32 - 1), client=addresses, server=addresses, client_port=ports,
    server_port=ports, labels=st.integers(0, 2**32 - 1), congestion=st.integers(0, 3), accept=st.integers(0, 1),
    dscp=st.integers(0, 63), ttl=st.integers(0, 255), peer_id=uuids.map(AgentId), peer_address=addresses,
    peer_stream_port=ports,
)  # fmt: skip


@given(prepares, uuids, addresses, addresses, ports, ports)
def test_filled_form_decodes_to_the_prepare(
    sample: Prepare, uuid: bytes, client: Address, server: Address, client_port: int, server_port: int
) -> None:
    filled = order.fill_prepare(*order.prepare_form(sample), uuid, flow_key(client, server, client_port, server_port))
    theirs = sample._replace(uuid=uuid, client=client, server=server, client_port=client_port, server_port=server_port)
    assert order.decode_prepare(filled) == theirs


def test_changed_inputs_invalidate_a_cached_body() -> None:
    world = World()
    world.converge()
    agent = next(a for a in world.engine.state.agents.all() if a.agent_id == world.agents["agent2"].id)
    session = Session(flow_key(Address(1), Address(2), 3, 4), bytes(range(16)), Location(world.west, PortNo(3)), 0.0)
    preparation = PrepareBody()

    def told(other: Agent, role: Role, transport: Transport) -> Prepare:
        session.transport = transport
        return order.decode_prepare(preparation.body(session, other, role))

    eight = Transport(streams=8, block_bytes=65_536, queue_bytes=0, congestion_control="Cubic")
    four = msgspec.structs.replace(eight, streams=4)
    first = told(agent, Role.INGRESS, eight)
    assert (first.streams, first.block_bytes, first.queue_bytes, first.congestion) == (8, 65_536, 0, 1)
    assert told(agent, Role.INGRESS, four).streams == 4
    assert told(agent, Role.EGRESS, four).role == Role.EGRESS
    moved = Agent(msgspec.structs.replace(agent.beacon, address=parse_address("10.0.0.77")), agent.location, 0.0)
    assert told(moved, Role.INGRESS, four).peer_address == parse_address("10.0.0.77")
    session.confirms, session.syn = True, syn_frame(1, 2, 3, 4, dscp=46)
    confirmed = told(agent, Role.EGRESS, four)
    assert (confirmed.accept, confirmed.dscp, confirmed.ttl) == (order.ACCEPT_CONFIRMED, 46, 64)
    assert told(agent, Role.INGRESS, four).accept == order.ACCEPT_EARLY, "only the egress agent connects to the server"
    session.labels = 3
    assert told(agent, Role.INGRESS, four).labels == 3
    session.service = "other/service"
    assert told(agent, Role.INGRESS, AGENTS_DECIDE).streams == 0
