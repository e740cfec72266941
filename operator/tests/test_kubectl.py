"""`kubectl sos` as people run it: found by kubectl, against a real API server and a real controller."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conftest import condition
from operator_kube import Kube, free_port, tool
from operator_run import Operator, eventually
from sos_kubectl import text
from sos_kubectl.source import KINDS

WIDTH = text.WIDTH
INTERRUPTED = 130


def sos(kube: Kube, *args: str, kubectl: Path | None = None) -> subprocess.CompletedProcess[str]:
    """By way of kubectl, which finds its plugins in PATH. `kubectl`: a folder with another kubectl for the plugin itself."""
    command, environment = [tool("kubectl"), "sos", *args], _environment(kube)
    if kubectl is not None:
        environment["PATH"] = os.pathsep.join((str(kubectl), environment["PATH"]))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def unreliable(folder: Path, command: str, *, times: int) -> Path:
    """A folder with a kubectl that fails so many times at what begins so, and else is kubectl."""
    script = f"""#!/bin/sh
case "$*" in "{command}"*)
    echo again >>{folder}/tried
    if [ "$(wc -l <{folder}/tried)" -le {times} ]; then echo 'Unable to connect to the server: test' >&2; exit 1; fi ;;
esac
exec {tool("kubectl")} "$@"
"""
    (folder / "kubectl").write_text(script)
    (folder / "kubectl").chmod(0o755)
    return folder


@contextmanager
def sos_process(kube: Kube, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same while it runs. kubectl becomes its plugin, so signals arrive."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([tool("kubectl"), "sos", *args], env=_environment(kube), **quiet) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[bytes]) -> str:
    """What it said to people, when it has ended."""
    assert process.stderr is not None
    return process.stderr.read().decode()


def _environment(kube: Kube) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), str(Path(tool("kubectl")).parent), os.environ["PATH"]))
    return {**os.environ, "KUBECONFIG": str(kube.admin), "HOME": str(kube.folder), "PATH": path}


def test_status_says_what_is_not_ready_and_why(example: Operator) -> None:
    eventually("an unready site", lambda: condition(example.kube, "sossites", "west", "Ready")["status"] == "False")
    done = sos(example.kube, "status")
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("Sos")] == [
        *["SosController"], *["SosSite"] * 4, "SosAgent", *["SosService"],
    ]  # fmt: skip
    assert max(map(len, lines)) <= WIDTH and "\x1b" not in done.stdout
    (west,) = [line for line in lines if line.startswith("SosSite") and " west " in line]
    said = condition(example.kube, "sossites", "west", "Ready")
    assert "False" in west and said["reason"][:6] in west
    assert said["message"].split()[0] in lines[lines.index(west) + 1], "and why, in the operator's words"


def test_colours_are_for_terminals(example: Operator) -> None:
    shown, screen = pty.openpty()
    command = [sys.executable, "-m", "sos_kubectl", "status"]
    with subprocess.Popen(command, env=_environment(example.kube), stdout=screen, stderr=subprocess.STDOUT) as process:
        os.close(screen)
        text_shown = b""
        with suppress(OSError):  # how a terminal says that nobody is left to write
            while more := os.read(shown, 65536):
                text_shown += more
    os.close(shown)
    assert process.returncode == 1 and b"\x1b[31m" in text_shown and b"SosSite" in text_shown
    assert "\x1b" not in sos(example.kube, "status").stdout


def test_status_for_programs_and_a_wait_that_ends(example: Operator) -> None:
    began = time.monotonic()
    done = sos(example.kube, "status", "--wait", "--timeout", "2", "-o", "json")
    assert time.monotonic() - began >= 2, "it has waited"
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, said["ready"]) == (1, False)
    assert {row["name"] for row in said["objects"] if row["kind"] == "SosSite"} == {"west", "east", "core1", "core2"}
    assert all(row["message"] for row in said["objects"] if row["ready"] == "False")


def test_status_loads_no_cluster_client_and_asks_once_for_each_kind(example: Operator, tmp_path: Path) -> None:
    """What makes it slow to start would be one of these; how long it takes depends on the machine."""
    folder = unreliable(tmp_path, "", times=0)  # notes every call
    environment = _environment(example.kube)
    environment["PATH"] = os.pathsep.join((str(folder), environment["PATH"]))
    command = [sys.executable, "-X", "importtime", "-m", "sos_kubectl", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert done.stdout and "sos_kubectl" in loaded
    assert not loaded & {"kubernetes", "kopf", "aiohttp", "prometheus_client", "sos_operator"}
    assert (tmp_path / "tried").read_text().splitlines() == ["again"] * len(KINDS)


def test_nobody_there_is_an_error_that_says_who(kube: Kube) -> None:
    port = free_port()
    done = sos(kube, "flows", "--url", f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (2, "") and f"127.0.0.1:{port}" in done.stderr and "Traceback" not in done.stderr
    for wrong in ("127.0.0.1", "http://h:abc", "http://[::1", f"http://{'a' * 70}.test", "http://a b"):
        done = sos(kube, "flows", "--url", wrong)
        assert done.returncode == 2 and wrong in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = sos(kube, "topology", "--controller", "nobody")
    assert done.returncode == 2 and "sos-controller-nobody" in done.stderr
    done = sos(kube, "status", "--context", "nobody")
    assert done.returncode == 2 and "nobody" in done.stderr and "Traceback" not in done.stderr


def test_wrong_usage_names_the_argument(kube: Kube) -> None:
    for wrong, named in (
        (("trace", "here", "10.0.0.1", "80"), "SRC"),
        (("trace", "10.0.0.1", "10.0.0.2", "99999"), "PORT"),
        (("stat",), "stat"),
    ):
        done = sos(kube, *wrong)
        assert done.returncode == 2 and named in done.stderr, done.stderr
