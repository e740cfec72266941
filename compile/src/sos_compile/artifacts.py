"""Generated files that are committed: spec/*.schema.json and spec/vectors/config.

    python -m sos_compile.artifacts write      # in the repository
    python -m sos_compile.artifacts check      # exit 1 and list stale files

This module is an edge: it reads the examples and writes files.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from sos_compile.admission.load import load
from sos_compile.compiler import compile_world
from sos_compile.documents.parts import file_name
from sos_compile.model.formats.agent import MAX_PODS, AgentConfig
from sos_compile.model.formats.controller import ControllerConfig
from sos_compile.model.formats.node import NodeConfig
from sos_compile.model.formats.shared import Discovery, Document, content_hash
from sos_compile.model.world import Json, Namespace, Node, Observed, World

ROOT = Path(__file__).resolve().parents[3]
SCHEMAS: dict[str, type[Document]] = {
    "controller-config": ControllerConfig,
    "node-config": NodeConfig,
    "agent-config": AgentConfig,
}
FIGURE8 = {"edge1": "west", "core1": "core1", "core2": "core2", "edge2": "east"}
BALANCE = {"edge1": "home"}
OVERLAY = {"clemson-1": "clemson", "clemson-2": "clemson", "cambridge-1": "cambridge", "chicago-1": "chicago"}
ENDPOINTS = ("tcp:10.96.0.10:6653", "tcp:10.96.0.11:6653")


def example_world(folder: str, nodes: dict[str, str], root: Path = ROOT) -> World:
    """Return the world of an example: its objects, and the given nodes (name -> site), with addresses in that order."""
    made = tuple(Node(name, {"sos.network/site": site}, f"172.18.0.{i}") for i, (name, site) in enumerate(nodes.items(), start=2))
    loaded = tuple(load([root / "examples" / folder]))
    endpoints = {name: (endpoint,) for name, endpoint in zip(("default", "research"), ENDPOINTS, strict=True)}
    return World(objects=loaded, nodes=made, namespaces=(Namespace("default"),), observed=Observed(endpoints=endpoints))


def build_schemas() -> dict[str, Json]:
    """Return spec/NAME.schema.json by path."""
    found = {}
    for name, model in SCHEMAS.items():
        schema = model.model_json_schema(by_alias=True)
        schema["required"] = sorted(schema["properties"])  # fields with a default in the model are always written, so they are required
        schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": name}
        found[f"spec/{name}.schema.json"] = _without_defaults(schema)
    return found


def _without_defaults(schema: Any) -> Any:
    if isinstance(schema, dict):
        cleaned = {key: _without_defaults(value) for key, value in schema.items() if key != "default"}
        if isinstance(cleaned.get("properties"), dict) and cleaned.get("type") == "object":
            cleaned["required"] = sorted(name for name, value in cleaned["properties"].items() if not value.pop("optional", False))
        return cleaned
    return [_without_defaults(item) for item in schema] if isinstance(schema, list) else schema


def build_vectors(root: Path = ROOT) -> dict[str, Json]:
    """Return spec/vectors/config by path: the documents of the examples, and invalid documents with the path of the error."""
    found: dict[str, Json] = {}
    for folder, nodes in (("01-two-sites", FIGURE8), ("02-overlay", OVERLAY), ("04-balance", BALANCE)):
        compiled = compile_world(example_world(folder, nodes, root))
        found |= {f"controller/{folder}.json": doc for doc in compiled.controllers.values()}
        found |= {f"node/{folder}-{node}.json": doc for node, doc in compiled.nodes.items()}
        found |= {f"agent/{folder}-{node}.json": doc for (_, node), doc in compiled.agents.items()}
    found |= _divided(example_world("02-overlay", OVERLAY, root))
    good = {
        kind: found[f"{kind}/01-two-sites{suffix}.json"] for kind, suffix in (("controller", ""), ("node", "-edge1"), ("agent", "-edge1"))
    }
    balanced = found["controller/04-balance.json"]
    found["agent/tuned.json"] = _edited(good["agent"], _tune)
    found["controller/accepted-early.json"] = _edited(good["controller"], _set("services", 0, "accept", value="Early"))
    found["controller/required.json"] = _edited(good["controller"], _set("services", 0, "require", value=["Accelerated", "Encrypted"]))
    found["controller/tls.json"] = _edited(good["controller"], _secured)
    found["controller/replicas.json"] = _edited(good["controller"], _set("controller", "replicas", value=2))
    found["node/reject-port.json"] = _edited(
        good["node"], _set("rejectPort", value={"name": "sosrej0", "peer": "sosrej1", "ofport": 33900})
    )
    found["node/tls.json"] = _edited(good["node"], _set("controllers", 0, value="ssl:10.96.0.10:6653"))
    found["node/lan.json"] = _edited(
        good["node"], _set("lan", value=[{"name": "lan0", "ofport": 33101}, {"name": "lan1", "ofport": 33102}])
    )
    found["node/bond.json"] = _edited(good["node"], _bonded)
    found["agent/routes.json"] = routes = _edited(good["agent"], _on_routes)
    found["agent/pods.json"] = pods = _edited(routes, _in_pods)
    found["agent/selected-pods.json"] = selected = _edited(pods, _set("services", 0, "from", value=_spread(MAX_PODS)))
    found["agent/encrypted-only.json"] = _edited(good["agent"], _encrypted_only)
    found["controller/labelled-ports.json"] = _edited(good["controller"], _amid_nodes)
    found |= {f"bad/{kind}/{name}.json": _bad(good[kind], path, edit, rehash=name != "wrong-hash") for kind, name, path, edit in BAD}
    found |= {f"bad/agent/{name}.json": _bad(routes, path, edit, rehash=True) for name, path, edit in BAD_ROUTES}
    found["bad/agent/pods-at-one-address.json"] = _bad(pods, "pods[1].address", lambda doc: doc["pods"].append(doc["pods"][0]), rehash=True)
    found["bad/agent/too-many-clients.json"] = _bad(
        selected, "services[0].from", _set("services", 0, "from", value=_spread(MAX_PODS + 1)), rehash=True
    )
    found |= {f"bad/controller/{name}.json": _bad(balanced, path, edit, rehash=True) for name, path, edit in BAD_BALANCE}
    return {f"spec/vectors/config/{path}": document for path, document in sorted(found.items())}


def _divided(world: World) -> dict[str, Json]:
    """Return documents with parts: the files of a folder, and the document that they stand for."""
    whole = compile_world(world)
    split = compile_world(replace(world, settings=replace(world.settings, share_from_bytes=0)))
    found = {}
    agents, whole_agents = ({node: doc for (_, node), doc in each.agents.items()} for each in (split, whole))
    for kind, short, full in (("node", split.nodes, whole.nodes), ("agent", agents, whole_agents)):
        for node, document in sorted(short.items()):
            files = {f"{node}.json": document} | {file_name(part): split.parts[part] for part in document["include"]}
            found[f"parts/{kind}/{node}.json"] = {"files": files, "whole": full[node]}
    return found


def _edited(document: Json, edit: Callable[[Json], None], *, rehash: bool = True) -> Json:
    changed = copy.deepcopy(document)
    edit(changed)
    if rehash and "hash" in changed:
        changed["hash"] = content_hash(changed)
    return changed


def _bad(document: Json, path: str, edit: Callable[[Json], None], *, rehash: bool) -> Json:
    """Return a broken document with the path that the error must name. With `rehash` its hash is correct, so that the edit is the only
    fault."""
    return {"path": path, "document": _edited(document, edit, rehash=rehash)}


def _tune(doc: Json) -> None:
    doc["services"][0]["transport"] = {
        "streams": 16,
        "blockBytes": 65536,
        "queueBytes": 8388608,
        "congestionControl": "BBR",
        "encryption": "TLS",
        "compression": "Adaptive",
        "protocol": "QUIC",
    }
    doc["services"][0]["setup"] = "Proactive"
    doc["services"][0]["labels"] = 2


def _secured(doc: Json) -> None:
    doc["controller"]["tls"] = "Required"
    doc["sites"][0]["datapaths"][0]["tls"] = "Disabled"


def _encrypted_only(doc: Json) -> None:
    doc["services"][0]["transport"]["encryption"] = "TLS"
    doc["services"][0]["encryptedOnly"] = True


def _on_routes(doc: Json) -> None:
    """Detach the agent from its bridge: two addresses of its own, and hosts whose routes lead to its machine."""
    del doc["interface"], doc["discovery"]
    doc["wan"] = ["192.0.2.1", "198.51.100.1"]
    doc["intake"] = {"type": "Routed", "interface": "lan0", "virtualAddress": "10.0.0.1"}
    doc["streamPorts"]["count"] = 2
    doc["services"][0].update(setup="Proactive", accept="Learned", labels=2)
    doc["shares"] = [{"namespace": "default", "percent": 50}]
    doc["peers"][0]["agents"][0].update(address="192.0.2.2", addresses=["192.0.2.2", "198.51.100.2"])


def _in_pods(doc: Json) -> None:
    doc["intake"] = {"type": "Pods", "networkPolicies": "Respect"}
    doc["pods"] = [{"name": "default/web-0", "address": "10.0.0.11"}]
    doc["peers"][0]["dial"] = "Never"
    doc["services"][0].update(role="Egress", source="Agent", proxyProtocol="V2")
    doc["peers"][0]["agents"][0]["prefixes"] = ["10.0.0.128/26"]


def _spread(count: int) -> list[str]:
    """Return addresses that no shorter list of prefixes covers."""
    return [f"10.0.{2 * i // 256}.{2 * i % 256}/32" for i in range(count)]


def _amid_nodes(doc: Json) -> None:
    """Make one switch of the example external, and list the other switches' ports that carry no plain traffic."""
    for site in doc["sites"]:
        external = site["name"] == "core1"
        told = {"forwarding": "Controller"} if external else {"labelledPorts": ["wan0", "wan1"] if site["transit"] else ["wan1"]}
        site["datapaths"][0].update(told)


def _bonded(doc: Json) -> None:
    doc["uplinks"][1]["base"] = True
    doc["bond"] = {"mode": "ActiveBackup", "upDelaySeconds": 10}


def _set(*keys: str | int, value: Any) -> Callable[[Json], None]:
    def edit(doc: Any) -> None:
        for key in keys[:-1]:
            doc = doc[key]
        doc[keys[-1]] = value

    return edit


def _drop(*keys: str | int) -> Callable[[Json], None]:
    def edit(doc: Any) -> None:
        for key in keys[:-1]:
            doc = doc[key]
        del doc[keys[-1]]

    return edit


BAD: list[tuple[str, str, str, Callable[[Json], None]]] = [
    ("controller", "unknown-field", "sites[0].colour", _set("sites", 0, "colour", value="red")),
    ("controller", "missing-field", "services[0].ports", _drop("services", 0, "ports")),
    ("controller", "port-out-of-bounds", "services[0].ports[0].first", _set("services", 0, "ports", 0, "first", value=0)),
    ("controller", "bad-prefix", "sites[3].prefixes[0]", _set("sites", 3, "prefixes", 0, value="10.0.0.0/33")),
    ("controller", "unknown-site", "services[0].to.site", _set("services", 0, "to", "site", value="atlantis")),
    ("controller", "bad-dpid", "sites[0].datapaths[0].dpid", _set("sites", 0, "datapaths", 0, "dpid", value="1")),
    ("controller", "bad-tunnel", "sites[0].datapaths[0].tunnel", _set("sites", 0, "datapaths", 0, "tunnel", value=4096)),
    (
        "controller",
        "bad-labelled-port",
        "sites[0].datapaths[0].labelledPorts[0]",
        _set("sites", 0, "datapaths", 0, "labelledPorts", value=["a/b"]),
    ),
    ("controller", "unknown-accept", "services[0].accept", _set("services", 0, "accept", value="Sometimes")),
    ("controller", "unknown-requirement", "services[0].require[0]", _set("services", 0, "require", value=["Fast"])),
    ("controller", "unknown-tls", "controller.tls", _set("controller", "tls", value="Optional")),
    ("controller", "many-replicas", "controller.replicas", _set("controller", "replicas", value=3)),
    ("controller", "wrong-version", "version", _set("version", value="v2")),
    ("controller", "wrong-hash", "hash", _set("hash", value="sha256:" + "0" * 64)),
    ("node", "unknown-field", "bridge.colour", _set("bridge", "colour", value="red")),
    ("node", "missing-field", "bridge.mtu", _drop("bridge", "mtu")),
    ("node", "ofport-twice", "uplinks[1].ofport", _set("uplinks", 1, "ofport", value=33001)),
    (
        "node",
        "reject-port-twice",
        "rejectPort.ofport",
        _set("rejectPort", value={"name": "sosrej0", "peer": "sosrej1", "ofport": 33001}),
    ),
    ("node", "lan-twice", "lan[0].name", _set("lan", value=[{"name": "wan0", "ofport": 33101}])),
    ("node", "bond-of-one-uplink", "bond", _set("bond", value={"mode": "ActiveBackup", "upDelaySeconds": 10})),
    ("node", "unknown-bond", "bond.mode", _set("bond", value={"mode": "BalanceSLB", "upDelaySeconds": 10})),
    ("node", "bad-controller", "controllers[0]", _set("controllers", 0, value="tcp:controller:6653")),
    ("node", "wrong-version", "version", _set("version", value="v2")),
    ("node", "wrong-hash", "hash", _set("hash", value="sha256:" + "0" * 64)),
    ("agent", "unknown-field", "interface.colour", _set("interface", "colour", value="red")),
    ("agent", "missing-field", "limits.sessions", _drop("limits", "sessions")),
    ("agent", "bad-address", "interface.address", _set("interface", "address", value="10.0.0.300/24")),
    ("agent", "unknown-peer", "services[0].peer", _set("services", 0, "peer", value="atlantis")),
    ("agent", "labels-out-of-bounds", "services[0].labels", _set("services", 0, "labels", value=9)),
    ("agent", "unknown-accept", "services[0].accept", _set("services", 0, "accept", value="Sometimes")),
    ("agent", "unknown-compression", "services[0].transport.compression", _set("services", 0, "transport", "compression", value="zstd")),
    ("agent", "unknown-encryption", "services[0].transport.encryption", _set("services", 0, "transport", "encryption", value="SSL")),
    ("agent", "unknown-protocol", "services[0].transport.protocol", _set("services", 0, "transport", "protocol", value="UDT")),
    ("agent", "encrypted-only-without-tls", "services[0].encryptedOnly", _set("services", 0, "encryptedOnly", value=True)),
    ("agent", "bad-mac", "interface.mac", _set("interface", "mac", value="02:53")),
    ("agent", "missing-interface", "interface", _drop("interface")),
    ("agent", "shares-on-a-bridge", "shares", _set("shares", value=[{"namespace": "default", "percent": 50}])),
    ("agent", "source-on-a-bridge", "services[0].source", _set("services", 0, "source", value="Agent")),
    ("agent", "wrong-version", "version", _set("version", value="v2")),
    ("agent", "wrong-hash", "hash", _set("hash", value="sha256:" + "0" * 64)),
]
"""(document, name, path of the error, edit that breaks the document). A missing field may also be reported at its parent."""


BAD_ROUTES: list[tuple[str, str, Callable[[Json], None]]] = [
    ("reactive-on-routes", "services[0].setup", _set("services", 0, "setup", value="Reactive")),
    ("routes-with-discovery", "discovery", _set("discovery", value=Discovery().model_dump(mode="json", by_alias=True))),
    ("routes-without-intake", "intake", _drop("intake")),
    ("bad-virtual-address", "intake", _set("intake", "virtualAddress", value="10.0.0.1/24")),
    ("unknown-dial", "peers[0].dial", _set("peers", 0, "dial", value="Sometimes")),
    ("routes-and-labels-differ", "wan", _set("streamPorts", "count", value=3)),
    ("route-twice", "wan[1]", _set("wan", 1, value="192.0.2.1")),
    ("share-of-nothing", "shares[0].percent", _set("shares", 0, "percent", value=0)),
    ("pods-of-a-router", "pods", _set("pods", value=[{"name": "default/web-0", "address": "10.0.0.11"}])),
    ("proxy-protocol-without-source", "services[0].proxyProtocol", _set("services", 0, "proxyProtocol", value="V2")),
    ("unknown-proxy-protocol", "services[0].proxyProtocol", _set("services", 0, "proxyProtocol", value="V1")),
    ("other-first-address", "peers[0].agents[0].addresses[0]", _set("peers", 0, "agents", 0, "address", value="192.0.2.9")),
]
"""(name, path of the error, edit that breaks the document), for an agent without a bridge."""


BAD_BALANCE: list[tuple[str, str, Callable[[Json], None]]] = [
    ("balance-client", "balances[0].client", _set("balances", 0, "client", value="10.0.0.300")),
    ("balance-elsewhere", "balances[0].dpid", _set("balances", 0, "dpid", value="00000000000000ff")),
    ("balance-weight", "balances[0].uplinks[1].weight", _set("balances", 0, "uplinks", 1, "weight", value=0)),
    ("balance-uplink-twice", "balances[0].uplinks[1].name", _set("balances", 0, "uplinks", 1, "name", value="wan0")),
]
"""(name, path of the error, edit that breaks the document), for the document of examples/04-balance."""


def render(document: Json) -> str:
    """Return a document's text as committed."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def stale(root: Path = ROOT) -> dict[Path, str | None]:
    """Return stale files -> their generated content, None for files that should not exist."""
    wanted = {root / path: render(document) for path, document in {**build_schemas(), **build_vectors(root)}.items()}
    present = set((root / "spec" / "vectors" / "config").rglob("*.json"))
    different = {path: text for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text}
    return {**different, **dict.fromkeys(sorted(present - set(wanted)))}


def main(arguments: list[str]) -> int:
    """Run the command; return the exit status."""
    if arguments not in (["write"], ["check"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    found = stale()
    for path, text in found.items():
        sys.stdout.write(f"{path.relative_to(ROOT)}\n")
        if arguments == ["write"] and text is None:
            path.unlink()
        elif arguments == ["write"] and text is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return 1 if found and arguments == ["check"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
