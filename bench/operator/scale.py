"""`make bench-operator`: 50 sites, 50 pools and 1,000 services in a real API server, a real operator and a real controller.

    bench/operator/scale.py [--sites N] [--services N] [--changes N] [--out out/bench]

The benchmark measures the time from the API server's answer to a change of one service until the controller has accepted the new
configuration, the writes of the operator during full resyncs, its memory and CPU time, and the duration of `kubectl sos status`. No
switch is connected, because a controller accepts configurations without switches. The benchmark prints a table with targets and writes
OUT/operator.json. If a target is missed, it names the rows and exits with 1. Other work on the machine can cause this, so check the load.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[2]
# helpers that start an API server, an operator and a controller
sys.path[:0] = [str(TOP / "operator" / "tests" / name) for name in ("support", "simulated")]

import operator_scale as scale  # noqa: E402
from operator_controller import Controller  # noqa: E402
from operator_kube import Kube, kube_apiserver, tool  # noqa: E402
from operator_run import NAMESPACE, Operator, eventually, install, operator_running  # noqa: E402
from operator_table import build, path_of, send  # noqa: E402

RESYNC_S = 20
COLD_S = 300.0
STATUS_RUNS = 5
NOBODY_ANSWERED = 2
"""First exit code of `kubectl sos` for a failure. Exit code 1 (not ready) is normal here, because no kubelet runs pods."""
Json = dict[str, Any]


@dataclass(frozen=True)
class Aim:
    """Target of a figure: its upper bound."""

    row: str
    figure: Callable[[Json], float]
    most: float
    words: str

    def met(self, result: Json) -> bool:
        """True if the figure of this result does not exceed the bound."""
        return self.figure(result) <= self.most


AIMS = (
    Aim("a change until the controller has it", lambda r: float(r["applyToAcknowledged"]["p99Ms"]), 1000, "p99 1,000 ms"),
    Aim("two full resyncs", lambda r: float(r["resync"]["writes"] + r["resync"]["changedObjects"]), 0, "0 writes"),
    Aim("operator, memory", lambda r: float(r["operator"]["peakRssMiB"]), 256, "256 MiB at most"),
    Aim("kubectl sos status", lambda r: float(r["status"]["textMs"]), 1000, "1,000 ms"),
    Aim("kubectl sos status -o json", lambda r: float(r["status"]["jsonMs"]), 1000, "1,000 ms"),
)


def missed(result: Json) -> list[str]:
    """Rows whose targets a result misses."""
    return [aim.row for aim in AIMS if not aim.met(result)]


def process_figures(pid: int) -> dict[str, float]:
    """Current and peak memory (MiB) and CPU seconds of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    stat = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "rssMiB": round(int(fields["VmRSS"].split()[0]) / 1024, 1),
        "peakRssMiB": round(int(fields["VmHWM"].split()[0]) / 1024, 1),
        "cpuSeconds": round((int(stat[11]) + int(stat[12])) / ticks, 2),
    }


def resource_versions(kube: Kube) -> dict[str, str]:
    kinds = "configmaps,secrets,services,deployments,daemonsets"
    found = kube.items(kinds, "-n", NAMESPACE) + kube.items("sossites,sosagents,sosservices,soscontrollers,soslinks,sospeers", "-A")
    return {f"{o['kind']}/{o['metadata']['name']}": o["metadata"]["resourceVersion"] for o in found}


def quiet(kube: Kube, operator: Operator) -> None:
    """Wait until the operator makes passes without writes."""

    def still() -> bool:
        before, passes = len(scale.writes(kube)), operator.passes()
        eventually("passes", lambda: operator.passes() >= passes + 2, 60)
        return len(scale.writes(kube)) == before

    eventually("nothing left to write", still, COLD_S)


def resync(kube: Kube, operator: Operator) -> Json:
    """Wait for two full resyncs; count the writes meanwhile."""
    quiet(kube, operator)
    before, versions, figures, started = (
        len(scale.writes(kube)),
        resource_versions(kube),
        process_figures(operator.process.pid),
        time.monotonic(),
    )
    time.sleep(2 * RESYNC_S + 2)
    after = process_figures(operator.process.pid)
    seconds = time.monotonic() - started
    changed = [name for name, version in resource_versions(kube).items() if versions.get(name) != version]
    return {
        "seconds": round(seconds, 1),
        "writes": len(scale.writes(kube)) - before,
        "changedObjects": len(changed),
        "objects": len(versions),
        "cpuPercent": round(100 * (after["cpuSeconds"] - figures["cpuSeconds"]) / seconds, 1),
    }


def one_change(kube: Kube, recorder: scale.Recorder, service: str, priority: int) -> float:
    """Change a service; return the seconds from the API server's answer until the controller has accepted the change."""
    path = path_of(build(service, {"kind": "SosService", "spec": {}}), with_name=True)
    answer = send(kube, "PATCH", path, {"spec": {"priority": priority}}, dry=False)
    applied = time.monotonic()
    assert answer["kind"] == "SosService", answer
    return recorder.await_priority(f"{NAMESPACE}/{service}", priority, 60) - applied


def status(kube: Kube, size: scale.Size) -> dict[str, float]:
    """Duration of `kubectl sos status` as text and as JSON, in milliseconds: medians of several runs."""
    folders = (str(TOP / ".venv" / "bin"), str(Path(tool("kubectl")).parent), os.environ["PATH"])
    env = {**os.environ, "KUBECONFIG": str(kube.admin), "HOME": str(kube.folder), "PATH": os.pathsep.join(folders)}

    def once(*form: str) -> float:
        started = time.monotonic()
        done = subprocess.run(["kubectl", "sos", "status", *form], env=env, capture_output=True, text=True, timeout=60, check=False)
        took = time.monotonic() - started
        assert done.returncode < NOBODY_ANSWERED, done.stderr
        assert done.stdout.count(f"service{size.services - 1:04}") > 0, done.stdout[-500:]
        return took

    def median(*form: str) -> float:
        return round(1000 * statistics.median(once(*form) for _ in range(STATUS_RUNS)), 0)

    return {"textMs": median(), "jsonMs": median("-o", "json")}


def quantiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 0)

    return {"p50Ms": at(0.5), "p90Ms": at(0.9), "p99Ms": at(0.99), "maxMs": round(1000 * ordered[-1], 0)}


def run(size: scale.Size, changes: int, seed: int) -> Json:
    """Run the whole measurement."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        kube = stack.enter_context(kube_apiserver())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sos-scale-")))
        install(kube)
        controller = Controller(kube, folder)
        recorder = scale.Recorder(controller.url)
        url = stack.enter_context(recorder.serving())
        options = {"SOS_CONTROLLER_API_OVERRIDE": f"default={url}", "SOS_RESYNC_SECONDS": str(RESYNC_S), "SOS_LOG_LEVEL": "WARNING"}
        operator = stack.enter_context(operator_running(kube, folder, **options))
        started = time.monotonic()
        scale.populate(kube, size)
        made = time.monotonic() - started
        eventually(
            "every site's key",
            lambda: len(kube.get("secret", "sos-controllerkeys-default", "-n", NAMESPACE)["data"]) == size.sites + 1,
            COLD_S,
        )
        stack.callback(controller.kill)
        controller.start()
        eventually("every service", lambda: len(controller.get("/v1/status")["services"]) == size.services, COLD_S)
        cold = time.monotonic() - started
        idle = resync(kube, operator)
        if idle["writes"]:
            print(f"a resync wrote: {scale.writes(kube)[-10:]}", file=sys.stderr)
        looked = status(kube, size)
        seconds = []
        for number in range(changes):
            seconds.append(one_change(kube, recorder, f"service{chance.randrange(size.services):04}", 101 + number % 60_000))
            time.sleep(chance.uniform(0, 1.5))  # so that changes arrive at any moment of a pass
        assert operator.process.pid
        figures = process_figures(operator.process.pid)
        return {
            "sites": size.sites,
            "pools": size.sites,
            "services": size.services,
            "createSeconds": round(made, 1),
            "coldSeconds": round(cold, 1),
            "changes": changes,
            "applyToAcknowledged": quantiles(seconds),
            "resync": idle,
            "operator": figures,
            "status": looked,
            "load": [round(each, 1) for each in os.getloadavg()],
        }


def table(result: Json) -> str:
    """Table of figures and targets."""
    took, idle, own, looked = result["applyToAcknowledged"], result["resync"], result["operator"], result["status"]
    rows = [
        ("world", f"{result['sites']} sites, {result['pools']} pools, {result['services']} services, {idle['objects']} objects"),
        ("all of it from nothing", f"{result['coldSeconds']} s, of which {result['createSeconds']} s are their creation"),
        (
            "a change until the controller has it",
            f"p50 {took['p50Ms']:.0f}, p90 {took['p90Ms']:.0f}, p99 {took['p99Ms']:.0f}, max {took['maxMs']:.0f} ms",
        ),
        ("two full resyncs", f"{idle['writes']} writes, {idle['changedObjects']} objects changed"),
        ("operator, idle", f"{idle['cpuPercent']} % of a core"),
        ("operator, memory", f"{own['rssMiB']} MiB, at most {own['peakRssMiB']}"),
        ("kubectl sos status", f"{looked['textMs']:.0f} ms, the median of {STATUS_RUNS}"),
        ("kubectl sos status -o json", f"{looked['jsonMs']:.0f} ms"),
        ("load of the machine", ", ".join(map(str, result["load"]))),
    ]
    aims = {aim.row: f"{aim.words}: {'met' if aim.met(result) else 'MISSED'}" for aim in AIMS}
    rows.insert(0, ("", "measured"))
    aims[""] = "aim"
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    return "\n".join(f"{name:{first}}  {text:{second}}  {aims.get(name, '')}".rstrip() for name, text in rows)


def main() -> int:
    """Measure, print the table, write operator.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=50, help="sites, each with a node and a pool (default 50)")
    parser.add_argument("--services", type=int, default=1000, help="services between them (default 1000)")
    parser.add_argument("--changes", type=int, default=200, help="changes to time (default 200)")
    parser.add_argument("--seed", type=int, default=1, help="random seed for the changed services and their times (default 1)")
    parser.add_argument("--out", type=Path, default=TOP / "out" / "bench", metavar="FOLDER", help="folder for operator.json")
    options = parser.parse_args()
    result = run(scale.Size(options.sites, options.services), options.changes, options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "operator.json").write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))
    for row in missed(result):
        print(f"bench-operator: {row}: the aim is missed", file=sys.stderr)
    return 1 if missed(result) else 0


if __name__ == "__main__":
    sys.exit(main())
