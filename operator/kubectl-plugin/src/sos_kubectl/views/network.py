"""`kubectl sos topology` and `kubectl sos flows`: a controller's view of the network, and its open sessions."""

from __future__ import annotations

from typing import Any

from sos_kubectl.base import tables

Json = dict[str, Any]


def topology(status: Json, seen: Json, agents: Json, colour: bool) -> list[str]:
    """Datapaths with their hosts and agents, links between them, and unclaimed switches."""
    names = {d["dpid"]: d["name"] for d in status["datapaths"]}
    lines = _datapaths(status, seen, agents, colour)
    links = [(_end(link["a"], names), _end(link["b"], names), link["state"]) for link in seen["links"]]
    if links:
        lines += ["", *tables.table(("LINK", "", "STATE"), sorted(links))]
    if status["unclaimed"]:
        lines += ["", *tables.wrapped("connected, but not part of a site: " + ", ".join(status["unclaimed"]), indent="")]
    return lines


def _datapaths(status: Json, seen: Json, agents: Json, colour: bool) -> list[str]:
    rows = []
    for datapath in status["datapaths"]:
        dpid = datapath["dpid"]
        here = [f"{a['address']}{'' if a['willing'] else ' (takes nothing)'}" for a in agents["agents"] if a["dpid"] == dpid]
        hosts = sum(host["dpid"] == dpid for host in seen["hosts"])
        state = "connected" if datapath["connected"] else "DISCONNECTED"
        rows.append((datapath["site"], datapath["name"], dpid, state, ", ".join(here), str(hosts)))
    if not rows:
        return ["no datapaths: no site has nodes"]
    printed = tables.table(("SITE", "DATAPATH", "DPID", "STATE", "AGENTS", "HOSTS"), rows)
    bad = [not datapath["connected"] for datapath in status["datapaths"]]
    return [printed[0], *(tables.coloured(line, tables.BAD if wrong else "", colour) for line, wrong in zip(printed[1:], bad, strict=True))]


def _end(end: Json, names: dict[str, str]) -> str:
    return f"{names.get(end['dpid'], end['dpid'])} {end['name'] or end['port']}"


def flows(sessions: Json, agents: Json) -> list[str]:
    """Open sessions."""
    names = {a["id"]: a["name"] for a in agents["agents"]}
    rows = [
        (
            s["service"],
            s["client"],
            s["server"],
            s["state"],
            f"{names.get(s['ingress'], '?')} to {names.get(s['egress'], '?')}",
            ",".join(map(str, s["labels"])),
            age(s["ageSeconds"]),
        )
        for s in sessions["sessions"]
    ]
    lines = tables.table(("SERVICE", "CLIENT", "SERVER", "STATE", "AGENTS", "PATHS", "AGE"), rows) or ["no sessions"]
    hidden = sessions["total"] - len(rows)
    return [*lines, f"and {hidden} more"] if hidden > 0 else lines


def plain(found: Json) -> list[str]:
    """Connections that recently went plain, or were refused instead, with counts by service and reason."""
    rows = [(c["service"], c["reason"], became(c), c["client"], c["server"], c["by"], age(c["ageSeconds"])) for c in found["connections"]]
    lines = tables.table(("SERVICE", "REASON", "BECAME", "CLIENT", "SERVER", "BY", "AGE"), rows) or [
        "no connection of a service went plain"
    ]
    counts = [(s["id"], reason, "plain", str(count)) for s in found["services"] for reason, count in s["reasons"].items()]
    counts += [(s["id"], reason, "refused", str(count)) for s in found["services"] for reason, count in s.get("refused", {}).items()]
    if counts:
        lines += ["", *tables.table(("SERVICE", "REASON", "BECAME", "CONNECTIONS"), counts)]
    words = {c["reason"]: c["message"] for c in found["connections"]}
    if words:
        lines += [""]
        for reason, said in sorted(words.items()):
            lines += tables.wrapped(f"{reason}: {said}", indent="")
    return lines


def became(connection: Json) -> str:
    """Return the outcome of a connection that was not accelerated."""
    return "refused" if connection.get("refused") is True else "plain"


def event(change: Json) -> list[str]:
    """Format a change as one line, with continuation lines if it is long."""
    said = " ".join(f"{key}={value}" for key, value in change.items() if key != "kind" and value != "")
    first, *rest = tables.wrapped(f"{change['kind']} {said}", indent="  ")
    return [first.strip(), *rest]


def age(seconds: float) -> str:
    """Format an age as kubectl does: 42s, 5m, 3h, 2d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"
