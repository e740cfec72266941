"""Input and output of `compile_world`. Frozen values only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sos_compile.model.problem import Problem
from sos_compile.model.site_card import SiteCard

Json = dict[str, Any]
"""A JSON or YAML object as the API server or a file gives it."""


@dataclass(frozen=True)
class Loaded:
    """One object of a file: `index` counts the documents of the file from 0, `line` is its first line (from 1)."""

    file: str
    index: int
    obj: Json
    line: int = 1


@dataclass(frozen=True)
class Node:
    """A machine that can carry a site's bridge. `address` is the endpoint of its tunnels (a Kubernetes node's InternalIP), "" if unknown.

    `created` is its creationTimestamp: an address that two nodes share counts for the younger node, because the older node is usually gone.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    created: str = ""
    pod_prefixes: tuple[str, ...] = ()
    """Prefixes of its pods' addresses (spec.podCIDRs), empty if the network plugin does not use them."""


@dataclass(frozen=True)
class Namespace:
    """A namespace and its labels, for the sites' `services` selectors."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pod:
    """A pod that services may select as a client, with its IPv4 address. Of several pods with one address, the youngest counts."""

    namespace: str
    name: str
    node: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = ""


@dataclass(frozen=True)
class KubernetesService:
    """A Kubernetes Service that SosServices name as their destination (spec.to.service).

    `addresses`: IPv4 addresses of the Service itself, or of its ready pods if it is headless. `ports`: the TCP ports at these addresses.
    """

    namespace: str
    name: str
    addresses: tuple[str, ...]
    ports: tuple[int, ...]
    headless: bool = False


@dataclass(frozen=True)
class Images:
    """The images of the rendered pods."""

    controller: str = "sos-controller:0.1.0"
    agent: str = "sos-agent:0.1.0"
    node: str = "sos-node:0.1.0"
    ovs: str = "sos-ovs:0.1.0"


def _requests(cpu: str, memory: str) -> Json:
    return {"requests": {"cpu": cpu, "memory": memory}}


@dataclass(frozen=True)
class DefaultResources:
    """Resources of containers, as in a pod; `agent` and `controller` apply where SosAgent and SosController set none.

    Requests are small but not zero: a pod without requests is evicted first when a node's memory runs short, whatever its priority class,
    and is refused where a ResourceQuota counts requests. There are no limits: demand follows the traffic, and killing Open vSwitch cuts off
    the node's pods.
    """

    ovs: Json = field(default_factory=lambda: _requests("50m", "128Mi"))
    node: Json = field(default_factory=lambda: _requests("20m", "32Mi"))
    agent: Json = field(default_factory=lambda: _requests("50m", "64Mi"))
    controller: Json = field(default_factory=lambda: _requests("50m", "128Mi"))


@dataclass(frozen=True)
class Ports:
    """Ports on nodes' own addresses. `node`: health and metrics of sos-node. `agents`: health and metrics of the first SosAgent's agents;
    the agents of each further SosAgent have the next port. `tunnels`: UDP port of VXLAN."""

    node: int = 9464
    agents: int = 9465
    tunnels: int = 14789


@dataclass(frozen=True)
class ServiceAccounts:
    """Names of the pods' ServiceAccounts, which have no rights and whose tokens are not mounted; "" for the namespace's default. OpenShift
    binds the permitted security contexts to ServiceAccounts."""

    controller: str = ""
    agent: str = ""
    node: str = ""


def non_root_security() -> Json:
    """Return the security context of a pod without privileges."""
    user = 65532  # "nonroot" of the usual minimal images
    return {
        "runAsNonRoot": True,
        "runAsUser": user,
        "runAsGroup": user,
        "fsGroup": user,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@dataclass(frozen=True)
class NetworkPolicies:
    """Peers that may connect to controllers, as in a NetworkPolicy; with an empty tuple, any peer may connect.

    `openflow`: switches. `api`: clients of the controllers' API and metrics, besides the operator and the chart's test.
    """

    openflow: tuple[Json, ...] = ()
    api: tuple[Json, ...] = ()


@dataclass(frozen=True)
class Settings:
    """Settings that do not come from custom resources.

    `namespace`: the release namespace, which holds every namespaced child. `prefix`: the start of every child's name. `release`: value of
    app.kubernetes.io/instance. `generation`: generation of every document, which must grow whenever a document's content changes.
    `network_policies`: None for no policy at all. `..._priority`: names of priority classes, "" for the cluster's default. `load_modules`:
    pods of nodes load the kernel modules that their switch can use.
    """

    namespace: str = "sos-system"
    release: str = "sos"
    prefix: str = "sos"
    managed_by: str = "sos-operator"
    generation: int = 1
    images: Images = Images()
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    state_dir: str = "/var/lib/sos"
    ovs_rundir: str = "/run/sos/openvswitch"
    ports: Ports = Ports()
    log_level: str = "info"
    network_policies: NetworkPolicies | None = NetworkPolicies()
    controller_priority: str = "system-cluster-critical"
    node_priority: str = "system-node-critical"
    resources: DefaultResources = DefaultResources()
    load_modules: bool = False
    share_from_bytes: int = 262_144
    """Size from which the common members of a folder's documents are in files of their own (documents/parts.py): a quarter of what a
    ConfigMap holds."""
    service_accounts: ServiceAccounts = ServiceAccounts()
    pod_security: Json = field(default_factory=non_root_security)
    """Security context of controllers' pods."""
    software: str = ""
    """Version of SOS, for site cards."""


@dataclass(frozen=True, order=True)
class AgentAllocation:
    """Stable allocation of one agent: its address (no prefix length) and its slot on the node (0, 1, ...: port names and numbers)."""

    pool: str
    node: str
    address: str
    slot: int


@dataclass(frozen=True, order=True)
class Claim:
    """Precedence number of a service among services of other namespaces, and a digest of the connections that the service covers: if they
    change, the service loses its number."""

    number: int
    scope: str


@dataclass(frozen=True)
class Allocations:
    """Numbers allocated so far. Passed to the next compilation, they never change while they remain valid.

    `nodes`: node name -> number (1 to 4095), from which tunnel names, ports and VXLAN network identifiers follow. `claims`: service
    (`namespace/name`) -> its claim.
    """

    sites: Mapping[str, int] = field(default_factory=dict)
    controllers: Mapping[str, int] = field(default_factory=dict)
    nodes: Mapping[str, int] = field(default_factory=dict)
    agents: tuple[AgentAllocation, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)

    def key(self) -> Hashable:
        """Return the allocations as a hashable value."""
        numbers = (tuple(sorted(each.items())) for each in (self.sites, self.controllers, self.nodes))
        return (*numbers, self.agents, tuple(sorted(self.claims.items())))

    def within(self, others: Allocations) -> bool:
        """True if `others` contains all these allocations."""
        pairs = ((self.sites, others.sites), (self.controllers, others.controllers), (self.nodes, others.nodes))
        kept = set(self.agents) <= set(others.agents) and self.claims.items() <= others.claims.items()
        return kept and all(mine.items() <= theirs.items() for mine, theirs in pairs)


@dataclass(frozen=True)
class Observed:
    """Observations of the caller: `endpoints` maps a SosController to its OpenFlow endpoints (`tcp:10.96.0.10:6653`), empty while
    unknown."""

    endpoints: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allocations: Allocations = Allocations()


@dataclass(frozen=True)
class World:
    """Everything a compilation depends on. `objects` are SOS objects as loaded or listed; other kinds are reported and left out."""

    objects: tuple[Loaded | Json, ...]
    nodes: tuple[Node, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    settings: Settings = Settings()
    observed: Observed = Observed()
    pods: tuple[Pod, ...] = ()
    """Pods of the cluster. The caller may leave them out if no service selects pods (`selects_pods`)."""
    pods_problem: str = ""
    """Reason why the pods are unknown; services that select pods are then refused."""
    cards: Mapping[str, SiteCard] = field(default_factory=dict)
    """The last site card of each SosPeer, by the SosPeer's name."""
    kubernetes_services: tuple[KubernetesService, ...] = ()
    """The Services of this cluster that SosServices name; those that do not exist are left out."""
    kubernetes_services_problem: str = "there is no access to a cluster"
    """Reason why the Services are unknown, "" if they are known; SosServices that name one are otherwise refused."""


@dataclass(frozen=True, order=True)
class ObjectKey:
    """Identity of a SOS object; `namespace` is "" for cluster-scoped kinds."""

    kind: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Overlap:
    """Connections that two services cover: the other service, and a description of the connections."""

    other: ObjectKey
    connections: str


@dataclass(frozen=True)
class Shadow:
    """Overlap of a service with others that cover the same connections.

    `hidden_by`: services tried before it that take these connections; `hides`: services tried after it. Each lists at most 8 services;
    `..._count` is the full number. `wholly`: the service has no connection left. `compared` is False if a site has too many overlaps to
    compare.
    """

    hidden_by: tuple[Overlap, ...] = ()
    hides: tuple[Overlap, ...] = ()
    hidden_by_count: int = 0
    hides_count: int = 0
    wholly: bool = False
    compared: bool = True


@dataclass(frozen=True)
class Fault:
    """An object, or a node (kind Node), that made the compilation raise: a bug. `trace` is for the log."""

    key: ObjectKey
    message: str
    trace: str


@dataclass(frozen=True)
class Facts:
    """Facts about one object, for its conditions and columns.

    `accepted`: the object itself is valid. `resolved`: all objects it names exist and permit it. If one of the two is false, `reason` and
    `message` give the cause. `text` holds ready-made strings for columns: `from`, `to`, `source`, `ports` and `mode` of a
    service, `prefixes` and `wan` of a site, `sites` of a pool. `dpids` are the datapaths concerned, `nodes` node names, `agents` agent ids,
    `sites` and `controllers` names, `number` the site or controller id, `mtu` the MTU of a site's bridge in bytes. `shadow` is None for
    services that share no connection with another.
    """

    accepted: bool
    resolved: bool
    reason: str = "Accepted"
    message: str = ""
    number: int | None = None
    mtu: int | None = None
    nodes: tuple[str, ...] = ()
    dpids: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    sites: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()
    text: Mapping[str, str] = field(default_factory=dict)
    node_problems: Mapping[str, str] = field(default_factory=dict)
    """Problems with the addresses of a site's nodes, by node."""
    shadow: Shadow | None = None
    client_pods: int | None = None
    """Number of pods that a service selects at present; None if the service does not select pods."""


@dataclass(frozen=True)
class Compiled:
    """Result of a compilation.

    controllers: SosController name -> controller-config document.
    nodes: node name -> node-config document.
    agents: (pool, node name) -> agent-config document.
    manifests: Kubernetes objects to apply, sorted by kind, namespace, name.
    held: (kind, name) of children of objects that exist but are currently invalid. Existing children must stay unchanged: after an error in
    a working object, its last good configuration stays in force, and no site loses its switches.
    faults: objects and nodes left out because compiling them raised (fault_isolation.py). These nodes keep their files.
    """

    controllers: Mapping[str, Json]
    nodes: Mapping[str, Json]
    agents: Mapping[tuple[str, str], Json]
    manifests: tuple[Json, ...]
    allocations: Allocations
    problems: tuple[Problem, ...]
    facts: Mapping[ObjectKey, Facts]
    held: tuple[tuple[str, str], ...] = ()
    faults: tuple[Fault, ...] = ()
    cards: Mapping[str, SiteCard] = field(default_factory=dict)
    """The site card for each accepted SosPeer of a cluster."""
    machines: Mapping[str, Json] = field(default_factory=dict)
    """The agent-config document for each accepted SosPeer of a machine."""
    parts: Mapping[str, Json] = field(default_factory=dict)
    """Members that documents of nodes and agents have in common, by hash (documents/parts.py)."""

    @cached_property
    def warnings(self) -> Mapping[ObjectKey, tuple[Problem, ...]]:
        """Warnings by object."""
        found: dict[ObjectKey, tuple[Problem, ...]] = {}
        for each in self.problems:
            if each.warning:
                key = ObjectKey(each.kind, each.namespace, each.name)
                found[key] = (*found.get(key, ()), each)
        return found
