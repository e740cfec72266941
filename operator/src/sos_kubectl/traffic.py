"""Runs sos-probe at two ends and reads what it says. Whoever is started here is ended here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sos_kubectl import ports
from sos_kubectl.facts import End, Mtu, Transfer
from sos_kubectl.ports import Range
from sos_kubectl.source import SourceError

Json = dict[str, Any]

START_S = 20.0
"""A probe answers at once; a kubectl exec on a busy machine takes its time."""
MARGIN_S = 45.0
"""Beyond the time a transfer is to last: connecting, what is in buffers, a stall."""
HOLD_S = 10
"""A connection is kept open for so long afterwards, until somebody has seen its session: agents report every 5 s."""
SERVER_S = 300


def _start(end: End, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen((*end.prefix, *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as error:
        raise SourceError(f"sos-probe at {end.name}: {error}") from None


def _end(process: subprocess.Popen[str]) -> None:
    """The end of its standard input is what a probe lives for; if that does not help, it is killed."""
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
    """The one line that a probe says. A reader of its own waits for it, so that the wait is bounded on every platform."""
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
    """A probe that answers at an end, and its two ports; it ends with the block."""
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
    """Between whom bytes go: opened at `end`, to a server's address and port."""

    end: End
    address: str
    port: int
    seconds: int


def transfer(way: Way, direction: str) -> Transfer:
    """Bytes one way: `up` to the server, or `down`."""
    return _transfer(way, direction, 0, None)


def watched(way: Way, direction: str, seen: Callable[[], bool]) -> tuple[Transfer, bool]:
    """The same, and whether `seen` has become true while the connection was open."""
    done, noticed = threading.Event(), []

    def look() -> None:
        while not done.is_set():
            if seen():
                noticed.append(True)
                return
            done.wait(0.3)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        return _transfer(way, direction, HOLD_S, watcher), bool(noticed)
    finally:
        done.set()
        watcher.join(START_S)


def _transfer(way: Way, direction: str, hold: int, watcher: threading.Thread | None) -> Transfer:
    options = ("--direction", direction, "--seconds", str(way.seconds), "--hold", str(hold))
    process = _start(way.end, ("transfer", way.address, str(way.port), *options))

    def let_go() -> None:
        """What the connection is kept open for has come: its standard input ends, and so does the wait."""
        if watcher is not None:
            watcher.join(way.seconds + MARGIN_S)
        with contextlib.suppress(OSError, ValueError):
            if process.stdin is not None:
                process.stdin.close()

    threading.Thread(target=let_go, daemon=True).start()
    try:
        said = _line(process, way.end, way.seconds + hold + MARGIN_S)
    finally:
        _end(process)
    words = {key: said[key] or "" for key in ("failure", "detail", "own", "seen")}
    return Transfer(ok=said["ok"], bytes=said["bytes"], seconds=said["seconds"], **words)


def connect(end: End, address: str, port: int) -> str:
    """Whether somebody listens: "", or how it failed in one word."""
    process = _start(end, ("connect", address, str(port)))
    try:
        return str(_line(process, end, START_S)["failure"] or "")
    finally:
        _end(process)


def mtu(end: End, address: str, port: int) -> Mtu:
    """The largest packets there and back."""
    process = _start(end, ("mtu", address, str(port)))
    try:
        said = _line(process, end, START_S)
    finally:
        _end(process)
    return Mtu(**said)
