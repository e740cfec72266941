"""Convert listed API objects to the input of `sos_compile`, and read allocations back from the objects' status."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sos_compile
from sos_compile.documents.parts import INCLUDE
from sos_compile.manifests import naming
from sos_compile.model.addresses import is_ipv4, is_ipv4_prefix
from sos_compile.model.formats.shared import content_hash
from sos_compile.model.memo import ByIdentity
from sos_compile.model.site_card import SiteCard

from sos_operator import __version__
from sos_operator.core.model.cluster_objects import Node, Pod, Service
from sos_operator.core.model.custom_resources import CustomResource, SosController, SosService, SosSite
from sos_operator.core.model.kinds import FIELD_MANAGER
from sos_operator.core.model.objects import Resource, View
from sos_operator.core.model.options import Settings
from sos_operator.core.model.remote.node_status import NodeAnswer

MAX_LIST = 64  # maximum number of prefixes in a list of an agent-config
PREFIX = "sos"  # prefix of every child's name; fixed, because the API's columns and the docs contain these names


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One listing of all objects that the operator reads."""

    objects: tuple[CustomResource, ...] = ()
    """Objects of our kinds."""
    nodes: tuple[Node, ...] = ()
    namespaces: tuple[Resource, ...] = ()
    children: tuple[Resource, ...] = ()
    """Objects with our owner label in the release namespace."""
    pods: tuple[Pod, ...] = ()
    answers: Mapping[str, NodeAnswer] = field(default_factory=dict)
    """Nodes' answers that a compilation depends on, by the uid of their pod."""
    cards: Mapping[str, SiteCard] = field(default_factory=dict)
    """The last site card of each peer, by the name of its SosPeer."""
    workload_pods: tuple[sos_compile.Pod, ...] = ()
    """Pods that services may select as clients."""
    pods_problem: str = ""
    """Reason why these pods are unknown."""
    kubernetes_services: tuple[sos_compile.KubernetesService, ...] = ()
    """Services that SosServices name as their destination."""
    kubernetes_services_problem: str = ""
    """Reason why these Services are unknown."""
    claims: tuple[tuple[int, str], ...] = ()
    """Generation and hash of the configurations in force at machines outside Kubernetes."""
    given_up: frozenset[tuple[str, str]] = frozenset()
    """(site, node) of nodes that left their site and did not report clean in time."""

    def of(self, view: type[View]) -> tuple[View, ...]:
        """Our objects of one kind, by its view."""
        return tuple(o for o in self.objects if isinstance(o, view))

    def child(self, view: type[View], name: str) -> View | None:
        """One child by the view of its kind and by name."""
        return next((o for o in self.children if isinstance(o, view) and o.name == name), None)


def compile_settings(settings: Settings, generation: int) -> sos_compile.Settings:
    """The settings of a compilation."""
    images = settings.images
    return sos_compile.Settings(
        namespace=settings.namespace,
        release=settings.release,
        prefix=PREFIX,
        managed_by=FIELD_MANAGER,
        generation=generation,
        images=sos_compile.Images(controller=images.controller, agent=images.agent, node=images.node, ovs=images.ovs),
        pull_policy=images.pull_policy,
        pull_secrets=images.pull_secrets,
        log_level=settings.data_plane_log_level,
        network_policies=settings.network_policies,
        controller_priority=settings.controller_priority,
        node_priority=settings.node_priority,
        resources=settings.resources,
        ports=settings.ports,
        load_modules=settings.load_modules,
        service_accounts=settings.service_accounts,
        pod_security=settings.pod_security,
        software=__version__,
    )


def build_world(seen: Seen, settings: Settings, generation: int) -> sos_compile.World:
    """Return the world for `sos_compile`. Objects being deleted are left out (departure.py covers their nodes)."""
    return sos_compile.World(
        objects=tuple(o.content for o in seen.objects if not o.leaving),
        nodes=tuple(_node(node) for node in seen.nodes if not node.leaving),
        namespaces=tuple(sos_compile.Namespace(o.meta.name, o.meta.labels) for o in seen.namespaces if not o.leaving),
        settings=compile_settings(settings, generation),
        observed=sos_compile.Observed(endpoints=controller_endpoints(seen), allocations=parse_allocations(seen.objects)),
        pods=seen.workload_pods,
        pods_problem=seen.pods_problem,
        cards=seen.cards,
        kubernetes_services=seen.kubernetes_services,
        kubernetes_services_problem=seen.kubernetes_services_problem,
    )


def with_departing(world: sos_compile.World, seen: Seen) -> sos_compile.World:
    """The same world, including sites that are being deleted: their nodes need node-configs that remove their bridges."""
    return replace(world, objects=(*world.objects, *(o.content for o in seen.of(SosSite) if o.leaving)))


def _node(node: Node) -> sos_compile.Node:
    # Without an IPv4 address, pass on the first address: the compilation reports the fault.
    address = next(filter(is_ipv4, node.addresses), node.addresses[0] if node.addresses else "")
    prefixes = tuple(filter(is_ipv4_prefix, node.pod_prefixes))
    return sos_compile.Node(node.meta.name, node.meta.labels, address, node.meta.created, prefixes[:MAX_LIST])


OPENFLOW_PORT = 6653  # of a Managed controller's Service
API_PORT = 8080


def service_address(controller: str, seen: Seen, replica: int = 0) -> str:
    """Cluster address of the Service of a Managed controller's replica, preferably IPv4; empty while it has none."""
    addresses = service_addresses(controller, seen, replica)
    return next(filter(is_ipv4, addresses), addresses[0] if addresses else "")


def service_addresses(controller: str, seen: Seen, replica: int = 0) -> tuple[str, ...]:
    """All cluster addresses of the Service of a Managed controller's replica, one of each family."""
    service = seen.child(Service, naming.controller(PREFIX, controller, replica))
    return service.addresses if service else ()


def controller_endpoints(seen: Seen) -> dict[str, tuple[str, ...]]:
    """Return each controller's OpenFlow endpoints: the cluster addresses of its replicas' Services, or the declared endpoints of an
    External controller."""
    endpoints: dict[str, tuple[str, ...]] = {}
    for controller in seen.of(SosController):
        addresses = (service_address(controller.name, seen, replica) for replica in range(controller.replicas))
        found = tuple(f"tcp:{address}:{OPENFLOW_PORT}" for address in addresses if is_ipv4(address))
        if controller.external:
            endpoints[controller.name] = controller.endpoints
        elif found:
            endpoints[controller.name] = found
    return endpoints


def api_base(controller: SosController, seen: Seen, override: Mapping[str, str], replica: int = 0) -> str | None:
    """Return the URL of the API of a controller's replica; empty while unknown; None if the operator has no access to it.

    Use the Service's address, not its name. After a reinstallation, the name resolves to the old Service's address for a while (observed: a
    server outside the cluster answered), and an HTTP client that reuses connections would send later requests to the same wrong server.
    """
    name = controller.name if replica == 0 else f"{controller.name}/{replica + 1}"
    if name in override:
        return override[name]
    if controller.external:
        url = controller.api_url if replica == 0 else controller.standby_url
        return url.rstrip("/") if url else None
    address = service_address(controller.name, seen, replica)
    return f"http://[{address}]:{API_PORT}" if ":" in address else f"http://{address}:{API_PORT}" if address else ""


def compiled_from(seen: Seen) -> Hashable:
    """Return the inputs of a compilation, which is repeated only if they change. Status updates and node heartbeats do not change them."""
    return (
        tuple(_version(o) for o in seen.objects),
        tuple(
            (n.name, tuple(sorted(n.labels.items())), n.address, n.created, n.pod_prefixes)
            for n in (_node(node) for node in seen.nodes if not node.leaving)
        ),
        tuple(_version(o) for o in seen.namespaces),
        tuple(sorted(controller_endpoints(seen).items())),
        parse_allocations(seen.objects).key(),
        tuple(sorted(seen.cards.items(), key=lambda item: item[0])),
        # The same tuple as long as no pod changes: comparing the pods of a large cluster in every pass would take too long.
        ByIdentity(seen.workload_pods),
        seen.pods_problem,
        seen.kubernetes_services,
        seen.kubernetes_services_problem,
    )


def _version(obj: Resource) -> Hashable:
    return (obj.meta.uid, obj.meta.generation, tuple(sorted(obj.meta.labels.items())), obj.leaving)


def parse_allocations(objects: Iterable[Resource]) -> sos_compile.Allocations:
    """Numbers and addresses allocated before, read back from the objects' status.

    Allocations are stored in the objects' status, not in a child, so that datapath ids and agent addresses survive a reinstallation of the
    release.
    """
    sites: dict[str, int] = {}
    controllers: dict[str, int] = {}
    nodes: dict[str, int] = {}
    agents: set[sos_compile.AgentAllocation] = set()
    claims: dict[str, sos_compile.Claim] = {}
    for obj in sorted(objects, key=lambda o: (o.kind, o.name)):
        match obj:
            case SosController() if obj.number:
                controllers[obj.name] = obj.number
            case SosService() if obj.claim_number and obj.claim_scope:
                claims[obj.id] = sos_compile.Claim(obj.claim_number, obj.claim_scope)
            case SosSite():
                if obj.number:
                    sites[obj.name] = obj.number
                for node in obj.nodes:
                    if node.number:
                        nodes.setdefault(node.name, node.number)
                    agents |= {sos_compile.AgentAllocation(agent.pool, node.name, agent.address, agent.slot) for agent in node.agents}
    return sos_compile.Allocations(sites=sites, controllers=controllers, nodes=nodes, agents=tuple(sorted(agents)), claims=claims)


def absent(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the node-config that removes everything that the given document created (spec/node-config.md clause 1). The removal needs no
    parts, which may be gone with the other nodes of the site."""
    gone = {**document, "state": "Absent"}
    if INCLUDE in gone:
        gone = {key: value for key, value in gone.items() if key not in (INCLUDE, "number")} | {"baseFlows": []}
    return {**gone, "hash": content_hash(gone)}
