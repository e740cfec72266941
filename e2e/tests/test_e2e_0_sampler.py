"""What the soak's samples mean; needs no cluster."""

import os
import subprocess
from pathlib import Path

import pytest
from sos_e2e.sampler import PROCESSES, Holds, Record, parse_processes, running


def test_processes_of_a_container_count_together() -> None:
    assert parse_processes("aa 100 3 4\nbb 7 0 1\naa 50 1 2\n") == {"aa": Holds(150 * 1024, 4, 6), "bb": Holds(7 * 1024, 0, 1)}


def test_only_running_containers_are_known_by_the_names_of_their_pods() -> None:
    statuses = [
        {"name": "node", "containerID": "containerd://aa", "state": {"running": {}}},
        {"name": "ovs", "containerID": "containerd://bb", "state": {"terminated": {}}},
    ]
    assert running([{"metadata": {"name": "sos-node-west-x"}, "status": {"containerStatuses": statuses}}]) == {"aa": "sos-node-west-x/node"}


def test_the_script_reads_processes_of_containers_alone(tmp_path: Path) -> None:
    node, pod = "1" * 64, "2" * 64
    for number, cgroup in (("7", f"0::/docker/{node}/kubelet/pod3/{pod}"), ("8", "0::/system.slice/kubelet.service")):
        process = tmp_path / number
        (process / "fd").mkdir(parents=True)
        (process / "cgroup").write_text(cgroup + "\n")
        (process / "status").write_text("VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 380 kB\nRssShmem:\t 20 kB\n")
        for fd, target in enumerate(("socket:[1]", "pipe:[2]", "/dev/null", "socket:[3]")):
            (process / "fd" / str(fd)).symlink_to(target)
    said = subprocess.run(["sh", "-c", PROCESSES], env={**os.environ, "PROC": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert said.stderr == ""
    assert parse_processes(said.stdout) == {pod: Holds(520 * 1024, 2, 2)}


def test_something_that_was_restarted_is_not_a_series() -> None:
    record = Record()
    record.add(0, {"memory of a/b": 1.0})
    record.add(60, {"memory of a/b": 2.0})
    assert record.series == {"memory of a/b": [(0, 1.0), (60, 2.0)]}
    with pytest.raises(AssertionError, match="memory of a/c"):
        record.add(120, {"memory of a/c": 1.0})
