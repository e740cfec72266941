"""Snapshots for the northbound API, as plain JSON values (spec/northbound.md). Reads the engine, changes nothing."""

from __future__ import annotations

from typing import Any

from sos_controller.core.config import LinkDeclaration
from sos_controller.core.engine import Engine
from sos_controller.core.openflow.flow_entries import (
    AnswerArp,
    DecTtl,
    FinTimeout,
    FlowEntry,
    Goto,
    LearnSource,
    Match,
    Output,
    SetEthDst,
    SetIpv4Dst,
    SetIpv4Src,
    SetTcpDst,
    SetTcpSrc,
    TellApart,
    ToGroup,
)
from sos_controller.core.openflow.pipeline import RING_PLACES
from sos_controller.core.plain.reason import WORDS
from sos_controller.core.plain.traffic import SLOT_S, SLOTS
from sos_controller.core.services.gain import ACCELERATED, PLAIN, Summary
from sos_controller.core.services.plan import ServiceStatus
from sos_controller.core.tables.agent_sessions import Flow
from sos_controller.core.tables.service_state import ProgrammedReason
from sos_controller.core.tables.sessions import Session
from sos_controller.core.topology.path_stats import ServiceMeasure
from sos_controller.core.types import Address, DatapathId, FlowKey, Location, format_address, format_dpid, format_mac, parse_address
from sos_controller.core.wire.path_report import service_mark

MAX_LISTED = 10_000
MAX_SESSIONS_SHOWN = 1_000
MAX_PLAIN_SHOWN = 1_000

Json = dict[str, Any]


def listing(name: str, items: list[Json], limit: int = MAX_LISTED) -> Json:
    """Return a bounded list, marked as truncated if it was cut."""
    shown: Json = {name: items[:limit]}
    if len(items) > limit:
        shown["truncated"] = True
    return shown


def status(engine: Engine, started_at: str, version: str) -> Json:
    """`GET /v1/status`, clause 1."""
    state = engine.state
    config = state.config
    names: dict[tuple[DatapathId, ...], list[str]] = {}
    claimed = [
        {"dpid": format_dpid(dpid), "name": claim.name, "site": site.name, "connected": dpid in state.switches}
        for dpid, (site, claim) in sorted(state.claims.items())
    ]
    brief = ("id", "name", "site", "address", "dpid", "willing", "draining")
    return {
        "controller": {
            "name": config.controller.name if config else "",
            "id": state.controller_id,
            "epoch": state.identity.epoch,
            "startedAt": started_at,
            "version": version,
        },
        "config": {"generation": config.generation if config else None, "hash": config.hash if config else None},
        **listing("datapaths", claimed),
        "unclaimed": sorted(format_dpid(dpid) for dpid, s in state.switches.items() if s.claim is None)[:MAX_LISTED],
        "agents": [{k: a[k] for k in brief} for a in agents(engine)["agents"]],
        "links": len(state.topology),
        "declaredLinks": [_declared(link, up) for link, up in engine.plan.declared_links()],
        "services": sorted((*(_service(engine, s, names) for s in engine.plan.status()), *engine.balances.status()), key=_id),
        "sessions": len(state.sessions) + len(state.agent_sessions),
    }


def _declared(link: LinkDeclaration, up: bool) -> Json:
    ends = {"a": link.a, "b": link.b}
    return {**{name: {"site": end.site, "uplink": end.uplink} for name, end in ends.items()}, "up": up}


def _id(shown: Json) -> str:
    return str(shown["id"])


def topology(engine: Engine) -> Json:
    """`GET /v1/topology`."""
    state = engine.state
    datapaths = [_datapath(engine, dpid) for dpid in sorted(state.claims.keys() | state.switches.keys())]
    links = [
        {
            "a": _end(engine, found.a),
            "b": _end(engine, found.b),
            "ageSeconds": None if heard_at is None else round(max(0.0, state.now - heard_at), 1),
            "state": "Up",
        }
        for found, heard_at in ((found, state.topology.heard_at(found)) for found in state.topology.links())
    ]
    hosts = [
        {
            "mac": format_mac(h.mac),
            "address": format_address(h.addresses[0]) if h.addresses else None,
            "addresses": [format_address(address) for address in h.addresses],
            "dpid": format_dpid(h.location.dpid),
            "port": h.location.port_no,
        }
        for h in state.hosts.all()
    ]
    parts = (listing("datapaths", datapaths), listing("links", links), listing("hosts", hosts))
    return {key: value for part in parts for key, value in part.items()}


def agents(engine: Engine) -> Json:
    """`GET /v1/agents`."""
    state = engine.state
    names = {s.id: s.name for s in state.sites.values()}
    return listing(
        "agents",
        [
            {
                "id": a.agent_id.hex(),
                "name": a.beacon.name,
                "site": names.get(a.beacon.site_id, ""),
                "address": format_address(a.beacon.address),
                "mac": format_mac(a.beacon.mac),
                "dpid": format_dpid(a.location.dpid),
                "port": a.location.port_no,
                "bootId": str(a.beacon.boot_id),
                "willing": a.willing,
                "draining": a.draining,
                "sessions": a.beacon.sessions,
                "sessionLimit": a.beacon.session_limit,
                "bytesPerSecond": a.beacon.bytes_per_second,
                "ageSeconds": round(max(0.0, state.now - a.seen_at), 1),
            }
            for a in state.agents.all()
            if not a.silent
        ],
    )


def sessions(engine: Engine, limit: int = MAX_SESSIONS_SHOWN, client: bytes = b"", server: bytes = b"") -> Json:
    """`GET /v1/sessions`. `client` and `server` (see `place`) filter before the limit applies."""
    every: list[Session | Flow] = [*engine.state.sessions, *engine.state.agent_sessions]
    found = [s for s in every if (s.key[:4] + s.key[8:10]).startswith(client) and (s.key[4:8] + s.key[10:]).startswith(server)]
    found.sort(key=lambda s: s.uuid)
    limit = max(0, min(limit, MAX_SESSIONS_SHOWN))
    shown = [_flow(engine, s) if isinstance(s, Flow) else _session(engine, s) for s in found[:limit]]
    return {"sessions": shown, "total": len(found), **({"truncated": True} if len(found) > limit else {})}


def place(text: str) -> bytes:
    """Convert `ADDRESS` or `ADDRESS:PORT` to the prefix of bytes that filters match; raise ValueError for other text."""
    address, colon, port = text.partition(":")
    if colon and not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 0xFFFF):
        raise ValueError(text)
    return parse_address(address).to_bytes(4, "big") + (int(port).to_bytes(2, "big") if colon else b"")


def measurements(engine: Engine) -> Json:
    """`GET /v1/measurements`, clause 3."""
    return {**listing("paths", _paths(engine)), **listing("services", _measured_services(engine))}


def _paths(engine: Engine) -> list[Json]:
    state, found = engine.state, list[Json]()
    for key, pair in sorted(engine.plan.pairs.items()):
        for label, path in enumerate(pair.paths):
            measure = state.path_stats.path(*key, label)
            if measure is None or not pair.label_mask >> label & 1:
                continue
            found.append(
                {
                    "low": key[0].hex(),
                    "high": key[1].hex(),
                    "label": label,
                    "dpids": [format_dpid(dpid) for dpid in path.dpids],
                    "rttMicros": measure.rtt_us or None,
                    "lowestRttMicros": measure.min_rtt_us or None,
                    "forwardBytesPerSecond": round(measure.forward),
                    "backBytesPerSecond": round(measure.back),
                    "ageSeconds": round(max(0.0, state.now - measure.heard_at), 1),
                }
            )
    return found


def _measured_services(engine: Engine) -> list[Json]:
    measured, found = engine.state.path_stats.services(), list[Json]()
    for service in sorted(engine.state.services, key=lambda s: s.id):
        m = measured.get(service_mark(service.id), ServiceMeasure(0, 0.0, 0.0, 0, 0))
        found.append(
            {
                "id": service.id,
                "sessions": m.sessions,
                "upBytesPerSecond": round(m.up),
                "downBytesPerSecond": round(m.down),
                "bytesUp": m.bytes_up,
                "bytesDown": m.bytes_down,
                **_compared(engine, service.id),
            }
        )
    return found


def _compared(engine: Engine, service_id: str) -> Json:
    """Return the summaries of measured connections."""
    comparison, now = engine.plan.passive_measurement.comparison(service_id), engine.state.now
    if comparison is None:
        return {}
    gain = comparison.gain(now)
    shown = {group: _summary(comparison.summary(group, now)) for group in (ACCELERATED, PLAIN)}
    return {**shown, "gain": None if gain is None else round(gain, 2)}


def _summary(found: Summary) -> Json:
    return {
        "connections": found.connections,
        "bytesPerSecond": None if found.goodput is None else round(found.goodput),
        "answerMicros": None if found.round_trip is None else round(found.round_trip * 1e6),
    }


def entries(engine: Engine, dpid: DatapathId) -> Json:
    """`GET /v1/entries?dpid=`."""
    shown = engine.state.programmer.entries(dpid)[: MAX_LISTED + 1]
    return {"dpid": format_dpid(dpid), **listing("entries", [_entry(e) for e in shown])}


def _datapath(engine: Engine, dpid: DatapathId) -> Json:
    state = engine.state
    claim, switch = state.claims.get(dpid), state.switches.get(dpid)
    return {
        "dpid": format_dpid(dpid),
        "name": claim[1].name if claim else "",
        "site": claim[0].name if claim else "",
        "connected": switch is not None,
        "ports": [{"port": p.port_no, "name": p.name, "up": p.up} for _, p in sorted(switch.ports.items())] if switch else [],
    }


def _end(engine: Engine, end: Location) -> Json:
    switch = engine.state.switches.get(end.dpid)
    port = switch.ports.get(end.port_no) if switch else None
    return {"dpid": format_dpid(end.dpid), "port": end.port_no, "name": port.name if port else ""}


def plain(engine: Engine, limit: int = MAX_PLAIN_SHOWN, client: bytes = b"", server: bytes = b"", service: str = "") -> Json:
    """`GET /v1/plain`, clause 4. `client` and `server` (see `place`) and `service` filter before the limit applies."""
    state = engine.state
    names = {a.agent_id: a.beacon.name for a in state.agents.all()}
    found = [
        s
        for s in state.plain_traffic.samples()
        if (s.key[:4] + s.key[8:10]).startswith(client) and (s.key[4:8] + s.key[10:]).startswith(server) and service in ("", s.service)
    ]
    limit = max(0, min(limit, MAX_PLAIN_SHOWN))
    rows = [
        {
            "service": s.service,
            "reason": s.reason.label,
            "message": WORDS[s.reason],
            "client": _end_of(s.key, 0),
            "server": _end_of(s.key, 1),
            **({"refused": True} if s.refused else {}),
            "by": "controller" if s.by is None else names.get(s.by, s.by.hex()),
            "ageSeconds": round(max(0.0, state.now - s.at), 1),
        }
        for s in found[:limit]
    ]
    counted: dict[str, Json] = {}
    for service_id, reason, count in state.plain_traffic.totals():
        if service in ("", service_id):
            counted.setdefault(service_id, {})[reason.label] = count
    refused: dict[str, Json] = {}
    for service_id, reason, count in state.plain_traffic.refusals():
        if service in ("", service_id):
            refused.setdefault(service_id, {})[reason.label] = count
    services = [
        {"id": service_id, "reasons": counted.get(service_id, {}), **({"refused": refused[service_id]} if service_id in refused else {})}
        for service_id in sorted({*counted, *refused})
    ]
    return {"connections": rows, **({"truncated": True} if len(found) > limit else {}), **listing("services", services)}


def _end_of(key: FlowKey, end: int) -> str:
    address, port = key[4 * end : 4 * end + 4], key[8 + 2 * end : 10 + 2 * end]
    return f"{format_address(Address(int.from_bytes(address, 'big')))}:{int.from_bytes(port, 'big')}"


def _recent(engine: Engine, service_id: str) -> Json:
    """Return a service's connections of the last minutes, and whether most of them went plain unexpectedly."""
    found = engine.state.plain_traffic.recent(service_id, engine.state.now)
    leading = found.leading
    return {
        "seconds": round(SLOT_S * SLOTS),
        "accelerated": found.accelerated,
        "plain": {reason.label: count for reason, count in sorted(found.plain.items())},
        "plainIsRule": found.is_rule,
        **({"refused": True} if found.refused else {}),
        "leadingReason": None if leading is None else leading.label,
        "message": "" if leading is None else WORDS[leading],
    }


def _dpids(dpids: tuple[DatapathId, ...], names: dict[tuple[DatapathId, ...], list[str]]) -> list[str]:
    """Return datapath ids as text. `names`: results so far, since most services have the same datapaths."""
    found = names.get(dpids)
    if found is None:
        found = names[dpids] = [format_dpid(dpid) for dpid in dpids]
    return found


def _service(engine: Engine, found: ServiceStatus, names: dict[tuple[DatapathId, ...], list[str]]) -> Json:
    service, state = found.service, engine.state
    message = ""
    if service.id in state.reactive_because:
        message = f"set up reactively: {state.reactive_because[service.id]}"
    elif state.is_proactive(service):
        many = [site for site in (state.sites[service.from_.site], state.sites[service.to.site]) if len(site.agents) > RING_PLACES]
        message = "; ".join(f"of site {site.name} only the first {RING_PLACES} agents are used" for site in many)
    message = "; ".join(
        part
        for part in (
            _why_pending(engine, found),
            message,
            state.widened.get(service.id),
        )
        if part
    )
    comparison = engine.plan.passive_measurement.comparison(service.id)
    gain = None if comparison is None else comparison.gain(state.now)
    return {
        "id": service.id,
        "state": found.state,
        "reason": found.reason.value,
        "message": message,
        "needed": _dpids(found.needed, names),
        "acknowledged": _dpids(found.acknowledged, names),
        "sessions": state.sessions.by_service.get(service.id, 0) + engine.plan.accepted().get(service.id, 0),
        "recent": _recent(engine, service.id),
        **({} if gain is None else {"gain": round(gain, 2)}),
    }


def _why_pending(engine: Engine, found: ServiceStatus) -> str:
    """Return the message for the reasons that concern a single switch."""
    if found.reason is ProgrammedReason.TABLE_FULL:
        return engine.plan.table_capacity.message(found.service)
    if found.reason is ProgrammedReason.ENTRIES_NOT_APPLIED:
        inaccurate = engine.state.inaccurate
        return inaccurate[next((dpid for dpid in found.needed if dpid in inaccurate), min(inaccurate))] if inaccurate else ""
    return ""


def _session(engine: Engine, s: Session) -> Json:
    key = s.key
    client, server = int.from_bytes(key[:4], "big"), int.from_bytes(key[4:8], "big")
    return {
        "uuid": s.uuid.hex(),
        "service": s.service,
        "state": s.state.value,
        "client": f"{format_address(client)}:{key[8] << 8 | key[9]}",
        "server": f"{format_address(server)}:{key[10] << 8 | key[11]}",
        "ingress": s.ingress.hex(),
        "egress": s.egress.hex(),
        "labels": [label for label in range(8) if s.labels >> label & 1],
        "adopted": s.adopted,
        "ageSeconds": round(max(0.0, engine.state.now - s.created_at), 1),
    }


def _flow(engine: Engine, flow: Flow) -> Json:
    return {
        "uuid": flow.uuid.hex(),
        "service": engine.plan.service_of(flow),
        "state": "Active",
        "client": f"{format_address(flow.client)}:{flow.client_port}",
        "server": f"{format_address(flow.server)}:{flow.server_port}",
        "ingress": flow.ingress.hex(),
        "egress": flow.egress.hex(),
        "labels": [0],
        "adopted": False,
        "ageSeconds": round(max(0.0, engine.state.now - flow.since), 1),
    }


def _entry(entry: FlowEntry) -> Json:
    return {
        "table": entry.table,
        "priority": entry.priority,
        "cookie": f"0x{entry.cookie:016x}",
        "hardTimeout": entry.hard_timeout,
        "match": _match(entry.match),
        "actions": [_action(a) for a in entry.actions],
    }


def _action(action: Any) -> str:
    if isinstance(action, Output):
        return f"output:{action.port_no}"
    if isinstance(action, Goto):
        return f"goto_table:{action.table}"
    if isinstance(action, ToGroup):
        return f"group:{action.group_id}"
    if isinstance(action, FinTimeout):
        return f"fin_timeout:{action.idle_s}"
    if isinstance(action, AnswerArp):
        return f"answer_arp:{format_mac(action.mac)}"
    return _set_field(action)


def _set_field(action: Any) -> str:
    if isinstance(action, DecTtl | TellApart | LearnSource):
        return {DecTtl: "dec_ttl", TellApart: "tell_apart", LearnSource: "learn_source"}[type(action)]
    if isinstance(action, SetTcpSrc | SetTcpDst):
        return f"set_{'tcp_dst' if isinstance(action, SetTcpDst) else 'tcp_src'}:{action.port}"
    if isinstance(action, SetIpv4Src | SetIpv4Dst):
        return f"set_{'ipv4_dst' if isinstance(action, SetIpv4Dst) else 'ipv4_src'}:{format_address(action.address)}"
    return f"set_{'eth_dst' if isinstance(action, SetEthDst) else 'eth_src'}:{format_mac(action.mac)}"


def _match(match: Match) -> Json:
    shown: Json = {}
    for name in match.__struct_fields__:
        value = getattr(match, name)
        if value is None:
            continue
        if name in ("ipv4_src", "ipv4_dst", "arp_sender", "arp_target"):
            shown[name] = f"{format_address(value[0])}/{format_address(value[1])}"
        elif isinstance(value, bytes):
            shown[name] = value.hex() if name == "raw" else format_mac(value)
        elif isinstance(value, tuple):
            shown[name] = f"0x{value[0]:x}/0x{value[1]:x}"
        else:
            shown[name] = value
    return shown
