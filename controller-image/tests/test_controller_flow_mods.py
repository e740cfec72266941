"""What is remembered of the last flow-mod never shows: commands are rendered as if each were the first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sos_controller import ofp
from sos_controller.core.commands import Apply
from sos_controller.core.flowtable import FlowEntry, Goto, Match, Output
from sos_controller.core.model import DatapathId, PortNo
from sos_controller.flow_mods import FlowMods

ENTRIES = [FlowEntry(0, 100, Match(in_port=PortNo(n)), (Output(PortNo(n)), Goto(1)), n) for n in (1, 2, 3)]
ENTRIES.append(FlowEntry(0, 100, Match(in_port=PortNo(1)), (Goto(1),), 1))
some = st.lists(st.sampled_from(ENTRIES), max_size=3).map(tuple)
commands = st.builds(Apply, st.just(DatapathId(1)), some, some, st.integers(0, 0xFFFFFFFF), st.booleans())


def one_by_one(command: Apply) -> bytes:
    token = command.token
    between = ofp.barrier_request(0) if command.adds and command.deletes else b""
    adds = b"".join(ofp.flow_mod(entry, ofp.ADD, token) for entry in command.adds)
    deletes = b"".join(ofp.flow_mod(entry, ofp.DELETE_STRICT, token) for entry in command.deletes)
    return adds + between + deletes + (ofp.barrier_request(token) if command.barrier else b"")


@given(st.lists(commands, max_size=6))
def test_commands_are_rendered_as_if_each_were_the_first(given_commands: list[Apply]) -> None:
    rendering = FlowMods()
    for command in given_commands:
        assert rendering.encode(command) == one_by_one(command)
