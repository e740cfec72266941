"""Objects in the whole cluster after each of these steps: install, remove, install again, purge."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from operator_fixtures import FIGURE8, becomes, children
from operator_kube import ROOT, Kube, garbage_collector, kube_apiserver
from operator_nodes import Nodes, kubelets, start_pods
from operator_run import NAMESPACE, environment, eventually, helm, install, operator_running, render
from operator_table import build

USERS = {"sosservices", "sossites", "customresourcedefinitions", "apiservices"}
# The API server creates and deletes these objects itself, for example IP addresses of Services.
INTERNAL = re.compile(r"^(endpoints|endpointslices|ipaddresses|leases|componentstatuses)/")


@pytest.fixture(scope="module")
def bare() -> Iterator[Kube]:
    """A separate API server, because these tests create and delete whole kinds."""
    with kube_apiserver() as kube, garbage_collector(kube), kubelets(kube):
        kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for node, site in FIGURE8.items():
            kube.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node, "labels": {"sos.network/site": site}}})
        kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "theirs", "namespace": NAMESPACE}})
        yield kube


def everything(kube: Kube) -> set[str]:
    return {name for name in kube.everything() if not INTERNAL.match(name)}


@contextmanager
def installed_and_running(kube: Kube, folder: Path) -> Iterator[None]:
    """Run `helm install` with the default objects, and an operator as in its Deployment."""
    folder.mkdir()
    install(kube)
    for name, text in next(o for o in render() if o["kind"] == "ConfigMap")["data"].items():
        (folder / name).write_text(text)
    with operator_running(kube, folder, SOS_DEFAULTS_DIR=str(folder), SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1"):
        eventually("default objects", lambda: kube.items("sosagents") and kube.items("soscontrollers"))
        yield


def removal(kube: Kube, *options: str, admin: bool) -> None:
    """Run the command of the chart's uninstall Job."""
    command = [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "60", *options]
    settings = environment(kube, 0, {"KUBECONFIG": str(kube.admin)} if admin else {})
    done = subprocess.run(command, env={**settings, "PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def uninstall(kube: Kube, *options: str, admin: bool) -> None:
    """Run the command of the Job, then `helm uninstall`."""
    removal(kube, *options, admin=admin)
    helm(kube, "uninstall", "sos", "-n", NAMESPACE, "--no-hooks")


@pytest.mark.slow
def test_users_objects_survive_removal_until_a_purge(bare: Kube, tmp_path: Path) -> None:
    kube = bare
    with Nodes(kube).serving() as nodes:
        before = everything(kube)
        with installed_and_running(kube, tmp_path / "first"):
            kube.kubectl("apply", *(f"-f{ROOT}/examples/01-two-sites/{name}" for name in ("sites.yaml", "sosservice.yaml")))
            eventually("the DaemonSets", lambda: len(children(kube, "daemonsets")) == 6)
            eventually("the finalizers", lambda: all(s["metadata"].get("finalizers") for s in kube.items("sossites")))
            start_pods(kube, nodes)
            becomes(kube, "sossite/west", "BridgesReady", "True", "Ready")
            numbers = {s["metadata"]["name"]: s["status"]["siteID"] for s in kube.items("sossites")}
        uninstall(kube, admin=False)
        left = everything(kube) - before
        assert {name.split("/")[0] for name in left} == USERS, left
        assert {name.rpartition("/")[2] for name in left if name.startswith("sossites/")} == set(FIGURE8.values())
        assert before <= everything(kube)

        with installed_and_running(kube, tmp_path / "second"):
            eventually("the DaemonSets again", lambda: len(children(kube, "daemonsets")) == 6)
            start_pods(kube, nodes)
            becomes(kube, "sossite/west", "BridgesReady", "True", "Ready")
            assert {s["metadata"]["name"]: s["status"]["siteID"] for s in kube.items("sossites")} == numbers
        removal(kube, "--purge", admin=True)
        uninstall(kube, "--purge", admin=True)  # a second purge must also succeed, without the SOS kinds
        assert everything(kube) == before


def test_a_purge_without_rights_fails_and_keeps_the_objects(bare: Kube, tmp_path: Path) -> None:
    kube = bare
    with installed_and_running(kube, tmp_path / "third"):
        kube.apply(build("theirs", {"kind": "SosService", "spec": {"from": {"site": "a"}, "to": {"site": "b"}}}))
    command = [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "60", "--purge"]
    done = subprocess.run(command, env=environment(kube, 0, {}), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "sosservices" in done.stderr
    assert "cannot delete" in done.stderr
    assert kube.items("sosservices", "-A")
    uninstall(kube, "--purge", admin=True)
