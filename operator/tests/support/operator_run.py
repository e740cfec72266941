"""The operator as a separate process, with exactly the rights from the chart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from operator_kube import ROOT, Kube, free_port, tied, tool

NAMESPACE = "sos-system"
IMAGES = {f"SOS_IMAGE_{part}": f"test/sos-{part.lower()}:1" for part in ("CONTROLLER", "AGENT", "NODE", "OVS")}
T = TypeVar("T")

OWN_KINDS = ("soscontrollers", "sossites", "sosagents", "sosservices", "soslinks", "sospeers")


def render(*values: str, release: str = "sos", chart: Path = ROOT / "charts" / "sos") -> list[dict[str, Any]]:
    """The chart's objects, as `helm install` would send them (hooks included)."""
    command = [tool("helm"), "template", release, str(chart), "-n", NAMESPACE, *values]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [obj for obj in yaml.safe_load_all(done.stdout) if obj]


def helm(kube: Kube, *args: str) -> str:
    """Run helm as administrator."""
    done = subprocess.run([tool("helm"), "--kubeconfig", str(kube.admin), *args], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"helm {args[0]}: {done.stderr}"
    return done.stdout


def install(kube: Kube, *values: str) -> None:
    """`helm install`: CRDs, namespace, service account and RBAC. The Deployment has no pods, because no controller creates them here."""
    helm(kube, "install", "sos", str(ROOT / "charts" / "sos"), "-n", NAMESPACE, "--create-namespace", *values)
    kube.kubectl("wait", "--for=condition=Established", "crd", "-l", "app.kubernetes.io/part-of=sos", "--timeout=30s")
    # an established kind is not served immediately: at first the server answers that storage is (re)initializing
    eventually("the kinds are served", lambda: all(kube.items(kind, "-A") is not None for kind in OWN_KINDS))


def eventually(what: str, look: Callable[[], T], timeout: float = 40.0) -> T:
    """Return the first true result of `look`; fail with its last result or error."""
    deadline = time.monotonic() + timeout
    seen: Any = None
    while time.monotonic() < deadline:
        try:
            seen = look()
        except (AssertionError, LookupError) as error:
            seen = error
        if seen and not isinstance(seen, Exception):
            return seen
        time.sleep(0.25)
    raise AssertionError(f"{what}: not within {timeout} s; last seen: {seen}")


@dataclass(frozen=True)
class Operator:
    """A running operator."""

    kube: Kube
    process: subprocess.Popen[bytes]
    log: Path
    port: int

    def http(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def passes(self) -> float:
        """Number of passes so far."""
        text = self.http("/metrics")[1]
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith("sos_operator_reconcile_total{"))

    def settle(self, passes: int = 2) -> None:
        """Wake the operator `passes` times, and wait for a pass each time; the last pass finds no change."""
        for _ in range(passes):
            before = self.passes()
            self.kube.annotate("namespace", "default", {"test/wake": str(time.monotonic())})
            eventually("a pass", lambda goal=before: self.passes() > goal, 30)


def environment(kube: Kube, port: int, extra: Mapping[str, str], account: str = "sos-operator") -> dict[str, str]:
    token = kube.kubectl("create", "token", account, "-n", NAMESPACE, "--duration=2h").stdout.strip()
    own = {
        "SOS_NAMESPACE": NAMESPACE,
        "SOS_NETWORK_POLICIES": "{}",  # the chart's default
        "SOS_HTTP_HOST": "127.0.0.1",
        "SOS_HTTP_PORT": str(port),
        "KUBECONFIG": str(kube.config_for(account, token)),
    }
    inherited = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return inherited | {"HOME": str(kube.folder)} | own | IMAGES | dict(extra)


@contextmanager
def operator_running(kube: Kube, folder: Path, **extra: str) -> Iterator[Operator]:
    """Start the operator and wait for its first successful pass; on exit it must end by itself after SIGTERM."""
    port, log = free_port(), folder / "operator.log"
    with log.open("wb") as output:
        command = tied(sys.executable, "-m", "sos_operator", "run")
        process = subprocess.Popen(command, env=environment(kube, port, extra), stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    operator = Operator(kube, process, log, port)
    try:
        eventually("the operator's first pass", lambda: _ready(operator), 60)
        yield operator
    except BaseException:
        sys.stderr.write(log.read_text()[-8000:])
        raise
    finally:
        process.terminate()
        try:
            code = process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
    assert code == 0, log.read_text()[-4000:]


def _ready(operator: Operator) -> bool:
    assert operator.process.poll() is None, "the operator ended: " + operator.log.read_text()[-4000:]
    try:
        return operator.http("/readyz")[0] == 200 and 'sos_operator_reconcile_total{result="ok"}' in operator.http("/metrics")[1]
    except OSError:
        return False


def controller_keys(kube: Kube) -> dict[str, str]:
    """The default controller's key folder: a file for each site, and `sending` with the id of the sending key."""
    data: dict[str, str] = kube.get("secret", "sos-controllerkeys-default", "-n", NAMESPACE)["data"]
    return data
