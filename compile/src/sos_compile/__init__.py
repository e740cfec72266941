"""Compile custom resources to controller, node and agent configurations, manifests and problems.

Only this package interprets custom resources. The operator, the testbed and `sos-controller --check` call the same functions:

    objects = load(["examples/01-two-sites"])                      # files -> objects; raises LoadError
    world = World(objects=tuple(objects), nodes=(Node("edge1", {"sos.network/site": "west"}), ...))
    compiled = compile_world(world)                                # pure; never raises for invalid objects
    compiled.problems, compiled.controllers["default"], compiled.nodes["edge1"], compiled.agents["default", "edge1"]

`admit(obj, file)` validates a single object as the API server would. Only `admission.load` reads files.

`compiler`    the steps in order: admission, resolve, documents, manifests, facts
`admission`   raw objects to parsed, valid objects
`resolve`     objects to one network: references resolved, numbers allocated
`documents`   network to controller-config, node-configs, agent-configs
`manifests`   network and documents to Kubernetes manifests
`facts`       network to facts for each object's status
`model`       values that the steps share
`keys`        key derivation
`certificates`  certificates of OpenFlow channels; imported by those who issue them
`artifacts`   generated files of spec/: schemas and vectors
"""

from sos_compile.admission.load import LoadError, load
from sos_compile.admission.schema import admit
from sos_compile.compiler import DocumentName, Draft, compile_world, draft
from sos_compile.model.memo import Memo
from sos_compile.model.ports import find_port_conflict
from sos_compile.model.problem import Problem, Reason
from sos_compile.model.world import (
    AgentAllocation,
    Allocations,
    Claim,
    Compiled,
    DefaultResources,
    Facts,
    Fault,
    Images,
    KubernetesService,
    Loaded,
    Namespace,
    NetworkPolicies,
    Node,
    ObjectKey,
    Observed,
    Overlap,
    Pod,
    Ports,
    ServiceAccounts,
    Settings,
    Shadow,
    World,
)

__all__ = [
    "AgentAllocation",
    "Allocations",
    "Claim",
    "Compiled",
    "DefaultResources",
    "DocumentName",
    "Draft",
    "Facts",
    "Fault",
    "Images",
    "KubernetesService",
    "LoadError",
    "Loaded",
    "Memo",
    "Namespace",
    "NetworkPolicies",
    "Node",
    "ObjectKey",
    "Observed",
    "Overlap",
    "Pod",
    "Ports",
    "Problem",
    "Reason",
    "ServiceAccounts",
    "Settings",
    "Shadow",
    "World",
    "admit",
    "compile_world",
    "draft",
    "find_port_conflict",
    "load",
]
