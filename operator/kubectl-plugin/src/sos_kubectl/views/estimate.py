"""`estimate`: the rate and duration of a transfer over a path, plain and accelerated, from the path's round trip, loss and rate.

Plain TCP is CUBIC (RFC 9438 section 5) with one connection, limited by the smallest of three: the link, the window that Linux' buffers
permit, and loss. SOS is the fit of its measured start-up to its wire limit. Both are compared with measurements in the tests: within a
sixth of docs/figures/wan.json. Queues and other traffic are not modelled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sos_kubectl.base import tables

SEGMENT_BYTES, FRAME_BYTES = 1448, 1538
"""TCP payload of a full Ethernet frame of 1,500 bytes, and the frame with preamble and gap."""
INITIAL_BYTES = 10 * SEGMENT_BYTES
DEFAULT_WINDOW_BYTES = 2.9e6
"""Bytes in flight that Linux' default tcp_rmem of 6 MB permits: half of the buffer, as measured at 59 and at 164 ms."""
TUNED_WINDOW_BYTES = 32e6
"""The same for buffers of 64 MB."""
CUBIC_C, CUBIC_BETA = 0.4, 0.7
SLOW_START = 1.3
"""Round trips for each doubling of the window at the start, because CUBIC leaves slow start early (HyStart)."""
SOS_START_RTTS = 4.5
"""Round trips that the start of an accelerated transfer costs, beyond the first byte; measured at 59 and at 164 ms."""

MEGA = 1e6


@dataclass(frozen=True, slots=True)
class Path:
    """A path: round trip in seconds, lost share of packets in each direction, rate of the link in bit/s."""

    rtt_s: float
    loss: float
    rate_bps: float

    @property
    def wire_bps(self) -> float:
        """Payload rate of TCP that fills the link."""
        return self.rate_bps * SEGMENT_BYTES / FRAME_BYTES * (1 - self.loss)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A transfer: steady rate in bit/s, time to the first byte and to the last byte in seconds, and the limit."""

    scheme: str
    rate_bps: float
    first_byte_s: float
    duration_s: float
    limit: str


def cubic_window(path: Path) -> float:
    """Average window in bytes under random loss (RFC 9438, equations 5 and 6: CUBIC, or Reno where Reno is faster)."""
    if path.loss <= 0:
        return math.inf
    cubic = math.pow(CUBIC_C * (3 + CUBIC_BETA) / (4 * (1 - CUBIC_BETA)), 0.25) * math.pow(path.rtt_s / path.loss, 0.75)
    reno = math.sqrt(1.5 / path.loss)
    return max(cubic, reno) * SEGMENT_BYTES


def plain(path: Path, size_bytes: float, window_bytes: float, scheme: str) -> Estimate:
    """One connection of plain TCP whose hosts permit `window_bytes` in flight."""
    limits = {
        "the link": path.wire_bps,
        f"the hosts' buffers ({window_bytes / MEGA:.1f} MB in flight)": 8 * window_bytes / path.rtt_s,
        "loss": 8 * cubic_window(path) / path.rtt_s,
    }
    limit, rate = min(limits.items(), key=lambda item: item[1])
    window = rate * path.rtt_s / 8
    doublings = max(0.0, math.log2(min(size_bytes, window) / INITIAL_BYTES))
    started = min(size_bytes, window)
    duration = 2 * path.rtt_s + SLOW_START * doublings * path.rtt_s + (size_bytes - started) * 8 / rate
    return Estimate(scheme, rate, 2 * path.rtt_s, duration, limit)


def accelerated(path: Path, size_bytes: float) -> Estimate:
    """The same transfer through SOS, to a server that has accepted connections within the last minutes."""
    window = path.wire_bps * path.rtt_s / 8
    start = SOS_START_RTTS * path.rtt_s * min(1.0, size_bytes / window)
    return Estimate("SOS", path.wire_bps, path.rtt_s, path.rtt_s + start + size_bytes * 8 / path.wire_bps, "the link")


def estimates(path: Path, size_bytes: float) -> list[Estimate]:
    """All schemes, SOS last."""
    return [
        plain(path, size_bytes, DEFAULT_WINDOW_BYTES, "plain TCP, Linux default buffers"),
        plain(path, size_bytes, TUNED_WINDOW_BYTES, "plain TCP, buffers of 64 MB on both hosts"),
        accelerated(path, size_bytes),
    ]


def as_json(path: Path, size_bytes: float) -> dict[str, object]:
    """The estimates for programs."""
    rows = [
        {
            "scheme": each.scheme,
            "rateMbps": round(each.rate_bps / MEGA, 1),
            "firstByteSeconds": round(each.first_byte_s, 4),
            "durationSeconds": round(each.duration_s, 3),
            "limit": each.limit,
        }
        for each in estimates(path, size_bytes)
    ]
    return {"wireLimitMbps": round(path.wire_bps / MEGA, 1), "bytes": int(size_bytes), "estimates": rows}


def lines(path: Path, size_bytes: float) -> list[str]:
    """The estimates for a terminal."""
    found = estimates(path, size_bytes)
    head = ("", "MBIT/S", "FIRST BYTE", "LAST BYTE", "LIMITED BY")
    rows = [(each.scheme, f"{each.rate_bps / MEGA:.0f}", _time(each.first_byte_s), _time(each.duration_s), each.limit) for each in found]
    gain = found[0].duration_s / found[-1].duration_s
    verdict = f"SOS finishes {gain:.1f} times as fast as plain TCP." if gain >= 1.05 else "SOS gains little on this path."
    return [*tables.table(head, rows), verdict]


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
