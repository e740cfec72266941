"""`kubectl sos trace`: the expected outcome of a connection, step by step, with reasons.

The steps follow the controller's order of decisions in the configuration in force (spec/controller-config.md clauses 3 and 5). No packet is
sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from sos_kubectl.base import tables

Json = dict[str, Any]

ALL = 100


@dataclass(frozen=True, slots=True)
class Question:
    """The connection in question; `port`: the server's port."""

    client: IPv4Address
    server: IPv4Address
    port: int


@dataclass(slots=True)
class Trace:
    """Steps with their verdicts, and the outcome: `accelerated`, `spread`, `plain`, `refused`, or `unknown` if only some datapaths have
    acknowledged the service, or only some agents accept sessions."""

    steps: list[tuple[bool, str]] = field(default_factory=list)
    outcome: str = "plain"
    why: str = ""
    service: str = ""
    hidden: list[str] = field(default_factory=list)
    """Later services that also cover the connection."""
    recent_plain: list[str] = field(default_factory=list)
    pairs: list[Json] = field(default_factory=list)
    """Pairs of agents with their paths; only between sites without bridges."""
    partly: str = "accelerated where the datapaths at both ends have acknowledged the service, else plain TCP"
    """Words for the outcome `unknown`."""

    def step(self, good: bool, said: str) -> bool:
        """Add a step; return `good`."""
        self.steps.append((good, said))
        if not good and not self.why:
            self.why = said
        return good

    def note(self, good: bool, said: str) -> bool:
        """Add a step that does not decide the outcome alone; return `good`."""
        self.steps.append((good, said))
        return good


def trace(question: Question, config: Json, status: Json, agents: Json, seen: Json) -> Trace:
    """Follow a connection through the configuration in force and the controller's view of the network."""
    found = Trace()
    service = _service(question, config, status, found)
    if service is None:
        return found
    found.service = service["id"]
    if not _redirects(service, found):
        return found
    known = next((s for s in status["services"] if s["id"] == service["id"]), None)
    outcome = _entries(service["id"], known, found)
    both = [_agents(service[end]["site"], agents, found) for end in ("from", "to")]
    _hosts(question, service, status, seen, found)
    if all(both):
        found.outcome = outcome
    if service.get("require") and found.outcome == "plain":
        found.outcome = "refused"
    return found


def _entries(service_id: str, known: Json | None, found: Trace) -> str:
    """Return the outcome that the datapaths' acknowledgements imply. If only some datapaths have acknowledged the service, the outcome is
    `unknown`: these datapaths serve the service even while others are disconnected."""
    if known is not None and known["state"] == "Programmed":
        found.step(True, f"service {service_id} is on all its datapaths" + (f": {known['message']}" if known.get("message") else ""))
        return "accelerated"
    words = "" if known is None else f": {known['reason']}" + (f", {known['message']}" if known.get("message") else "")
    done = len(known["acknowledged"]) if known is not None else 0
    found.step(False, f"service {service_id} is on {done} of {len(known['needed']) if known is not None else 0} datapaths{words}")
    return "unknown" if done and known is not None and known["reason"] in ("DatapathDisconnected", "Programming") else "plain"


def _service(question: Question, config: Json, status: Json, found: Trace) -> Json | None:
    """Return the service that determines the connection's outcome; None if there is none, or if a balance spreads the connection."""
    sites = [site["name"] for site in config["sites"] if _inside(question.client, site["prefixes"])]
    found.step(bool(sites), f"{question.client} is in site {sites[0]}" if sites else f"{question.client} is in no site's prefixes")
    covering = [s for s in config["services"] if _inside(question.client, s["from"]["prefixes"])]
    covering = [s for s in covering if _inside(question.server, s["to"]["prefixes"])]
    first, *hidden = [s for s in covering if _on(question.port, s["ports"])] or [None]
    spreading = [b for b in config["balances"] if _spreads(question, b)]
    if first is not None:
        found.step(True, f"service {first['id']} covers it, from {first['from']['site']} to {first['to']['site']}")
        _overruled(first["id"], [*hidden, *spreading], found)
        return dict(first)
    if _balance(spreading, status, found):
        return None
    ports = sorted({ports_in_words(s["ports"]) for s in covering})
    if covering:
        found.step(False, f"no service covers port {question.port} between them; covered: {', '.join(ports)}")
    else:
        found.step(False, f"no service covers connections from {question.client} to {question.server}")
    return None


def _overruled(winner: str, others: list[Json], found: Trace) -> None:
    """Name the services that also cover the connection, but come later."""
    found.hidden = [other["id"] for other in others]
    if found.hidden:
        found.step(True, f"it comes before {', '.join(found.hidden)}, which would cover the connection without {winner}")


def _spreads(question: Question, balance: Json) -> bool:
    mine = str(question.client) == balance["client"] and _inside(question.server, balance["to"])
    return mine and _on(question.port, balance["ports"])


def _balance(spreading: list[Json], status: Json, found: Trace) -> bool:
    if not spreading:
        return False
    (balance, *others), known = spreading, {s["id"]: s for s in status["services"]}
    found.service, uplinks = balance["id"], ", ".join(uplink["name"] for uplink in balance["uplinks"])
    found.step(True, f"service {balance['id']} spreads it over {uplinks} without agents")
    _overruled(balance["id"], others, found)
    found.outcome = "spread" if _entries(balance["id"], known.get(balance["id"]), found) == "accelerated" else "plain"
    return True


def _redirects(service: Json, found: Trace) -> bool:
    if service["mode"] != "Accelerate":
        return found.step(False, f"its mode is {service['mode']}: it is measured and stays plain")
    if service["percent"] <= 0 and service.get("require"):
        found.outcome = "refused"
        return found.step(False, "it requires Encrypted, and the streams between its sites are not encrypted: all of it is refused")
    if service["percent"] <= 0:
        return found.step(False, "its percent is 0: all of it stays plain")
    if service["percent"] < ALL:
        found.step(True, f"{service['percent']} % of new connections are accelerated, by a hash of addresses and ports")
    return True


def _agents(site: str, agents: Json, found: Trace) -> bool:
    there = [a for a in agents["agents"] if a["site"] == site]
    willing = [a["address"] for a in there if a["willing"] and not a["draining"]]
    if willing:
        return found.step(True, f"agents of {site} that take sessions: {', '.join(willing)}")
    if there:
        return found.step(False, f"none of the {len(there)} agents of {site} takes sessions (full or draining)")
    return found.step(False, f"no agent of {site} is registered")


def _hosts(question: Question, service: Json, status: Json, seen: Json, found: Trace) -> None:
    """Locations of the two hosts. An unknown host is no fault: hosts are learnt from their first packets."""
    names = {d["dpid"]: d["name"] for d in status["datapaths"]}
    places = {host["address"]: host["dpid"] for host in seen["hosts"] if host["address"]}
    for end, address in (("from", str(question.client)), ("to", str(question.server))):
        dpid = places.get(address)
        site = service[end]["site"]
        where = f"behind {names.get(dpid, dpid)}" if dpid else f"not seen yet; any datapath of {site} may have it"
        found.step(True, f"{address} is {where}")


def add_recent_plain(found: Trace, plain: Json, status: Json) -> None:
    """Add recent outcomes of connections like the requested one; these may differ from the expected outcome."""
    for last in plain["connections"][:1]:
        when = f"{last['client']} to {last['server']}, {round(last['ageSeconds'])} s ago"
        found.recent_plain.append(f"went plain: {when}: {last['reason']}, {last['message']} (decided by {last['by']})")
    known = next((s for s in status["services"] if s["id"] == found.service), None)
    recent = (known or {}).get("recent")
    if recent and recent["plain"]:
        counts = ", ".join(f"{count} {reason}" for reason, count in recent["plain"].items())
        minutes = recent["seconds"] // 60
        found.recent_plain.append(f"service {found.service}, last {minutes} minutes: {recent['accelerated']} accelerated, plain: {counts}")


def lines(found: Trace, colour: bool) -> list[str]:
    """Return the lines to print: the steps, and the outcome."""
    shown = []
    for good, said in found.steps:
        mark = tables.coloured("ok", tables.GOOD, colour) if good else tables.coloured("no", tables.BAD, colour)
        first, *more = tables.wrapped(said)
        shown += [f"{mark}  {first.strip()}", *more]
    for said in found.recent_plain:
        first, *more = tables.wrapped(said)
        shown += [f"    {first.strip()}", *more]
    if found.outcome == "plain":
        return [*shown, "", "plain TCP"]
    if found.outcome == "unknown":
        return [*shown, "", found.partly]
    return [*shown, "", *tables.wrapped(f"{found.outcome} by service {found.service}", indent="")]


def as_json(found: Trace) -> Json:
    """The trace for programs."""
    steps = [{"ok": good, "text": said} for good, said in found.steps]
    what = {"outcome": found.outcome, "service": found.service or None, "hidden": found.hidden, "why": found.why or None}
    agents = {"pairs": found.pairs} if found.pairs else {}
    return {**what, "steps": steps, "recentPlain": found.recent_plain, **agents}


def _inside(address: IPv4Address, prefixes: list[str]) -> bool:
    return any(address in IPv4Network(prefix, strict=False) for prefix in prefixes)


def _on(port: int, ranges: list[Json]) -> bool:
    return any(r["first"] <= port <= r["last"] for r in ranges)


def ports_in_words(ranges: list[Json]) -> str:
    """Format port ranges for people."""
    return ", ".join(str(r["first"]) if r["first"] == r["last"] else f"{r['first']}-{r['last']}" for r in ranges)
