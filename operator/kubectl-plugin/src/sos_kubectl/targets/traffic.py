"""Run sos-probe at two hosts and parse its output. Every process started here is ended here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base.source import SourceError
from sos_kubectl.targets import ports
from sos_kubectl.targets.ports import Range
from sos_kubectl.targets.transfer import End, Mtu, Transfer

Json = dict[str, Any]

START_S = 20.0
"""Time limit for a probe's first line: the probe answers immediately, but kubectl exec is slow on a busy machine."""
MARGIN_S = 100.0
"""Time limit beyond the duration of a transfer: more than sos-probe itself takes (6 s to connect, 5 s for a greeting, 70 s for the end, 5 s
of silence), so that its result for a slow path is not lost."""
HOLD_S = 10
"""Maximum time to keep a connection open until its session has been seen: twice the 5 s between two reports of an agent."""
SERVER_S = 600


def _start(end: End, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen((*end.prefix, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise SourceError(f"sos-probe at {end.name}: {error}") from None


def _end(process: subprocess.Popen[str]) -> None:
    """Close the probe's standard input, which ends the probe; kill it if that fails."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def _line(process: subprocess.Popen[str], end: End, within_s: float) -> Json:
    """Read the next line of a probe. A separate thread waits for the line, so that the wait is bounded on every platform."""
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.stdout.readline() if process.stdout is not None else ""), daemon=True)
    reader.start()
    reader.join(within_s)
    try:
        found: Json = json.loads(said[0])
    except (IndexError, ValueError):
        process.kill()
        complaint = process.stderr.read().strip() if process.stderr is not None else ""
        raise SourceError(f"sos-probe at {end.name}: {complaint or f'no answer within {within_s:.0f} s'}") from None
    return found


@contextmanager
def server(end: End, through: list[Range], plain: list[Range]) -> Iterator[tuple[int | None, int | None]]:
    """Run a probe server at an endpoint inside the block; yield its two ports."""
    chosen = [("--through", ports.written(found)) for found in through] + [("--plain", ports.written(found)) for found in plain]
    arguments = ("serve", "--address", end.address, "--seconds", str(SERVER_S), *(word for option in chosen for word in option))
    process = _start(end, arguments)
    try:
        said = _line(process, end, START_S)
        yield said["through"], said["plain"]
    finally:
        _end(process)


@dataclass(frozen=True, slots=True)
class Way:
    """Endpoints of a connection: opened at `end`, to a server's address and port."""

    end: End
    address: str
    port: int
    seconds: int


def transfer(way: Way, direction: str) -> Transfer:
    """Transfer bytes in one direction: `up` to the server, or `down`."""
    return _transfer(way, direction, 0, lambda _process, _own: None)


def watched(way: Way, direction: str, seen: Callable[[str], bool]) -> tuple[Transfer, bool]:
    """Transfer, and return whether `seen`, called with the client's address and port, became true while the connection was open."""
    done, noticed = threading.Event(), list[bool]()

    def watch(process: subprocess.Popen[str], own: str) -> None:
        while not done.is_set():
            if seen(own):
                noticed.append(True)
                break
            done.wait(0.3)
        _let_go(process)

    watchers: list[threading.Thread] = []

    def opened(process: subprocess.Popen[str], own: str) -> None:
        watchers.append(threading.Thread(target=watch, args=(process, own), daemon=True))
        watchers[-1].start()

    try:
        return _transfer(way, direction, HOLD_S, opened), bool(noticed)
    finally:
        done.set()
        for watcher in watchers:
            watcher.join(START_S)


def _let_go(process: subprocess.Popen[str]) -> None:
    """Close the probe's standard input, which ends its hold time."""
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None:
            process.stdin.close()


def _transfer(way: Way, direction: str, hold: int, opened: Callable[[subprocess.Popen[str], str], None]) -> Transfer:
    """Run a transfer; once connected, call `opened` with the process and the connection's local address. If the probe prints no
    result, the transfer has failed."""
    options = ("--direction", direction, "--seconds", str(way.seconds), "--hold", str(hold))
    process = _start(way.end, ("transfer", way.address, str(way.port), *options))
    began = time.monotonic()
    try:
        said = _line(process, way.end, START_S)
        if "ok" not in said:
            opened(process, said["own"])
            said = _line(process, way.end, way.seconds + hold + MARGIN_S)
        words = {key: said[key] or "" for key in ("failure", "detail", "own", "seen")}
        return Transfer(ok=said["ok"], bytes=said["bytes"], seconds=said["seconds"], **words)
    except SourceError as error:
        return Transfer(ok=False, seconds=time.monotonic() - began, failure="error", detail=str(error))
    finally:
        _end(process)


def connect(end: End, address: str, port: int) -> str:
    """Test whether a port listens: return "", or the failure in one word."""
    process = _start(end, ("connect", address, str(port)))
    try:
        return str(_line(process, end, START_S)["failure"] or "")
    finally:
        _end(process)


def mtu(end: End, address: str, port: int) -> Mtu:
    """Measure the largest packets in both directions."""
    process = _start(end, ("mtu", address, str(port)))
    try:
        said = _line(process, end, START_S)
    finally:
        _end(process)
    return Mtu(**said)
