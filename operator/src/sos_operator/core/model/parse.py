"""Choose the view of an API object by its kind."""

from __future__ import annotations

from sos_operator.core.model.cluster_objects import ConfigMap, DaemonSet, Deployment, Node, Pod, Secret, Service
from sos_operator.core.model.custom_resources import SosAgent, SosController, SosLink, SosPeer, SosService, SosSite
from sos_operator.core.model.kinds import (
    AGENT,
    CONFIG_MAP,
    CONTROLLER,
    DAEMON_SET,
    DEPLOYMENT,
    K8S_SERVICE,
    LINK,
    NODE,
    PEER,
    POD,
    SECRET,
    SERVICE,
    SITE,
    Kind,
)
from sos_operator.core.model.objects import Object, Resource

_VIEWS: dict[Kind, type[Resource]] = {
    SITE: SosSite,
    AGENT: SosAgent,
    SERVICE: SosService,
    CONTROLLER: SosController,
    LINK: SosLink,
    PEER: SosPeer,
    POD: Pod,
    NODE: Node,
    CONFIG_MAP: ConfigMap,
    SECRET: Secret,
    K8S_SERVICE: Service,
    DAEMON_SET: DaemonSet,
    DEPLOYMENT: Deployment,
}
_BY_NAME = {kind.kind: view for kind, view in _VIEWS.items()}


def parse_object(content: Object) -> Resource:
    """Parse an object of any kind; a kind without a view of its own has the common fields only."""
    return _BY_NAME.get(str(content.get("kind")), Resource).parse(content)
