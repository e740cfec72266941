"""Run lines of the pages without a cluster: every address that they reach refuses connections.

helm, kubectl and `kubectl sos` are the real programs. A program that fails because a connection was refused has accepted its line, and
every other failure is one of the line: an unknown command, option, context, file or chart. Five kinds of lines are special:

| line | runs as |
|---|---|
| `helm install`, `helm upgrade` | `helm template` with the same values and the packaged chart, if the line names its place and version |
| `kubectl apply -f -` | the same with an object at its input, because the program before the pipe prints nothing |
| `make` | `make --dry-run` |
| `docker build`, `push`, `tag`, `pull` | a check of Dockerfile, stage, context, and of the images that earlier lines have built |
| `kind delete` | a check of the words |
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import yaml
from sos_e2e.settings import ROOT

REFUSED = re.compile(r"connection refused|was refused")
REGISTRY = "localhost:1/sos"
SERVER = "https://127.0.0.1:1"
SOME_OBJECT = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "some"}}'
TIMEOUT_S = 60


class LineError(Exception):
    """A line that its program would not accept."""


# --- the folder of a reader ----------------------------------------------------------------------------------------------------


def kubeconfig(path: Path, *contexts: str) -> None:
    """Write a configuration whose contexts all lead to a closed port; the first is the current one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "closed", "cluster": {"server": SERVER}}],
        "users": [{"name": "reader", "user": {"token": "none"}}],
        "contexts": [{"name": name, "context": {"cluster": "closed", "user": "reader"}} for name in contexts],
        "current-context": contexts[0],
    }
    path.write_text(yaml.safe_dump(config))


def source_tree(folder: Path) -> None:
    """Make `folder` a source tree whose build results are its own."""
    folder.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("out", ".git"):
            (folder / path.name).symlink_to(path)


def programs(folder: Path, real: Sequence[Path]) -> None:
    """Put the special programs into `folder`. `real`: the programs that they start, each in place of its name."""
    folder.mkdir()
    (folder / "real").mkdir()
    for path in real:
        (folder / "real" / path.name).symlink_to(path)
    for name in RUNS:
        start = folder / name
        start.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {folder} {name} "$@"\n')
        start.chmod(0o755)


# --- programs ------------------------------------------------------------------------------------------------------------------


def start(shims: Path, *command: str, stdin: str | None = None) -> None:
    """Run the real program; raise LineError unless it succeeds or its connection is refused."""
    path = f"{shims / 'real'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [shims / "real" / command[0], *command[1:]],
        input=stdin,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": path},
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode and not REFUSED.search(done.stderr):
        raise LineError(done.stderr or done.stdout)


def run_kubectl(shims: Path, words: Sequence[str]) -> None:
    start(shims, "kubectl", *words, stdin=SOME_OBJECT if "-" in words else None)


def run_helm(shims: Path, words: Sequence[str]) -> None:
    for verb in ("install", "upgrade"):
        if verb in words:
            at = words.index(verb)
            rest = [word for word in words[at + 1 :] if word != "--reuse-values"]
            return start(shims, "helm", *words[:at], "template", *_packaged(rest))
    return start(shims, "helm", *words)


def _packaged(words: Sequence[str]) -> list[str]:
    """Replace a chart of the registry by its package in the release's folder."""
    charts = [word for word in words if word.startswith("oci://")]
    if not charts:
        return list(words)
    if charts != [f"oci://{REGISTRY}/charts/sos"] or "--version" not in words:
        raise LineError(f"{' '.join(words)}: the registry has oci://{REGISTRY}/charts/sos, and a line names its version")
    version = words[words.index("--version") + 1]
    package = next(path for path in (Path("out/release"), Path()) if (path / "SHA256SUMS").exists()) / f"sos-{version}.tgz"
    return [str(package) if word in charts else word for word in words]


def run_make(shims: Path, words: Sequence[str]) -> None:
    start(shims, "make", "--dry-run", *words)


def run_kind(_shims: Path, words: Sequence[str]) -> None:
    if tuple(words) != ("delete", "clusters", "sos-e2e-try-a", "sos-e2e-try-b"):
        raise LineError(f"kind {' '.join(words)}: there are other clusters")


def run_docker(shims: Path, words: Sequence[str]) -> None:
    verb, *rest = words
    known = shims / "images"  # names that lines have given, one per line
    there = known.read_text().split() if known.exists() else []
    if verb == "build":
        there.append(_build(rest))
    elif verb == "pull":
        there += rest
    elif verb == "tag" and len(rest) == 2 and rest[0] in there:
        there.append(rest[1])
    elif verb != "push" or len(rest) != 1 or rest[0] not in there:
        raise LineError(f"docker {' '.join(words)}: no line before has built, pulled or tagged this image, or the command is unknown")
    known.write_text("\n".join(there))


def _build(words: Sequence[str]) -> str:
    """Check a build, and return the name of its image."""
    parser = argparse.ArgumentParser("docker build", exit_on_error=False, allow_abbrev=False)
    for option in ("-t", "-f", "--target"):
        parser.add_argument(option, default="")
    parser.add_argument("context", type=Path)
    try:
        given = parser.parse_args(words)
    except argparse.ArgumentError as wrong:
        raise LineError(f"docker build: {wrong}") from wrong
    dockerfile = Path(given.f) if given.f else given.context / "Dockerfile"
    if not dockerfile.is_file():
        raise LineError(f"docker build: {dockerfile} does not exist")
    stages = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile.read_text(), re.MULTILINE)
    if given.target and given.target not in stages:
        raise LineError(f"docker build: {dockerfile} has no stage {given.target}")
    return str(given.t)


RUNS: dict[str, Callable[[Path, Sequence[str]], None]] = {
    "kubectl": run_kubectl, "helm": run_helm, "make": run_make, "kind": run_kind, "docker": run_docker,
}  # fmt: skip

if __name__ == "__main__":
    try:
        RUNS[sys.argv[2]](Path(sys.argv[1]), sys.argv[3:])
    except LineError as wrong_line:
        sys.exit(f"{' '.join(sys.argv[2:])}: {wrong_line}")
