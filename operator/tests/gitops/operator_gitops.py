"""Argo CD's sync, and health as Argo CD and Flux assess it, by the program gitops-state (operator/tests/gitops/state)."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml
from operator_kube import ROOT, Kube, tool
from operator_run import NAMESPACE

PAGE = ROOT / "docs" / "platforms.md"
APPLICATION = "sos"
TIMEOUT_S = 120


def blocks(language: str) -> list[str]:
    """Return the code blocks of docs/platforms.md in a language, without their indentation."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return ["".join(line.removeprefix(indent) for line in text.splitlines(keepends=True)) for indent, text in found]


def health_script() -> dict[str, Any]:
    """Return the ConfigMap argocd-cm of the page."""
    (found,) = [text for text in blocks("yaml") if "argocd-cm" in text]
    return dict(yaml.safe_load(found))


def configure_argo_cd(kube: Kube, tracking: str = "label") -> None:
    """Create Argo CD's configuration with the page's ConfigMap, and the Secret by which Argo CD reaches this cluster."""
    settings = health_script()
    settings["data"]["application.resourceTrackingMethod"] = tracking
    token = yaml.safe_load(kube.admin.read_text())["users"][0]["user"]["token"]
    access = {"bearerToken": token, "tlsClientConfig": {"insecure": True}}
    content = {"name": "tested", "server": kube.url, "config": json.dumps(access)}
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "argocd"}},
        settings,
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tested", "namespace": "argocd", "labels": {"argocd.argoproj.io/secret-type": "cluster"}},
            "data": {key: base64.b64encode(value.encode()).decode() for key, value in content.items()},
        },
    )


@dataclass(frozen=True)
class Outcome:
    """Result of a sync of the application, or of its dry run."""

    phase: str
    message: str
    sync: str
    """Status of the application, Synced or OutOfSync; empty unless of a dry run."""
    resources: tuple[dict[str, str], ...]
    """Applied and pruned objects; of a dry run only those that are out of sync."""

    def pruned(self) -> set[str]:
        """Return the pruned objects as KIND/NAME."""
        return {f"{each['kind']}/{each['name']}" for each in self.resources if each["status"] == "Pruned"}


def sync(kube: Kube, objects: Iterable[dict[str, Any]], *, dry: bool = False) -> Outcome:
    """Run Argo CD's sync of an application that consists of these objects, with prune. A dry run changes nothing."""
    place = ("--server", kube.url, "--app", APPLICATION, "--namespace", NAMESPACE)
    found = _run(kube, "diff" if dry else "sync", *place, stdin=json.dumps(list(objects)))
    return Outcome(found["phase"], found["message"], found.get("sync", ""), tuple(found["resources"]))


def assessments(kube: Kube) -> dict[tuple[str, str], dict[str, str]]:
    """Health of all SOS objects by kind and name, as Argo CD and Flux assess it."""
    return {(each["kind"], each["name"]): each for each in _run(kube, "health", "--group", "sos.network")}


def _run(kube: Kube, command: str, *options: str, stdin: str = "") -> Any:
    argv = [tool("gitops-state"), command, "--kubeconfig", str(kube.admin), *options]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"gitops-state {command}: {done.stderr[-4000:]}"
    return json.loads(done.stdout)
