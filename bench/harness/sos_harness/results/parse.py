"""Parsers of program output and kernel counters. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sos_testbed.core.model import LabError

Samples = tuple[tuple[float, int], ...]
"""Pairs of seconds since the start and bytes received until then, both increasing."""

_GLOBUS = re.compile(r"(\d+) bytes\s+([\d.]+) MB/sec avg")
_GLOBUS_MB = 1 << 20  # despite the label MB, globus-url-copy divides by 1024 twice


class ParseError(LabError):
    """Unusable output; the message is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """Bytes received over time; `error` has the reason of an early end.

    `first_byte_s` is known only for transfer_tool.py, because other clients report at intervals.
    """

    samples: Samples
    error: str = ""
    first_byte_s: float | None = None


def parse_fetch(text: str) -> Received:
    """Parse the report of `transfer_tool.py fetch`."""
    try:
        raw = json.loads(text)
        samples = tuple((float(at), int(received)) for at, received in raw["samples"])
        first = next((at for at, received in samples if received > 0), None)
        return Received(samples=samples, error=str(raw["error"]), first_byte_s=first)
    except (ValueError, KeyError, TypeError):
        raise ParseError(f"the client said {text[:100]!r}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Report of `load_client.py`: milliseconds from before the connect (or request) to the first and to the last byte of each answer."""

    seconds: float
    failed: int
    errors: tuple[str, ...]
    first_ms: tuple[float, ...]
    last_ms: tuple[float, ...]


def parse_load(text: str) -> LoadReport:
    """Parse the report of `load_client.py ask`, `hold` and `talk`."""
    try:
        raw = json.loads(text)
        return LoadReport(
            seconds=float(raw["seconds"]),
            failed=int(raw["failed"]),
            errors=tuple(raw["errors"]),
            first_ms=tuple(map(float, raw["first_ms"])),
            last_ms=tuple(map(float, raw["last_ms"])),
        )
    except (ValueError, KeyError, TypeError):
        raise ParseError(f"the client said {text[-100:]!r}") from None


def parse_readers(text: str) -> tuple[float, ...]:
    """Parse the report of `load_client.py read`: Mbit/s of each connection that is not slowed."""
    try:
        raw = json.loads(text)
        return tuple(int(received) * 8 / float(raw["seconds"]) / 1e6 for received in raw["received"])
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        raise ParseError(f"the client said {text[-100:]!r}") from None


def parse_iperf3(text: str) -> Received:
    """Parse `iperf3 -R -J` by summing its intervals. The clock of iperf3 starts when all streams are connected."""
    try:
        raw = json.loads(text)
    except ValueError:
        raise ParseError(f"iperf3 said {text[:100]!r}") from None
    samples, received = [(0.0, 0)], 0
    for interval in raw.get("intervals", []):
        received += int(interval["sum"]["bytes"])
        samples.append((float(interval["sum"]["end"]), received))
    return Received(samples=tuple(samples), error=str(raw.get("error", "")))


def parse_globus(text: str) -> Received:
    """Parse `globus-url-copy -vb`, which reports bytes and mean rate every two seconds until a signal ends it: their ratio is the time."""
    samples = [(0.0, 0)]
    for found in _GLOBUS.finditer(text):
        received, rate = int(found[1]), float(found[2])
        if rate > 0 and received > samples[-1][1]:
            samples.append((received / _GLOBUS_MB / rate, received))
    lines = text.strip().splitlines()
    error = next((line for line in lines if "error" in line.lower()), "")
    if len(samples) == 1 and not error:
        error = f"globus-url-copy said {(lines or [''])[-1][:100]!r}"
    return Received(samples=tuple(samples), error=error)


def parse_peak(text: str) -> float | None:
    """Parse the report of `transfer_tool.py peak`."""
    try:
        return float(json.loads(text)["peak"])
    except (ValueError, KeyError, TypeError):
        return None


def cpu_ticks(stat: str) -> int:
    """User and system time of a process with all threads and ended children, from /proc/PID/stat (proc(5), fields 14 to 17)."""
    return sum(int(field) for field in stat.rpartition(")")[2].split()[11:15])


def resident_kb(status: str) -> int:
    """Resident memory of a process, from /proc/PID/status."""
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))


def counter(page: str, group: str, name: str) -> int:
    """Counter of a namespace from /proc/net/snmp or /proc/net/netstat, where each group has a line of names and a line of values."""
    names, values = [line.split() for line in page.splitlines() if line.startswith(f"{group}:")]
    return int(dict(zip(names, values, strict=True))[name])


def emulator_lost(stats: str) -> int:
    """Packets that the link emulator lost unintentionally; above 0, the emulation was inaccurate (testbed/linkemu/README.md)."""
    try:
        links = json.loads(stats)["links"]
        return sum(
            link[way]["stats"]["dropped"][why]
            for link in links
            for way in ("a2b", "b2a")
            for why in ("memory", "socket", "unreadable", "send")
        )
    except (ValueError, KeyError, TypeError):
        raise ParseError(f"the link emulator said {stats[:100]!r}") from None


def emulator_carried(stats: str) -> dict[str, int]:
    """Bytes that the link emulator has delivered over each link, in both directions."""
    try:
        return {
            link["name"]: sum(link[way]["stats"]["delivered"]["bytes"] for way in ("a2b", "b2a")) for link in json.loads(stats)["links"]
        }
    except (ValueError, KeyError, TypeError):
        raise ParseError(f"the link emulator said {stats[:100]!r}") from None


def strays(before: Mapping[str, int], after: Mapping[str, int], meant: str) -> list[str]:
    """Links that carried more bytes between two samples than the intended link."""
    carried = {wire: after[wire] - before[wire] for wire in after}
    return [wire for wire, size in carried.items() if size > carried[meant]]


def metric(page: str, name: str) -> float | None:
    """Value of a metric without labels on a Prometheus page."""
    return next((float(line.split()[1]) for line in page.splitlines() if line.split(" ")[0] == name), None)


def bytes_at(samples: Iterable[tuple[float, int]], at: float) -> float:
    """Bytes received until a moment, interpolated between samples; constant after the last sample."""
    before = (0.0, 0)
    for after in samples:
        if after[0] >= at:
            share = (at - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 1.0
            return before[1] + share * (after[1] - before[1])
        before = after
    return float(before[1])
