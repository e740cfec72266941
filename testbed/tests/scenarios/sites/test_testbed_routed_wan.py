"""Two sites without switches: gateways with agents intercept connections; two routed paths connect the sites.

client 10.1.0.11 -- agent1 ==wan0, 40 ms== agent2 -- 10.2.0.11 server
                           ==wan1, 80 ms==

Each path carries 40 Mbit/s, so a transfer of 64 Mbit/s needs both.
"""

import hashlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FAILED as FAILED_KEY
from conftest import eventually, explain, mend, outcome, peer, say, transfers, with_service
from peer import CHUNK, pattern
from sos_compile.model.world import Loaded
from sos_testbed.core.topology import PathOptions
from sos_testbed.core.web import PLAIN_PORT, SOS_PORT
from sos_testbed.lifecycle import faults, northbound, process, status
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

SIZE = 20_000_000
COVERED_PORT, PLAIN_PEER_PORT = "5003", "7001"
RATE_BPS = 40_000_000
LONG, RATE = 40_000_000, 8_000_000  # bytes, and bytes per second
STREAM_PORT, START_WINDOW, HANDSHAKE_TABLE = 10_000, 100, "5346"
GRACE_S = 60
AGAIN_S = 1.0
"""Maximum time without bytes after one of two paths is cut."""
TRIES = 3


@pytest.fixture(scope="module")
def routes() -> Iterator[Lab]:
    paths = [PathOptions(rate_bps=RATE_BPS, rtt_us=rtt_us) for rtt_us in (40_000, 80_000)]
    built = labs.up(Options(topology="routed-wan", path1=paths[0], path2=paths[1]), say)
    yield built
    built.down()


@pytest.fixture
def net(routes: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    objects = routes.objects
    eventually("no session of an earlier test", lambda: sessions(routes) == 0)
    yield routes
    if request.node.stash.get(FAILED_KEY, False):
        explain(routes)
    mend(routes)
    if routes.objects != objects:
        routes.declare(objects)
    labs.wait_ready(routes, routes.documents)


def sessions(net: Lab) -> int:
    documents = net.documents.agents
    return sum(int(northbound.agent_status(net.plan, name, documents[name])["sessions"]) for name in documents)


def gateway(net: Lab, *argv: str, part: str = "agent1") -> str:
    """Output of a command in the namespace of a gateway, by default the client's gateway."""
    return subprocess.run(net.exec_argv(part, argv), capture_output=True, text=True, check=True).stdout


def received(net: Lab, wire: str) -> int:
    """Bytes that the client's gateway has received over a WAN interface."""
    return int(gateway(net, "cat", f"/sys/class/net/{wire}/statistics/rx_bytes"))


def test_streams_start_with_a_large_window_and_follow_the_gateways_routes(net: Lab) -> None:
    """A stream's handshake has a mark, which selects a route with a large initial window. The established stream has no mark."""
    streams = gateway(net, "ss", "-tineHO", "state", "established", f"( sport = :{STREAM_PORT} or dport = :{STREAM_PORT} )").splitlines()
    assert streams
    for stream in streams:
        assert "fwmark" not in stream, stream
        assert int(re.findall(r" cwnd:(\d+)", stream)[0]) >= START_WINDOW, stream
    assert "fwmark" in gateway(net, "ip", "-4", "rule", "list", "table", HANDSHAKE_TABLE)
    process.stop(net.runner.pid_file("agent1"), grace_s=GRACE_S)
    try:
        assert not gateway(net, "ip", "-4", "rule", "list", "table", HANDSHAKE_TABLE)
    finally:
        net.start("agent1")


NAT = """table ip nat_of_west {
  chain input { type filter hook input priority 0; iifname "wan*" tcp dport 10000-10007 tcp flags & (syn | ack) == syn drop; }
  chain output { type nat hook postrouting priority srcnat;
    oifname "wan0" tcp dport 10000-10007 snat to 203.0.113.1
    oifname "wan1" tcp dport 10000-10007 snat to 203.0.113.129
  }
}
"""


@pytest.mark.parametrize("blocked", ["west", "east"])
def test_agents_behind_nat_open_the_streams(net: Lab, tmp_path: Path, blocked: str) -> None:
    """Translate the source addresses of one gateway's streams, and drop streams to this gateway."""
    behind, other = ("agent1", "agent2") if blocked == "west" else ("agent2", "agent1")
    number = 1 if behind == "agent1" else 2
    net.declare(behind_nat(net.objects, blocked))
    for each in (behind, other):
        net.kill(each)
    gateway(net, "nft", NAT, part=behind)
    for wire, outside in (("192.0.2", "203.0.113.1"), ("198.51.100", "203.0.113.129")):
        gateway(net, "ip", "route", "add", outside, "via", f"{wire}.{number}", part=other)
    try:
        for each in (other, behind):
            net.start(each)
        labs.wait_ready(net, net.documents)
        payload = net.root / "www" / "payload"
        labs.make_payload(payload, SIZE)
        done = measure.download(net, Request(path=payload, max_time_s=60), tmp_path / "copy")
        assert measure.same_bytes(payload, tmp_path / "copy", complete=done.complete)
        assert done.server_saw.startswith(str(measure.address(net, "client"))), done
        streams = gateway(net, "ss", "-tnHO", "state", "established", f"( sport = :{STREAM_PORT} )", part=other).split("\n")
        assert any("203.0.113.1:" in stream for stream in streams), streams
    finally:
        gateway(net, "nft", "delete table ip nat_of_west", part=behind)
        for outside in ("203.0.113.1", "203.0.113.129"):
            gateway(net, "ip", "route", "delete", outside, part=other)


def behind_nat(objects: tuple[Loaded, ...], name: str) -> tuple[Loaded, ...]:
    """Copy of the objects with one site Blocked."""

    def changed(loaded: Loaded) -> Loaded:
        if (loaded.obj["kind"], loaded.obj["metadata"]["name"]) != ("SosSite", name):
            return loaded
        spec = loaded.obj["spec"]
        return replace(loaded, obj={**loaded.obj, "spec": {**spec, "wan": {**spec["wan"], "inbound": "Blocked"}}})

    return tuple(map(changed, objects))


@pytest.mark.parametrize("port", [SOS_PORT, PLAIN_PORT])
def test_download_and_upload_keep_both_addresses(net: Lab, tmp_path: Path, port: int) -> None:
    transfers(net, port, SIZE, tmp_path / "copy")


@pytest.mark.parametrize(("mode", "second"), [("Auto", True), ("Shortest", False)])
def test_a_connection_uses_one_path_or_both(net: Lab, tmp_path: Path, mode: str, second: bool) -> None:
    net.declare(with_service(net.objects, paths={"mode": mode}))
    labs.wait_ready(net, net.documents)
    before = [received(net, wire) for wire in ("wan0", "wan1")]
    payload = net.root / "www" / "payload"
    labs.make_payload(payload, SIZE)
    done = measure.download(net, Request(path=payload, max_time_s=60), tmp_path / "copy")
    assert measure.same_bytes(payload, tmp_path / "copy", complete=done.complete)
    gained = [received(net, wire) - was for wire, was in zip(("wan0", "wan1"), before, strict=True)]
    assert gained[0] > SIZE // 10, gained
    assert (gained[1] > SIZE // 10) is second, gained


def test_closed_ports_refuse_connections(net: Lab) -> None:
    argv = net.exec_argv("client", ("curl", "-sS", "-m", "10", f"http://{measure.address(net, 'server')}:{COVERED_PORT}/"))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr  # curl's exit code of a refused connection


def expected() -> str:
    digest = hashlib.sha256()
    for offset in range(0, LONG, CHUNK):
        digest.update(pattern(offset, min(CHUNK, LONG - offset)))
    return digest.hexdigest()


@pytest.mark.parametrize("silent", [True, False], ids=["silent", "ports-down"])
@pytest.mark.parametrize("wire", ["agent1.wan0", "agent1.wan1"])
def test_bytes_arrive_again_soon_after_a_path_is_cut(net: Lab, wire: str, silent: bool) -> None:
    """Lose no byte in any run; keep the pause within its limit in at least one of three runs, because the machine may be busy."""
    pauses: list[float] = []
    while len(pauses) < TRIES and not any(pause <= AGAIN_S for pause in pauses):
        pauses.append(pause_after_cut(net, wire, silent=silent))
    assert min(pauses) <= AGAIN_S, pauses


def pause_after_cut(net: Lab, wire: str, *, silent: bool) -> float:
    server = peer(net, "server", "serve", COVERED_PORT, str(LONG), str(RATE))
    measure.wait_listening(net, "server", int(COVERED_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), COVERED_PORT)
    eventually("a session at both agents", lambda: sessions(net) == 2, within_s=5)
    was = received(net, wire.partition(".")[2])
    eventually("bytes on this path", lambda: received(net, wire.partition(".")[2]) - was > 500_000, within_s=5)
    faults.link(net, wire, up=False, silent=silent)
    got, sent = outcome(client, 60), outcome(server, 60)
    print(f"{wire} cut, {'silent' if silent else 'ports down'}: bytes again after {got['pause_s']:.2f} s")
    assert (got["bytes"], got["end"], got["sha256"]) == (LONG, "eof", expected())
    assert sent["client"] == got["own"]
    faults.link(net, wire, up=True, silent=silent)
    restore_routes(net)
    eventually("both paths", lambda: both_carry(net))
    return float(got["pause_s"])


def restore_routes(net: Lab) -> None:
    """Restore the routes that the kernel removed when an interface went down."""
    for node in net.topology.nodes:
        for prefix, gateway in node.routes:
            argv = ("ip", "-n", net.plan.netns(node.name), "route", "replace", str(prefix), "via", str(gateway))
            subprocess.run(argv, check=True)


def both_carry(net: Lab) -> bool:
    """True if a new download uses both paths. Streams on a repaired path send again only after their RTO."""
    before = [received(net, wire) for wire in ("wan0", "wan1")]
    fetch = ("curl", "-sS", "-m", "20", "-r", "0-9999999", "-o", "/dev/null", f"http://{measure.address(net, 'server')}/100M")
    subprocess.run(net.exec_argv("client", fetch), check=True)
    return all(received(net, wire) - was > 500_000 for wire, was in zip(("wan0", "wan1"), before, strict=True))


def test_new_connections_are_plain_soon_after_the_agent_is_killed(net: Lab) -> None:
    faults.agent(net, "agent1", up=False)
    url = f"http://{measure.address(net, 'server')}/100M"
    fetch = ("curl", "-sS", "-m", "20", "-r", "0-99999", "-o", "/dev/null", "-w", "%{size_download} %{time_total}", url)
    done = subprocess.run(net.exec_argv("client", fetch), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    size, seconds = done.stdout.split()
    assert size == "100000"
    print(f"first connection after the kill: {float(seconds):.2f} s")


def test_a_killed_agent_does_not_touch_plain_connections(net: Lab) -> None:
    server = peer(net, "server", "serve", PLAIN_PEER_PORT, "6000000", "2000000")
    measure.wait_listening(net, "server", int(PLAIN_PEER_PORT))
    client = peer(net, "client", "fetch", measure.address(net, "server"), PLAIN_PEER_PORT)
    faults.agent(net, "agent1", up=False)
    assert outcome(client, 60)["end"] == "eof"
    outcome(server, 60)


def test_status_shows_agents_and_services(net: Lab) -> None:
    text = "\n".join(status.lines(status.collect(net)))
    assert "agent1 at west" in text and "default/bulk (Ingress)" in text, text
