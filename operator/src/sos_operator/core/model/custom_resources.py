"""Views of SOS custom resources. `sos_compile` interprets their specs; these views have the few fields that the operator itself reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sos_operator.core.model.objects import (
    Condition,
    Meta,
    Object,
    Resource,
    identity,
    mapping,
    number,
    parse_conditions,
    rows,
    strings,
    text,
)

MANAGED, EXTERNAL = "Managed", "External"
"""Types of a SosController."""
DEFAULT_MAX_UNAVAILABLE = 1
_PORT = re.compile("[0-9]{1,5}")


def _spec(content: Object) -> Mapping[str, Any]:
    return mapping(content.get("spec"))


def _status(content: Object) -> Mapping[str, Any]:
    return mapping(content.get("status"))


@dataclass(frozen=True, slots=True)
class CustomResource(Resource):
    """An object of one of our kinds."""

    conditions: tuple[Condition, ...] = ()
    """Conditions of the present status."""

    @property
    def status(self) -> Mapping[str, Any]:
        """The present status as JSON, to be compared with the status to write."""
        return _status(self.content)


def _common(content: Object) -> tuple[str, str, Meta, Object, tuple[Condition, ...]]:
    """Return the fields that our kinds have in common, in the order of `CustomResource`."""
    return *identity(content), parse_conditions(_status(content).get("conditions"))


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent's allocation in the status of a SosSite."""

    pool: str
    address: str
    slot: int


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node's allocations in the status of a SosSite."""

    name: str
    number: int = 0
    agents: tuple[AgentRow, ...] = ()


def _agent_rows(content: object) -> tuple[AgentRow, ...]:
    placed = (row for row in rows(content) if isinstance(row.get("slot"), int))
    found = (AgentRow(text(row.get("pool")), text(row.get("address")), number(row.get("slot"))) for row in placed)
    return tuple(agent for agent in found if agent.pool and agent.address)


@dataclass(frozen=True, slots=True)
class SosSite(CustomResource):
    """A SosSite."""

    has_node_selector: bool = False
    max_unavailable: str = str(DEFAULT_MAX_UNAVAILABLE)
    """Number of nodes, or a percentage of the site's nodes, as written in the spec."""
    number: int = 0
    """Allocated id of the site, 0 before the first allocation."""
    nodes: tuple[NodeRow, ...] = ()
    confines_to_own_pods: bool = False
    """True if a rule confines services to the client pods of their own namespaces."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosSite."""
        spec, status = _spec(content), _status(content)
        found = (
            NodeRow(text(row.get("name")), number(row.get("number")), _agent_rows(row.get("agents"))) for row in rows(status.get("nodes"))
        )
        return cls(
            *_common(content),
            has_node_selector=bool(spec.get("nodeSelector")),
            max_unavailable=str(mapping(spec.get("update")).get("maxUnavailable", DEFAULT_MAX_UNAVAILABLE)),
            number=number(status.get("siteID")),
            nodes=tuple(node for node in found if node.name),
            confines_to_own_pods=any(rule.get("pods") == "OwnNamespace" for rule in rows(mapping(spec.get("services")).get("rules"))),
        )


@dataclass(frozen=True, slots=True)
class SosAgent(CustomResource):
    """A SosAgent."""

    attach: str = ""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosAgent."""
        return cls(*_common(content), attach=text(_spec(content).get("attach")))


@dataclass(frozen=True, slots=True)
class SosService(CustomResource):
    """A SosService."""

    claim_number: int = 0
    """Allocated number of the service, 0 before the first allocation."""
    claim_scope: str = ""
    selects_pods: bool = False
    target_site: str = ""
    destination: tuple[str, str] | None = None
    """Namespace and name of the Kubernetes Service in spec.to.service."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosService."""
        claim = mapping(_status(content).get("claim"))
        target = mapping(_spec(content).get("to"))
        named, own = mapping(target.get("service")), text(mapping(content.get("metadata")).get("namespace"))
        return cls(
            *_common(content),
            claim_number=number(claim.get("number")),
            claim_scope=text(claim.get("scope")),
            selects_pods="pods" in mapping(_spec(content).get("from")),
            target_site=text(target.get("site")),
            destination=(text(named.get("namespace")) or own, text(named.get("name"))) if named else None,
        )

    @property
    def id(self) -> str:
        """Id of the service: namespace/name."""
        return f"{self.meta.namespace}/{self.meta.name}"


@dataclass(frozen=True, slots=True)
class SosController(CustomResource):
    """A SosController."""

    type: str = MANAGED
    endpoints: tuple[str, ...] = ()
    """Declared OpenFlow endpoints of an External controller."""
    api_url: str = ""
    """Declared URL of an External controller's API."""
    standby_url: str = ""
    """Declared URL of the API of an External controller's second process."""
    replicas: int = 1
    token_secret: str = ""
    """Name of the Secret that a user creates with an External controller's token."""
    number: int = 0
    """Allocated id of the controller, 0 before the first allocation."""
    tls: str = ""
    """Required or Disabled."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosController."""
        spec = _spec(content)
        external = mapping(spec.get("external"))
        return cls(
            *_common(content),
            type=text(spec.get("type", MANAGED)),
            endpoints=strings(external.get("endpoints")),
            api_url=text(external.get("apiURL")),
            standby_url=text(external.get("standbyURL")),
            replicas=max(number(spec.get("replicas")), 1),
            token_secret=text(external.get("tokenSecretName")),
            number=number(_status(content).get("controllerID")),
            tls=text(mapping(spec.get("openflow")).get("tls")),
        )

    @property
    def external(self) -> bool:
        """True if the controller runs elsewhere."""
        return self.type == EXTERNAL


@dataclass(frozen=True, slots=True)
class SosLink(CustomResource):
    """A SosLink."""

    ends: tuple[tuple[str, str], tuple[str, str]] = (("", ""), ("", ""))
    """Site and uplink of both ends; the uplinks are "" if the object declares the transport between two sites."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosLink."""
        a, b = (mapping(_spec(content).get(end)) for end in ("a", "b"))
        ends = (text(a.get("site")), text(a.get("uplink"))), (text(b.get("site")), text(b.get("uplink")))
        return cls(*_common(content), ends=ends)

    @property
    def transport(self) -> bool:
        """True if the object declares the transport between two sites, not a link between two uplinks."""
        return not any(uplink for _, uplink in self.ends)


@dataclass(frozen=True, slots=True)
class SosPeer(CustomResource):
    """A SosPeer."""

    endpoints: tuple[tuple[str, int], ...] = ()
    """Addresses and ports of the peer's agents."""
    machine: bool = False
    """True for a machine outside Kubernetes."""

    @classmethod
    def parse(cls, content: Object) -> Self:
        """Parse a SosPeer. Endpoints without a port are left out: this version's schema rejects them, so they are from a newer API."""
        split = (endpoint.rpartition(":") for endpoint in strings(_spec(content).get("endpoints")))
        valid = ((address, port) for address, _, port in split if _PORT.fullmatch(port))
        endpoints = tuple((address, int(port)) for address, port in valid)
        return cls(*_common(content), endpoints=endpoints, machine="machine" in _spec(content))
