"""Two namespaces with services between the same sites: neither changes what the covered connections of the other get (docs/adr/0049).

client -- edge1 ======= core1 ------- edge2 -- server       default/bulk covers 80 and 5000-5999, tenant/own covers 9000
            |    40 ms                  |
         agent1                      agent2
"""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from conftest import PROGRAMS, SHARED, accepted, armed, eventually, mend, say, sessions, with_service
from sos_compile.model.world import Loaded
from sos_testbed.lifecycle import declare, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

CROWD, HANDSHAKES = PROGRAMS / "crowd.py", PROGRAMS / "handshakes.py"
FIRST, SECOND = 5301, 9000
"""Port of the earlier and of the later tenant; both are covered by one service of their tenant."""
CLOSED = 5302
SESSIONS, SHARE = 40, 30
"""Sessions of each agent, and the most sessions of each of two tenants: three quarters."""
EVERY_PORT = [{"port": 1, "endPort": 65535}]
GREEDY: dict[str, dict[str, Any]] = {
    "observe": {"mode": "Observe", "priority": 65535, "ports": EVERY_PORT},
    "early": {"accept": "Early", "priority": 65535, "ports": EVERY_PORT},
    "percent": {"percent": 0, "priority": 65535, "ports": [{"port": FIRST}]},
    "narrower": {"mode": "Observe", "priority": 65535, "ports": [{"port": FIRST}], "to": {"site": "east", "prefixes": ["10.0.0.139/32"]}},
    "proactive": {"setup": "Proactive", "mode": "Accelerate", "priority": 65535, "ports": [{"port": 5000, "endPort": 5999}]},
}


def service(namespace: str, name: str, **spec: Any) -> Loaded:
    whole = {"from": {"site": "west"}, "to": {"site": "east"}, **spec}
    meta = {"name": name, "namespace": namespace}
    return Loaded("tenants", 0, {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": meta, "spec": whole})


def limited(objects: tuple[Loaded, ...]) -> tuple[Loaded, ...]:
    """Objects with few sessions for each agent."""

    def changed(loaded: Loaded) -> Loaded:
        if loaded.obj["kind"] != "SosAgent":
            return loaded
        return replace(loaded, obj={**loaded.obj, "spec": {**loaded.obj["spec"], "limits": {"sessions": SESSIONS}}})

    return tuple(map(changed, objects))


@pytest.fixture(scope="module")
def tenants() -> Iterator[Lab]:
    built = labs.up(SHARED, say)
    try:
        put(built, declare.merge(limited(built.objects), (service("tenant", "own", ports=[{"port": SECOND}]),)))
        argv = built.exec_argv("server", (sys.executable, str(CROWD), "serve", str(FIRST), str(SECOND)))
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as serving:
            for port in (FIRST, SECOND):
                measure.wait_listening(built, "server", port)
            yield built
            serving.kill()
    finally:
        built.down()


@pytest.fixture
def net(tenants: Lab) -> Iterator[Lab]:
    objects = tenants.objects
    eventually("an armed agent", lambda: armed(tenants))
    for port, own in ((FIRST, "default/bulk"), (SECOND, "tenant/own")):
        eventually(f"{own} in force at the agents, too", lambda port=port, own=own: decided(tenants, port) == {own: 2})
    eventually("no session", lambda: sessions(tenants) == 0)
    yield tenants
    mend(tenants)
    put(tenants, objects)


def put(net: Lab, objects: tuple[Loaded, ...]) -> None:
    net.declare(objects)
    labs.wait_ready(net, net.documents)


@contextmanager
def held(net: Lab, port: int, count: int) -> Iterator[Counter[str]]:
    """Open connections; give the number of their sessions by service, while the connections stand."""
    server = measure.address(net, "server")
    argv = net.exec_argv("client", (sys.executable, str(CROWD), "hold", server, str(port), "0", str(count)))
    program = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        said = json.loads(program.stdout.readline())
        assert (said["whole"], said["broken"]) == (count, {}), said
        own = {f"{measure.address(net, 'client')}:{port}" for port in said["ports"]}
        found = northbound.get(net.plan, "/v1/sessions")["sessions"]
        yield Counter(session["service"] for session in found if session["client"] in own)
    finally:
        program.kill()
        program.wait()


def decided(net: Lab, port: int) -> Counter[str]:
    """Services that accelerate two new connections to a port."""
    with held(net, port, 2) as found:
        return found


def refused(net: Lab) -> bool:
    """True if a closed port of the earlier tenant refuses before an agent has accepted, as `accept: Learned` promises."""
    before, server = accepted(net), measure.address(net, "server")
    argv = net.exec_argv("client", (sys.executable, str(HANDSHAKES), "each", server, str(CLOSED), "1"))
    (seen,) = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
    return (seen["error"], accepted(net)) == ("ConnectionRefusedError", before)


@pytest.mark.parametrize("spec", GREEDY.values(), ids=GREEDY)
def test_a_later_tenant_does_not_change_connections_of_the_earlier(net: Lab, spec: dict[str, Any]) -> None:
    put(net, declare.merge(net.objects, (service("tenant", "greedy", **spec),)))
    eventually("the earlier tenant's connections", lambda: decided(net, FIRST) == {"default/bulk": 2})
    assert decided(net, FIRST) == {"default/bulk": 2}
    assert refused(net)


def test_the_earlier_tenant_does_not_take_connections_of_the_later(net: Lab) -> None:
    first = tuple(loaded for loaded in net.objects if loaded.obj["metadata"].get("namespace") != "tenant")
    grown = with_service(first, ports=EVERY_PORT, mode="Observe", priority=65535)
    put(net, declare.merge(net.objects, grown))
    eventually("the later tenant's connections", lambda: decided(net, SECOND) == {"tenant/own": 2})
    eventually("the own connections of the earlier tenant are observed", lambda: not decided(net, FIRST))


def test_a_tenant_that_opens_many_connections_leaves_sessions_for_the_other(net: Lab) -> None:
    with held(net, SECOND, 2 * SESSIONS) as theirs, held(net, FIRST, SESSIONS - SHARE) as own:
        print(f"sessions: {dict(theirs)}, {dict(own)}")
        assert theirs == {"tenant/own": SHARE}
        assert own == {"default/bulk": SESSIONS - SHARE}
