"""User commands for labs: several labs on one machine, interrupted labs, and errors in declarations."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import cli
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import process
from sos_testbed.lifecycle.lab import Lab, Options
from sos_testbed.measurements import measure
from sos_testbed.measurements.measure import Request

STATES = Path("/run/sos-lab-tests")  # each folder is named by pid and start time of the test process that owns it
REPOSITORY = Path(__file__).resolve().parents[4]
BAD = {
    "balance-and-transport.yaml": ("SosService default/both", "spec.transport"),
    "end-before-start.yaml": ("SosService default/backwards", "spec.ports[0]"),
    "host-bits.yaml": ("SosSite crooked", "spec.prefixes"),
    "same-site.yaml": ("SosService default/circle", "spec"),
    "unknown-field.yaml": ("SosService default/typo", "spec.transprt"),
    "unknown-site.yaml": ("SosService default/lost", "spec.to.site"),
    "unknown-uplink.yaml": ("SosService default/astray", "spec.balance.uplinks[0].name"),
}


def namespaces(ids: list[str]) -> list[str]:
    """Remaining namespaces of these labs."""
    folder = Path("/run/netns")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return [name for name in names if any(name.startswith(f"sos-{lab_id}-") for lab_id in ids)]


def fetch(net: Lab, tmp_path: Path) -> None:
    done = measure.download(net, Request(path=net.root / "www" / "100K", max_time_s=20), tmp_path / net.root.name)
    assert (done.status, done.complete, done.error) == (200, True, "")
    assert measure.same_bytes(net.root / "www" / "100K", tmp_path / net.root.name, complete=True)


def test_two_labs_on_one_machine_do_not_affect_each_other(net: Lab, tmp_path: Path) -> None:
    other = labs.up(Options(topology="line"))
    try:
        assert other.root != net.root
        for each in (net, other):
            labs.make_payload(each.root / "www" / "100K", 100_000)
            fetch(each, tmp_path)
        listed = json.loads(cli("status", "--json").stdout)["labs"]
        assert {net.name, other.name} <= {each["name"] for each in listed}
        ambiguous = cli("exec", "client", "--", "true")
        assert (ambiguous.returncode, "which lab" in ambiguous.stderr) == (1, True)
        for place in (("--lab", other.name, "client"), ("client", "--lab", other.name)):
            assert cli("exec", *place, "--", "ip", "address", "show", "eth0").stdout.count("10.0.0.11/24") == 1
    finally:
        other.down()
    assert namespaces([other.root.name]) == []
    fetch(net, tmp_path)


@pytest.fixture
def state() -> Iterator[Path]:
    """State folder of one test, separate from other labs. Also remove labs and folders that killed tests have left."""
    STATES.mkdir(exist_ok=True)
    for left in STATES.iterdir():
        number, started = map(int, left.name.split("-"))
        if not process.Pid(number=number, started=started).runs():
            take_down(left)
    me = process.this()
    folder = STATES / f"{me.number}-{me.started}"
    (folder / "labs").mkdir(parents=True)
    yield folder / "labs"
    take_down(folder)


def take_down(folder: Path) -> None:
    """Take down all labs of a test's state folder, and delete the folder."""
    done = cli("down", "--all", state=folder / "labs")
    assert done.returncode == 0, done.stderr
    shutil.rmtree(folder)


# The signals arrive between the creation of the first namespace and the start of the last program; nothing may be left at any time
@pytest.mark.parametrize(("how", "after_s"), [(signal.SIGKILL, 0.7), (signal.SIGKILL, 1.5), (signal.SIGKILL, 4.0), (signal.SIGINT, 2.0)])
def test_interrupted_start_of_a_lab_leaves_nothing_behind(state: Path, how: signal.Signals, after_s: float) -> None:
    environment = {**os.environ, "SOS_STATE": str(state)}
    argv = (sys.executable, "-m", "sos_testbed", "up", "--name", "cut")
    building = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    time.sleep(after_s)
    ids = [path.name for path in state.iterdir()]
    building.send_signal(how)
    building.communicate(timeout=60)
    if how is signal.SIGKILL:
        done = cli("down", "--all", state=state)
        assert done.returncode == 0, done.stderr
    else:
        assert building.returncode != 0
    assert namespaces(ids) == []
    assert list(state.iterdir()) == []
    assert processes_of(state) == []


@pytest.mark.slow
def test_new_lab_removes_only_labs_whose_process_was_killed(state: Path) -> None:
    environment = {**os.environ, "SOS_STATE": str(state)}
    code = "from sos_testbed.lifecycle import lab; lab.up(lab.Options(topology='line', services=False)); print('up', flush=True); input()"
    holder = subprocess.Popen((sys.executable, "-c", code), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    (held,) = [path.name for path in state.iterdir()]
    try:
        beside = cli("up", "line", "--no-service", "--name", "beside", state=state)
        assert beside.returncode == 0, beside.stderr
        assert namespaces([held]), "the lab is in use"
        holder.kill()
        holder.wait(10)
        after = cli("up", "line", "--no-service", "--name", "after", state=state)
        assert f"taking down lab line ({held})" in after.stderr
        assert namespaces([held]) == []
        assert "beside" in cli("status", state=state).stdout, "a lab of `lab up` stays after its process has ended"
    finally:
        holder.kill()
        holder.communicate(timeout=10)
        assert cli("down", "--all", state=state).returncode == 0
    assert processes_of(state) == []


def processes_of(folder: Path) -> list[str]:
    """Command lines of running processes that contain the folder of the interrupted lab."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"{folder}/" in line:
                found.append(line)
    return found


def test_every_bad_example_has_a_test() -> None:
    assert {path.name for path in (REPOSITORY / "examples" / "bad").glob("*.yaml")} == set(BAD)


@pytest.mark.parametrize("file", sorted(BAD))
def test_lab_up_reports_file_object_and_field_of_bad_examples(tmp_path: Path, file: str) -> None:
    bad = f"examples/bad/{file}"
    done = subprocess.run(
        (sys.executable, "-m", "sos_testbed", "up", "--example", "examples/01-two-sites", "--example", bad),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SOS_STATE": str(tmp_path)},
    )
    assert done.returncode == 1
    (line,) = done.stderr.strip().splitlines()
    for part in (bad, *BAD[file]):
        assert part in line
    assert list(tmp_path.iterdir()) == []


def test_bad_example_applied_to_a_running_lab_changes_nothing(net: Lab) -> None:
    generation = net.documents.generation
    done = cli("apply", "--lab", net.name, str(REPOSITORY / "examples" / "bad" / "unknown-field.yaml"))
    assert done.returncode == 1
    assert "spec.transprt" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert labs.find(net.name).documents.generation == generation


def test_flows_and_logs_commands_work_and_report_unknown_switches(net: Lab) -> None:
    entries = json.loads(cli("flows", "edge1", "--lab", net.name, "--json").stdout)
    assert {entry["table"] for entry in entries} == {0, 1}
    unknown = cli("flows", "edge9", "--lab", net.name)
    assert (unknown.returncode, unknown.stderr) == (1, "lab: no switch 'edge9'; there are edge1, core1, core2, edge2\n")
    assert cli("logs", "controller", "--lab", net.name).returncode == 0
