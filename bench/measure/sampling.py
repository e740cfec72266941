"""Error of the mean delay when only a sample of the packets is measured: "SDN Control Plane Applications", figure 3.10.

    bench/measure/sampling.py [--out out/bench]        (root; from the top of the repository, with .venv/bin/python)

A flow runs through a lab, and a capture at the egress agent measures the round-trip time of every segment as the reference. The program
draws many random samples of these segments for each ratio. The error of a sample is the relative error of its mean. The table also shows
the mean of the agents' reports (spec/order.md 13), which are not samples but minima of two seconds each.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl
from sos_testbed.core.topology import PathOptions
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import northbound
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = TOP / "testbed" / "tests" / "scenarios" / "programs"
PORT, FLOW_S = 5003, 20.0
RATES = {"1 Mbit/s": 125_000, "100 Mbit/s": 12_500_000}
RATIOS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 0.9)
DRAWS = 400
FIRST_STREAM_PORT = 10_000
SEED = 310
PATH = PathOptions(rate_bps=200_000_000, rtt_us=40_000)


def errors(values: list[float], rng: random.Random) -> list[dict[str, float]]:
    """Mean and 95th percentile of the relative error over many samples, for each ratio."""
    whole, found = statistics.fmean(values), []
    for ratio in RATIOS:
        size = max(1, round(ratio * len(values)))
        wrong = sorted(abs(statistics.fmean(rng.sample(values, size)) - whole) / whole for _ in range(DRAWS))
        found.append({"ratio": ratio, "mean": statistics.fmean(wrong), "p95": wrong[int(0.95 * DRAWS)]})
    return found


def start(lab: Lab, part: str, *argv: str) -> subprocess.Popen[str]:
    """Start a program of the scenario tests inside a part of the lab."""
    command = lab.exec_argv(part, (sys.executable, str(PROGRAMS / argv[0]), *argv[1:]))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def run(lab: Lab, rate: int) -> dict[str, Any]:
    """Run one flow; return round-trip times of all segments in milliseconds, and the controller's measurement of each second."""
    interface = next(document["interface"]["name"] for document in lab.documents.agents.values())
    meter = start(lab, "agent2", "meter.py", interface)
    assert meter.stdout is not None
    meter.stdout.readline()
    server = start(lab, "server", "peer.py", "steady", str(PORT), str(rate), str(FLOW_S))
    measure.wait_listening(lab, "server", PORT)
    client = start(lab, "client", "peer.py", "fetch", measure.address(lab, "server"), str(PORT))
    said, began = [], time.monotonic()
    while time.monotonic() < began + FLOW_S - 1:
        time.sleep(1)
        said += [path["rttMicros"] / 1000 for path in northbound.get(lab.plan, "/v1/measurements")["paths"] if path["rttMicros"]]
    for program in (client, server):
        program.communicate(timeout=60)
    seen = json.loads(meter.communicate(timeout=60)[0])["round_trips"]
    # agent2 accepts streams on its stream ports; connections that it dials lead to hosts
    trips = [ms for port, found in seen.items() if FIRST_STREAM_PORT <= int(port) < FIRST_STREAM_PORT + 8 for _, ms in found]
    return {"trips": trips, "said": said}


def plot(results: dict[str, Any], into: Path) -> None:
    """Plot the relative error over the ratio."""
    mpl.use("Agg")
    from matplotlib import pyplot  # import after the selection of a backend that needs no screen

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, result in results.items():
        axes.plot(
            [100 * e["ratio"] for e in result["errors"]], [100 * e["p95"] for e in result["errors"]], marker="o", label=f"{name}, 95 %"
        )
        axes.plot([100 * e["ratio"] for e in result["errors"]], [100 * e["mean"] for e in result["errors"]], "--", label=f"{name}, mean")
    axes.axhline(5, color="grey", linewidth=0.8)
    axes.set_xlabel("sampled packets [%]")
    axes.set_ylabel("error of the mean round-trip time [%]")
    axes.legend()
    figure.tight_layout()
    figure.savefig(into, dpi=150)


def main() -> None:
    """Measure, print a table, write sampling.json and sampling.png."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    out = parser.parse_args().out
    lab = labs.up(Options(path1=PATH, path2=PATH, name="sampling"), print)
    try:
        raw = {name: run(lab, rate) for name, rate in RATES.items()}
    finally:
        lab.down()
    rng = random.Random(SEED)
    results = {
        name: {
            "segments": len(found["trips"]),
            "meanMs": statistics.fmean(found["trips"]),
            "lowestMs": min(found["trips"]),
            "reportedMs": statistics.fmean(found["said"]),
            "errors": errors(found["trips"], rng),
        }
        for name, found in raw.items()
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "sampling.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    plot(results, out / "sampling.png")
    for name, result in results.items():
        times = f"mean {result['meanMs']:.2f} ms, lowest {result['lowestMs']:.2f}, told {result['reportedMs']:.2f}"
        print(f"{name}: {result['segments']} round trips, {times}")
        print("  " + "  ".join(f"{e['ratio']:.0%}: {e['mean']:.2%} ({e['p95']:.2%})" for e in result["errors"]))


if __name__ == "__main__":
    main()
