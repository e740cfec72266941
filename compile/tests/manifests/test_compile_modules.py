"""Test kernel modules: the list that a node's pod requests, and the script in the image that loads them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sos_compile import Settings, compile_world
from worlds import nodes, site, world

SCRIPT = Path(__file__).resolve().parents[3] / "agent-image" / "ovs" / "modules.sh"
LOADING = Settings(load_modules=True)


def pod_of(datapath: str = "Auto", *, base: int | None = None, settings: Settings = LOADING) -> dict[str, Any]:
    """Return the pod of a node of a site. The site is of type Overlay, or has `base` base uplinks."""
    made = world(site("a", "10.0.0.0/16", base=base, datapath={"type": datapath}), nodes=nodes(a=1), settings=settings)
    found = {(m["kind"], m["metadata"]["name"]): m for m in compile_world(made).manifests}
    spec: dict[str, Any] = found["DaemonSet", "sos-node-a"]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize(
    ("datapath", "base", "arguments"),
    [
        ("Auto", None, ["--want", "openvswitch", "--want", "vxlan"]),
        ("System", None, ["--need", "openvswitch", "--want", "vxlan"]),
        ("Netdev", None, ["--want", "vxlan"]),
        ("Auto", 1, ["--want", "openvswitch"]),
        ("System", 1, ["--need", "openvswitch"]),
    ],
)
def test_site_requests_its_optional_and_required_modules(datapath: str, base: int | None, arguments: list[str]) -> None:
    (loader,) = pod_of(datapath, base=base)["initContainers"]
    assert loader["args"] == arguments


def test_modules_are_loaded_only_if_enabled_and_needed() -> None:
    wanted = pod_of()
    assert pod_of(settings=replace(LOADING, load_modules=False)) == {
        **{key: value for key, value in wanted.items() if key != "initContainers"},
        "volumes": [volume for volume in wanted["volumes"] if volume["name"] != "modules"],
    }
    assert "initContainers" not in pod_of("Netdev", base=1)


def test_the_module_loading_container_has_no_other_privilege() -> None:
    pod = pod_of()
    (loader,) = pod["initContainers"]
    assert loader["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_MODULE"]}
    assert loader["securityContext"]["readOnlyRootFilesystem"] is True
    assert not loader["securityContext"].get("privileged")
    assert loader["volumeMounts"] == [{"name": "modules", "mountPath": "/lib/modules", "readOnly": True}]
    assert {"name": "modules", "hostPath": {"path": "/lib/modules", "type": ""}} in pod["volumes"]
    for container in pod["containers"]:
        assert "SYS_MODULE" not in container["securityContext"]["capabilities"]["add"]
        assert "modules" not in {mount["name"] for mount in container["volumeMounts"]}
    assert loader["command"] == [SCRIPT.name]
    dockerfile = (SCRIPT.parents[1] / "Dockerfile").read_text()
    assert f"ovs/{SCRIPT.name} /usr/local/bin/" in dockerfile and " kmod " in dockerfile


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False)


def loaded() -> str:
    """Return a module that the kernel already contains, so that the test loads no module."""
    return min(path.name for path in Path("/sys/module").iterdir())


def test_loaded_module_is_not_loaded_again() -> None:
    done = run("--need", loaded(), "--want", loaded())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"modules.sh: {loaded()}: there already\n" * 2


def test_missing_optional_module_is_named_and_skipped() -> None:
    done = run("--want", "sos_no_such_module", "--want", loaded())
    assert done.returncode == 0
    assert "modules.sh: sos_no_such_module: not loaded (" in done.stderr and "sos_no_such_module not found" in done.stderr
    assert "there already" in done.stdout, "later modules are still loaded"


def test_missing_required_module_stops_the_pod_with_a_remedy() -> None:
    done = run("--need", "sos_no_such_module", "--want", loaded())
    assert done.returncode == 1
    assert "there already" in done.stdout
    last = done.stderr.splitlines()[-1]
    assert "sos_no_such_module" in last and "spec.datapath.type" in last


@pytest.mark.parametrize("arguments", [("--want",), ("openvswitch",), ("--want", "-r"), ("--want", "../x"), ("--load", "vxlan")])
def test_invalid_arguments_are_refused(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "usage: modules.sh" in done.stderr
