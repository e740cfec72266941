"""Spread of connections over uplinks: 100 downloads of 100 kB, 20 at a time, as in "Pushing SDN to the End-Host", figures 6-9.

The reference of each run is the single uplink in the same benchmark. The ideal time uses the total capacity of all uplinks.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sos_compile.model.world import Loaded

from sos_testbed.core.model import LabError, Shape
from sos_testbed.core.topology import UPLINK, UPLINKS
from sos_testbed.lifecycle import faults, northbound
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle.lab import Lab, Options, make_payload
from sos_testbed.lifecycle.runner import run
from sos_testbed.lifecycle.time_factor import limit_s
from sos_testbed.measurements import measure

COUNT = 100
CONCURRENCY = 20
SIZE_BYTES = 100_000
FILE = "100k"
SERVICE = "spread"
FIRST_PORT = 10_000
PORTS = 50_000
_LOG_WAIT_S = 10.0
_TAKEN_WAIT_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """One run. `rates`: rate of each uplink in Mbit/s. `shares`: number of downloads over each uplink, from the server's log."""

    at: str
    weights: Mapping[str, int]
    rates: Mapping[str, float]
    shares: Mapping[str, int]
    seconds: float
    single_s: float

    @property
    def ideal_s(self) -> float:
        """Time of the single uplink, divided by the ratio of the total capacity to the single uplink's capacity."""
        return self.single_s * self.rates["wan0"] / sum(self.rates[name] for name in self.weights)

    @property
    def over_ideal(self) -> float:
        """Excess over the ideal time, relative to the ideal time."""
        return self.seconds / self.ideal_s - 1


def service(at: str, weights: Mapping[str, int]) -> Loaded:
    """SosService of a run."""
    spec = {
        "from": {"site": "home", "prefixes": ["10.0.0.11/32"]},
        "to": {"prefixes": ["198.51.100.0/24"]},
        "ports": [{"port": 80}],
        "balance": {"at": at, "uplinks": [{"name": name, "weight": weight} for name, weight in weights.items()]},
    }
    metadata = {"name": SERVICE, "namespace": "default"}
    return Loaded("spread", 0, {"apiVersion": "sos.network/v1alpha1", "kind": "SosService", "metadata": metadata, "spec": spec})


def prepare(lab: Lab) -> None:
    """Create the file for the downloads."""
    make_payload(lab.root / "www" / FILE, SIZE_BYTES)


def declare(lab: Lab, at: str, weights: Mapping[str, int]) -> None:
    """Declare this balance as the only service, and wait until it is programmed."""
    kept = tuple(loaded for loaded in lab.objects if loaded.obj.get("kind") != "SosService")
    documents = lab.declare((*kept, service(at, weights)))
    labs.wait_ready(lab, documents)
    deadline = time.monotonic() + limit_s(_TAKEN_WAIT_S)
    while message := northbound.get(lab.plan, "/v1/status")["services"][0]["message"]:
        if time.monotonic() > deadline:
            raise LabError(f"uplinks are missing: {message}")
        time.sleep(0.2)


def download(lab: Lab, count: int = COUNT, concurrency: int = CONCURRENCY) -> dict[str, Any]:
    """Download; raise LabError if a download is incomplete.

    Each download has a local port that no earlier download of the lab had: if a local port is reused within a minute, a switch that
    balances by itself sends the new connection over the uplink of the earlier connection.
    """
    address = measure.address(lab, "router")
    first = FIRST_PORT + len(_lines(_log(lab), 0)) % PORTS
    argv = (
        lab.plan.programs.python,
        "-m",
        "sos_testbed.measurements.downloads",
        address,
        f"/{FILE}",
        str(count),
        str(concurrency),
        str(first),
    )
    found: dict[str, Any] = json.loads(run(lab.exec_argv("client", argv), what="downloads"))
    broken = sum(size != SIZE_BYTES for _, size in found["downloads"])
    if broken:
        raise LabError(f"{broken} of {count} downloads are incomplete")
    return found


def spread(
    lab: Lab, at: str, weights: Mapping[str, int], single_s: float | None = None, changed: Mapping[str, float] = MappingProxyType({})
) -> Spread:
    """Measure one run; without `single_s`, this run is the reference. `changed` has the uplinks whose rate differs from the topology."""
    declare(lab, at, weights)
    log = _log(lab)
    before = _lines(log, 0)
    found = download(lab)
    names = {str(document["address"]): document["name"] for document in _balance(lab)["uplinks"]}
    seen = [line.split(":", 1)[0] for line in _lines(log, len(before) + COUNT)[len(before) :]]
    shares = Counter(names.get(address, address) for address in seen)
    rates = {wire.a.port: wire.shape.rate_bps / 1e6 for wire in lab.topology.shaped() if wire.shape is not None} | dict(changed)
    seconds = float(found["seconds"])
    return Spread(
        at=at,
        weights=dict(weights),
        rates={name: rates[name] for name in weights},
        shares={name: shares[name] for name in (*weights, *sorted(shares.keys() - weights.keys()))},
        seconds=seconds,
        single_s=single_s or seconds,
    )


def _balance(lab: Lab) -> dict[str, Any]:
    return dict(lab.documents.controller["balances"][0])


def _log(lab: Lab) -> Path:
    return lab.root / "router" / "access.log"


def _lines(log: Path, count: int) -> list[str]:
    """Wait for this many lines of a log and return them."""
    deadline = time.monotonic() + limit_s(_LOG_WAIT_S)
    while True:
        lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
        if len(lines) >= count:
            return lines
        if time.monotonic() > deadline:
            raise LabError(f"{log} has {len(lines)} of {count} lines")
        time.sleep(0.1)


def equal(count: int) -> dict[str, int]:
    """Equal weights for the first `count` uplinks."""
    return {f"wan{i}": 1 for i in range(count)}


def main(out: Path, say: Callable[[str], None]) -> None:
    """Measure all runs in one lab, print a table, and write `spread.json`."""
    rows: list[Spread] = []
    faster = Shape(rate_bps=2 * UPLINK.rate_bps, rtt_us=UPLINK.rtt_us, loss=0.0, queue_bytes=UPLINK.queue_bytes or 1)
    lab = labs.up(Options(topology="balance", services=False), say)
    try:
        prepare(lab)
        single = spread(lab, "Controller", equal(1))
        rows.append(single)
        for at in ("Controller", "Switch"):
            rows += [spread(lab, at, equal(count), single.seconds) for count in range(2, UPLINKS + 1)]
        faults.reshape(lab, "edge1.wan1", faster)
        changed = {"wan1": faster.rate_bps / 1e6}
        rows += [spread(lab, at, {"wan0": 1, "wan1": 2}, single.seconds, changed) for at in ("Controller", "Switch")]
    finally:
        lab.down()
    out.mkdir(parents=True, exist_ok=True)
    figures = [{**asdict(row), "ideal_s": row.ideal_s, "over_ideal": row.over_ideal} for row in rows]
    (out / "spread.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for line in table(rows):
        print(line)


def table(rows: list[Spread]) -> list[str]:
    """Format the runs as a table."""
    lines = [f"{'decided at':<12}{'weights':<14}{'seconds':>8}{'ideal':>8}{'over':>8}  downloads by uplink"]
    for row in rows:
        weights = ":".join(str(weight) for weight in row.weights.values())
        shares = " ".join(str(count) for count in row.shares.values())
        numbers = f"{row.seconds:>8.2f}{row.ideal_s:>8.2f}{row.over_ideal:>8.1%}"
        lines.append(f"{row.at:<12}{weights:<14}{numbers}  {shares}")
    return lines
