"""Settings of the process, as values. `settings.py` reads them from the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sos_compile import DefaultResources, NetworkPolicies, Ports, ServiceAccounts
from sos_compile.model.world import non_root_security


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Image references of the pods that the operator starts."""

    controller: str
    agent: str
    node: str
    ovs: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMonitors:
    """Settings of the PodMonitors by which Prometheus Operator finds and scrapes the pods."""

    interval: str = "30s"
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels by which a Prometheus chooses its PodMonitors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator process."""

    namespace: str
    """The release namespace, which contains every child."""
    images: Images
    release: str = "sos"
    """Name of the Helm release, for the label app.kubernetes.io/instance."""
    data_plane_log_level: str = "info"
    """Log level of controllers, agents and node processes."""
    network_policies: NetworkPolicies | None = None
    """Peers that may connect to controllers; None: no NetworkPolicies."""
    controller_priority: str = "system-cluster-critical"
    """Priority class of controllers, empty for the cluster's default."""
    node_priority: str = "system-node-critical"
    """Priority class of agents and switches."""
    resources: DefaultResources = field(default_factory=DefaultResources)
    """Resources of the containers of switches, agents and controllers."""
    ports: Ports = field(default_factory=Ports)
    """Ports on nodes' own addresses."""
    load_modules: bool = False
    """True if pods of nodes load kernel modules."""
    reads_pods: bool = False
    """True if the operator may list and watch the pods of all namespaces."""
    reads_services: bool = False
    """True if the operator may read the Services and EndpointSlices of all namespaces."""
    service_accounts: ServiceAccounts = field(default_factory=ServiceAccounts)
    """ServiceAccounts of the pods of controllers, agents and switches."""
    pod_security: dict[str, Any] = field(default_factory=non_root_security)
    """Security context of controllers' pods."""
    pod_monitors: PodMonitors | None = None
    """Settings of PodMonitors for all components, created once the cluster serves the kind; None: no PodMonitors."""
    deployment: str = "sos-operator"
    """Name of the operator's own Deployment, which `uninstall` stops before it removes anything."""
    lease: str = ""
    """Name of the Lease that elects the active one of several operators; empty if there is only one operator."""
    lease_seconds: int = 15
    """Seconds after a holder's last renewal until another operator may take its Lease."""
    test: str = "sos-test"
    """Name of the Job of `helm test`, which `uninstall` removes."""
    kubeconfig: Path | None = None
    """Kubeconfig for the API server; none = the pod's service account."""
    defaults_dir: Path | None = None
    """Folder with the YAML of the default SosController and SosAgent (the chart's ConfigMap); none = no defaults."""
    http_port: int = 8080
    """Port of /healthz, /readyz and /metrics."""
    http_host: str = "0.0.0.0"  # noqa: S104 - probes and scrapers come from outside the pod
    log_level: str = "INFO"
    resync_seconds: float = 60.0
    """Resync period: everything is listed at least this often, independent of watches."""
    site_cleanup_seconds: float = 60.0
    """Seconds that a deleted SosSite may wait for its nodes to take their bridges down."""
    key_overlap_seconds: float = 180.0
    """Seconds that each phase of a key rotation lasts: a kubelet may take more than a minute to see a changed Secret."""
    controller_api_override: Mapping[str, str] = field(default_factory=dict)
    """Controller name -> base URL of its API, instead of its Service (for an operator that runs outside the cluster)."""
