"""`kubectl sos` as people run it: found by kubectl, against a real API server and a real controller."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conftest import condition
from operator_kube import Kube, free_port, tool
from operator_run import Operator, eventually
from sos_kubectl import text

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


def test_status_for_programs_and_a_wait_that_ends(example: Operator) -> None:
    began = time.monotonic()
    done = sos(example.kube, "status", "--wait", "--timeout", "2", "-o", "json")
    assert time.monotonic() - began >= 2, "it has waited"
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, said["ready"]) == (1, False)
    assert {row["name"] for row in said["objects"] if row["kind"] == "SosSite"} == {"west", "east", "core1", "core2"}
    assert all(row["message"] for row in said["objects"] if row["ready"] == "False")


def test_status_takes_less_than_a_second(example: Operator) -> None:
    """Of processor time, kubectl's twice and Python's: what it takes on a machine with nothing else to do. The fastest of three."""
    sos(example.kube, "status")  # compiled, and in the page cache
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        sos(example.kube, "status")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(taken) < 1.0, taken


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
