"""`kubectl sos diagnose`: derive findings from facts, in the order of cause. Pure.

The checks are independent of each other, one per layer. `findings.ORDER` ranks findings, so that a finding explains the later ones.
For users, "works" means that a transfer arrived; a condition never proves this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from sos_kubectl.diagnose import links, relevance
from sos_kubectl.diagnose.facts import AgentView, Facts, Pair
from sos_kubectl.diagnose.findings import Finding, in_order
from sos_kubectl.diagnose.relevance import Concern
from sos_kubectl.targets import ports
from sos_kubectl.targets.transfer import Transfer
from sos_kubectl.views import trace

Json = dict[str, Any]

OK, SLOWER, DEGRADED, PLAIN, BROKEN, UNKNOWN = "ok", "slower", "degraded", "plain", "broken", "unknown"
SLOWER_BELOW = 0.8
"""Fraction of plain TCP's rate below which SOS counts as slower. Single transfers of three seconds differ by a tenth on quiet machines."""
RECENT_S = 300
"""Age in seconds up to which a plain connection counts, as for the condition Accelerating."""
UNANSWERED = ("ServerSilent", "ServerUnreachable")
"""Reasons of connections whose server has not answered an agent."""
KEY_REASONS = ("tag", "key", "replay")
"""Reasons for dropping a declared agent's beacon: wrong key, missing key, or a clock that is far off."""


def findings(facts: Facts) -> list[Finding]:
    """All findings, in the order of cause."""
    return in_order([finding for check in CHECKS for finding in check(facts)])


def verdict(facts: Facts, found: list[Finding]) -> str:
    """The verdict in one word: `ok` only if transfers in both directions arrived, with and without SOS, and nothing is broken."""
    sent = [pair for pair in (facts.plain, facts.through) if pair is not None]
    if any(not pair.ok for pair in sent) or (facts.own_server is not None and (facts.own_server.far or facts.own_server.near)):
        return BROKEN
    if facts.through is None or not sent:
        return UNKNOWN
    if not facts.accelerated or any(finding.code == "NotCovered" for finding in found):
        return PLAIN  # the accelerated connection was not the requested one
    if any(finding.code == "SlowerThanPlain" for finding in found):
        return SLOWER
    return DEGRADED if found or facts.plain is None else OK


def chosen(facts: Facts) -> Json | None:
    """Select the service to check: the first of `services` that covers the connection, or else the closest match."""
    return min(services(facts), key=lambda service: _misses(facts, service), default=None)


def services(facts: Facts) -> list[Json]:
    """The services from the one site to the other, in order of precedence."""
    asked = facts.asked
    found = [s for s in facts.config.get("services", ()) if (s["from"]["site"], s["to"]["site"]) == (asked.from_site, asked.to_site)]
    return [s for s in found if not asked.service or s["id"] == asked.service]


def _covers(facts: Facts, service: Json) -> bool:
    return not any(_misses(facts, service))


def _misses(facts: Facts, service: Json) -> tuple[bool, bool, bool]:
    """Return three flags, for server, port and client: True if the value is outside the service. An unknown value counts as inside."""
    client, (server, port) = facts.client, _target(facts)
    return (
        bool(server) and not ports.inside(server, service["to"]["prefixes"]),
        bool(port) and not ports.holds(service, port),
        client is not None and not ports.inside(client.address, service["from"]["prefixes"]),
    )


def _target(facts: Facts) -> tuple[str, int]:
    """The server's address and port: the requested ones, or else the host's address and any port (0)."""
    return facts.asked.server or (facts.server.address if facts.server is not None else "", 0)


# -- checks, one layer each


def _controller(facts: Facts) -> Iterable[Finding]:
    if facts.controller_error:
        yield Finding("ControllerUnreachable", "controller", f"The controller does not answer: {facts.controller_error}")
    elif not facts.config:
        yield Finding("NoConfiguration", "controller", "The controller runs without a configuration.")


def rejected_objects(facts: Facts) -> Iterable[Finding]:
    """Findings for objects with a refused spec or reference, except other teams' objects. Other checks cover objects that are not ready."""
    service = chosen(facts)
    served = service is not None and _covers(facts, service)
    for obj in facts.objects:
        how = relevance.of_object(obj, facts, served=served)
        conditions = (obj.get("status") or {}).get("conditions") or ()
        for condition in conditions if how is not Concern.NONE else ():
            if condition.get("type") in ("Accepted", "ResolvedRefs") and condition.get("status") == "False":
                name = "/".join(part for part in (obj["metadata"].get("namespace"), obj["metadata"]["name"]) if part)
                what = f"{condition.get('reason', '')}: {condition.get('message', '')}"
                yield Finding("NotAccepted", f"{obj['kind']} {name}", what, near=how is Concern.OWN)


def declared_service(facts: Facts) -> Iterable[Finding]:
    """Findings for a missing service, and for a service that does not accelerate the connection."""
    asked = facts.asked
    if not facts.config:
        return
    service = chosen(facts)
    if service is None:
        wanted = f"no service {asked.service}" if asked.service else "no service"
        back = any((s["from"]["site"], s["to"]["site"]) == (asked.to_site, asked.from_site) for s in facts.config["services"])
        hint = f"; there is one from {asked.to_site} to {asked.from_site}" if back and not asked.service else ""
        where = f"{asked.from_site} to {asked.to_site}"
        yield Finding("NoService", where, f"There is {wanted} for connections opened by {asked.from_site} to {asked.to_site}{hint}.")
    elif not _covers(facts, service):
        yield _not_covered(facts, service)
    elif service["percent"] <= 0 and service.get("require"):
        what = "It requires Encrypted, and the streams between its sites are not encrypted: all of its connections are refused."
        yield Finding("NotEncrypted", f"service {service['id']}", what)
    elif service["mode"] != "Accelerate" or service["percent"] <= 0:
        what = f"Its mode is {service['mode']}" if service["mode"] != "Accelerate" else "Its percent is 0"
        yield Finding("NotRedirected", f"service {service['id']}", f"{what}: all of its connections stay plain.")


def _not_covered(facts: Facts, service: Json) -> Finding:
    wrong_server, _, wrong_client = _misses(facts, service)
    client, (server, port) = facts.client, _target(facts)
    if wrong_server or wrong_client:
        end, host = ("from", client.address) if wrong_client and client is not None else ("to", server)
        what = f"It covers connections {end} {', '.join(service[end]['prefixes'])}; {host} is outside these prefixes."
        return Finding("NotCovered", f"service {service['id']}", what)
    there = [s for s in services(facts) if ports.inside(server, s["to"]["prefixes"])]
    have = "; ".join(f"{s['id']} has {trace.ports_in_words(s['ports'])}" for s in there)
    who = f"Service {facts.asked.service} does not cover" if facts.asked.service else "No service covers"
    what = f"{who} port {port} of {server} for {facts.asked.from_site}: connections to it are plain ({have})."
    return Finding("NotCovered", f"{server}:{port}", what)


def _ends(facts: Facts) -> Iterable[Finding]:
    if facts.ends_error:
        yield Finding("NoEnds", f"{facts.asked.from_site}, {facts.asked.to_site}", facts.ends_error)


def _datapaths(facts: Facts) -> Iterable[Finding]:
    for datapath in facts.status.get("datapaths", ()):
        if not datapath["connected"] and links.concerned(facts, datapath["site"]):
            what = f"The switch {datapath['name']} of site {datapath['site']} is not connected to the controller."
            yield Finding("DatapathDisconnected", datapath["name"], what, near=links.near(facts, datapath["site"]))


def _agents(facts: Facts) -> Iterable[Finding]:
    known = {agent["id"]: agent for agent in facts.agents.get("agents", ())}
    for site in facts.config.get("sites", ()) if not facts.controller_error else ():
        for declared in site["agents"] if site["name"] in (facts.asked.from_site, facts.asked.to_site) else ():
            name = declared["node"] if declared["pool"] == "default" else f"{declared['node']}-{declared['pool']}"
            yield from _agent(facts, f"{name} ({site['name']})", known.get(declared["id"]), facts.views.get(declared["id"]))


def _agent(facts: Facts, where: str, known: Json | None, view: AgentView | None) -> Iterable[Finding]:
    if known is not None:
        if known["draining"] or not known["willing"]:
            why = (
                "it is draining"
                if known["draining"]
                else f"it has {known['sessions']} of {known['sessionLimit']} sessions, or its memory is used up"
            )
            yield Finding("AgentUnwilling", where, f"The agent at {where} takes no new sessions: {why}.")
    elif view is None or view.error:
        yield Finding("AgentDown", where, f"The agent at {where} is unavailable: {view.error if view is not None else 'no process'}.")
    elif view.draining:
        yield Finding("AgentUnwilling", where, f"The agent at {where} takes no new sessions: it is draining.")
    elif refused := {reason: facts.refused[reason] for reason in KEY_REASONS if facts.refused.get(reason)}:
        told = {"tag": "signed with another key", "key": "signed with a key the controller does not have", "replay": "too old or too new"}
        said = " and ".join(f"{count} {told[reason]}" for reason, count in refused.items())
        yield Finding("AgentRefused", where, f"The agent at {where} runs, but the controller refuses its beacons: {said}.")
    else:
        yield Finding("AgentSilent", where, f"The agent at {where} runs, but the controller receives no valid beacons from it.")


def _streams(facts: Facts) -> Iterable[Finding]:
    """Findings for ingress agents without a stream, although both sites' agents are willing and the ingress agent answers this command."""
    agents = facts.agents.get("agents", ())
    both = [[a for a in agents if a["site"] == site and a["willing"] and not a["draining"]] for site in _pair(facts)]
    service = chosen(facts)
    if not all(both) or service is None or service["mode"] != "Accelerate":
        return
    for agent in both[0]:
        view = facts.views.get(agent["id"])
        if view is not None and not view.error and view.told and view.armed == 0 and view.streams == 0:
            what = f"The agent {view.name} of {agent['site']} has no stream to any agent of {facts.asked.to_site} and stays idle."
            yield Finding("StreamsBlocked", f"{view.name} to {facts.asked.to_site}", what)


def _pending(facts: Facts) -> Iterable[Finding]:
    service = chosen(facts)
    rows = {row["id"]: row for row in facts.status.get("services", ())}
    row = rows.get(service["id"]) if service is not None else None
    if row is not None and row["state"] != "Programmed":
        words = f": {row['message']}" if row["message"] else ""
        what = f"It is on {len(row['acknowledged'])} of {len(row['needed'])} datapaths, {row['reason']}{words}."
        yield Finding("ServicePending", f"service {row['id']}", what)


def _transfers(facts: Facts) -> Iterable[Finding]:
    if facts.plain is not None and not facts.plain.ok and facts.client is not None and facts.server is not None:
        where = f"{facts.client.address} - {facts.server.address}"
        yield Finding("HostUnreachable", where, f"Plain TCP without SOS fails, too: {_failed(facts.plain)}.")
    service = chosen(facts)
    if facts.through is None or service is None:
        return
    where = f"service {service['id']}"
    if not facts.through.ok:
        yield Finding("ThroughFails", where, f"A transfer through it fails: {_failed(facts.through)}.")
    elif facts.plain is not None and facts.plain.ok and _changed(facts.through) and not _changed(facts.plain):
        up = facts.through.up
        yield Finding("AddressChanged", where, f"The server sees {up.own} as {up.seen}; without SOS it sees the client's own address.")
    if facts.through.ok and not facts.accelerated:
        share = f" (its percent is {service['percent']})" if 0 < service["percent"] < trace.ALL else ""
        yield Finding(
            "NotAccelerated", where, f"A transfer on its port {facts.through.port} arrived, but no session was seen for it{share}."
        )


def _answers_elsewhere(facts: Facts) -> Iterable[Finding]:
    """A finding for each port of the server whose answers bypass the egress agent, as the controller has recently seen. A transfer of this
    diagnosis shows the same if it arrived as plain TCP after the server had not answered the agent."""
    asked, through, host = facts.asked.server, facts.through, facts.server
    rows = [row for row in facts.plain_connections if row["ageSeconds"] <= RECENT_S]
    servers = {row["server"] for row in rows if row["reason"] == "ServerElsewhere"}
    if through is not None and through.ok and host is not None:
        own = {part.own for part in (through.up, through.down)}
        silent = {row["server"] for row in rows if row["reason"] in UNANSWERED and row["client"] in own}
        ours = f"{host.address}:{through.port}"
        servers = servers - {ours} if facts.accelerated else servers | (silent & {ours})
    for server in sorted(servers):
        address, port = server.rsplit(":", 1)
        if (address == asked[0] and int(port) == asked[1]) if asked is not None else (host is not None and address == host.address):
            what = f"{server} answers plain connections, but its answers do not pass its site's switches, so no agent can serve it."
            yield Finding("ServerElsewhere", server, what)


def _slower(facts: Facts) -> Iterable[Finding]:
    """A finding for each direction in which most of the repeated pairs of transfers were slower through SOS."""
    service = chosen(facts)
    if service is None or facts.through is None or not facts.through.ok:
        return
    for direction, ratios in facts.ratios.items():
        if median(ratios) < SLOWER_BELOW:
            shares = ", ".join(f"{ratio:.0%}" for ratio in ratios)
            what = f"{direction.capitalize()}wards, SOS reached {shares} of plain TCP's rate in consecutive transfers."
            yield Finding("SlowerThanPlain", f"service {service['id']}", what)


def _not_tried(facts: Facts) -> Iterable[Finding]:
    """Findings for transfers that were not tried for lack of a port: it is unknown whether the path works."""
    if facts.client is None or facts.server is None or facts.ends_error:
        return
    hosts, service = f"{facts.client.address} - {facts.server.address}", chosen(facts)
    if facts.plain is None:
        yield Finding("NoPort", hosts, "Every port between them belongs to a service or is in use, so plain TCP was not tested.")
    if facts.through is None and service is not None and ports.covers(service, facts.client.address, facts.server.address):
        what = "None of its ports is free at the server and not covered by an earlier service, so nothing was sent through it."
        yield Finding("NoPort", f"service {service['id']}", what)


def _failed(pair: Pair) -> str:
    return " and ".join(f"{way} {_how(part)}" for way, part in (("upwards", pair.up), ("downwards", pair.down)) if not part.ok)


def _how(part: Transfer) -> str:
    words = {
        "refused": "is refused",
        "unanswered": "is not answered",
        "unreachable": "finds no route",
        "stalled": f"stalls after {part.bytes} bytes",
        "reset": f"is reset after {part.bytes} bytes",
        "cut": f"is cut off after {part.bytes} bytes",
        "corrupt": f"arrives changed ({part.detail})",
    }
    return words.get(part.failure, f"fails: {part.detail or part.failure}")


def _changed(pair: Pair) -> bool:
    return any(part.own != part.seen for part in (pair.up, pair.down) if part.own and part.seen)


def _mtu(facts: Facts) -> Iterable[Finding]:
    mtu = facts.mtu
    if mtu is None or not mtu.local:
        return
    passed = min(mtu.forward, mtu.back)
    if 0 < passed < mtu.local:
        way = "both ways" if mtu.forward == mtu.back else f"to {facts.asked.to_site if mtu.forward == passed else facts.asked.from_site}"
        what = f"Packets of more than {passed} bytes do not pass {way}; the hosts send up to {mtu.local}."
        yield Finding("MtuTooSmall", f"{facts.asked.from_site} - {facts.asked.to_site}", what)


def _own_server(facts: Facts) -> Iterable[Finding]:
    server = facts.own_server
    if server is None or not (server.near or server.far):
        return
    where = f"{server.address}:{server.port}"
    if server.near in ("refused", "reset"):
        yield Finding("ServerRefuses", where, f"Nothing listens at {where}: a host beside it is refused, too.")
    elif server.near:
        yield Finding("ServerUnreachable", where, f"{where} does not answer a host beside it, either.")
    else:
        yield Finding("ThroughFails", where, f"{where} answers a host beside it; from {facts.asked.from_site} it is {server.far}.")


def _pair(facts: Facts) -> tuple[str, str]:
    return facts.asked.from_site, facts.asked.to_site


CHECKS: tuple[Callable[[Facts], Iterable[Finding]], ...] = (
    *(
        _controller,
        rejected_objects,
        declared_service,
        _ends,
        _datapaths,
        links.findings,
        _agents,
        _streams,
        _pending,
        _mtu,
        _transfers,
        _answers_elsewhere,
        _slower,
        _not_tried,
        _own_server,
    ),
)
