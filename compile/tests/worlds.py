"""Build worlds for tests, by one-line helpers or with Hypothesis."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

from hypothesis import strategies as st
from sos_compile import Namespace, Node, Observed, Settings, World

ENDPOINT = "tcp:10.96.0.10:6653"


def obj(kind: str, name: str, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return an object. A SosService is in the release namespace by default."""
    base = {"namespace": "sos-system"} if kind == "SosService" else {}
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": {"name": name, **base, **metadata}, "spec": spec or {}}


def site(name: str, *prefixes: str, base: int | None = None, uplinks: int = 0, **spec: Any) -> dict[str, Any]:
    """Return a site on the nodes labelled with its name. If `base` is given, the site has `wan: {type: Uplinks}` with that many base
    uplinks."""
    metadata = spec.pop("metadata", {})
    full: dict[str, Any] = {"nodeSelector": {"matchLabels": {"sos.network/site": name}}, **spec}
    if prefixes:
        full["prefixes"] = list(prefixes)
    if base is not None:
        ports = [{"name": f"wan{i}", "base": i < base} for i in range(max(base, uplinks))]
        full["wan"] = {"type": "Uplinks", "uplinks": ports}
    return obj("SosSite", name, full, **metadata)


def service(name: str, source: str, target: str, *ports: int, **spec: Any) -> dict[str, Any]:
    """Return a service between two sites."""
    return obj("SosService", name, {"from": {"site": source}, "to": {"site": target}, "ports": [{"port": port} for port in ports], **spec})


def nodes(**sites: int) -> tuple[Node, ...]:
    """Return nodes `<site>-<i>` with addresses, in the given number per site."""
    names = [(f"{name}-{i}", name) for name, count in sites.items() for i in range(count)]
    return tuple(Node(name, {"sos.network/site": where}, f"192.0.2.{i + 1}") for i, (name, where) in enumerate(names))


DEFAULTS = (obj("SosController", "default"), obj("SosAgent", "default"))


def world(*objects: Any, nodes: tuple[Node, ...] = (), defaults: bool = True, **fields: Any) -> World:
    """Return a world of these objects, with the default controller and pool."""
    observed = fields.pop("observed", Observed(endpoints={"default": (ENDPOINT,)}))
    made = (*(DEFAULTS if defaults else ()), *objects)
    return World(
        objects=made, nodes=nodes, observed=observed, namespaces=fields.pop("namespaces", ()), settings=fields.pop("settings", Settings())
    )


NAMES = ["amber", "beryl", "coral", "diamond", "emerald", "flint"]
BLOCKS = [str(net) for net in IPv4Network("10.0.0.0/13").subnets(new_prefix=16)]


@st.composite
def sites(draw: st.DrawFn, name: str, block: str) -> dict[str, Any]:
    """Draw a valid site with its own block of addresses, or a transit site."""
    spec: dict[str, Any] = {}
    prefixes = draw(st.sampled_from([[], [block], [str(each) for each in IPv4Network(block).subnets(1)]]))
    if prefixes and draw(st.booleans()):
        spec["network"] = {"subnet": block, "mtu": draw(st.sampled_from([1280, 1500, 9000]))}
    if draw(st.booleans()):
        spec["services"] = {"namespaces": "All"}
    metadata: dict[str, Any] = {"creationTimestamp": draw(st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"]))}
    metadata["uid"] = f"uid-{name}"
    base = draw(st.sampled_from([None, 1]))
    return site(name, *prefixes, base=base, uplinks=draw(st.integers(0, 3)), metadata=metadata, **spec)


ANCHOR = site("anchor", "10.7.0.0/16", siteID=500, metadata={"creationTimestamp": "2025-01-01T00:00:00Z", "uid": "uid-anchor"})
"""Site that is in every world, so that bad objects can collide with it."""


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw a world of valid objects. They may still conflict, such as a service between sites that do not allow it."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=5, unique=True))
    made = [draw(sites(name, block)) for name, block in zip(names, BLOCKS, strict=False)]
    counts = {name: draw(st.integers(0, 3)) for name in names}
    services = []
    for i in range(draw(st.integers(0, 4))):
        ends = (
            draw(st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(lambda pair: pair[0] != pair[1]))
            if len(names) > 1
            else None
        )
        if ends is not None:
            ports = draw(st.lists(st.integers(1, 65535), max_size=4))
            services.append(
                service(f"s{i}", *ends, *ports, priority=draw(st.integers(0, 3)), mode=draw(st.sampled_from(["Accelerate", "Observe"])))
            )
    pools = [obj("SosAgent", f"pool{i}", metadata_uid()) for i in range(draw(st.integers(0, 1)))]
    two = st.lists(st.sampled_from(names), min_size=2, max_size=2, unique=True)
    transports = [pair_link(f"pair{i}", *draw(two)) for i in range(draw(st.integers(0, 2)) if len(names) > 1 else 0)]
    return world(ANCHOR, *made, *services, *pools, *transports, nodes=nodes(**counts), namespaces=(Namespace("default"),))


def pair_link(name: str, a: str, b: str) -> dict[str, Any]:
    """Return the declaration of the transport between two sites."""
    return obj("SosLink", name, {"a": {"site": a}, "b": {"site": b}, "transport": {"streams": 8, "encryption": "TLS"}}, uid=f"uid-{name}")


def metadata_uid() -> dict[str, Any]:
    """Return the spec of a second pool, with other limits than the default pool."""
    return {"limits": {"sessions": 16}}


BAD_OBJECTS = [
    obj("SosService", "zz-typo", {"from": {"site": "amber"}, "to": {"site": "beryl"}, "prots": []}),
    obj("SosService", "zz-lost", {"from": {"site": "atlantis"}, "to": {"site": "beryl"}}),
    obj("SosSite", "zz-crooked", {"nodeSelector": {"matchLabels": {"sos.network/site": "amber"}}, "prefixes": ["10.9.0.1/16"]}),
    site("zz-overlapping", "10.0.0.0/8", metadata={"creationTimestamp": "2027-01-01T00:00:00Z"}),
    site("zz-numbered", "172.16.0.0/16", siteID=500, metadata={"creationTimestamp": "2027-01-01T00:00:00Z"}),
    site("zz-gateway", "172.16.0.0/16", gateway="172.17.0.1/16", metadata={"creationTimestamp": "2027-01-01T00:00:00Z"}),
    obj("SosAgent", "zz-external", {"external": {"addresses": ["10.0.0.9"]}}),
    obj("SosLink", "zz-loose", {"a": {"site": "atlantis", "uplink": "wan0"}, "b": {"site": "beryl", "uplink": "wan0"}}),
    obj("SosController", "zz-nowhere", {"type": "External"}),
    obj("SosThing", "zz-unknown"),
    {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite"},
    {},
]
"""Objects with one error each. All objects of `worlds()` take precedence: bad sites that collide with one of these have a later creation
time, and the test appends the bad object to the list."""
