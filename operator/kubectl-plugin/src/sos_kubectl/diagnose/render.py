"""Output of `kubectl sos diagnose`: facts and findings as text and JSON."""

from __future__ import annotations

from typing import Any

from sos_kubectl.base import tables
from sos_kubectl.diagnose import checks
from sos_kubectl.diagnose.facts import Facts, Pair
from sos_kubectl.diagnose.findings import Finding
from sos_kubectl.targets.transfer import Transfer

Json = dict[str, Any]

WORDS = {
    checks.OK: "ok: bytes arrive both ways, and they are accelerated",
    checks.SLOWER: "slower: bytes arrive and are accelerated, but plain TCP is faster",
    checks.DEGRADED: "degraded: bytes arrive and are accelerated, but not all is well",
    checks.PLAIN: "plain: bytes arrive, but not accelerated",
    checks.BROKEN: "broken: real transfers fail",
    checks.UNKNOWN: "unknown: nothing could be sent through",
}
COLOURS = {checks.OK: tables.GOOD, checks.BROKEN: tables.BAD, checks.UNKNOWN: tables.BAD}


def lines(facts: Facts, found: list[Finding], colour: bool) -> list[str]:
    """Rates, findings, and the verdict at the end."""
    outcome = checks.verdict(facts, found)
    shown = tables.wrapped(_title(facts), indent="")
    rows = [
        _row("through", facts.through, _proof(facts)),
        _row("plain", facts.plain, "opened by the server" if facts.plain_reversed else ""),
    ]
    if any(rows):
        shown += ["", *tables.table(("", "PORT", "UP", "DOWN", ""), [row for row in rows if row])]
    if facts.mtu is not None and facts.mtu.local:
        shown += [_packets(facts)]
    shown += finding_lines(found, colour)
    return [*shown, "", tables.coloured(WORDS[outcome], COLOURS.get(outcome, tables.WAITING), colour)]


def finding_lines(found: list[Finding], colour: bool) -> list[str]:
    """Findings with their remedies, in order."""
    shown: list[str] = []
    for number, finding in enumerate(found):
        head = tables.wrapped(f"{'first broken' if number == 0 else 'and'}: {finding.code} {finding.where}", indent="")
        shown += ["", *(tables.coloured(line, tables.BAD, colour) for line in head)]
        shown += [*tables.wrapped(finding.what), *tables.wrapped(finding.remedy)]
    return shown


def findings_as_json(found: list[Finding]) -> list[Json]:
    """Findings for programs."""
    return [{"code": f.code, "where": f.where, "what": f.what, "remedy": f.remedy} for f in found]


def as_json(facts: Facts, found: list[Finding]) -> Json:
    """Facts and findings for programs."""
    service = checks.chosen(facts)
    return {
        "verdict": checks.verdict(facts, found),
        "from": facts.asked.from_site,
        "to": facts.asked.to_site,
        "service": service["id"] if service is not None else None,
        "client": facts.client.address if facts.client is not None else None,
        "server": facts.server.address if facts.server is not None else None,
        "accelerated": facts.accelerated,
        "through": _pair(facts.through),
        "plain": _pair(facts.plain),
        "plainReversed": facts.plain_reversed,
        "ratios": {direction: [round(ratio, 3) for ratio in ratios] for direction, ratios in facts.ratios.items()},
        "mtu": {"local": facts.mtu.local, "forward": facts.mtu.forward, "back": facts.mtu.back} if facts.mtu is not None else None,
        "findings": findings_as_json(found),
    }


def _title(facts: Facts) -> str:
    service = checks.chosen(facts)
    ends = [f"{end.address} ({end.name})" if end is not None else "(no host)" for end in (facts.client, facts.server)]
    by = f", service {service['id']}" if service is not None else ""
    return f"{facts.asked.from_site} {ends[0]} to {facts.asked.to_site} {ends[1]}{by}"


def _proof(facts: Facts) -> str:
    return "accelerated" if facts.accelerated else "not accelerated"


def _row(name: str, pair: Pair | None, note: str) -> tuple[str, ...]:
    return () if pair is None else (name, str(pair.port), _rate(pair.up), _rate(pair.down), note)


def _rate(part: Transfer) -> str:
    return f"{part.mbps:.3g} Mbit/s" if part.ok and part.mbps < 1000 else f"{part.mbps:.0f} Mbit/s" if part.ok else part.failure


def _packets(facts: Facts) -> str:
    mtu = facts.mtu
    if mtu is None or not min(mtu.forward, mtu.back):
        return "largest packet: none of any size passes"
    return f"largest packet: {mtu.forward} bytes there, {mtu.back} back; the host's interface takes {mtu.local}"


def _pair(pair: Pair | None) -> Json | None:
    return None if pair is None else {"port": pair.port, "up": _part(pair.up), "down": _part(pair.down)}


def _part(part: Transfer) -> Json:
    rate = {"bytes": part.bytes, "seconds": round(part.seconds, 3), "mbps": round(part.mbps, 2)}
    return {"ok": part.ok, **rate, "failure": part.failure or None, "detail": part.detail or None}
