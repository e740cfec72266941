"""`kubectl sos` as users run it: started by kubectl, against a real API server."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from operator_fixtures import condition
from operator_kube import Kube, free_port
from operator_plugin import plugin_environment, sos, unreliable
from operator_run import Operator, eventually
from sos_kubectl.base import tables
from sos_kubectl.base.source import KINDS, Kubectl

WIDTH = tables.WIDTH


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
    assert said["message"].split()[0] in lines[lines.index(west) + 1], "the operator's message follows"


def test_colours_are_for_terminals(example: Operator) -> None:
    shown, screen = pty.openpty()
    command = [sys.executable, "-m", "sos_kubectl", "status"]
    with subprocess.Popen(command, env=plugin_environment(example.kube), stdout=screen, stderr=subprocess.STDOUT) as process:
        os.close(screen)
        text_shown = b""
        with suppress(OSError):  # a terminal reports the end of its last writer as an error
            while more := os.read(shown, 65536):
                text_shown += more
    os.close(shown)
    assert process.returncode == 1 and b"\x1b[31m" in text_shown and b"SosSite" in text_shown
    assert "\x1b" not in sos(example.kube, "status").stdout


def test_status_for_programs_and_a_wait_that_ends(example: Operator) -> None:
    began = time.monotonic()
    done = sos(example.kube, "status", "--wait", "--timeout", "2", "-o", "json")
    assert time.monotonic() - began >= 2, "--wait has returned early"
    said: dict[str, Any] = json.loads(done.stdout)
    assert (done.returncode, said["ready"]) == (1, False)
    assert {row["name"] for row in said["objects"] if row["kind"] == "SosSite"} == {"west", "east", "core1", "core2"}
    assert all(row["message"] for row in said["objects"] if row["ready"] == "False")


def test_status_loads_no_cluster_client_and_asks_once_for_each_kind(example: Operator, tmp_path: Path) -> None:
    """Check imports and calls, which determine the start-up time. The time itself depends on the machine."""
    folder = unreliable(tmp_path, "", times=0)  # records every call
    environment = plugin_environment(example.kube)
    environment["PATH"] = os.pathsep.join((str(folder), environment["PATH"]))
    command = [sys.executable, "-X", "importtime", "-m", "sos_kubectl", "status"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert done.stdout and "sos_kubectl" in loaded
    assert not loaded & {"kubernetes", "kopf", "aiohttp", "prometheus_client", "sos_operator"}
    assert (tmp_path / "tried").read_text().splitlines() == ["again"] * len(KINDS)


def test_an_unreachable_source_is_an_error_that_names_it(kube: Kube) -> None:
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


ANSWERS = """
import json, sys
second, roles = sys.argv[1:3]
said = sys.argv[3:]
if "--ignore-not-found" in said:
    print("service/sos-controller2-c" if second == "yes" else "")
else:
    active = "controller2" in said[-1] and roles == "second"
    print(json.dumps({"controller": {"active": active}}))
"""


@pytest.mark.parametrize(
    ("second", "roles", "service"),
    [("no", "first", "sos-controller-c"), ("yes", "first", "sos-controller-c"), ("yes", "second", "sos-controller2-c")],
)
def test_plugin_asks_the_active_of_two_replicas(
    second: str, roles: str, service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "kubectl"
    fake.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{ANSWERS}' {second} {roles} \"$@\"\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert Kubectl().controller_in("sos-system", "c") == f"/api/v1/namespaces/sos-system/services/http:{service}:8080/proxy"
