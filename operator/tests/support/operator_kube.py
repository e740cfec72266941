"""A real kube-apiserver with etcd on loopback, for tests. There are no kubelets and controllers; tests simulate them where needed."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from operator_reader import Reader, reader

ROOT = Path(__file__).resolve().parents[3]
START_TIMEOUT_S = 120.0
FOLDER = "sos-kube"
# Log requests of service accounts, but not the tests' own requests as administrator.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}],
}


@cache
def tool(name: str) -> str:
    """Path of a tool of scripts/kube-tools.sh, which builds a missing tool."""
    script = ROOT / "scripts" / "kube-tools.sh"
    subprocess.run([str(script), name], check=True)
    return subprocess.run([str(script), "--where", name], check=True, capture_output=True, text=True).stdout.strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Kube:
    """A running API server: kubectl as administrator, and kubeconfigs for other users."""

    folder: Path
    url: str
    admin: Path
    server: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """The API server's process."""

    def kubectl(
        self, *args: str, stdin: str | None = None, check: bool = True, config: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "KUBECONFIG": str(config or self.admin), "HOME": str(self.folder)}
        done = subprocess.run([tool("kubectl"), *args], input=stdin, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr}"
        return done

    def apply(self, *objects: Mapping[str, Any]) -> None:
        for obj in objects:
            self._reader().apply(obj)

    def get(self, *args: str) -> dict[str, Any]:
        """Result of `kubectl get ARGS -o json`, but by a direct request: tests poll every 0.25 s, and kubectl takes 0.1 s to start."""
        return self._reader().get(*args)

    def items(self, *args: str) -> list[dict[str, Any]]:
        return list(self.get(*args)["items"])

    def clear(self, *args: str) -> None:
        """Delete the objects that `items` would return, ignoring their finalizers."""
        self._reader().clear(*args)

    def everything(self) -> set[str]:
        return self._reader().everything()

    def get_raw(self, path: str) -> dict[str, Any]:
        return self._reader().raw(path)

    def _reader(self) -> Reader:
        users = yaml.safe_load(self.admin.read_text())["users"]
        return reader(self.url, users[0]["user"]["token"])

    def patch_status(self, kind: str, name: str, namespace: str, status: Mapping[str, Any]) -> None:
        self._reader().patch(kind, name, namespace, {"status": status}, "/status")

    def patch_spec(self, kind: str, name: str, namespace: str, spec: Mapping[str, Any]) -> None:
        self._reader().patch(kind, name, namespace, {"spec": spec})

    def annotate(self, kind: str, name: str, annotations: Mapping[str, str]) -> None:
        self._reader().patch(kind, name, "default", {"metadata": {"annotations": annotations}})

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the API server inside the block, and restart it with the same data afterwards."""
        (server,) = self.server
        server.kill()
        server.wait()
        yield
        with (self.folder / "apiserver.log").open("ab") as log:
            self.server[:] = [subprocess.Popen(server.args, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)]
        _await_ready(self)

    def audit(self) -> list[dict[str, Any]]:
        """All requests of service accounts from the audit log; a watch appears twice, at its start and at its end."""
        return [json.loads(line) for line in (self.folder / "audit.log").read_text().splitlines()]

    def config_for(self, name: str, token: str) -> Path:
        """Write a kubeconfig that uses a bearer token."""
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(_kubeconfig(self.url, token)))
        path.chmod(0o600)
        return path


def _kubeconfig(url: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "user", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
        "current-context": "test",
    }


@contextmanager
def _process(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(tied(*command), stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _etcd_command(folder: Path, client: int, peer: int) -> list[str]:
    return [
        tool("etcd"),
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls=http://127.0.0.1:{client}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        "--unsafe-no-fsync",
    ]


def _apiserver_command(folder: Path, etcd: int, port: int) -> list[str]:
    key = folder / "service-accounts.key"
    (folder / "audit.yaml").write_text(yaml.safe_dump(AUDIT_POLICY))
    return [
        tool("kube-apiserver"),
        f"--audit-policy-file={folder / 'audit.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        f"--cert-dir={folder / 'certs'}",
        "--authorization-mode=RBAC",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.test",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.96.0.0/24",
        # There is no controller manager that creates `default` service accounts, but tests create pods.
        "--disable-admission-plugins=ServiceAccount",
    ]


def tied(*command: str) -> list[str]:
    """Command whose process dies with the thread that starts it, even if the tests are killed."""
    return ["setpriv", "--pdeathsig", "KILL", *command]


def sweep_folders() -> None:
    """Remove the folders of API servers whose tests were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}-*-*"):
        if not Path("/proc", folder.name.split("-")[-2]).exists():
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def kube_apiserver() -> Iterator[Kube]:
    """Start etcd and kube-apiserver in a temporary folder; stop both and delete the folder afterwards."""
    with ExitStack() as stack:
        sweep_folders()
        folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER}-{os.getpid()}-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        admin_token = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f"{admin_token},admin,admin,system:masters\n")
        subprocess.run(["openssl", "genrsa", "-out", str(folder / "service-accounts.key"), "2048"], check=True, capture_output=True)
        etcd_port, peer_port, port = free_port(), free_port(), free_port()
        stack.enter_context(_process(_etcd_command(folder, etcd_port, peer_port), folder / "etcd.log"))
        server = stack.enter_context(_process(_apiserver_command(folder, etcd_port, port), folder / "apiserver.log"))
        stack.callback(lambda: [_end(process) for process in kube.server])
        url = f"https://127.0.0.1:{port}"
        admin = folder / "admin.kubeconfig"
        admin.write_text(yaml.safe_dump(_kubeconfig(url, admin_token)))
        kube = Kube(folder, url, admin, [server])
        _await_ready(kube)
        yield kube


@contextmanager
def garbage_collector(kube: Kube) -> Iterator[None]:
    """Run only the garbage collector of kube-controller-manager."""
    command = [
        tool("kube-controller-manager"),
        f"--kubeconfig={kube.admin}",
        "--controllers=garbage-collector-controller",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        f"--secure-port={free_port()}",
        f"--cert-dir={kube.folder / 'manager'}",
    ]
    with _process(command, kube.folder / "manager.log") as manager:
        time.sleep(0.5)
        assert manager.poll() is None, "kube-controller-manager ended:\n" + (kube.folder / "manager.log").read_text()[-3000:]
        yield


def _await_ready(kube: Kube) -> None:
    (server,) = kube.server
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert server.poll() is None, "kube-apiserver ended:\n" + (kube.folder / "apiserver.log").read_text()[-3000:]
        ready = kube.kubectl("get", "--raw", "/readyz", check=False).returncode == 0
        if ready and kube.kubectl("get", "namespace", "default", check=False).returncode == 0:
            return
        time.sleep(0.3)
    raise AssertionError("kube-apiserver did not become ready:\n" + (kube.folder / "apiserver.log").read_text()[-3000:])
