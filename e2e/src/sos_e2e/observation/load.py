"""User load during faults: one long download, and a new connection every tenth of a second, run by a shell script in a pod."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sos_e2e.kube import Kube
from sos_e2e.observation.workload import NAMESPACE, SERVER
from sos_e2e.run import wait_for

SIP = 300_000  # bytes of the long download that are read per tenth of a second, so 96 MiB take 34 s
PATIENCE_S = 25  # timeout of a new connection: longer than any fault may delay it
MOST_PROBES = 3000  # maximum number of new connections: one every tenth of a second for five minutes
TIMED_OUT = 28  # curl's exit status for a timeout


def sips(url: str) -> str:
    """Shell script of a steady download into `got`; at its end `long.exit` has curl's status and `long.sum` the digest.

    curl's own rate limit is unsuitable: curl then reads all available bytes and pauses for three seconds, longer than a stall.
    """
    read = f"while head -c {SIP} > sip; [ -s sip ]; do cat sip >> got; sleep 0.1; done"
    return f"{{ curl -s -m 150 {url}; echo $? > long.status; }} | {read}; mv long.status long.exit; sha256sum got > long.sum"


def script(server: str) -> str:
    """Shell script of the load. Everything goes to files, because a fault may cut the connection of the exec itself."""
    return f"""
cd /tmp && rm -rf load && mkdir load && cd load && touch going
touch got
( {sips(f"http://{server}:80/file")} ) &
( while [ ! -e long.exit ]; do echo "$(date +%s.%N) $(stat -c %s got)"; sleep 0.1; done > long.sizes ) &
n=0
while [ -e going ] && [ $n -lt {MOST_PROBES} ]; do
  n=$((n+1))
  ( at=$(date +%s.%N)
    said=$(curl -s -o /dev/null -m {PATIENCE_S} -w '%{{time_connect}} %{{time_total}} %{{size_download}}' http://{server}:80/file.sha256)
    echo "$at $? $said" >> probes ) &
  sleep 0.1
done
wait
touch done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One new connection."""

    at: float  # Unix time, seconds
    status: int  # exit status of curl
    connect_s: float
    total_s: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of the load during a fault."""

    status: int  # exit status of curl for the long download
    sha256: str
    stall_s: float  # longest time without a received byte of the download
    silent_s: float  # from the last received byte to the end of the download
    probes: tuple[Probe, ...]

    def summary(self) -> dict[str, Any]:
        """Summary for the terminal and out/e2e/faults.json."""
        failed = [asdict(probe) for probe in self.probes if probe.status]
        slowest = sorted(self.probes, key=lambda probe: -probe.total_s)[:5]
        return {
            "downloadStatus": self.status,
            "longestStallSeconds": round(self.stall_s, 2),
            "silentBeforeItsEndSeconds": round(self.silent_s, 2),
            "newConnections": len(self.probes),
            "slowestNewConnectionSeconds": round(slowest[0].total_s, 2) if slowest else 0.0,
            "slowest": [asdict(probe) for probe in slowest],
            "failed": len(failed),
            "failures": failed[:10],
        }


def brief(summary: Mapping[str, Any]) -> str:
    """Summary in one line, without single connections."""
    return json.dumps({name: value for name, value in summary.items() if name not in ("failures", "slowest")})


def parse_probes(text: str) -> tuple[Probe, ...]:
    """Read the script's lines `AT STATUS CONNECT TOTAL BYTES`, in the order in which the connections were opened."""
    rows = (line.split() for line in text.splitlines() if line)
    probes = (
        Probe(at=float(at), status=int(status), connect_s=float(connect), total_s=float(total), bytes=int(size))
        for at, status, connect, total, size in rows
    )
    return tuple(sorted(probes, key=lambda probe: probe.at))


def longest_stall(text: str) -> float:
    """Longest time between two increases of the size in lines `AT SIZE`, from the first byte to the last."""
    return max((later - earlier for earlier, later in itertools.pairwise(_growths(_sizes(text)))), default=0.0)


def silent_at_last(text: str) -> float:
    """Time from the last increase in lines `AT SIZE` to the last line: the time for which a dead connection looked alive to its host."""
    rows = _sizes(text)
    grown = _growths(rows)
    return rows[-1][0] - grown[-1] if grown else 0.0


def _sizes(text: str) -> list[tuple[float, int]]:
    return [(float(at), int(size)) for at, size in (line.split() for line in text.splitlines() if line)]


def _growths(rows: list[tuple[float, int]]) -> list[float]:
    return [at for (_, before), (at, now) in itertools.pairwise(rows) if now > before]


class Load:
    """The load script, running in the client's pod."""

    def __init__(self, kube: Kube, *, server: str = SERVER, pod: str = "client") -> None:
        """Start the script, and wait until the long download is running."""
        self._kube, self._pod = kube, pod
        # Redirect the script's output; otherwise the exec would wait until it is closed.
        self._shell(f"setsid sh -c '{_quoted(script(server))}' > /dev/null 2>&1 < /dev/null &")
        wait_for("the running download", lambda: int(self._shell("stat -c %s /tmp/load/got 2>/dev/null || echo 0")) > 4_000_000, 40)
        wait_for("new connections", lambda: len(self._probes()) >= 5, 40)

    def finish(self, timeout: float = 180) -> Outcome:
        """Wait for the download's end, stop opening connections, and report."""
        wait_for("the download's end", lambda: self._shell("cat /tmp/load/long.sum 2>/dev/null || true"), timeout)
        self._shell("rm -f /tmp/load/going")
        wait_for("the last connection", lambda: self._shell("ls /tmp/load/done 2>/dev/null || true"), 60)
        sizes = self._shell("cat /tmp/load/long.sizes")
        return Outcome(
            status=int(self._shell("cat /tmp/load/long.exit")),
            sha256=self._shell("cat /tmp/load/long.sum").split()[0],
            stall_s=longest_stall(sizes),
            silent_s=silent_at_last(sizes),
            probes=self._probes(),
        )

    def _probes(self) -> tuple[Probe, ...]:
        return parse_probes(self._shell("cat /tmp/load/probes 2>/dev/null || true"))

    def _shell(self, command: str) -> str:
        return self._kube.exec(NAMESPACE, self._pod, "sh", "-c", command)


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")
