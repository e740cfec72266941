"""Connections from client to server: direct TCP, or through a pair of running relays (agents, haproxy, socat)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from sos_testbed.core.model import LabError
from sos_testbed.lifecycle.runner import write_file

from sos_harness import network
from sos_harness.agents import SERVICE_PORTS
from sos_harness.scenario import ENCRYPTED, QUIC, Kind, Scheme
from sos_harness.site import ARMED_S, Site, missing

SOS_PORT = SERVICE_PORTS[0] + 3
PLAIN_PORT, HAPROXY_PORT, SOCAT_PORT = 8000, 8300, 8400
SESSIONS = 100
"""Connection limit of haproxy unless a benchmark sets another limit."""


class NotAvailableError(Exception):
    """A peer is not available on this machine; the message gives the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Address and port to which the client connects, port of the server, namespace that sends over the long link, and relays between client
    and server."""

    address: str
    port: int
    server_port: int
    sender: str
    relays: tuple[int, int] | None = None
    """Processes of the relay beside the server, which sends in a download, and of the relay beside the client."""


@contextmanager
def opened(site: Site, scheme: Scheme, sessions: int = SESSIONS) -> Iterator[Way]:
    """Open a way for the block. Raises NotAvailableError, or LabError if its programs do not start."""
    site.flush_tcp_metrics("client", "server", "near", "far", "hanear", "hafar")
    with WAYS[scheme.kind](site, scheme, sessions) as way:
        yield way


@contextmanager
def plain(site: Site, scheme: Scheme, _sessions: int = SESSIONS) -> Iterator[Way]:
    """Direct TCP between client and server."""
    if why := missing(congestion=scheme.congestion):
        raise NotAvailableError(why)
    with site.congestion("client", network.CLIENT, scheme.congestion) if scheme.both_hosts else nullcontext():
        yield Way(address=network.SERVER, port=PLAIN_PORT, server_port=PLAIN_PORT, sender="server")


@contextmanager
def sos(site: Site, scheme: Scheme, _sessions: int = SESSIONS) -> Iterator[Way]:
    """Two newly started agents whose streams are open."""
    root = site.plan.root if scheme.only_path is None else site.plan.alone
    with ExitStack() as stack:
        pids = {
            each.part: stack.enter_context(site.running(each.part, each.part, *each.argv(site.programs.agent, root, scheme.policy)))
            for each in site.plan.agents
        }
        site.wait_armed()
        # wait for the scheme's streams: an agent opens its first streams over plain TCP if the peer's port for them is not open yet
        kind = scheme.policy if scheme.policy in (ENCRYPTED, QUIC) else "plain"
        site.until(lambda: site.kind() == kind, ARMED_S, f"{kind} streams between the agents", "near")
        yield Way(address=network.SERVER, port=SOS_PORT, server_port=SOS_PORT, sender="far", relays=(pids["far"], pids["near"]))


@contextmanager
def haproxy(site: Site, scheme: Scheme, sessions: int = SESSIONS) -> Iterator[Way]:
    """Two haproxies, one beside each host."""

    def argv(part: str, to: str) -> tuple[str, ...]:
        config = Path(site.plan.root) / f"{part}.cfg"
        write_file(config, haproxy_config(to, sessions, splice=scheme.splice))
        return ("haproxy", "-db", "-f", str(config))

    with _pair(site, scheme, "haproxy", HAPROXY_PORT, argv) as way:
        yield way


@contextmanager
def socat(site: Site, scheme: Scheme, _sessions: int = SESSIONS) -> Iterator[Way]:
    """Two socats with default options: buffers of 8 KiB and one process per connection."""

    def argv(_part: str, to: str) -> tuple[str, ...]:
        return ("socat", f"TCP-LISTEN:{SOCAT_PORT},fork,reuseaddr", f"TCP:{to}")

    with _pair(site, scheme, "socat", SOCAT_PORT, argv) as way:
        yield way


@contextmanager
def _pair(site: Site, scheme: Scheme, program: str, port: int, argv: Callable[[str, str], tuple[str, ...]]) -> Iterator[Way]:
    """Chain two relays of a program."""
    if why := missing(program, congestion=scheme.congestion):
        raise NotAvailableError(why)
    hops = (
        ("hanear", network.HAPROXY_NEAR, f"{network.HAPROXY_FAR}:{port}"),
        ("hafar", network.HAPROXY_FAR, f"{network.SERVER}:{PLAIN_PORT}"),
    )
    with ExitStack() as stack:
        pids = {}
        for part, own, to in hops:
            site.command(part, "ip", "route", "change", *network.route(own, scheme.congestion).split())
            pids[part] = stack.enter_context(site.running(part, part, *argv(part, to)))
            site.wait_listening(part, port, part)
        relays = (pids["hafar"], pids["hanear"])
        yield Way(address=network.HAPROXY_NEAR, port=port, server_port=PLAIN_PORT, sender="hafar", relays=relays)


def haproxy_config(to: str, sessions: int = SESSIONS, *, splice: bool = False) -> str:
    """Configuration of one haproxy. Buffers autotune within the namespace's limits; a fixed size would be capped at net.core.rmem_max."""
    options = "\n".join(f"  option splice-{when}" for when in (("request", "response") if splice else ("auto",)))
    return f"""global
  maxconn {sessions}
defaults
  mode tcp
{options}
  timeout connect 10s
  timeout client 1m
  timeout server 1m
listen relay
  bind :{HAPROXY_PORT}
  maxconn {sessions}
  server next {to}
"""


@contextmanager
def all_accelerated(site: Site, scheme: Scheme) -> Iterator[Callable[[int], None]]:
    """Yield a check that takes the number of connections in the block, and raises LabError if some of them went plain: they would
    otherwise count in the figures."""
    before = site.accepted() if scheme.kind is Kind.SOS else 0.0

    def check(connections: int) -> None:
        if scheme.kind is Kind.SOS and (took := site.accepted() - before) < connections:
            raise LabError(f"the agents took {took:.0f} of {connections} connections")

    yield check


WAYS: dict[Kind, Callable[[Site, Scheme, int], AbstractContextManager[Way]]] = {
    Kind.PLAIN: plain,
    Kind.SOS: sos,
    Kind.HAPROXY: haproxy,
    Kind.SOCAT: socat,
}
