"""Views of the objects that Kubernetes defines: pods, nodes, workloads, ConfigMaps, Secrets and Services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from sos_operator.core.model.kinds import DAEMON_SET
from sos_operator.core.model.objects import (
    Condition,
    Object,
    Resource,
    identity,
    items,
    mapping,
    number,
    parse_conditions,
    rows,
    strings,
    text,
    texts,
)


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod's specification."""

    name: str
    args: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """Status of one container."""

    name: str
    ready: bool = False
    waiting_reason: str = ""
    waiting_message: str = ""
    ended_message: str = ""
    """Message of the container's last termination."""


def _container(content: Mapping[str, Any]) -> Container:
    ports = (number(port.get("containerPort")) for port in rows(content.get("ports")))
    return Container(text(content.get("name")), strings(content.get("args")), tuple(port for port in ports if port))


def _container_status(content: Mapping[str, Any]) -> ContainerStatus:
    waiting = mapping(mapping(content.get("state")).get("waiting"))
    ended = mapping(mapping(content.get("lastState")).get("terminated"))
    return ContainerStatus(
        name=text(content.get("name")),
        ready=content.get("ready") is True,
        waiting_reason=text(waiting.get("reason")),
        waiting_message=text(waiting.get("message")),
        ended_message=text(ended.get("message")),
    )


@dataclass(frozen=True, slots=True)
class Pod(Resource):
    """A pod of the release."""

    node: str = ""
    """Node that the pod runs on, "" before the pod is scheduled."""
    address: str = ""
    host_network: bool = False
    containers: tuple[Container, ...] = ()
    phase: str = ""
    reason: str = ""
    message: str = ""
    statuses: tuple[ContainerStatus, ...] = ()
    """Status of all containers, init containers first."""
    ready: bool = False
    """True if the kubelet reports the pod as ready."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a pod."""
        spec, status = mapping(content.get("spec")), mapping(content.get("status"))
        statuses = [*rows(status.get("initContainerStatuses")), *rows(status.get("containerStatuses"))]
        return cls(
            *identity(content),
            node=text(spec.get("nodeName")),
            address=text(status.get("podIP")),
            host_network=spec.get("hostNetwork") is True,
            containers=tuple(map(_container, rows(spec.get("containers")))),
            phase=text(status.get("phase")),
            reason=text(status.get("reason")),
            message=text(status.get("message")),
            statuses=tuple(map(_container_status, statuses)),
            ready=any(c.type == "Ready" and c.status == "True" for c in parse_conditions(status.get("conditions"))),
        )

    @property
    def daemon_set(self) -> str:
        """Name of the DaemonSet that the pod belongs to, empty if none."""
        return next((owner.name for owner in self.meta.owners if owner.kind == DAEMON_SET.kind), "")


@dataclass(frozen=True, slots=True)
class Node(Resource):
    """A node of the cluster."""

    addresses: tuple[str, ...] = ()
    """Internal addresses, of both families."""
    pod_prefixes: tuple[str, ...] = ()
    ready: Condition | None = None
    """Condition Ready, None before the first report of the node's kubelet."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a node."""
        spec, status = mapping(content.get("spec")), mapping(content.get("status"))
        return cls(
            *identity(content),
            addresses=tuple(text(row.get("address")) for row in rows(status.get("addresses")) if row.get("type") == "InternalIP"),
            pod_prefixes=strings(spec.get("podCIDRs")),
            ready=next((c for c in parse_conditions(status.get("conditions")) if c.type == "Ready"), None),
        )


@dataclass(frozen=True, slots=True)
class DaemonSet(Resource):
    """A DaemonSet of the release."""

    updates: bool = True
    """True if its controller replaces pods of an older template."""
    template_annotations: Mapping[str, str] = field(default_factory=dict)
    observed_generation: int = 0
    desired: int = 0
    ready: int = 0
    updated: int = 0

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a DaemonSet."""
        spec, status = mapping(content.get("spec")), mapping(content.get("status"))
        return cls(
            *identity(content),
            updates=mapping(spec.get("updateStrategy")).get("type") != "OnDelete",
            template_annotations=texts(mapping(mapping(spec.get("template")).get("metadata")).get("annotations")),
            observed_generation=number(status.get("observedGeneration")),
            desired=number(status.get("desiredNumberScheduled")),
            ready=number(status.get("numberReady")),
            updated=number(status.get("updatedNumberScheduled")),
        )


@dataclass(frozen=True, slots=True)
class Deployment(Resource):
    """A Deployment of the release."""

    desired: int = 0
    available: int = 0
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a Deployment."""
        spec, status = mapping(content.get("spec")), mapping(content.get("status"))
        return cls(
            *identity(content),
            desired=number(spec.get("replicas")),
            available=number(status.get("availableReplicas")),
            conditions=parse_conditions(status.get("conditions")),
        )


@dataclass(frozen=True, slots=True)
class ConfigMap(Resource):
    """A ConfigMap of the release."""

    data: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a ConfigMap."""
        return cls(*identity(content), data=texts(content.get("data")))


@dataclass(frozen=True, slots=True)
class Secret(Resource):
    """A Secret of the release namespace."""

    data: Mapping[str, str] = field(default_factory=dict, repr=False)
    """File -> content in base64."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a Secret."""
        return cls(*identity(content), data=texts(content.get("data")))


@dataclass(frozen=True, slots=True)
class Service(Resource):
    """A Service of the release."""

    addresses: tuple[str, ...] = ()
    """Cluster addresses, at most one of each family; none for a headless Service."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a Service."""
        spec = mapping(content.get("spec"))
        addresses = [text(spec.get("clusterIP")), *map(text, items(spec.get("clusterIPs")))]
        return cls(*identity(content), addresses=tuple(dict.fromkeys(each for each in addresses if each and each != "None")))
