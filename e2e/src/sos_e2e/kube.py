"""A cluster through kubectl and helm, only with the suite's own kubeconfig and context."""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from sos_e2e.run import run, wait_for
from sos_e2e.settings import Settings

KINDS = ("soscontrollers", "sossites", "sosagents", "sosservices", "soslinks", "sospeers")


class Kube:
    """kubectl and helm bound to one cluster that this suite created."""

    def __init__(self, settings: Settings) -> None:
        """Raise ValueError for any context except the suite's own."""
        if not settings.context.startswith("kind-sos-e2e-"):
            raise ValueError(f"{settings.context}: this suite only works on clusters it has made itself (kind-sos-e2e-*)")
        self._flags = ("--kubeconfig", str(settings.kubeconfig))
        self._context = settings.context

    def ctl(self, *args: str, timeout: float = 120, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl."""
        return run("kubectl", *self._flags, "--context", self._context, *args, timeout=timeout, stdin=stdin, check=check)

    def plugin(self, *args: str, check: bool = True) -> str:
        """Run `kubectl sos`, which accepts flags only after its name."""
        program, config = Path(sys.executable).with_name("kubectl-sos"), self._flags[1]
        return run("env", f"KUBECONFIG={config}", program, *args, "--context", self._context, check=check)

    def helm(self, *args: str, timeout: float = 300) -> str:
        """Run helm."""
        return run("helm", *self._flags, "--kube-context", self._context, *args, timeout=timeout)

    def get(self, *args: str) -> dict[str, Any]:
        """Return an object or a list as parsed JSON."""
        found: dict[str, Any] = json.loads(self.ctl("get", *args, "-o", "json"))
        return found

    def items(self, *args: str) -> list[dict[str, Any]]:
        """Return the items of a list."""
        rows: list[dict[str, Any]] = self.get(*args)["items"]
        return rows

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects given as values."""
        self.ctl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def apply_files(self, *paths: Path) -> None:
        """Apply files or folders as a user would."""
        self.ctl("apply", *(word for path in paths for word in ("-f", str(path))))

    def exec(self, namespace: str, pod: str, *command: str, timeout: float = 120, check: bool = True) -> str:
        """Run a command in a pod."""
        return self.ctl("-n", namespace, "exec", pod, "--", *command, timeout=timeout, check=check)

    def condition(self, obj: str, kind: str, namespace: str | None = None) -> dict[str, str]:
        """Return one condition of an object, for example condition("sossite/west", "Ready")."""
        where = ("-n", namespace) if namespace else ()
        rows: list[dict[str, str]] = self.get(*where, obj).get("status", {}).get("conditions", [])
        for row in rows:
            if row["type"] == kind:
                return row
        raise LookupError(f"{obj} has no condition {kind}")

    def wait_condition(
        self, obj: str, kind: str, status: str = "True", *, namespace: str | None = None, timeout: float = 120
    ) -> dict[str, str]:
        """Wait until a condition has a status, for the object's current generation."""
        where = ("-n", namespace) if namespace else ()

        def probe() -> dict[str, str] | None:
            generation = self.get(*where, obj)["metadata"]["generation"]
            row = self.condition(obj, kind, namespace)
            if row["status"] == status and int(row.get("observedGeneration", 0)) >= generation:
                return row
            raise LookupError(f"{kind}={row['status']} {row['reason']}: {row['message']}")

        return wait_for(f"{obj} {kind}={status}", probe, timeout)

    def wait_ready(self, timeout: int) -> set[str]:
        """Run `kubectl wait` for all existing SOS objects, as users and scripts do; return their kinds."""
        there = {kind for kind in KINDS if self.items(kind, "-A")}
        for kind in sorted(there):
            self.ctl("wait", "--for=condition=Ready", kind, "--all", "-A", f"--timeout={timeout}s", timeout=timeout + 30)
        return there

    def overview(self) -> str:
        """Return the output of `kubectl get sos -A`, or its error."""
        return self.ctl("get", "sos", "-A", check=False)
