"""Resources used by SOS in a cluster: memory, sockets and files of every container, entries and groups of every switch.

Processes are read on the engine's machine (as root), which sees the processes of all nodes.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sos_e2e.kube import Kube
from sos_e2e.observation.workload import RELEASE_NAMESPACE

PROC = Path("/proc")
_ID = re.compile(r"[0-9a-f]{64}")
_KILOBYTES = re.compile(r"^(RssAnon|RssShmem):\s+(\d+) kB$", re.MULTILINE)
SWITCH = """
export OVS_RUNDIR=/run/sos/openvswitch
ovs-ofctl -O OpenFlow13 dump-flows br-sos | grep -c cookie=
ovs-ofctl -O OpenFlow13 dump-groups br-sos | grep -c group_id=
"""


@dataclass(frozen=True, slots=True)
class Holds:
    """Resources of a container: the sum over its processes."""

    memory: int  # private bytes, without mapped files
    sockets: int
    files: int  # all other file descriptors

    def __add__(self, other: "Holds") -> "Holds":
        """Sum of the resources of two processes."""
        return Holds(self.memory + other.memory, self.sockets + other.sockets, self.files + other.files)


def containers(proc: Path = PROC) -> dict[str, Holds]:
    """Container id -> sum of the resources of its processes. A process that ends during the read is skipped."""
    found: dict[str, Holds] = {}
    for process in proc.iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                ids = _ID.findall((process / "cgroup").read_text())
                if ids:
                    # the last id belongs to the container; an earlier id belongs to the node, which is a container, too
                    found[ids[-1]] = found.get(ids[-1], Holds(0, 0, 0)) + _process(process)
    return found


def _process(process: Path) -> Holds:
    fields = dict(_KILOBYTES.findall((process / "status").read_text()))
    targets = [target for fd in (process / "fd").iterdir() if (target := _target(fd))]
    sockets = sum(target.startswith("socket:") for target in targets)
    memory = 1024 * (int(fields.get("RssAnon", 0)) + int(fields.get("RssShmem", 0)))
    return Holds(memory, sockets, len(targets) - sockets)


def _target(fd: Path) -> str:
    """Target of a descriptor; "" if it has just been closed, so that the other descriptors still count."""
    try:
        return str(fd.readlink())
    except OSError:
        return ""


def running(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Container id -> pod/container, of all running containers."""
    found = {}
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                found[status["containerID"].rpartition("/")[2]] = f"{pod['metadata']['name']}/{status['name']}"
    return found


def look(kube: Kube) -> dict[str, float]:
    """All current measurements, by `KIND of WHAT`. Raises LookupError for a container without visible processes."""
    pods = kube.items("pods", "-n", RELEASE_NAMESPACE, "-l", "app.kubernetes.io/part-of=sos", "--field-selector", "status.phase=Running")
    held = containers()
    found: dict[str, float] = {}
    for container, name in running(pods).items():
        if container not in held:
            raise LookupError(f"{name}: no process of it is seen on this machine")
        holds = held[container]
        found |= {f"memory of {name}": holds.memory, f"sockets of {name}": holds.sockets, f"files of {name}": holds.files}
    for pod in pods:
        if pod["metadata"]["labels"].get("app.kubernetes.io/component") == "node":
            name = pod["metadata"]["name"]
            said = kube.ctl("-n", RELEASE_NAMESPACE, "exec", name, "-c", "node", "--", "sh", "-c", SWITCH, check=False).split()
            flows, groups = (int(word) for word in said)
            found |= {f"entries of {name}/flows": flows, f"entries of {name}/groups": groups}
    return found


class Record:
    """Series of samples."""

    def __init__(self) -> None:
        """Start without samples."""
        self.series: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, at: float, sample: Mapping[str, float]) -> None:
        """Add one sample of every series; raise AssertionError if the set of series has changed, because a container was restarted."""
        if self.series:
            assert set(sample) == set(self.series), f"come or gone meanwhile: {sorted(set(sample) ^ set(self.series))}"
        for name, value in sample.items():
            self.series[name].append((at, value))
