"""Files of a release: the packaged chart, the plugin as one file, the krew manifest, checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from operator_kube import ROOT, Kube, tool
from operator_plugin import plugin_environment

RELEASE = ROOT / "scripts" / "release.py"
REGISTRY, REPOSITORY, VERSION = "registry.example.org:5000/sos", "https://github.com/acme/sos", "0.2.0-rc.1"
ALONE = (sys.executable, "-I", "-S")
"""Python without installed packages and without PYTHONPATH."""


def built(out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RELEASE), "--out", str(out), *more]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release")
    done = built(out, "--registry", REGISTRY, "--home", REPOSITORY, "--version", VERSION)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="module")
def plugin() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sos_plugin", ROOT / "scripts" / "plugin.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def helm(*args: str) -> str:
    done = subprocess.run([tool("helm"), *args], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- chart


def test_the_packaged_chart_renders_only_listed_images(release: Path) -> None:
    listed = set((release / "images.txt").read_text().split())
    assert listed == {f"{REGISTRY}/sos-{part}:{VERSION}" for part in ("operator", "controller", "agent", "node", "ovs")}
    package = str(release / f"sos-{VERSION}.tgz")
    text = helm("template", "sos", package, "--set", "monitoring.rules.enabled=true", "--set", "monitoring.podMonitors.enabled=true")
    used = set(re.findall(r"^ *image: (\S+)$|SOS_IMAGE_(?:CONTROLLER|AGENT|NODE|OVS), value: \"([^\"]+)\"", text, re.MULTILINE))
    assert {one or other for one, other in used} == listed
    helm("lint", package)


def test_the_packaged_chart_describes_itself(release: Path) -> None:
    chart = yaml.safe_load(helm("show", "chart", str(release / f"sos-{VERSION}.tgz")))
    assert (chart["version"], chart["appVersion"], chart["home"]) == (VERSION, VERSION, REPOSITORY)
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {image["image"] for image in images} == set((release / "images.txt").read_text().split())
    crds = yaml.safe_load(chart["annotations"]["artifacthub.io/crds"])
    declared = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    assert [(crd["name"], crd["kind"]) for crd in crds] == [(crd["metadata"]["name"], crd["spec"]["names"]["kind"]) for crd in declared]
    assert all(crd["description"] for crd in crds)
    alerts = helm("template", "sos", str(release / f"sos-{VERSION}.tgz"), "--set", "monitoring.rules.enabled=true")
    assert f"{REPOSITORY}/blob/v{VERSION}/docs/alerts.md#" in alerts


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--registry", "https://ghcr.io/acme"),
        ("--registry", "ghcr.io/acme/"),
        ("--registry", ""),
        ("--version", "v0.1"),
        ("--home", "github.com/acme"),
    ],
)
def test_a_wrong_option_is_named(option: str, value: str, tmp_path: Path) -> None:
    given = {"--registry": REGISTRY, option: value}
    done = built(tmp_path / "out", *(word for pair in given.items() for word in pair))
    assert done.returncode == 2 and f"{option} {value}" in done.stderr
    assert not (tmp_path / "out").exists()


def test_checksums_and_the_krew_manifest_fit_the_files(release: Path) -> None:
    subprocess.run(("sha256sum", "--check", "--strict", "SHA256SUMS"), cwd=release, check=True, capture_output=True, timeout=60)
    summed = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert summed == {path.name for path in release.iterdir()} - {"SHA256SUMS"}
    manifest = yaml.safe_load((release / "krew-sos.yaml").read_text())
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("sos", f"v{VERSION}")
    for platform in manifest["spec"]["platforms"]:
        name = platform["uri"].rpartition("/")[2]
        assert platform["uri"] == f"{REPOSITORY}/releases/download/v{VERSION}/{name}"
        assert platform["sha256"] == hashlib.sha256((release / name).read_bytes()).hexdigest()
        with tarfile.open(release / name) as archive:
            assert archive.getnames() == [file["from"] for file in platform["files"]]
            assert archive.getmember(platform["bin"]).mode == 0o755
            unpacked = archive.extractfile(platform["bin"])
            assert unpacked and unpacked.read() == (release / "kubectl-sos").read_bytes()


# --- plugin


def test_the_plugin_needs_no_installed_package(release: Path) -> None:
    file = release / "kubectl-sos"
    assert file.stat().st_size < 1 << 20 and os.access(file, os.X_OK)
    done = subprocess.run([*ALONE, str(file), "version", "--client"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"kubectl-sos {VERSION}\n"), done.stderr
    listed = subprocess.run([*ALONE, str(file), "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    own = subprocess.run([sys.executable, "-m", "sos_kubectl", "--help"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert listed == own
    code = f"""
import importlib, pkgutil, sys
sys.path.insert(0, {str(file)!r})
import sos_kubectl
for found in pkgutil.walk_packages(sos_kubectl.__path__, "sos_kubectl."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
from sos_kubectl.base import names
from sos_kubectl.commands.enroll import build_enrollment
from sos_kubectl.enrollment import archive
assert names.controller("default") == "sos-controller-default" and names.peer_secret("b")
assert archive.build(build_enrollment("m", 7, b"p" * 16, {{1: b"k" * 32}}, [("192.0.2.1", 14790)]), None, 0)
print("done")
"""
    done = subprocess.run([*ALONE, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "done\n", done.stderr


def test_kubectl_runs_and_completes_the_single_file(release: Path, kube: Kube, tmp_path: Path) -> None:
    (tmp_path / "kubectl-sos").symlink_to(release / "kubectl-sos")
    (tmp_path / "kubectl_complete-sos").symlink_to(release / "kubectl-sos")
    environment = plugin_environment(kube)
    environment["PATH"] = os.pathsep.join((str(tmp_path), environment["PATH"]))

    def kubectl(*words: str) -> list[str]:
        done = subprocess.run([tool("kubectl"), *words], env=environment, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    assert kubectl("sos", "version", "--client") == [f"kubectl-sos {VERSION}"]
    completed = kubectl("__complete", "sos", "")
    assert {line.partition("\t")[0] for line in completed} >= {"status", "diagnose", "version", "peer", ":4"}
    assert kubectl("__complete", "sos", "peer", "inv")[0].startswith("invite")
    assert {line.partition("\t")[0] for line in kubectl("__complete", "sos", "trace", "-o", "")} >= {"text", "json"}


def test_lines_of_the_page_install_the_plugin_and_its_completion(release: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".local" / "bin"
    folder.mkdir(parents=True)
    path = os.pathsep.join((str(folder), str(Path(tool("kubectl")).parent), os.environ["PATH"]))
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": path, "KUBECONFIG": str(tmp_path / "none")}

    def lines_of(name: str) -> str:
        """Run a block of docs/plugin.md in the folder of the release."""
        blocks = (sys.executable, str(ROOT / "scripts" / "blocks.py"), "--print", name)
        text = subprocess.run(blocks, capture_output=True, text=True, timeout=60, check=True).stdout
        argv = ("bash", "-euo", "pipefail", "-c", text)
        done = subprocess.run(argv, cwd=release, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert lines_of("plugin-install") == f"kubectl-sos {VERSION}\n"
    lines_of("plugin-completion")
    second_name = (str(folder / "kubectl_complete-sos"), "peer", "inv")
    completed = subprocess.run(second_name, capture_output=True, text=True, timeout=60, check=True)
    assert completed.stdout.startswith("invite")


def test_the_same_sources_give_the_same_plugin(release: Path, plugin: ModuleType) -> None:
    assert plugin.build(VERSION) == (release / "kubectl-sos").read_bytes()


def test_an_import_that_the_file_lacks_is_named(plugin: ModuleType) -> None:
    texts = {"sos_kubectl": ("", True), "sos_kubectl.a": ("def f():\n    import yaml\n", False)}
    with pytest.raises(plugin.ImportRefusedError, match=r"sos_kubectl\.a imports yaml"):
        plugin.needed(texts)


def test_a_name_of_an_emptied_package_is_named(plugin: ModuleType) -> None:
    texts = {
        "sos_kubectl": ("", True),
        "sos_kubectl.a": ("def f():\n    from sos_compile import compile_world\n", False),
        "sos_compile": ("from sos_compile.compiler import compile_world\n", True),
    }
    with pytest.raises(plugin.ImportRefusedError, match=r"sos_kubectl\.a imports compile_world from sos_compile"):
        plugin.needed(texts)


def test_an_older_python_runs_a_newer_one(tmp_path: Path, plugin: ModuleType) -> None:
    """The first lines of the file, with an interpreter of a newer minor version in PATH."""
    start = plugin.START.partition("from sos_kubectl")[0].replace("sys.version_info", "(3, 9)")
    (tmp_path / "start.py").write_text(start)
    (tmp_path / "python3.13").write_text("#!/bin/sh\necho newer $*\n")
    (tmp_path / "python3.13").chmod(0o755)
    command = [*ALONE, str(tmp_path / "start.py"), "status"]
    found = subprocess.run(command, env={"PATH": str(tmp_path) + ":/bin"}, capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == f"newer {tmp_path / 'start.py'} status\n"
    (tmp_path / "python3.13").unlink()
    missing = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False)
    assert missing.returncode == 1 and "needs Python 3.11 or newer" in missing.stderr


def test_a_folder_with_other_files_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    done = built(tmp_path, "--registry", REGISTRY)
    assert done.returncode == 1 and "name another folder" in done.stderr
    assert (tmp_path / "mine").read_text() == "kept"


def test_only_reached_modules_of_the_compiler_are_included(plugin: ModuleType, release: Path) -> None:
    texts = {
        "sos_kubectl": ("from sos_compile.a import b\nfrom . import c\n", True),
        "sos_kubectl.c": ("", False),
        "sos_compile": ("import pydantic\n", True),
        "sos_compile.a": ("import pydantic\n", True),
        "sos_compile.a.b": ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sos_compile import d\n", False),
        "sos_compile.d": ("import yaml\n", False),
    }
    reached = plugin.needed(texts)
    assert reached == {"sos_kubectl", "sos_kubectl.c", "sos_compile.a.b"}
    assert plugin.members(texts, reached)["sos_compile/a/__init__.py"] == ""
    with zipfile.ZipFile(release / "kubectl-sos") as archive:
        names = archive.namelist()
    assert "sos_compile/manifests/naming.py" in names and "sos_compile/compiler.py" not in names
    assert any(name.endswith("LICENSE.txt") for name in names), "click's licence must be part of the file"
