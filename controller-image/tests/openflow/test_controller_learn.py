"""Compare encoded learn actions with Open vSwitch's own output, and test that decoding inverts encoding."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_controller.core.openflow.flow_entries import Action, GiveTurn, Output, Remember, RememberAnswers, TakeTurn
from sos_controller.core.types import PortNo, parse_address, parse_mac
from sos_controller.openflow import ofp

COOKIE = 0x534F_0102_0000_0001
MAC, ROUTER = parse_mac("02:00:00:00:01:02"), parse_mac("02:00:00:00:02:02")
CLIENT, CLIENT_MAC = parse_address("10.0.0.11"), parse_mac("02:00:00:00:00:11")

RESUBMITS = "".join(f"ffff0010 00002320 000e fff8 {table:02x} 000000" for table in (2, 3, 4, 5))
TAKE = "0019 0010 00010004 00000000 00000000   0019 0010 00010404 01010001 00000000" + RESUBMITS
GIVE = """
ffff0038 00002320 0010 1d10 0000 0001 534f010200000001 0000 02 00 0000 0000
    0020 00010404 0000 00010404 0000   2810 0001 00010004 0000
ffff0028 00002320 000d 0000 0000 0000 00000002 0003 000f 00010004 00000000 0002 0003 0004 0000
"""
REMEMBER = """
ffff00b8 00002320 002d 1d10 0000 7468 534f010200000001 0004 00 00 003c 0000 00000032 0010 0000 00010004
    200d 0000 00000802 0000   2010 0800 00000602 0000   2008 0006 00000c01 0000
    0020 00000e04 0000 00000e04 0000   0020 00001004 0000 00001004 0000
    0010 00001202 0000 00001202 0000   0010 00001402 0000 00001402 0000
    2830 020000000102 00000406 0000   2830 020000000202 00000206 0000   2820 c0000202 00000e04 0000   1010 00010004 0000
    0000 00000000
"""
ANSWERS = """
ffff00b8 00002320 002d 1d10 0000 b414 534f010200010001 0000 00 00 003c 0000 00000032 0000 0000
    2010 0002 00000002 0000   200d 0000 00000802 0000   2010 0800 00000602 0000   2008 0006 00000c01 0000
    0020 00001004 0000 00000e04 0000
    2020 c0000202 00001004 0000   0010 00001402 0000 00001202 0000   0010 00001202 0000 00001402 0000
    2830 02534f530002 00000406 0000   2830 020000000011 00000206 0000   2820 0a00000b 00001004 0000   1010 00000002 0000 0000
"""
"""Dumps by Open vSwitch 3.1 in OpenFlow 1.3, for entries that ovs-ofctl(8) had added from text (ovs-actions(7))."""


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (TakeTurn(0x01010001), TAKE),
        (GiveTurn(1, (PortNo(2), PortNo(3), PortNo(4)), 7440, COOKIE), GIVE),
        (Remember(MAC, ROUTER, parse_address("192.0.2.2"), 7440, 60, 50, COOKIE), REMEMBER),
        (RememberAnswers(PortNo(2), parse_address("192.0.2.2"), CLIENT, CLIENT_MAC, 7440, 60, 50, COOKIE + 0x10000), ANSWERS),
    ],
    ids=["take", "give", "remember", "answers"],
)
def test_learn_actions_are_encoded_as_by_open_vswitch(action: Action, said: str) -> None:
    assert ofp.encode_actions((action,)) == bytes.fromhex(said)
    assert ofp._parse_instructions(ofp.encode_instructions((action,))) == (action,)


macs = st.binary(min_size=6, max_size=6)
seconds, numbers, cookies = st.integers(0, 65535), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
turn_actions = st.one_of(
    st.builds(TakeTurn, numbers),
    st.builds(GiveTurn, seconds, st.lists(st.integers(0, 65535), min_size=1, max_size=32).map(tuple), seconds, cookies),
    st.builds(RememberAnswers, seconds, numbers, numbers, macs, seconds, seconds, numbers, cookies),
    st.builds(Remember, macs, macs, numbers, seconds, seconds, numbers, cookies),
)


@given(turn_actions, st.lists(st.builds(Output, st.integers(1, 0xFEFF)), max_size=2))
def test_learn_actions_and_following_actions_survive_a_round_trip(action: Action, others: list[Output]) -> None:
    assert ofp._parse_instructions(ofp.encode_instructions((action, *others))) == (action, *others)


@given(turn_actions, st.data())
def test_corrupted_learn_action_decodes_differently_or_fails(action: Action, data: st.DataObject) -> None:
    encoded = bytearray(ofp.encode_instructions((action,)))
    encoded[data.draw(st.integers(8, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = ofp._parse_instructions(bytes(encoded))
    except ofp.WireError:
        return
    assert found != (action,)
    assert all(
        ofp.encode_actions((each,)) in encoded for each in found if isinstance(each, TakeTurn | GiveTurn | Remember | RememberAnswers)
    )


@given(turn_actions, st.integers(0, 200))
def test_truncated_learn_action_is_not_decoded(action: Action, length: int) -> None:
    encoded = ofp.encode_actions((action,))
    if length < len(encoded):
        body = encoded[:length]
        try:
            found = ofp._parse_instructions(b"\0\4" + (8 + len(body)).to_bytes(2, "big") + bytes(4) + body)
        except ofp.WireError:
            return
        assert action not in found
