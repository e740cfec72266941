"""Client and server pods on the bridges of sites, and transfers between them with curl and nginx as Debian ships them."""

import functools
import ipaddress
import json
from dataclasses import dataclass
from typing import Any

from sos_e2e.environment.cluster import PLACE_LABEL
from sos_e2e.kube import Kube
from sos_e2e.run import wait_for

NAMESPACE = "default"
RELEASE_NAMESPACE = "sos-system"
CLIENT, SERVER = "10.0.0.11", "10.0.0.139"
FILE, LONG = "file", "long"
FILE_MB, LONG_MB = 96, 512
SUBNET_BITS = 23  # for sites with two nodes (examples/01-two-sites/more-nodes); the subnet contains the subnet of the small cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A pod on a site's bridge."""

    name: str
    place: str  # of the node on which the pod runs
    site: str
    address: str
    bits: int = SUBNET_BITS
    serves: bool = False  # both files, at ports 80, 6000 and 8080


HOSTS = (
    Host(name="client", place="west", site="west", address=CLIENT),
    Host(name="server", place="east", site="east", address=SERVER, serves=True),
    Host(name="client2", place="west2", site="west", address="10.0.0.21"),
    Host(name="server2", place="east2", site="east", address="10.0.0.149", serves=True),
)
_FILES = ((FILE, FILE_MB), (LONG, LONG_MB))
_MADE = [f"head -c {mb}M /dev/urandom > /srv/{name} && sha256sum /srv/{name} > /srv/{name}.sha256" for name, mb in _FILES]
SERVE = " && ".join([*_MADE, "exec nginx"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """curl's report of one download."""

    bytes: int
    seconds: float
    sha256: str
    local: str  # address:port that the client used
    remote: str  # address:port of the server as the client saw it
    exit_code: int

    @property
    def mbps(self) -> float:
        """Goodput in Mbit/s."""
        return self.bytes * 8 / 1e6 / self.seconds if self.seconds else 0.0


def _pod(host: Host, image: str) -> dict[str, Any]:
    address = ipaddress.ip_interface(f"{host.address}/{host.bits}")
    asked = {"name": f"sos-{host.site}", "namespace": RELEASE_NAMESPACE, "interface": "net1", "ips": [str(address)]}
    # hosts use cubic by default, but a new namespace of this kernel may start with another algorithm
    cubic = {
        "name": "default-congestion-control",
        "image": image,
        "command": ["sh", "-c", f"ip route change {address.network} dev net1 congctl cubic"],
        "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}},
    }
    command = ["sh", "-c", SERVE] if host.serves else ["sleep", "infinity"]
    main = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": host.name,
            "namespace": NAMESPACE,
            "labels": {"app": "sos-e2e"},
            "annotations": {"k8s.v1.cni.cncf.io/networks": json.dumps([asked])},
        },
        "spec": {
            "nodeSelector": {PLACE_LABEL: host.place},
            "terminationGracePeriodSeconds": 1,
            "initContainers": [cubic],
            "containers": [main],
        },
    }


def start(kube: Kube, image: str, *hosts: Host) -> None:
    """Start pods and wait until servers have their files."""
    kube.apply(*(_pod(host, image) for host in hosts))
    for host in hosts:
        kube.ctl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{host.name}", "--timeout=120s", timeout=150)
        if host.serves:
            wait_for(f"files of {host.name}", functools.partial(digest, kube, host.name, LONG), 120)


def digest(kube: Kube, server: str = "server", file: str = FILE) -> str:
    """Return the SHA-256 of a file that a server serves."""
    return kube.exec(NAMESPACE, server, "cat", f"/srv/{file}.sha256").split()[0]


def stop(kube: Kube, *names: str) -> None:
    """Remove these pods, or all pods; pods must be removed before their bridge."""
    which = names or ("-l", "app=sos-e2e")
    kube.ctl("-n", NAMESPACE, "delete", "pod", *which, "--ignore-not-found", "--wait", timeout=120)


FORMAT = "%{size_download} %{time_total} %{local_ip}:%{local_port} %{remote_ip}:%{remote_port}"


def download_script(server: str, port: int, seconds: float, file: str = FILE) -> str:
    """Shell script of a download of at most `seconds`, with its report."""
    return f"curl -s -o /tmp/got -m {seconds:g} -w '{FORMAT}' http://{server}:{port}/{file}; echo \" $?\"; sha256sum /tmp/got"


def parse_download(said: str) -> Transfer:
    """Parse the script's report."""
    words = said.split()
    return Transfer(bytes=int(words[0]), seconds=float(words[1]), local=words[2], remote=words[3], exit_code=int(words[4]), sha256=words[5])


def download(kube: Kube, port: int, *, seconds: float, ends: tuple[Host, Host] = (HOSTS[0], HOSTS[1]), file: str = FILE) -> Transfer:
    """Download a file for at most `seconds`; a transfer that hits the limit has a rate, but no valid digest."""
    client, server = ends
    script = download_script(server.address, port, seconds, file)
    return parse_download(kube.exec(NAMESPACE, client.name, "sh", "-c", script, timeout=seconds + 60))


def seen_by_server(kube: Kube, server: str = "server") -> list[str]:
    """Return the lines of the server's log: client address:port, server address:port, request."""
    return kube.exec(NAMESPACE, server, "cat", "/tmp/access.log").splitlines()
