"""Table of objects with the expected results of admission. It tests `admit` here, and can also test a real API server.

A row is (name, kind, spec, path in the error, part of the message). The last two elements are None for valid objects.
"""

from __future__ import annotations

from typing import Any

from admission_services import CLIENT_PODS, SERVICES
from admission_sites import SITES
from admission_specs import BAD_TRANSPORT, ENDS, LINK, PAIR, SELECT, TRANSPORT, Row, machine, routed

OTHERS: list[Row] = [
    ("least", "SosAgent", {}, None, None),
    (
        "full",
        "SosAgent",
        {
            "siteSelector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]},
            "attach": "Host",
            "limits": {"sessions": 10, "memoryMiB": 64, "sessionMemoryMiB": 8},
            "drainSeconds": 0,
            "image": "registry.example/agent:1",
            "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"cpu": 2}},
        },
        None,
        None,
    ),
    (
        "session larger than agent",
        "SosAgent",
        {"limits": {"memoryMiB": 64, "sessionMemoryMiB": 65}},
        "spec.limits",
        "lower sessionMemoryMiB",
    ),
    ("negative quantity", "SosAgent", {"resources": {"requests": {"memory": "-256Mi"}}}, "spec.resources.requests.memory", "like 500m"),
    ("odd quantity", "SosAgent", {"resources": {"limits": {"cpu": "lots"}}}, "spec.resources.limits.cpu", None),
    ("image with a space", "SosAgent", {"image": "a b"}, "spec.image", None),
    ("site behind NAT", "SosSite", routed(wan={"type": "Routed", "inbound": "Blocked"}), None, None),
    ("overlay behind NAT", "SosSite", {**SELECT, "wan": {"inbound": "Blocked"}}, "spec.wan", "remove inbound"),
    ("least", "SosController", {}, None, None),
    ("external", "SosController", {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, None, None),
    (
        "external, pushed",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1:8080", "tokenSecretName": "t"}},
        None,
        None,
    ),
    (
        "external pair",
        "SosController",
        {"type": "External", "replicas": 2, "external": {"endpoints": ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"]}},
        None,
        None,
    ),
    (
        "external pair with one endpoint",
        "SosController",
        {"type": "External", "replicas": 2, "external": {"endpoints": ["tcp:192.0.2.1:6653"]}},
        "spec",
        "needs an endpoint for each",
    ),
    (
        "external pair with one URL",
        "SosController",
        {
            "type": "External",
            "replicas": 2,
            "external": {
                "endpoints": ["tcp:192.0.2.1:6653", "tcp:192.0.2.2:6653"],
                "apiURL": "http://192.0.2.1:8080",
                "tokenSecretName": "token",
            },
        },
        "spec",
        "apiURL and standbyURL go together",
    ),
    (
        "standby of one external controller",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "standbyURL": "http://192.0.2.2:8080"}},
        "spec",
        "remove standbyURL",
    ),
    ("external without endpoints", "SosController", {"type": "External"}, "spec", "needs spec.external"),
    ("managed with endpoints", "SosController", {"external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, "spec", "remove spec.external"),
    (
        "external with an image",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}, "image": "x"},
        "spec",
        "not run here",
    ),
    (
        "external with a placement",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}, "nodeSelector": {"a": "b"}},
        "spec",
        "not run here",
    ),
    (
        "placement",
        "SosController",
        {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a", "value": "b"},
                {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30},
            ],
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        },
        None,
        None,
    ),
    ("toleration of nothing", "SosController", {"tolerations": [{"value": "b"}]}, "spec.tolerations[0]", "set key"),
    (
        "toleration of any value with a value",
        "SosController",
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        "spec.tolerations[0]",
        "remove value",
    ),
    (
        "toleration for a time without NoExecute",
        "SosController",
        {"tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 5}]},
        "spec.tolerations[0]",
        "effect NoExecute",
    ),
    ("agents on some nodes", "SosAgent", {"nodeSelector": {"matchLabels": {"gateway": "yes"}}}, None, None),
    (
        "node label of no value",
        "SosAgent",
        {"nodeSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "spec.nodeSelector.matchExpressions[0]",
        "need values",
    ),
    (
        "token missing",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1"}},
        "spec.external",
        "go together",
    ),
    (
        "token of another namespace",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "http://192.0.2.1", "tokenSecretName": "other/t"}},
        "spec.external.tokenSecretName",
        "without the namespace",
    ),
    (
        "endpoint that is no address",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.300:6653"]}},
        "spec.external.endpoints[0]",
        "like tcp:192.0.2.1:6653",
    ),
    (
        "endpoint by name",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:controller:6653"]}},
        "spec.external.endpoints[0]",
        None,
    ),
    (
        "API that is no URL",
        "SosController",
        {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"], "apiURL": "192.0.2.1:8080", "tokenSecretName": "t"}},
        "spec.external.apiURL",
        "write a URL",
    ),
    ("less than nothing", "SosAgent", {"resources": {"requests": {"cpu": -1}}}, "spec.resources.requests.cpu", "like 500m"),
    ("external agents", "SosAgent", {"external": {"addresses": ["10.0.0.1"]}}, "spec.external", "unknown"),
    ("peer", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": ["192.0.2.7:14790"]}, None, None),
    ("unreachable peer", "SosPeer", {"prefixes": ["10.2.0.0/16"]}, None, None),
    ("peer of anything", "SosPeer", {"endpoints": ["192.0.2.7:14790"]}, "spec.prefixes", None),
    ("peer of no prefix", "SosPeer", {"prefixes": []}, "spec.prefixes", None),
    ("peer with host bits", "SosPeer", {"prefixes": ["10.2.0.1/16"]}, "spec.prefixes[0]", "set the host bits to zero"),
    ("peer without a length", "SosPeer", {"prefixes": ["10.2.0.0"]}, "spec.prefixes[0]", "write a prefix"),
    ("peer of any address", "SosPeer", {"prefixes": ["0.0.0.0/0"]}, None, None),
    ("peer of multicast", "SosPeer", {"prefixes": ["224.0.0.0/4"]}, "spec.prefixes[0]", "hosts cannot have addresses of"),
    ("machine of any address", "SosPeer", {**machine(), "prefixes": ["0.0.0.0/0"]}, "spec.prefixes", "hosts of a machine cannot have"),
    ("machine beside loopback", "SosPeer", {**machine(), "prefixes": ["126.0.0.0/7"]}, "spec.prefixes", "hosts of a machine cannot have"),
    ("peer of IPv6", "SosPeer", {"prefixes": ["2001:db8::/32"]}, "spec.prefixes[0]", "only IPv4"),
    *(
        (f"endpoint {text}", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": [text]}, "spec.endpoints[0]", "like 192.0.2.7:14790")
        for text in ("192.0.2.7", "192.0.2.256:1", "192.0.2.7:0", "192.0.2.7:65536", "host.example:14790", "192.0.2.7:14790x")
    ),
    ("endpoint twice", "SosPeer", {"prefixes": ["10.2.0.0/16"], "endpoints": ["192.0.2.7:1"] * 2}, "spec.endpoints[1]", None),
    ("peer with a transport", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": TRANSPORT}, None, None),
    ("peer with a default transport", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": {}}, None, None),
    ("peer's former field", "SosPeer", {"prefixes": ["10.2.0.0/16"], "encryption": "None"}, "spec.encryption", "unknown field"),
    *(
        (f"peer's {field}", "SosPeer", {"prefixes": ["10.2.0.0/16"], "transport": {field: value}}, f"spec.transport.{field}", said)
        for field, value, said in BAD_TRANSPORT
    ),
    ("machine", "SosPeer", machine(), None, None),
    (
        "machine with two paths",
        "SosPeer",
        machine(addresses=["192.0.2.9", "198.51.100.9"], inbound="Blocked", limits={"sessions": 9}, drainSeconds=5),
        None,
        None,
    ),
    ("machine with an endpoint", "SosPeer", {**machine(), "endpoints": ["192.0.2.7:14790"]}, "spec", "remove spec.endpoints"),
    ("machine without an id", "SosPeer", machine(siteID=None), "spec.machine.siteID", None),
    ("machine with id 0", "SosPeer", machine(siteID=0), "spec.machine.siteID", None),
    ("machine without an address", "SosPeer", machine(addresses=[]), "spec.machine.addresses", None),
    ("machine by name", "SosPeer", machine(addresses=["gw.example"]), "spec.machine.addresses[0]", "write an IPv4 address"),
    ("machine at loopback", "SosPeer", machine(addresses=["127.0.0.1"]), "spec.machine.addresses[0]", "no other machine reaches"),
    ("machine with one address twice", "SosPeer", machine(addresses=["192.0.2.9"] * 2), "spec.machine.addresses[1]", None),
    ("machine's loopback", "SosPeer", machine(interface="lo"), "spec.machine.interface", "write the interface's name"),
    ("machine with a long interface", "SosPeer", machine(interface="a" * 16), "spec.machine.interface", None),
    ("unknown inbound", "SosPeer", machine(inbound="NAT"), "spec.machine.inbound", None),
    (
        "session larger than its machine",
        "SosPeer",
        machine(limits={"memoryMiB": 64, "sessionMemoryMiB": 65}),
        "spec.machine.limits",
        "lower sessionMemoryMiB",
    ),
    ("link", "SosLink", {**LINK, "cost": 5, "capacityMbps": 1000}, None, None),
    ("link to itself", "SosLink", {**LINK, "b": {"site": "a", "uplink": "wan1"}}, "spec", "two different sites"),
    ("free link", "SosLink", {**LINK, "cost": 0}, "spec.cost", "1"),
    ("transport of two sites", "SosLink", {**PAIR, "transport": TRANSPORT}, None, None),
    ("default transport of two sites", "SosLink", {**PAIR, "transport": {}}, None, None),
    ("transport of one site", "SosLink", {**PAIR, "b": {"site": "a"}, "transport": {}}, "spec", "two different sites"),
    ("transport of a link", "SosLink", {**LINK, "transport": {}}, "spec.transport", "add a SosLink without uplinks"),
    ("two sites without a transport", "SosLink", PAIR, "spec", "add spec.transport"),
    ("half a link", "SosLink", {**LINK, "b": {"site": "b"}}, "spec", "name both uplinks, or remove both"),
    ("half a link with a transport", "SosLink", {**PAIR, "b": LINK["b"], "transport": {}}, "spec", "name both uplinks, or remove both"),
    ("cost of a transport", "SosLink", {**PAIR, "transport": {}, "cost": 20}, "spec", "remove spec.cost"),
    ("capacity of a transport", "SosLink", {**PAIR, "transport": {}, "capacityMbps": 20}, "spec", "remove spec.cost and spec.capacityMbps"),
    ("compression of a pair", "SosLink", {**PAIR, "transport": {"compression": "Adaptive"}}, "spec.transport.compression", "unknown field"),
    *(
        (f"transport's {field}", "SosLink", {**PAIR, "transport": {field: value}}, f"spec.transport.{field}", said)
        for field, value, said in BAD_TRANSPORT
    ),
]

TABLE: list[Row] = SITES + SERVICES + CLIENT_PODS + OTHERS

CHANGES: list[tuple[str, str, dict[str, Any], dict[str, Any], str | None]] = [
    ("same id", "SosSite", {**SELECT, "siteID": 7}, {**SELECT, "siteID": 7, "prefixes": ["10.1.0.0/16"]}, None),
    ("another id", "SosSite", {**SELECT, "siteID": 7}, {**SELECT, "siteID": 8}, "immutable"),
    ("id taken away", "SosSite", {**SELECT, "siteID": 7}, SELECT, "immutable"),
    ("id added", "SosSite", SELECT, {**SELECT, "siteID": 7}, "immutable"),
    ("bridge taken away", "SosSite", {**SELECT, "prefixes": ["10.1.0.0/16"]}, routed(), "cannot change between"),
    ("bridge added", "SosSite", routed(), {**SELECT, "prefixes": ["10.1.0.0/16"]}, "cannot change between"),
    ("other prefix without a bridge", "SosSite", routed(), routed(prefixes=["10.2.0.0/16"]), None),
    ("controller moved out", "SosController", {}, {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}}, "immutable"),
    ("link moved", "SosLink", LINK, {**LINK, "a": {"site": "c", "uplink": "wan0"}}, "immutable"),
    ("link dearer", "SosLink", LINK, {**LINK, "cost": 20}, None),
    ("link that becomes a transport", "SosLink", LINK, {**PAIR, "transport": {}}, "immutable"),
    ("transport encrypted", "SosLink", {**PAIR, "transport": {}}, {**PAIR, "transport": {"encryption": "TLS"}}, None),
    ("machine with another address", "SosPeer", machine(), machine(addresses=["192.0.2.10"]), None),
    ("machine with another id", "SosPeer", machine(), machine(siteID=10), "immutable"),
    ("machine that was a cluster", "SosPeer", {"prefixes": ["10.3.0.0/16"]}, machine(), "cannot become a machine"),
    ("service moved", "SosService", ENDS, {**ENDS, "to": {"site": "c"}}, None),
]
"""Rows of (name, kind, spec before, spec after, part of the message or None if the change is allowed)."""


def build(kind: str, spec: dict[str, Any], name: str = "probe") -> dict[str, Any]:
    """Return the object of a row."""
    metadata = {"name": name, **({"namespace": "default"} if kind == "SosService" else {})}
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
