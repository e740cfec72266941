"""Install, remove, install again, purge: objects left in the whole cluster after each step."""

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
# What the API server keeps for itself, such as addresses given out, comes and goes with the Services it is about.
INTERNAL = re.compile(r"^(endpoints|endpointslices|ipaddresses|leases|componentstatuses)/")


@pytest.fixture(scope="module")
def bare() -> Iterator[Kube]:
    """An API server of its own: whole kinds come and go here."""
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
    """`helm install` with the default objects, and an operator, as its Deployment would run it."""
    folder.mkdir()
    install(kube)
    for name, text in next(o for o in render() if o["kind"] == "ConfigMap")["data"].items():
        (folder / name).write_text(text)
    with operator_running(kube, folder, SOS_DEFAULTS_DIR=str(folder), SOS_CONTROLLER_API_OVERRIDE="default=http://127.0.0.1:1"):
        eventually("default objects", lambda: kube.items("sosagents") and kube.items("soscontrollers"))
        yield


def removal(kube: Kube, *options: str, admin: bool) -> None:
    """What the chart's Job runs."""
    command = [sys.executable, "-m", "sos_operator", "uninstall", "--timeout", "60", *options]
    settings = environment(kube, 0, {"KUBECONFIG": str(kube.admin)} if admin else {})
    done = subprocess.run(command, env={**settings, "PATH": os.environ["PATH"]}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def uninstall(kube: Kube, *options: str, admin: bool) -> None:
    """That, and then helm itself."""
    removal(kube, *options, admin=admin)
    helm(kube, "uninstall", "sos", "-n", NAMESPACE, "--no-hooks")


@pytest.mark.slow
def test_what_is_left_is_users_and_comes_to_life_again_until_it_is_purged(bare: Kube, tmp_path: Path) -> None:
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
        uninstall(kube, "--purge", admin=True)  # once more: without our kinds there is nothing of them
        assert everything(kube) == before


def test_without_the_right_to_it_purging_says_so_and_leaves_the_objects(bare: Kube, tmp_path: Path) -> None:
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
