"""Controller part of `make bench`: SOS's controller and a learning switch on the same framework, with the same emulated switches.

`python bench/controller/run.py [--compiled DIR] [--peer CMD]`. With DIR, SOS's controller is measured both compiled, as in its image
(scripts/compiled.sh), and from its sources. CMD starts another OpenFlow 1.3 controller that learns MAC addresses, such as Floodlight;
{port} in CMD is replaced by the port to listen on. Each controller runs alone, and CPU time is the time of its process. All rows are
measured several times, with interleaved runs; the table has the median run of each row by SYNs per CPU second. Prints the table and the
ratios, and writes all runs to OUT/controller.json. `--services 1,1000,4000` measures SOS's controller with these numbers of services
instead, and prints the ratios to the first. `--tls` measures SOS's controller behind a forwarder (forward.py) without and with TLS instead.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))  # PYTHONSAFEPATH omits this folder

from sos_controller.files.config import document_hash
from tenants import service, services

HERE = Path(__file__).resolve().parent
GENERATOR = HERE / "target" / "release" / "sos-ofbench"
START_S = 120.0
"""Time limit for a controller to listen; a JVM starts slowly."""
STOP_S = 10.0
MOST_SYNS = 40_000
"""Limit of answered SYNs in a run whose sessions do not end. It is below the controller's limit of 65,536 sessions, beyond which SYNs are
plain and cost far less CPU time."""
PLAIN_SHARE = 0.01
"""Tolerated share of plain SYNs: with a larger share, a row does not measure set-ups."""
SETTLE_S = 12
"""Seconds before the load starts: longer than the time after a controller's start in which new sessions wait until the switches' caches
have expired (docs/adr/0020)."""
SOURCES = 512
"""Number of services with SYNs in rows with many services."""
FAR_SWITCHES = {"sos-four": 3, "sos-wide": 9}
"""Number of switches at the servers' site. If the switch of a server is unknown, all of them receive its egress entry."""


@dataclass(frozen=True)
class Row:
    """One row: controller, label in the table, arguments of the generator."""

    controller: str
    name: str
    arguments: tuple[str, ...]
    services: int = 0
    """Number of services of `tenants`; 0 for a document with a single wide service."""


def rows(peer: bool, compiled: bool, seconds: float) -> list[Row]:
    """All rows. Closed loops measure the maximum rate per CPU second; rows with 1,000 SYN/s measure the latency at low load.

    Closed loops keep 512 SYNs unanswered in total: for SOS at the only switch with clients, for other controllers at four switches.
    """
    length = ("--duration", str(seconds))
    sos, learning = ("--settle", str(SETTLE_S), *length), ("--switches", "4", *length)
    set_up = (*sos, "--outstanding", "512", "--most", str(MOST_SYNS))
    found = [
        Row("sos", "sos, set-up only", set_up),
        Row("sos", "sos, whole sessions of 1 s", (*sos, "--outstanding", "512", "--hold", "1")),
        Row("sos", "sos, 1,000 SYN/s", (*sos, "--rate", "1000", "--hold", "1")),
        Row("sos-four", "sos, server on any of 3 switches", (*set_up, "--unknown-servers")),
        Row("sos-wide", "sos, server on any of 9 switches", (*set_up, "--unknown-servers")),
        Row("learning", "learning switch", (*learning, "--outstanding", "128")),
        Row("learning", "learning switch, 1,000 SYN/s", (*learning, "--rate", "1000")),
    ]
    if compiled:
        found.insert(1, Row("sos-source", "sos from its sources, set-up only", found[0].arguments))
    if peer:
        found.append(Row("peer", "peer", (*learning, "--outstanding", "128")))
        found.append(Row("peer", "peer, 1,000 SYN/s", (*learning, "--rate", "1000")))
    return found


def service_rows(counts: list[int], seconds: float) -> list[Row]:
    """Rows with these numbers of services. SYNs are for up to SOURCES services, at equal distances in the order of all services; as many
    SYNs are unanswered in every row."""
    found = []
    for count in counts:
        sources = min(count, SOURCES)
        load = ("--sources", str(sources), "--outstanding", str(SOURCES // sources), "--most", str(MOST_SYNS))
        found.append(Row("sos", services_row(count), ("--settle", str(SETTLE_S), "--duration", str(seconds), *load), count))
    return found


def tls_rows(seconds: float) -> list[Row]:
    """Rows behind the forwarder."""
    set_up = ("--settle", str(SETTLE_S), "--duration", str(seconds), "--outstanding", "512", "--most", str(MOST_SYNS))
    slow = ("--settle", str(SETTLE_S), "--duration", str(seconds), "--rate", "500", "--hold", "1")
    found = []
    for controller, name in (("sos-forwarded", "plain"), ("sos-tls", "TLS")):
        found += [Row(controller, f"{name}, set-up only", set_up), Row(controller, f"{name}, 500 SYN/s", slow)]
    return found


def services_row(count: int) -> str:
    """Name of the row with a number of services."""
    return f"sos, {count:,} service{'s' if count > 1 else ''}"


def document(far: int, count: int) -> dict[str, Any]:
    """Configuration of two sites with an agent each, `far` switches at the servers' site, and two core switches (figure 8); with `count`
    services of tenants, or with one wide service (0)."""

    def site(name: str, number: int, switches: list[str], transit: bool) -> dict[str, Any]:
        agent = {"id": f"{number:032x}", "pool": "default", "node": switches[0], "address": f"10.{number}.255.250"}
        return {
            **{"name": name, "id": number, "prefixes": [] if transit else [f"10.{number}.0.0/16"], "subnet": None, "gateway": None},
            **{"transit": transit, "mtu": 1500, "rewrite": "Transparent", "agents": [] if transit else [agent]},
            "datapaths": [{"dpid": f"{number << 8 | i:016x}", "name": switch, "forwarding": "Node"} for i, switch in enumerate(switches)],
        }

    made = {
        **{"version": "v1alpha1", "generation": 1, "controller": {"name": "default", "id": 1}},
        "discovery": {
            **{"address": "198.18.255.254", "mac": "02:53:4f:53:00:01", "beaconPort": 9875, "orderPort": 9876, "redirectPort": 9877},
            **{"beaconExpirySeconds": 4, "probeIntervalSeconds": 1, "linkExpirySeconds": 4},
        },
        "sites": [
            site("west", 1, ["edge-w"], False),
            site("east", 2, [f"edge-e{i}" for i in range(far)], False),
            *(site(f"core{n}", n, [f"core{n}"], True) for n in (3, 4)),
        ],
        "services": services(count) if count else [service("bench/bulk", "10.1.0.0/16", "10.2.0.0/16", [(5000, 5999)])],
        "balances": [],
        "links": [],
    }
    return {**made, "hash": document_hash(made)}


def free_port() -> int:
    """Find a free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def sos_files(folder: Path, far: int, count: int) -> tuple[str, ...]:
    """Write document, keys and token of SOS's controller; return the generator's arguments for document and keys."""
    (folder / "keys").mkdir()
    for number in (1, 2):
        (folder / "keys" / f"site-{number}-1").write_text(secrets.token_hex(32) + "\n")
    (folder / "token").write_text(secrets.token_hex(16) + "\n")
    (folder / "config.json").write_text(json.dumps(document(far, count)))
    return ("--config", str(folder / "config.json"), "--keys", str(folder / "keys"))


def command(controller: str, folder: Path, port: int, peer: str) -> list[str]:
    """Command line of a controller."""
    if controller == "learning":
        return [sys.executable, str(HERE / "learning_switch.py"), str(port)]
    if controller == "peer":
        return shlex.split(peer.replace("{port}", str(port)))
    files = ["--config", str(folder / "config.json"), "--keys", str(folder / "keys"), "--token-file", str(folder / "token")]
    listen = ["--openflow-listen", f"127.0.0.1:{port}", "--api-listen", f"127.0.0.1:{free_port()}"]
    tls = ["--openflow-tls", str(folder / "tls" / "controller")] if controller == "sos-tls" else []
    return [sys.executable, "-m", "sos_controller", *files, *listen, *tls, "--log-level", "warning"]


def tls_folders(folder: Path) -> list[str]:
    """Make certificates for the controller and for the switch of each site; return the folders of the switches in the order of the
    document."""
    from sos_compile.certificates import certify_controller, certify_switches, new_ca, tls_files

    now = datetime.now(UTC)
    ca = new_ca(now)
    sites = [site["name"] for site in document(1, 0)["sites"]]
    made = {"controller": certify_controller(ca, "default", now)} | {site: certify_switches(ca, site, now) for site in sites}
    for name, certified in made.items():
        (folder / "tls" / name).mkdir(parents=True)
        for file, text in tls_files(certified, [ca]).items():
            (folder / "tls" / name / file).write_text(text)
    return [str(folder / "tls" / site) for site in sites]


@contextmanager
def forwarded(row: Row, port: int, folder: Path, folders: list[str]) -> Iterator[int]:
    """Run the forwarder to the controller's port during the block, if the row has one; yield the port for the switches."""
    if row.controller not in ("sos-forwarded", "sos-tls"):
        yield port
        return
    near = free_port()
    argv = [sys.executable, str(HERE / "forward.py"), str(near), str(port), *folders]
    with running(argv, near, folder / "forward.log", None):
        yield near


@contextmanager
def running(argv: list[str], port: int, log: Path, modules: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a controller during the block; end it with all its children."""
    with log.open("ab") as out:
        env = os.environ if modules is None else {**os.environ, "PYTHONPATH": str(modules.resolve())}
        process = subprocess.Popen(argv, stdout=out, stderr=out, start_new_session=True, env=env)
    try:
        end = time.monotonic() + START_S
        while not listens(port):
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"{shlex.join(argv)} does not listen on port {port}:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield process
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children: SIGTERM, then SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(STOP_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def listens(port: int) -> bool:
    """True if the port has a listener. Reads the socket table, because a test connection would look like a failing switch."""
    wanted = f":{port:04X}"
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return any(line[1].endswith(wanted) and line[3] == "0A" for line in lines)


def measure(row: Row, peer: str, compiled: Path | None) -> dict[str, Any]:
    """Run the generator once against a newly started controller."""
    with tempfile.TemporaryDirectory(prefix="sos-bench-") as name:
        folder, port = Path(name), free_port()
        ours = row.controller.startswith("sos")
        extra = sos_files(folder, FAR_SWITCHES.get(row.controller, 1), row.services) if ours else ()
        modules = compiled if ours and row.controller != "sos-source" else None
        folders = tls_folders(folder) if row.controller == "sos-tls" else []
        with (
            running(command(row.controller, folder, port, peer), port, folder / "log", modules) as process,
            forwarded(row, port, folder, folders) as near,
        ):
            argv = [str(GENERATOR), "--controller", f"127.0.0.1:{near}", "--pid", str(process.pid), "--json", "-", *extra, *row.arguments]
            done = subprocess.run(argv, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise SystemExit(f"{row.name}: {done.stderr}{(folder / 'log').read_text()[-2000:]}")
    found: dict[str, Any] = {"name": row.name, "controller": row.controller, "services": row.services, **json.loads(done.stdout)}
    plain = found["answered"] - found["redirected"]
    if ours and plain > PLAIN_SHARE * found["answered"]:
        raise SystemExit(f"{row.name}: {plain} of {found['answered']} SYNs went plain, so the run does not measure set-ups")
    return found


def median_run(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median run by SYNs per CPU second (for an even number, the lower of the two middle runs), with minimum and maximum of all runs."""
    ordered = sorted(runs, key=lambda run: run["per_cpu_second"])
    ends = (ordered[0]["per_cpu_second"], ordered[-1]["per_cpu_second"])
    return {**ordered[(len(ordered) - 1) // 2], "range": ends}


def table(runs: list[dict[str, Any]]) -> str:
    """Table of the figures, and ratios to the learning switch."""
    found = [median_run([run for run in runs if run["name"] == name]) for name in dict.fromkeys(run["name"] for run in runs)]

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    named = (("", 34), ("SYN/s", 8), ("SYN/CPU s", 11), ("least-most", 14), ("flow-mods", 11), ("entry p50", 11), ("p99", 8))
    lines = ["".join(f"{name:>{width}}" for name, width in (*named, ("release p50", 13), ("p99", 8), ("lost", 6)))]
    for f in found:
        mods = f["per_syn"]["flow_mods_added"] + f["per_syn"]["flow_mods_deleted"]
        entry, answer = f["entry"], f["answer"]
        lines.append(
            f"{f['name']:34}{f['rate']:8.0f}{f['per_cpu_second']:11.0f}{'{:.0f}-{:.0f}'.format(*f['range']):>14}"
            f"{mods:11.2f}{number(entry['p50_ms'], '.2f'):>11}"
            f"{number(entry['p99_ms'], '.2f'):>8}{number(answer['p50_ms'], '.2f'):>13}{number(answer['p99_ms'], '.2f'):>8}{f['lost']:6}"
        )
    by_name = {f["name"]: f["per_cpu_second"] for f in found}
    others = ("learning switch", "peer", "sos from its sources, set-up only")
    for ours in ("sos, set-up only", *(f"sos, server on any of {count} switches" for count in FAR_SWITCHES.values())):
        pairs = [(other, by_name[other]) for other in others if by_name.get(ours) and by_name.get(other)]
        lines += [f"{ours} / {other}: {by_name[ours] / rate:.2f} SYNs per CPU second" for other, rate in pairs]
    if "TLS, set-up only" in by_name:
        cost = [1e6 / by_name[f"{name}, set-up only"] for name in ("plain", "TLS")]
        lines.append(f"TLS: {cost[1] - cost[0]:.0f} us of CPU time per SYN in addition to {cost[0]:.0f} us, ratio {cost[0] / cost[1]:.2f}")
    several = [f for f in found if f["services"]]
    for f in several[1:]:
        ratio = f["per_cpu_second"] / several[0]["per_cpu_second"]
        lines.append(f"{f['name']} / {several[0]['name']}: {ratio:.2f} SYNs per CPU second")
    return "\n".join(lines) + "\n(latencies in ms, from the SYN to the entry for its flow, and to its release; medians of interleaved runs)"


def main() -> None:
    """Measure all rows, write controller.json, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", default="", metavar="CMD", help="command of another controller; {port} stands for its OpenFlow port")
    parser.add_argument("--compiled", type=Path, metavar="DIR", help="folder of SOS's compiled controller")
    parser.add_argument("--out", type=Path, default=Path("out/bench"), metavar="DIR", help="folder for controller.json")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the measurement of each row")
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="runs of each row")
    parser.add_argument("--only", default="", metavar="NAME", help="measure only rows with this text in their name")
    parser.add_argument("--services", default="", metavar="N,N,...", help="measure only SOS's controller, with these numbers of services")
    parser.add_argument("--tls", action="store_true", help="measure only SOS's controller, without and with TLS behind a forwarder")
    arguments = parser.parse_args()
    if arguments.tls:
        wanted = tls_rows(arguments.seconds)
    elif arguments.services:
        wanted = service_rows([int(count) for count in arguments.services.split(",")], arguments.seconds)
    else:
        wanted = rows(bool(arguments.peer), arguments.compiled is not None, arguments.seconds)
    wanted = [row for row in wanted if arguments.only in row.name]
    found = []
    for turn in range(arguments.runs):
        for row in wanted:
            sys.stderr.write(f"{turn + 1} of {arguments.runs}: {row.name} ...\n")
            found.append(measure(row, arguments.peer, arguments.compiled))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "controller.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
