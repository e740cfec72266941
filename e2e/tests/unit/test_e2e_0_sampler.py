"""Evaluation of the soak's samples; needs no cluster."""

from pathlib import Path

import pytest
from sos_e2e.observation.sampler import Holds, Record, containers, running


def test_only_running_containers_are_named_by_pod() -> None:
    statuses = [
        {"name": "node", "containerID": "containerd://aa", "state": {"running": {}}},
        {"name": "ovs", "containerID": "containerd://bb", "state": {"terminated": {}}},
    ]
    assert running([{"metadata": {"name": "sos-node-west-x"}, "status": {"containerStatuses": statuses}}]) == {"aa": "sos-node-west-x/node"}


def test_resources_of_a_containers_processes_are_summed(tmp_path: Path) -> None:
    node, pod = "1" * 64, "2" * 64
    inside = f"0::/docker/{node}/kubelet/pod3/{pod}\n"
    for number, cgroup in (("7", inside), ("9", inside), ("8", "0::/system.slice/kubelet.service\n"), ("self", inside)):
        process = tmp_path / number
        (process / "fd").mkdir(parents=True)
        (process / "cgroup").write_text(cgroup)
        (process / "status").write_text("VmRSS:\t 900 kB\nRssAnon:\t 500 kB\nRssFile:\t 380 kB\nRssShmem:\t 20 kB\n")
        for fd, target in enumerate(("socket:[1]", "pipe:[2]", "/dev/null", "socket:[3]")):
            (process / "fd" / str(fd)).symlink_to(target)
    (tmp_path / "10").mkdir()  # a process that ends during the read
    assert containers(tmp_path) == {pod: Holds(2 * 520 * 1024, 4, 4)}


def test_a_closed_descriptor_does_not_hide_its_process(tmp_path: Path) -> None:
    process, pod = tmp_path / "7", "2" * 64
    (process / "fd").mkdir(parents=True)
    (process / "cgroup").write_text(f"0::/kubelet/{pod}\n")
    (process / "status").write_text("RssAnon:\t 1 kB\n")
    (process / "fd" / "0").symlink_to("socket:[1]")
    (process / "fd" / "1").write_text("no symbolic link, so readlink fails")
    assert containers(tmp_path) == {pod: Holds(1024, 1, 0)}


def test_a_changed_set_of_series_is_an_error() -> None:
    record = Record()
    record.add(0, {"memory of a/b": 1.0})
    record.add(60, {"memory of a/b": 2.0})
    assert record.series == {"memory of a/b": [(0, 1.0), (60, 2.0)]}
    with pytest.raises(AssertionError, match="memory of a/c"):
        record.add(120, {"memory of a/c": 1.0})
