"""Ports: remedies name those in use, and tests of a path choose those inside and beside a service."""

from __future__ import annotations

import re
from typing import Any

import pytest
import sos_compile
from hypothesis import given
from hypothesis import strategies as st
from operator_kube import ROOT
from sos_kubectl.diagnose.findings import REMEDIES
from sos_kubectl.targets import ports

SERVICE: dict[str, Any] = {
    **{"id": "default/bulk", "mode": "Accelerate", "ports": [{"first": 5000, "last": 5999}]},
    **{"from": {"site": "west", "prefixes": ["10.0.0.0/25"]}, "to": {"site": "east", "prefixes": ["10.0.0.128/25"]}},
}
TROUBLESHOOTING = (ROOT / "docs" / "troubleshooting.md").read_text()


@pytest.mark.parametrize("text", [REMEDIES["LinkSilent"], TROUBLESHOOTING.partition("### LinkSilent\n")[2].partition("\n### ")[0]])
def test_remedies_name_the_udp_port_of_tunnels(text: str) -> None:
    assert re.findall(r"UDP (\d+)", text) == [str(sos_compile.Settings().ports.tunnels)]


RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)).map(lambda ends: (min(ends), max(ends))), max_size=5)


@given(RANGES, RANGES)
def test_subtract_returns_exactly_the_remaining_ports(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> None:
    def ports_in(found: list[tuple[int, int]]) -> set[int]:
        return {port for first, last in found for port in range(first, last + 1)}

    assert ports_in(ports.subtract(some, others)) == ports_in(some) - ports_in(others)


def test_a_plain_port_belongs_to_no_service_and_a_through_port_to_the_service() -> None:
    earlier = {**SERVICE, "id": "default/first", "ports": [{"first": 5500, "last": 65535}]}
    through = {**SERVICE, "ports": [{"first": 22, "last": 22}, {"first": 5000, "last": 5999}]}
    config = {"services": [earlier, through], "balances": []}
    ends = ("10.0.0.11", "10.0.0.139")
    assert ports.of_service(through, config, *ends) == [(5000, 5499), (22, 22)]
    taken = {port for first, last in ports.beside(config, *ends) for port in (first, last)}
    assert all(not ((5000 <= port <= 65535) or port == 22) for port in taken)
    back = ports.beside(config, *reversed(ends))
    assert back == list(ports.BESIDE), "the service does not cover connections that the server opens"
    everything = {"services": [{**SERVICE, "ports": [{"first": 1, "last": 65535}]}], "balances": []}
    assert ports.beside(everything, *ends) == []
