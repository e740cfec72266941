"""No connection is plain without a reason, even with many prefixes and ports, or with an agent's listener port as client port."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from conftest import accepted, armed, eventually, metrics, transfers, with_service
from requests_of_hosts import MPTCP, answer
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import northbound
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

MANY = 64
HEALTH_PORT = 9465  # an agent's metrics listener, bound to all addresses


def plain(net: Lab) -> dict[str, Any]:
    shown: dict[str, Any] = northbound.get(net.plan, "/v1/plain")
    return shown


def programmed(net: Lab) -> list[dict[str, Any]]:
    return [service for service in northbound.get(net.plan, "/v1/status")["services"] if service["state"] == "Programmed"]


def elements(net: Lab) -> int:
    found = re.search(r"^sos_agent_armed_regions (\d+)$", metrics(net, "agent1"), flags=re.MULTILINE)
    return int(found[1]) if found else 0


def test_a_service_of_many_prefixes_and_ports_is_accelerated(net: Lab, tmp_path: Path) -> None:
    clients = [f"10.0.0.{2 * i + 1}/32" for i in range(MANY)]
    servers = [f"10.0.0.{129 + 2 * i}/32" for i in range(MANY - 1)]
    ports = [{"port": SOS_PORT}, *({"port": 5001 + 2 * i} for i in range(MANY - 1))]
    spec = {"from": {"site": "west", "prefixes": clients}, "to": {"site": "east", "prefixes": servers}, "ports": ports}
    net.declare(with_service(net.objects, **spec))
    eventually("armed: as many elements as prefixes and ports", lambda: elements(net) == 3 * MANY - 1)
    (service,) = eventually("programmed", lambda: programmed(net))
    assert "first packets of any client to any port of its servers are punted to the controller" in service["message"]
    transfers(net, SOS_PORT, 1_000_000, tmp_path / "copy")


def test_client_port_equal_to_an_agents_listener_port_is_accelerated(net: Lab) -> None:
    eventually("an armed agent", lambda: armed(net))
    before = accepted(net)
    assert answer(net, PLAIN_PORT, HEALTH_PORT) == "HTTP/1.1 404"
    assert answer(net, SOS_PORT, HEALTH_PORT) == "HTTP/1.1 404"
    assert accepted(net) - before == 1


def test_api_lists_plain_connection_with_its_reason(net: Lab) -> None:
    eventually("an armed agent", lambda: armed(net))
    before, own = accepted(net), 45_678
    assert answer(net, SOS_PORT, own, MPTCP) == "HTTP/1.1 404"
    assert accepted(net) == before
    found = next(c for c in plain(net)["connections"] if c["client"].endswith(f":{own}"))
    assert (found["reason"], found["by"], found["service"]) == ("Option", "controller", "default/bulk")
    assert found["server"] == f"{measure.address(net, 'server')}:{SOS_PORT}"
