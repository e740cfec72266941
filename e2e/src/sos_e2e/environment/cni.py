"""Multus (thick) and ovs-cni for a test cluster: the minimum set of objects. SOS itself never installs or owns them."""

from typing import Any

from sos_e2e.settings import Settings

NAMESPACE = "kube-system"
LABEL = "sos-e2e-cni"


def _crd() -> dict[str, Any]:
    spec = {"type": "object", "properties": {"config": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}, "spec": spec},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions",
                "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition",
                "shortNames": ["net-attach-def"],
            },
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}],
        },
    }


def _rbac() -> list[dict[str, Any]]:
    rules = [
        {"apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "update", "watch"]},
        {"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]},
    ]
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "multus", "namespace": NAMESPACE}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "multus"}, "rules": rules},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "multus"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus"},
            "subjects": [{"kind": "ServiceAccount", "name": "multus", "namespace": NAMESPACE}],
        },
    ]


DAEMON_CONFIG = """{
  "chrootDir": "/hostroot", "cniVersion": "0.3.1", "logLevel": "error", "logToStderr": true, "multusConfigFile": "auto",
  "cniConfigDir": "/host/etc/cni/net.d", "multusAutoconfigDir": "/host/etc/cni/net.d", "socketDir": "/host/run/multus/"
}"""

# name, host path, mount path, propagation
MULTUS_MOUNTS = (
    ("cni", "/etc/cni/net.d", "/host/etc/cni/net.d", None),
    ("bin", "/opt/cni/bin", "/opt/cni/bin", None),
    ("run", "/run", "/host/run", None),
    ("multus", "/var/lib/cni/multus", "/var/lib/cni/multus", None),
    ("kubelet", "/var/lib/kubelet", "/var/lib/kubelet", "HostToContainer"),
    ("devinfo", "/run/k8s.cni.cncf.io", "/run/k8s.cni.cncf.io", None),
    ("netns", "/run/netns", "/run/netns", "HostToContainer"),
    ("root", "/", "/hostroot", "HostToContainer"),
)


def _daemon_set(name: str, pod: dict[str, Any]) -> dict[str, Any]:
    labels = {"app": name, "part-of": LABEL}
    common = {
        "hostNetwork": True,
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 2,
        "priorityClassName": "system-node-critical",
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": labels}, "spec": common | pod}},
    }


def _multus(image: str) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [{"name": n, "mountPath": m} | ({"mountPropagation": p} if p else {}) for n, _, m, p in MULTUS_MOUNTS]
    mounts.append({"name": "config", "mountPath": "/etc/cni/net.d/multus.d", "readOnly": True})
    volumes: list[dict[str, Any]] = [{"name": n, "hostPath": {"path": h, "type": "DirectoryOrCreate"}} for n, h, _, _ in MULTUS_MOUNTS]
    volumes.append({"name": "config", "configMap": {"name": "multus-daemon-config"}})
    privileged = {"privileged": True}
    shim = {
        "name": "shim",
        "image": image,
        # After a node failure the kubelet still runs the old binary for pods that need Multus, so the file cannot be overwritten in place.
        "command": ["cp", "--remove-destination", "/usr/src/multus-cni/bin/multus-shim", "/host/opt/cni/bin/multus-shim"],
        "securityContext": privileged,
        "volumeMounts": [{"name": "bin", "mountPath": "/host/opt/cni/bin"}],
    }
    node = {"name": "MULTUS_NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    daemon = {
        "name": "multus",
        "image": image,
        "command": ["/usr/src/multus-cni/bin/multus-daemon"],
        "securityContext": privileged,
        "env": [node],
        "volumeMounts": mounts,
    }
    return _daemon_set(
        "multus", {"hostPID": True, "serviceAccountName": "multus", "initContainers": [shim], "containers": [daemon], "volumes": volumes}
    )


def _ovs_cni(image: str) -> dict[str, Any]:
    copy = {
        "name": "plugin",
        "image": image,
        "command": ["cp", "/ovs", "/host/opt/cni/bin/ovs"],
        "securityContext": {"privileged": True},
        "volumeMounts": [{"name": "bin", "mountPath": "/host/opt/cni/bin"}],
    }
    idle = {"name": "idle", "image": image, "command": ["sleep", "infinity"]}
    volume = {"name": "bin", "hostPath": {"path": "/opt/cni/bin", "type": "DirectoryOrCreate"}}
    return _daemon_set("ovs-cni", {"initContainers": [copy], "containers": [idle], "volumes": [volume]})


def manifests(settings: Settings) -> list[dict[str, Any]]:
    """All objects, in the order in which they are applied."""
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "multus-daemon-config", "namespace": NAMESPACE},
        "data": {"daemon-config.json": DAEMON_CONFIG},
    }
    return [_crd(), *_rbac(), config, _multus(settings.multus_image), _ovs_cni(settings.ovs_cni_image)]
