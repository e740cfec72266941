"""Client and server pods of example 01, and transfers between them with curl and nginx as Debian ships them."""

import json
from dataclasses import dataclass
from typing import Any

from sos_e2e.kube import Kube
from sos_e2e.run import wait_for

NAMESPACE = "default"
RELEASE_NAMESPACE = "sos-system"
CLIENT, SERVER = "10.0.0.11", "10.0.0.139"
FILE_MB = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What curl reported of one download."""

    bytes: int
    seconds: float
    sha256: str
    local: str  # address:port the client used
    remote: str  # address:port the client saw
    exit_code: int

    @property
    def mbps(self) -> float:
        """Goodput in Mbit/s."""
        return self.bytes * 8 / 1e6 / self.seconds if self.seconds else 0.0


def _pod(name: str, site: str, address: str, image: str, command: list[str]) -> dict[str, Any]:
    network = json.dumps([{"name": f"sos-{site}", "namespace": RELEASE_NAMESPACE, "interface": "net1", "ips": [f"{address}/24"]}])
    # a default host uses cubic; the namespaces of this kernel may start with something else
    cubic = {
        "name": "default-congestion-control",
        "image": image,
        "command": ["sh", "-c", "ip route change 10.0.0.0/24 dev net1 congctl cubic"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {"app": "sos-e2e"},
            "annotations": {"k8s.v1.cni.cncf.io/networks": network},
        },
        "spec": {
            "nodeSelector": {"sos.network/site": site},
            "terminationGracePeriodSeconds": 1,
            "initContainers": [cubic],
            "containers": [main],
        },
    }


def start(kube: Kube, image: str) -> str:
    """Start both pods and return the SHA-256 of the file that the server offers."""
    serve = f"head -c {FILE_MB}M /dev/urandom > /srv/file && sha256sum /srv/file > /srv/file.sha256 && exec nginx"
    kube.apply(
        _pod("client", "west", CLIENT, image, ["sleep", "infinity"]),
        _pod("server", "east", SERVER, image, ["sh", "-c", serve]),
    )
    kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod", "-l", "app=sos-e2e", "--timeout=120s", timeout=150)
    digest = wait_for("file of the server", lambda: kube.exec(NAMESPACE, "server", "cat", "/srv/file.sha256"), 60)
    return digest.split()[0]


def stop(kube: Kube) -> None:
    """Remove the pods; they must be gone before a bridge is."""
    kube.ctl("-n", NAMESPACE, "delete", "pod", "-l", "app=sos-e2e", "--ignore-not-found", "--wait", timeout=120)


FORMAT = "%{size_download} %{time_total} %{local_ip}:%{local_port} %{remote_ip}:%{remote_port}"


def download(kube: Kube, port: int, *, seconds: float) -> Transfer:
    """Download the file for at most `seconds`; a transfer cut short still has a rate, but no right digest."""
    script = f"curl -s -o /tmp/got -m {seconds:g} -w '{FORMAT}' http://{SERVER}:{port}/file; echo \" $?\"; sha256sum /tmp/got"
    words = kube.exec(NAMESPACE, "client", "sh", "-c", script, timeout=seconds + 60).split()
    return Transfer(bytes=int(words[0]), seconds=float(words[1]), local=words[2], remote=words[3], exit_code=int(words[4]), sha256=words[5])


def seen_by_server(kube: Kube) -> list[str]:
    """Return the lines of the server's log: client address:port, server address:port, request."""
    return kube.exec(NAMESPACE, "server", "cat", "/tmp/access.log").splitlines()
