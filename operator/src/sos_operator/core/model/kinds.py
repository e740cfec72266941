"""Closed table of the kinds of objects that the operator reads and writes.

The chart's RBAC is written for this table. A manifest of another kind is a bug that must show in tests, not as a 403 in a user's cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

from sos_operator.core.model.errors import KindMissing

GROUP = "sos.network"
API_VERSION = f"{GROUP}/v1alpha1"
FIELD_MANAGER = "sos-operator"
MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
OWNER_SELECTOR = f"{MANAGED_BY_LABEL}={FIELD_MANAGER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Address of one kind of object on the API server."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool

    @property
    def group(self) -> str:
        """API group, empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Version inside the group."""
        return self.api_version.rpartition("/")[2]


SITE = Kind(api_version=API_VERSION, kind="SosSite", plural="sossites", namespaced=False)
AGENT = Kind(api_version=API_VERSION, kind="SosAgent", plural="sosagents", namespaced=False)
SERVICE = Kind(api_version=API_VERSION, kind="SosService", plural="sosservices", namespaced=True)
CONTROLLER = Kind(api_version=API_VERSION, kind="SosController", plural="soscontrollers", namespaced=False)
LINK = Kind(api_version=API_VERSION, kind="SosLink", plural="soslinks", namespaced=False)
PEER = Kind(api_version=API_VERSION, kind="SosPeer", plural="sospeers", namespaced=False)
OWN_KINDS = (SITE, AGENT, SERVICE, CONTROLLER, LINK, PEER)

NODE = Kind(api_version="v1", kind="Node", plural="nodes", namespaced=False)
NAMESPACE = Kind(api_version="v1", kind="Namespace", plural="namespaces", namespaced=False)
POD = Kind(api_version="v1", kind="Pod", plural="pods", namespaced=True)
EVENT = Kind(api_version="v1", kind="Event", plural="events", namespaced=True)

CRD = Kind(api_version="apiextensions.k8s.io/v1", kind="CustomResourceDefinition", plural="customresourcedefinitions", namespaced=False)
"""Touched by `uninstall --purge` only, with the rights of the user who runs it."""

CONFIG_MAP = Kind(api_version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
SECRET = Kind(api_version="v1", kind="Secret", plural="secrets", namespaced=True)
K8S_SERVICE = Kind(api_version="v1", kind="Service", plural="services", namespaced=True)
ENDPOINT_SLICE = Kind(api_version="discovery.k8s.io/v1", kind="EndpointSlice", plural="endpointslices", namespaced=True)
DAEMON_SET = Kind(api_version="apps/v1", kind="DaemonSet", plural="daemonsets", namespaced=True)
DEPLOYMENT = Kind(api_version="apps/v1", kind="Deployment", plural="deployments", namespaced=True)
NAD = Kind(api_version="k8s.cni.cncf.io/v1", kind="NetworkAttachmentDefinition", plural="network-attachment-definitions", namespaced=True)
NETWORK_POLICY = Kind(api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies", namespaced=True)
POD_DISRUPTION_BUDGET = Kind(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets", namespaced=True)
POD_MONITOR = Kind(api_version="monitoring.coreos.com/v1", kind="PodMonitor", plural="podmonitors", namespaced=True)

LEASE = Kind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases", namespaced=True)
"""The operator that holds the Lease is active (core/scheduling/lease.py). The Lease is a single object and not a child, because it does not
describe the network."""

JOB = Kind(api_version="batch/v1", kind="Job", plural="jobs", namespaced=True)
"""Left by `helm test`, and not removed by helm; touched by `uninstall` only."""

# Order of application: objects that pods mount and objects that protect pods come first, so that no pod starts without them.
CHILD_KINDS = (SECRET, CONFIG_MAP, NETWORK_POLICY, K8S_SERVICE, NAD, POD_DISRUPTION_BUDGET, DEPLOYMENT, DAEMON_SET, POD_MONITOR)

# Kinds that not every cluster serves; left out while the cluster does not serve them.
OPTIONAL_KINDS = (NAD, POD_MONITOR)

_BY_NAME = {(k.api_version, k.kind): k for k in (*OWN_KINDS, NODE, NAMESPACE, POD, EVENT, CRD, LEASE, JOB, *CHILD_KINDS)}


def kind_of(manifest: dict[str, object]) -> Kind:
    """The kind of a manifest; raises KindMissing for a kind that this operator never handles."""
    key = (str(manifest.get("apiVersion")), str(manifest.get("kind")))
    try:
        return _BY_NAME[key]
    except KeyError:
        raise KindMissing(f"{key[0]} {key[1]} is not a kind this operator handles") from None
