"""Generate worlds whose values are at the limits of the schemas; some nodes and statuses are invalid. Each seed yields one world."""

from __future__ import annotations

import random
from typing import Any

from schema_limits import SchemaLimits
from sos_compile import AgentAllocation, Allocations, Namespace, Node, Observed, Settings, World

API = "sos.network/v1alpha1"
NAMESPACES = ("sos-system", "n", "t" * 63, "tenant")
LENGTHS = (1, 2, 15, 16, 62, 63, 64, 188, 189, 190, 252, 253)
PORTS = (1, 2, 22, 80, 9465, 10000, 32768, 65534, 65535)
ADDRESSES = (
    "",
    "192.0.2.1",
    "192.0.2.2",
    "192.0.2.3",
    "fd00::1",
    "node.example",
    "127.0.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "10.0.0.9",
    "1.2.3",
    "x" * 300,
)
UPLINKS = ("wan0", "w", "w" * 15, "w" * 16, "br-sos", "sosag0", "lo", "eth0.100", "-x", "a/b")
BEYOND = 0.02  # fraction of values beyond a limit
ENUMS = ("FromANewerAPI", "", None, 7)


class Limits:
    """Draw values of objects."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.schemas = SchemaLimits(self.r)
        self.sites = list(dict.fromkeys(self.name(63) for _ in range(self.most(2, 3, 6, beyond=(1,)))))
        self.routed = self.some(0.25)  # mostly sites without bridges
        self.controllers = ["default", *(self.name(63) for _ in range(self.r.randint(0, 2)))]

    def some(self, chance: float) -> bool:
        return self.r.random() < chance

    def name(self, most: int = 253) -> str:
        length = self.r.choice([n for n in LENGTHS if n <= most or self.some(BEYOND)])
        return "".join(self.r.choices("abcz09", k=1) + self.r.choices("abz09-", k=max(0, length - 2)) + self.r.choices("az9", k=length > 1))

    def prefix(self, i: int = 0) -> str:
        length = self.r.choice((32, 31, 30, 24, 16, 8, 1, 0, 24, 24))
        base = self.r.choice(
            (f"10.{i}.{self.r.randint(0, 3)}.0", f"10.{i}.0.0", "0.0.0.0", "255.255.255.255", "198.18.255.254", "192.0.2.0", "128.0.0.0")
        )
        bits = int.from_bytes(bytes(map(int, base.split("."))), "big") & (0xFFFFFFFF << (32 - length) & 0xFFFFFFFF if length else 0)
        return ".".join(map(str, bits.to_bytes(4, "big"))) + f"/{length}"

    def prefixes(self, i: int) -> list[str]:
        if self.some(0.7):
            return [f"10.{i}.0.0/16"]
        if self.some(0.8):
            return [f"10.{i}.{j}.0/24" for j in range(self.most(63, 64, beyond=(65,)))]
        return list(dict.fromkeys(self.prefix(i) for _ in range(self.r.choice((1, 2, 4)))))

    def most(self, *values: Any, beyond: tuple[Any, ...] = ()) -> Any:
        """Draw a value at a limit, and rarely a value beyond it: with frequent values beyond limits, few objects of a world would be valid,
        and documents would be small."""
        return self.r.choice(beyond) if beyond and self.some(BEYOND) else self.r.choice(values)

    def enum(self, *values: Any) -> Any:
        return self.most(*values, beyond=ENUMS)

    def obj(self, kind: str, name: str, spec: Any, namespace: str = "") -> dict[str, Any]:
        meta: dict[str, Any] = {"name": name, "uid": f"{kind}-{namespace}-{name}"[:400], "generation": 1}
        meta |= {"namespace": namespace} if namespace else {}
        if self.some(0.3):
            meta["labels"] = {"a" * self.r.choice((1, 63)): "v" * self.r.choice((0, 1, 63)) for _ in range(2)}
            meta["annotations"] = {"note": "x" * self.r.choice((0, 5000))}
        meta["creationTimestamp"] = self.r.choice(("2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z", ""))
        if self.some(0.15) and isinstance(spec, dict):
            self.schemas.spec(kind, spec)
        return {"apiVersion": API, "kind": kind, "metadata": meta, "spec": spec}

    def site(self, i: int) -> dict[str, Any]:
        spec: dict[str, Any] = {"nodeSelector": {"matchLabels": {"sos.network/site": self.sites[i][:63]}}}
        if self.some(0.92):
            spec["prefixes"] = self.prefixes(i)
        if self.some(0.95):
            spec["services"] = {"namespaces": self.enum("All", "All", "All", "Release")}
        if self.some(0.2):
            spec["siteID"] = self.most(1, 65535, 7, beyond=(0, 65536))
        if self.some(0.3):
            spec["wan"] = self.wan()
        if self.some(0.3):
            spec["network"] = {
                "mtu": self.most(1280, 1500, 9216, beyond=(1279, 9217)),
                **({"lan": [{"name": self.r.choice(UPLINKS)}]} if self.some(0.1) else {}),
                **({"agentAddresses": self.most(f"10.{i}.0.0/24", f"10.{i}.0.0/30", beyond=(self.prefix(i),))} if self.some(0.3) else {}),
            }
        if self.some(0.02) or (spec.get("prefixes") == [f"10.{i}.0.0/16"] and self.some(0.3)):
            spec["gateway"] = self.most(f"10.{i}.0.1/16", beyond=("0.0.0.0/0", "10.0.0.1/32", "fd00::1/64"))
        if self.some(0.2):
            spec["datapath"] = {"type": self.enum("Auto", "System", "Netdev"), "rewrite": self.enum("Transparent", "OpenFlow")}
        if self.some(0.2):
            spec["update"] = {"maxUnavailable": self.most(1, 1024, "1%", "100%", beyond=(0, 1025, "0%", "x", "5000"))}
        if self.some(0.3):
            spec["controllers"] = [{"name": name} for name in self.controllers]
        if self.routed and self.some(0.9):
            for key in ("network", "gateway", "datapath"):
                if not self.some(BEYOND):
                    spec.pop(key, None)
            spec["wan"] = {"type": "Routed"}
            spec["intake"] = self.most(
                {"type": "Pods"},
                {"type": "Pods", "networkPolicies": self.enum("Respect", "Ignore")},
                {"type": "Routed", "interface": self.r.choice(UPLINKS)},
                {
                    "type": "Routed",
                    "interface": self.r.choice(UPLINKS),
                    "virtualAddress": self.most("10.0.0.1", "223.255.255.255", beyond=("0.0.0.0",)),
                },
                beyond=({"type": "Routed"}, {}, {"type": "Pods", "interface": "eth0"}),
            )
        return self.obj("SosSite", self.sites[i], spec)

    def wan(self) -> dict[str, Any]:
        names = self.r.sample(UPLINKS, self.r.randint(1, 3)) if self.some(0.1) else ["wan0", "w" * 15]
        kind, bonded = self.enum("Uplinks", "Overlay"), self.some(0.3)
        base = [(j == 0 or bonded) and (kind != "Overlay" or self.some(BEYOND)) for j, _ in enumerate(names)]
        found: dict[str, Any] = {"type": kind, "uplinks": [{"name": name, "base": b} for name, b in zip(names, base, strict=True)]}
        if bonded and kind == "Uplinks":
            found["bond"] = {"mode": self.enum("ActiveBackup", "BalanceTCP"), "upDelaySeconds": self.most(0, 600, beyond=(601,))}
        return found

    def end(self, site: str) -> dict[str, Any]:
        i = self.sites.index(site)
        found: dict[str, Any] = {} if self.some(BEYOND) else {"site": site}
        if self.some(0.3):
            known = ([f"10.{i}.0.0/24"], [f"10.{i}.{j}.0/30" for j in range(64)], [f"10.{i}.63.255/32"])
            found["prefixes"] = self.most(*known, beyond=([self.prefix(i)], []))
        return found

    def service(self) -> dict[str, Any]:
        a, b = self.r.sample(self.sites, 2) if len(self.sites) > 1 and not self.some(BEYOND) else self.r.choices(self.sites, k=2)
        spec: dict[str, Any] = {"from": self.end(a), "to": self.end(b)}
        if self.some(0.7):
            pairs = [(self.r.choice(PORTS), self.r.choice(PORTS)) for _ in range(self.r.choice((1, 2, 64)))]
            pairs = pairs if self.some(BEYOND) else list({min(pair): pair for pair in pairs}.values())
            spec["ports"] = [{"port": min(pair), **({"endPort": max(pair)} if self.some(0.5) else {})} for pair in pairs]
        if self.some(0.5):
            spec |= {"mode": self.enum("Accelerate", "Observe"), "setup": self.enum("Auto", "Reactive", "Proactive")}
            spec |= {"priority": self.most(0, 65535, 100, beyond=(65536, -1)), "percent": self.most(0, 100, 50, beyond=(101,))}
        if self.some(0.3):
            spec["transport"] = {
                "streams": self.most("Auto", 1, 128, beyond=(129, "16")),
                "blockKiB": self.most(4, 256, beyond=(3,)),
                "queueMiB": self.r.choice((1, 1024)),
            }
            spec["paths"] = {"mode": self.enum("Shortest", "Disjoint", "Measured"), "max": self.most(1, 8, beyond=(9,))}
        if self.some(0.1):
            spec = {"from": {"site": a, "prefixes": [self.prefix(0)]}, "to": {"prefixes": [self.prefix(9)]}, "balance": {}}
        return self.obj("SosService", self.name(189), spec, self.r.choice(NAMESPACES))

    def pair(self) -> dict[str, Any]:
        a, b = (self.r.choice(self.sites) for _ in "ab")
        transport = {"streams": self.most("Auto", 1, 128, beyond=(129, "16")), "encryption": self.enum("TLS", "None")}
        transport |= {"protocol": self.enum("TCP", "QUIC"), "congestionControl": self.enum("Auto", "BBR")}
        return self.obj("SosLink", self.name(63), {"a": {"site": a}, "b": {"site": b}, "transport": transport})

    def nonsense(self) -> dict[str, Any]:
        return self.r.choice(
            (
                {
                    "apiVersion": API,
                    "kind": "SosSite",
                    "metadata": {"name": self.name()},
                    "spec": self.r.choice((None, [], 5, {"wan": []})),
                },
                {"apiVersion": API, "kind": "SosThing", "metadata": {"name": "x"}},
                self.obj(
                    "SosLink", self.name(63), {end: {"site": self.r.choice(self.sites), "uplink": self.r.choice(UPLINKS)} for end in "ab"}
                ),
                self.obj(
                    "SosAgent",
                    self.name(63),
                    {"limits": {"sessions": self.r.choice((1, 65536, 65537)), "memoryMiB": self.r.choice((63, 64, 2**20))}},
                ),
            )
        )

    def objects(self) -> list[dict[str, Any]]:
        found = [self.obj("SosController", name, {}) for name in self.controllers]
        found += [self.obj("SosAgent", "default", {"attach": self.enum("Host", "Multus")})]
        found += [self.site(i) for i in range(len(self.sites))]
        found += [self.service() for _ in range(self.r.choice((0, 1, 3, 8)))]
        found += [self.pair() for _ in range(self.r.choice((0, 1, 2)))]
        found += [self.nonsense() for _ in range(self.r.choice((0, 0, 1, 3)))]
        return found

    def nodes(self) -> list[Node]:
        labels = [{"sos.network/site": self.r.choice(self.sites)[:63]} for _ in range(self.r.choice((0, 1, 4, 8)))]
        address = self.r.choice
        prefixes = [tuple(f"10.244.{j}.0/24" for j in range(self.r.choice((0, 1, 64)))) for _ in labels]
        addresses = [f"192.0.2.{j + 10}" if self.some(0.7) else address(ADDRESSES) for j in range(len(labels))]
        each = zip(labels, addresses, prefixes, strict=True)
        return [Node(self.name(63), label, given, pod_prefixes=pods) for label, given, pods in each]

    def allocations(self, nodes: list[Node]) -> Allocations:
        """Draw the earlier allocations in statuses: arbitrary values within their schemas."""
        numbers = {name: self.r.choice((1, 2, 65535)) for name in self.sites if self.some(0.5)}
        agents = tuple(
            sorted(
                {
                    AgentAllocation("default", n.name, self.r.choice(("10.0.0.9", "", "fd00::1", "999.1.1.1")), self.r.choice((0, 127)))
                    for n in nodes
                }
            )
        )
        return Allocations(numbers, {"default": self.r.choice((1, 65279))}, {n.name: self.r.choice((1, 4095)) for n in nodes}, agents)


def limits_world(seed: int) -> World:
    """Return the world of a seed."""
    draw = Limits(seed)
    nodes = list({node.name: node for node in draw.nodes()}.values())
    ends = draw.r.choice(((), ("tcp:10.96.0.10:6653",), ("tcp:fd00::1:6653",), ("tcp:10.96.0.10:6653", "tcp:1.2.3.4:65535")))
    observed = Observed(endpoints={"default": ends}, allocations=draw.allocations(nodes) if draw.some(0.3) else Allocations())
    namespaces = tuple(Namespace(name, {"team": "x"} if draw.some(0.5) else {}) for name in NAMESPACES)
    return World(objects=tuple(draw.objects()), nodes=tuple(nodes), namespaces=namespaces, settings=Settings(), observed=observed)
