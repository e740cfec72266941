"""A container registry beside the clusters, as in kind's guide to local registries, with a certificate.

The registry is CNCF Distribution, built from the Go module proxy (e2e/registry, with go.sum). At localhost:PORT of the engine's machine,
engines push to it whatever its certificate is; helm trusts the certificate by SSL_CERT_FILE. In the engine's network `kind`, its name is
that of its container, and each node's hosts.toml names it as the source of images called localhost:PORT/... So the lines of the pages need
no option for plain HTTP, which helm 4 would refuse without one, and no host name has to be invented on the machine.
"""

import contextlib
import os
import shutil
import socket
import ssl
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT, Settings

SOURCES = ROOT / "e2e" / "registry"
PORT = 5000  # inside its container
NETWORK = "kind"
SYSTEM_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
DOCKERFILE = """\
FROM scratch
COPY registry config.yaml cert.pem key.pem /
ENV OTEL_TRACES_EXPORTER=none
ENTRYPOINT ["/registry", "serve", "/config.yaml"]
"""
CONFIG = f"""\
version: 0.1
log: {{level: warn, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: /var/lib/registry}}}}
http: {{addr: ":{PORT}", tls: {{certificate: /cert.pem, key: /key.pem}}}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """A running registry."""

    name: str  # of its container, and of its host in the network of the nodes
    address: str  # host and port on this machine
    certificate: Path
    certificates: Path
    """The system's certificates and the registry's, for SSL_CERT_FILE."""

    def join(self, nodes: Iterable[str]) -> None:
        """Let nodes of a cluster pull from the registry."""
        run("docker", "network", "connect", NETWORK, self.name, check=False)  # fails if another cluster has joined before
        folder = f"/etc/containerd/certs.d/{self.address}"
        for node in nodes:
            for file, text in (("ca.crt", self.certificate.read_text()), ("hosts.toml", self._hosts(folder))):
                run("docker", "exec", "-i", node, "sh", "-ec", f"mkdir -p {folder}; cat >{folder}/{file}", stdin=text)
            run("docker", "exec", node, "curl", "-sSf", "--cacert", f"{folder}/ca.crt", f"https://{self.name}:{PORT}/v2/")

    def _hosts(self, folder: str) -> str:
        return f'[host."https://{self.name}:{PORT}"]\ncapabilities = ["pull", "resolve"]\nca = "{folder}/ca.crt"\n'

    def answers(self) -> bool:
        """True once the registry serves requests."""
        trust = ssl.create_default_context(cafile=str(self.certificate))
        try:
            with urllib.request.urlopen(f"https://{self.address}/v2/", context=trust, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError as no:
            raise LookupError(str(no)) from no


def _certify(folder: Path, name: str) -> None:
    """Write a key and a certificate that it signs itself."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", folder / "key.pem")
    names = ("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:localhost,IP:127.0.0.1,DNS:{name}")
    run("openssl", "req", "-x509", "-days", "2", *key, *names, "-out", folder / "cert.pem")


def _free_port() -> int:
    """A port for the registry. A port that the engine chooses would change when the container joins another network."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _image(settings: Settings, folder: Path, name: str) -> str:
    """Build the registry's image, and return its name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    say("building the registry")
    build = ("go", "-C", SOURCES, "build", "-buildvcs=false", "-trimpath", "-o", folder / "registry", ".")
    run("env", "CGO_ENABLED=0", *build, timeout=1200)
    _certify(folder, name)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "Dockerfile").write_text(DOCKERFILE)
    image = f"localhost/sos-e2e-registry:{settings.tag}"
    run("docker", "build", "-q", "-t", image, folder)
    return image


@contextlib.contextmanager
def started(settings: Settings) -> Iterator[Registry]:
    """Run a registry; on exit, remove it with its content, and the names that images have got from it in the engine."""
    name, folder = f"{settings.cluster}-registry", settings.out / "registry"
    image = _image(settings, folder, name)
    port = _free_port()
    run("docker", "run", "-d", "--name", name, "-p", f"127.0.0.1:{port}:{PORT}", image)
    try:
        address = f"localhost:{port}"
        system = Path(os.environ.get("SSL_CERT_FILE", SYSTEM_CERTIFICATES)).read_text()
        both = folder / "certificates.pem"
        both.write_text(f"{system}\n{(folder / 'cert.pem').read_text()}")
        found = Registry(name=name, address=address, certificate=folder / "cert.pem", certificates=both)
        wait_for("the registry", found.answers, 30, interval=0.2)
        say(f"the registry listens at {address}")
        try:
            yield found
        finally:
            _forget(address)
    finally:
        run("docker", "rm", "-f", "-v", name, check=False)
        run("docker", "image", "rm", image, check=False)


def _forget(address: str) -> None:
    listed = run("docker", "image", "ls", "--format", "{{.Repository}}:{{.Tag}}").split()
    if names := [name for name in listed if name.startswith(f"{address}/")]:
        run("docker", "image", "rm", *names, check=False)
