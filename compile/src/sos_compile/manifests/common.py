"""Name, labels and owner of every rendered object, and the parts of pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sos_compile.admission.schema import API_VERSION
from sos_compile.documents.parts import file_name
from sos_compile.model.memo import Source
from sos_compile.model.network import PlacedSite
from sos_compile.model.resources import Origin
from sos_compile.model.world import Json, Settings

HASH_ANNOTATION = "sos.network/config-hash"
SITE_LABEL = "sos.network/site"
POOL_LABEL = "sos.network/pool"
CONTROLLER_LABEL = "sos.network/controller"
MAX_CONFIG_MAP_BYTES = 1_000_000  # a ConfigMap holds 1 MiB, names and metadata included
LAID_OUT_DOCUMENTS = 8  # a ConfigMap with more documents stores them without white space, to save space
MAX_NOT_IN = 64


def build_labels(settings: Settings, component: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the recommended labels of Kubernetes, and `extra`."""
    return {
        "app.kubernetes.io/name": "sos",
        "app.kubernetes.io/instance": settings.release,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "sos",
        "app.kubernetes.io/managed-by": settings.managed_by,
        **extra,
    }


def build_selector(settings: Settings, component: str, extra: Mapping[str, str]) -> dict[str, str]:
    """Return the labels by which a Service or DaemonSet selects its pods: labels that never change (selectors are immutable)."""
    return {
        "app.kubernetes.io/name": "sos",
        "app.kubernetes.io/instance": settings.release,
        "app.kubernetes.io/component": component,
        **extra,
    }


def build_metadata(settings: Settings, name: str, owner: Origin, labels: Mapping[str, str]) -> Json:
    """Return an object's metadata. The owner's uid makes the garbage collector remove the object with its owner; owners from files have no
    uid."""
    metadata: Json = {"name": name, "namespace": settings.namespace, "labels": dict(labels)}
    if owner.uid:
        reference = {"apiVersion": API_VERSION, "kind": owner.key.kind, "name": owner.name, "uid": owner.uid, "controller": True}
        metadata["ownerReferences"] = [reference]
    return metadata


def build_config_map(metadata: Json, documents: Mapping[str, Source]) -> Json:
    """Return a ConfigMap with one file per document and per part of documents, annotated with the start of a single document's hash, or
    with the number of documents.

    The pods' template must not contain the hash: every program detects new files by itself, and a restart would end sessions (agents) or
    forwarding (Open vSwitch in user space).
    """
    laid_out = len(documents) <= LAID_OUT_DOCUMENTS
    data = {name: document.text(laid_out=laid_out) for name, document in sorted(documents.items())}
    data |= {file_name(part): text for document in documents.values() for part, text in document.parts.items()}
    hashes = ",".join(document.hash[7:23] for _, document in sorted(documents.items()))
    annotations = {HASH_ANNOTATION: hashes if len(documents) == 1 else f"{len(documents)} documents"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**metadata, "annotations": annotations}, "data": data}


def config_map_bytes(config_map: Json) -> int:
    """Return the size of a ConfigMap's content in bytes."""
    return sum(len(name) + len(text.encode()) for name, text in config_map["data"].items())


def build_node_affinity(placed: PlacedSite, selector: Json | None = None, unwanted: Iterable[str] = ()) -> Json:
    """Return the affinity that places pods on the site's nodes. It contains the site's selector, not the nodes' names: a joining node would
    change a list of names, and a changed template replaces all pods.

    `selector`: label selector that the nodes must match, too. Nodes with one of the labels `unwanted` are excluded.
    """
    excluded = [{"key": label, "operator": "DoesNotExist"} for label in unwanted]
    requirements = [*_requirements(placed.site.selector), *_requirements(selector), *excluded]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in placed.left_out[:MAX_NOT_IN]]
    term = {"matchExpressions": requirements, **({"matchFields": fields} if fields else {})}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _requirements(selector: Json | None) -> list[Json]:
    selector = selector or {}
    labels = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.get("matchLabels", {}).items())]
    expressions = [
        {"key": each["key"], "operator": each["operator"], **({"values": each["values"]} if each.get("values") else {})}
        for each in selector.get("matchExpressions", [])
    ]
    return [*labels, *expressions]


def build_pod(settings: Settings, labels: Mapping[str, str], spec: Json) -> Json:
    """Return a pod template without a service account token, because these pods do not use the API server."""
    pull = {"imagePullSecrets": [{"name": name} for name in settings.pull_secrets]} if settings.pull_secrets else {}
    return {"metadata": {"labels": dict(labels)}, "spec": {"automountServiceAccountToken": False, **pull, **spec}}


def service_account(name: str) -> Json:
    """Return a pod's ServiceAccount, if it has one of its own.

    The deprecated field `serviceAccount` mirrors `serviceAccountName`. Set both, so that the operator's field manager owns both: otherwise
    the API server restores the name from the mirror when another version of the operator, for example after a rollback, omits the name.
    """
    return {"serviceAccountName": name, "serviceAccount": name} if name else {}


def priority(name: str) -> Json:
    """Return a pod's priority class, if it has one."""
    return {"priorityClassName": name} if name else {}


def host_path(name: str, path: str, kind: str) -> Json:
    """Return a volume of the node's file system."""
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def secret_volume(name: str, secret: str, mode: int, *, optional: bool = False) -> Json:
    """Return a volume with a Secret's files. `optional`: the pod starts without the Secret, and gets the files once it exists."""
    return {"name": name, "secret": {"secretName": secret, "defaultMode": mode, **({"optional": True} if optional else {})}}


def mount(name: str, path: str, *, read_only: bool = False) -> Json:
    """Return a volume mount."""
    return {"name": name, "mountPath": path, **({"readOnly": True} if read_only else {})}


def http_probe(path: str, port: int | str, *, period_s: int, failures: int) -> Json:
    """Return a probe of the process itself. No probe depends on a remote system, because an outage there would restart working
    processes."""
    return {"httpGet": {"path": path, "port": port}, "periodSeconds": period_s, "failureThreshold": failures, "timeoutSeconds": 5}


def security_context(capabilities: list[str]) -> Json:
    """Return the security context of a container that runs as root with only these capabilities, on a read-only root file system.

    With SYS_ADMIN, the runtimes' seccomp profiles allow the system calls of that capability (namespaces, mounts) and deny the rest.
    """
    return {
        "runAsUser": 0,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        "capabilities": {"drop": ["ALL"], "add": capabilities},
    }


def node_name_variable() -> Json:
    """Return the environment variable NODE_NAME, for `$(NODE_NAME)` in arguments."""
    return {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
