"""Gather facts for `kubectl sos diagnose`: real transfers first, then every status, so that all facts are current."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sos_kubectl.base.source import Controller, SourceError
from sos_kubectl.diagnose import checks, samples
from sos_kubectl.diagnose.facts import AgentView, Asked, Facts, Pair, Server
from sos_kubectl.targets import ports, traffic
from sos_kubectl.targets.traffic import Way
from sos_kubectl.targets.transfer import End, Transfer

COMPARED_FROM_S = 3
"""Minimum duration of transfers whose rates are compared: shorter ones measure the start of a connection."""
REPEATS = 2

Json = dict[str, Any]
Say = Callable[[str], None]


class Place(Protocol):
    """A lab or a cluster."""

    def objects(self) -> list[Json]:
        """The custom resources."""

    def config(self) -> Json:
        """The controller-config last sent to the controller, read without the controller; {} if unknown."""

    def ends(
        self, sites: tuple[Json, Json], prefixes: tuple[list[str], list[str]]
    ) -> AbstractContextManager[tuple[End | None, End | None, str]]:
        """Provide a client and a server at two sites inside the block, preferably within some prefixes, or the reason of the failure."""

    def agents(self, config: Json) -> list[tuple[str, str, str]]:
        """Id, name and site of every agent that should run."""

    def agent_metrics(self, name: str) -> str:
        """The agent's /metrics; "" if the user may not query it; SourceError if the agent does not run."""


@dataclass(frozen=True, slots=True)
class Look:
    """The target of a diagnosis, its controller, and the duration of transfers."""

    place: Place
    controller: Controller
    seconds: int
    say: Say


def gather(look: Look, asked: Asked) -> Facts:
    """Gather all facts about two sites. SourceError if a site is unknown or the objects cannot be read."""
    facts = Facts(asked=asked, objects=look.place.objects())
    before = _refused(look)
    _config(look, facts)
    if facts.config:
        sites = {site["name"]: site for site in facts.config["sites"]}
        for wanted in (asked.from_site, asked.to_site):
            if wanted not in sites:
                raise SourceError(f"no site {wanted}; there are {', '.join(sorted(sites)) or 'none'}")
        pair, service = (sites[asked.from_site], sites[asked.to_site]), checks.chosen(facts)
        within = (service["from"]["prefixes"], service["to"]["prefixes"]) if service else (pair[0]["prefixes"], pair[1]["prefixes"])
        look.say(f"looking for a host at {asked.from_site} and one at {asked.to_site}")
        with look.place.ends(pair, within) as (client, server, why):
            facts.client, facts.server, facts.ends_error = client, server, why
            try:
                _traffic(look, facts)
            except SourceError as error:
                facts.ends_error = str(error)
    _control(look, facts)
    after = _refused(look)
    facts.refused = {reason: count - before.get(reason, 0) for reason, count in after.items() if count > before.get(reason, 0)}
    return facts


def pairs(config: Json, service: str = "") -> list[tuple[str, str]]:
    """Return each pair of sites with a declared service once; with `service`, only that service's pairs (SourceError if there are none)."""
    declared = config.get("services", ())
    found = [each for each in declared if service in ("", each["id"])]
    if service and not found:
        spread = " (it is spread over uplinks without agents)" if any(b["id"] == service for b in config.get("balances", ())) else ""
        names = ", ".join(each["id"] for each in declared) or "none"
        raise SourceError(f"no accelerated service {service} is in force{spread}; there are {names}: kubectl sos status shows why")
    return list(dict.fromkeys((each["from"]["site"], each["to"]["site"]) for each in found))


def _config(look: Look, facts: Facts) -> None:
    try:
        facts.config = look.controller.get("/v1/config")
    except SourceError as error:
        facts.config, facts.controller_error = look.place.config(), str(error)


def _control(look: Look, facts: Facts) -> None:
    """Read status and counters of controller and agents."""
    try:
        facts.status, facts.agents, facts.topology = (look.controller.get(what) for what in ("/v1/status", "/v1/agents", "/v1/topology"))
        facts.controller_error = ""
        facts.plain_connections = _plain_connections(look, facts)
    except SourceError as error:
        facts.controller_error = str(error)
    for agent_id, name, site in look.place.agents(facts.config):
        if site in (facts.asked.from_site, facts.asked.to_site):
            facts.views[agent_id] = _view(look, name, site)


def _plain_connections(look: Look, facts: Facts) -> list[Json]:
    """The connections of the chosen service that recently went plain."""
    service = checks.chosen(facts)
    return [] if service is None else list(look.controller.get(f"/v1/plain?service={service['id']}")["connections"])


def _view(look: Look, name: str, site: str) -> AgentView:
    try:
        found = samples.totals(look.place.agent_metrics(name))
    except SourceError as error:
        return AgentView(name, site, error=str(error))
    number = {what: int(found.get(f"sos_agent_{what}", 0)) for what in ("armed_regions", "streams", "draining")}
    return AgentView(name, site, "", number["armed_regions"], number["streams"], draining=bool(number["draining"]), told=bool(found))


def _refused(look: Look) -> dict[str, int]:
    """Beacons dropped so far, by reason; empty if the controller does not answer, which another finding reports."""
    try:
        text = look.controller.text("/metrics")
    except SourceError:
        return {}
    return samples.by_reason(text, "sos_controller_beacons_dropped_total")


def _traffic(look: Look, facts: Facts) -> None:
    service, client, server = checks.chosen(facts), facts.client, facts.server
    if client is None or server is None:
        return
    covered = service is not None and ports.covers(service, client.address, server.address)
    through = ports.of_service(service, facts.config, client.address, server.address) if service is not None and covered else []
    plain = ports.beside(facts.config, client.address, server.address)
    with ExitStack() as stack:
        through_port, plain_port = stack.enter_context(traffic.server(server, through, plain)) if through or plain else (None, None)
        if plain_port is not None:
            look.say(f"packets between {client.address} and {server.address}")
            facts.mtu = traffic.mtu(client, server.address, plain_port)
        _plain(look, facts, (client, server), plain_port)
        if service is not None and through_port is not None:
            look.say(f"through service {service['id']}: port {through_port}")
            facts.through = _through(look, facts, (client, server), through_port)
            if plain_port is not None:
                _compare(look, facts, Way(client, server.address, through_port, look.seconds), plain_port)
    if facts.asked.server is not None:
        look.say(f"server {facts.asked.server[0]}:{facts.asked.server[1]}")
        near, far = (traffic.connect(end, *facts.asked.server) for end in (server, client))
        facts.own_server = Server(*facts.asked.server, far=far, near=near)


def _compare(look: Look, facts: Facts, through: Way, plain_port: int) -> None:
    """Repeat both transfers in each direction in which SOS was slower than plain TCP: a single pair may be chance."""
    first = (facts.through, facts.plain)
    if not facts.accelerated or look.seconds < COMPARED_FROM_S or not all(pair is not None and pair.ok for pair in first):
        return
    for direction in ("up", "down"):
        ratio = _ratio(*(pair.of(direction) for pair in first if pair is not None))
        if ratio >= checks.SLOWER_BELOW:
            continue
        look.say(f"slower than plain TCP {direction}wards: repeating both transfers {REPEATS} times")
        plain = replace(through, port=plain_port)
        ratios = [ratio]
        for _ in range(REPEATS):
            again, beside = traffic.transfer(through, direction), traffic.transfer(plain, direction)
            if not again.ok and facts.through is not None:
                facts.through = facts.through.with_transfer(direction, again)  # a path that fails now and then is broken, not slow
            ratios.append(_ratio(again, beside))
        facts.ratios[direction] = tuple(ratios)


def _ratio(through: Transfer, plain: Transfer) -> float:
    """Rate through SOS as a fraction of plain TCP's; 1 if plain TCP has failed, which says nothing about SOS."""
    return (through.mbps if through.ok else 0.0) / plain.mbps if plain.ok and plain.mbps > 0 else 1.0


def _plain(look: Look, facts: Facts, ends: tuple[End, End], port: int | None) -> None:
    """Transfer on a port without a service. If services cover all ports, the server opens the connection instead, on a port that no service
    covers in that direction."""
    client, server = ends
    if port is not None:
        look.say(f"without SOS: port {port}")
        way = Way(client, server.address, port, look.seconds)
        facts.plain = Pair(port, up=traffic.transfer(way, "up"), down=traffic.transfer(way, "down"))
        return
    back = ports.beside(facts.config, server.address, client.address)
    if not back:
        return
    with traffic.server(client, [], back) as (_, found):
        if found is None:
            return
        look.say(f"without SOS, opened by {server.address}: port {found}")
        there_and_back = traffic.mtu(server, client.address, found)
        facts.mtu = replace(there_and_back, forward=there_and_back.back, back=there_and_back.forward)
        way = Way(server, client.address, found, look.seconds)
        facts.plain = Pair(found, up=traffic.transfer(way, "down"), down=traffic.transfer(way, "up"))
        facts.plain_reversed = True


def _through(look: Look, facts: Facts, ends: tuple[End, End], port: int) -> Pair:
    """Transfer through a service, and look for the session of each connection meanwhile."""
    client, server = ends

    def seen(own: str) -> bool:
        """True if the controller lists an active session of this connection; other connections of the same hosts do not count."""
        try:
            sessions = look.controller.get(f"/v1/sessions?client={own}&server={server.address}:{port}")["sessions"]
        except SourceError:
            return False
        # a session that is being set up may still be refused, which makes its connection plain
        return any(s["client"] == own and s["server"] == f"{server.address}:{port}" and s["state"] == "Active" for s in sessions)

    way = Way(client, server.address, port, look.seconds)
    up, accelerated = traffic.watched(way, "up", seen)
    down, again = (traffic.transfer(way, "down"), False) if accelerated else traffic.watched(way, "down", seen)
    facts.accelerated = accelerated or again
    return Pair(port, up, down)
