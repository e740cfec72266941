"""`kubectl sos` in tests: run through kubectl, as a process that receives signals, or with a failing kubectl."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from operator_kube import Kube, tool

INTERRUPTED = 130


def sos(kube: Kube, *args: str, kubectl: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the plugin through kubectl, which finds it in PATH. `kubectl` is a folder with another kubectl for the plugin's own calls."""
    command, environment = [tool("kubectl"), "sos", *args], plugin_environment(kube)
    if kubectl is not None:
        environment["PATH"] = os.pathsep.join((str(kubectl), environment["PATH"]))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def unreliable(folder: Path, command: str, *, times: int) -> Path:
    """Write a kubectl that fails `times` times for commands that start with `command`, and otherwise runs the real kubectl."""
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
    """Run the plugin as a process. kubectl replaces itself by its plugin, so the plugin receives signals."""
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen([tool("kubectl"), "sos", *args], env=plugin_environment(kube), **quiet) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[bytes]) -> str:
    """Standard error of the plugin after its end."""
    assert process.stderr is not None
    return process.stderr.read().decode()


def plugin_environment(kube: Kube) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), str(Path(tool("kubectl")).parent), os.environ["PATH"]))
    return {**os.environ, "KUBECONFIG": str(kube.admin), "HOME": str(kube.folder), "PATH": path}
