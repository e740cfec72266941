"""What SOS holds in a cluster at one moment: memory, sockets and files of every container, entries and groups of every switch."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sos_e2e.kube import Kube
from sos_e2e.run import run
from sos_e2e.workload import RELEASE_NAMESPACE

# One line per process of a container: CONTAINER-ID PRIVATE-KILOBYTES SOCKETS OTHER-FILES. The last id in a cgroup's path is the
# container's, as a node may be a container itself. A process that ends while it is looked at is left out.
PROCESSES = r"""
for process in "${PROC:-/proc}"/[0-9]*; do
  id=$(grep -o '[0-9a-f]\{64\}' "$process/cgroup" 2>/dev/null | tail -n 1)
  [ -n "$id" ] || continue
  kilobytes=$(awk '$1 == "RssAnon:" || $1 == "RssShmem:" {sum += $2} END {print sum + 0}' "$process/status" 2>/dev/null)
  sockets=$(find "$process/fd" -maxdepth 1 -lname 'socket:*' 2>/dev/null | wc -l)
  all=$(find "$process/fd" -maxdepth 1 -type l 2>/dev/null | wc -l)
  [ -d "$process" ] && echo "$id ${kilobytes:-0} $sockets $((all - sockets))"
done
"""
SWITCH = """
export OVS_RUNDIR=/run/sos/openvswitch
ovs-ofctl -O OpenFlow13 dump-flows br-sos | grep -c cookie=
ovs-ofctl -O OpenFlow13 dump-groups br-sos | grep -c group_id=
"""


@dataclass(frozen=True, slots=True)
class Holds:
    """What a container holds, all its processes together."""

    memory: int  # bytes that are its own: not of files
    sockets: int
    files: int  # all other descriptors


def parse_processes(text: str) -> dict[str, Holds]:
    """Read the script's lines; container id -> what its processes hold together."""
    found: dict[str, Holds] = {}
    for line in text.splitlines():
        container, kilobytes, sockets, files = line.split()
        so_far = found.get(container, Holds(0, 0, 0))
        found[container] = Holds(so_far.memory + int(kilobytes) * 1024, so_far.sockets + int(sockets), so_far.files + int(files))
    return found


def running(pods: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Container id -> pod/container, of all that run."""
    found = {}
    for pod in pods:
        for status in pod["status"].get("containerStatuses", []):
            if "running" in status["state"]:
                found[status["containerID"].rpartition("/")[2]] = f"{pod['metadata']['name']}/{status['name']}"
    return found


def look(kube: Kube, nodes: Iterable[str]) -> dict[str, float]:
    """All there is to measure at this moment, by `KIND of WHAT`. Raises LookupError for a container of which nothing is seen."""
    pods = kube.items("pods", "-n", RELEASE_NAMESPACE, "-l", "app.kubernetes.io/part-of=sos", "--field-selector", "status.phase=Running")
    held: dict[str, Holds] = {}
    for node in nodes:
        held |= parse_processes(run("docker", "exec", node, "sh", "-c", PROCESSES))
    found: dict[str, float] = {}
    for container, name in running(pods).items():
        if container not in held:
            raise LookupError(f"{name}: no process of it is seen on any node")
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
    """Samples one after the other."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.series: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def add(self, at: float, sample: Mapping[str, float]) -> None:
        """One more sample of everything; raises AssertionError if what there is has changed: something was restarted."""
        if self.series:
            assert set(sample) == set(self.series), f"come or gone meanwhile: {sorted(set(sample) ^ set(self.series))}"
        for name, value in sample.items():
            self.series[name].append((at, value))
