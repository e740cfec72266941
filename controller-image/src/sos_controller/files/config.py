"""Parser of the controller-config document: strict, with the path of each error (spec/controller-config.md)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import msgspec

from sos_controller.core.config import MAX_BALANCES, MAX_BYTES, MAX_DATAPATHS, Config
from sos_controller.core.types import parse_address, parse_mac, parse_prefix


class ConfigError(Exception):
    """A document that is rejected. `path` names the field, "" the document as a whole."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path, self.message = path, message


class ConflictError(Exception):
    """A valid document that must not replace the configuration in force (clause 1)."""


def parse(data: bytes) -> Config:
    """Return the configuration in a document; raise ConfigError if it is invalid."""
    if len(data) > MAX_BYTES:
        raise ConfigError("", f"larger than {MAX_BYTES} bytes")
    document, expected = _load(data)
    config = _convert(document)
    for path, message in _problems(config):
        raise ConfigError(path, message)
    if config.hash != expected:
        raise ConfigError("hash", f"does not match the document, whose hash is {expected}")
    return config


def document_hash(document: dict[str, Any]) -> str:
    """Return the hash of the canonical JSON without `generation` and `hash` (clause 2)."""
    rest = {k: v for k, v in document.items() if k not in ("generation", "hash")}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()


def follows(config: Config, before: Config | None) -> bool:
    """Return whether a configuration differs from the one in force; raise ConflictError if it must not replace that one."""
    if before is None:
        return True
    if config.generation < before.generation:
        raise ConflictError(f"generation {config.generation} is lower than {before.generation}, which is in force")
    if config.generation == before.generation and config.hash != before.hash:
        raise ConflictError(f"generation {config.generation} is in force with another hash")
    if config.controller.id != before.controller.id:
        raise ConflictError(f"controller.id is {before.controller.id} and cannot change while this process runs")
    return config.hash != before.hash or config.generation != before.generation


def _load(data: bytes) -> tuple[dict[str, Any], str]:
    """Return the document and its hash. The hash requires valid Unicode text, without unpaired surrogates."""
    try:
        document = json.loads(data, parse_float=_no_float, parse_constant=_no_float, object_pairs_hook=_no_duplicates)
        if not isinstance(document, dict):
            raise ConfigError("", "not a JSON object")
        return document, document_hash(document)
    except (ValueError, RecursionError) as error:
        raise ConfigError("", f"not JSON: {error}") from error


def _no_float(text: str) -> NoReturn:
    raise ValueError(f"{text} is not an integer, and only integers are allowed")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        name = next(k for k, _ in pairs if k in seen or seen.add(k))  # type: ignore[func-returns-value]
        raise ValueError(f"{name!r} is given twice")
    return found


def _convert(document: dict[str, Any]) -> Config:
    try:
        return msgspec.convert(document, Config)
    except UnicodeEncodeError as error:  # in a part that the hash does not cover
        raise ConfigError("", f"not JSON: {error}") from error
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `")
        path = where.rstrip("`").removeprefix("$").lstrip(".")
        raise ConfigError(path, message[:1].lower() + message[1:]) from error


def _problems(config: Config) -> Iterator[tuple[str, str]]:
    """Yield errors that type checks do not find, in document order."""
    yield from _try("discovery.address", config.discovery.address, parse_address)
    yield from _try("discovery.mac", config.discovery.mac, parse_mac)
    yield from _unique("sites[{}].name", [s.name for s in config.sites])
    yield from _unique("sites[{}].id", [s.id for s in config.sites])
    dpids = [(f"sites[{i}].datapaths[{j}].dpid", d.dpid) for i, s in enumerate(config.sites) for j, d in enumerate(s.datapaths)]
    if len(dpids) > MAX_DATAPATHS:
        yield "sites", f"more than {MAX_DATAPATHS} datapaths"
    yield from _unique_at(dpids)
    tunnels = [(f"sites[{i}].datapaths[{j}].tunnel", d.tunnel) for i, s in enumerate(config.sites) for j, d in enumerate(s.datapaths)]
    yield from _unique_at([(path, number) for path, number in tunnels if number])
    agents = [(f"sites[{i}].agents[{j}].id", a.id) for i, s in enumerate(config.sites) for j, a in enumerate(s.agents)]
    yield from _unique_at(agents)
    for i, site in enumerate(config.sites):
        for j, prefix in enumerate(site.prefixes):
            yield from _try(f"sites[{i}].prefixes[{j}]", prefix, parse_prefix)
        if site.subnet is not None:
            yield from _try(f"sites[{i}].subnet", site.subnet, parse_prefix)
        if site.gateway is not None:
            yield from _try(f"sites[{i}].gateway", site.gateway, parse_address)
        for j, agent in enumerate(site.agents):
            yield from _try(f"sites[{i}].agents[{j}].address", agent.address, parse_address)
    yield from _service_problems(config)
    yield from _balance_problems(config)
    yield from _link_problems(config)


def _service_problems(config: Config) -> Iterator[tuple[str, str]]:
    sites = {s.name for s in config.sites}
    yield from _unique("services[{}].id", [s.id for s in config.services])
    for i, service in enumerate(config.services):
        for name, end in (("from", service.from_), ("to", service.to)):
            if end.site not in sites:
                yield f"services[{i}].{name}.site", f"there is no site {end.site!r}"
            for j, prefix in enumerate(end.prefixes):
                yield from _try(f"services[{i}].{name}.prefixes[{j}]", prefix, parse_prefix)
        if service.from_.site == service.to.site:
            yield f"services[{i}].to.site", "is the same site as from.site"
        for j, ports in enumerate(service.ports):
            if ports.last < ports.first:
                yield f"services[{i}].ports[{j}]", f"last {ports.last} is below first {ports.first}"


def _balance_problems(config: Config) -> Iterator[tuple[str, str]]:
    claims = {(s.name, d.dpid) for s in config.sites for d in s.datapaths}
    yield from _unique("balances[{}].id", [b.id for b in config.balances])
    clients: dict[tuple[str, str], str] = {}
    per_datapath: Counter[str] = Counter()
    for i, balance in enumerate(config.balances):
        path = f"balances[{i}]"
        if (balance.site, balance.dpid) not in claims:
            yield f"{path}.dpid", f"is not a datapath of site {balance.site!r}"
        per_datapath[balance.dpid] += 1
        if per_datapath[balance.dpid] > MAX_BALANCES:
            yield f"{path}.dpid", f"has more than {MAX_BALANCES} balances"
        yield from _try(f"{path}.client", balance.client, parse_address)
        for j, prefix in enumerate(balance.to):
            yield from _try(f"{path}.to[{j}]", prefix, parse_prefix)
        for j, ports in enumerate(balance.ports):
            if ports.last < ports.first:
                yield f"{path}.ports[{j}]", f"last {ports.last} is below first {ports.first}"
        yield from _unique(path + ".uplinks[{}].name", [u.name for u in balance.uplinks])
        yield from _unique(path + ".uplinks[{}].address", [u.address for u in balance.uplinks])
        for j, uplink in enumerate(balance.uplinks):
            yield from _try(f"{path}.uplinks[{j}].address", uplink.address, parse_address)
            yield from _try(f"{path}.uplinks[{j}].gateway", uplink.gateway, parse_address)
            holder = clients.setdefault((balance.dpid, uplink.address), balance.client)
            if holder != balance.client:
                yield f"{path}.uplinks[{j}].address", f"is already an uplink address of client {holder} in another balance"


def _link_problems(config: Config) -> Iterator[tuple[str, str]]:
    sites = {s.name for s in config.sites}
    for i, declared in enumerate(config.links):
        for name, end in (("a", declared.a), ("b", declared.b)):
            if end.site not in sites:
                yield f"links[{i}].{name}.site", f"there is no site {end.site!r}"


def _try(path: str, text: str, parser: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    try:
        parser(text)
    except ValueError as error:
        yield path, str(error)


def _unique(pattern: str, values: list[Any]) -> Iterator[tuple[str, str]]:
    yield from _unique_at([(pattern.format(i), v) for i, v in enumerate(values)])


def _unique_at(found: list[tuple[str, Any]]) -> Iterator[tuple[str, str]]:
    first: dict[Any, str] = {}
    for path, value in found:
        if value in first:
            yield path, f"{value!r} is also at {first[value]}"
        first.setdefault(value, path)
