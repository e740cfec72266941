"""Everything a person needs to understand a failure, written to the run's folder."""

from sos_e2e.kube import KINDS, Kube
from sos_e2e.run import CommandError, say
from sos_e2e.settings import Settings

COMMANDS = {
    "objects.txt": ("get", "all,cm,net-attach-def", "-A", "-o", "wide"),
    "sos.yaml": ("get", ",".join(KINDS), "-A", "-o", "yaml"),
    "pods.txt": ("describe", "pods", "-n", "sos-system"),
    "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
}
OVS = """
export OVS_RUNDIR=/run/sos/openvswitch
ovs-vsctl --db unix:$OVS_RUNDIR/db.sock show
ovs-ofctl -O OpenFlow13 dump-flows br-sos
ovs-ofctl -O OpenFlow13 dump-ports br-sos
ip -br addr
"""


def dump(kube: Kube, settings: Settings, name: str) -> None:
    """Write objects, events, logs of our pods, and the state of every switch."""
    folder = settings.out / f"dump-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"dumping the cluster's state to {folder}")
    for file, command in COMMANDS.items():
        (folder / file).write_text(_try(kube, *command))
    for pod in _try(kube, "get", "pods", "-n", "sos-system", "-o", "name").split():
        file = pod.removeprefix("pod/") + ".log"
        (folder / file).write_text(_try(kube, "logs", "-n", "sos-system", pod, "--all-containers", "--prefix", "--tail=2000"))
        if "node" in pod:
            (folder / f"{file}.ovs").write_text(_try(kube, "exec", "-n", "sos-system", pod, "-c", "node", "--", "sh", "-c", OVS))


def _try(kube: Kube, *command: str) -> str:
    try:
        return kube.ctl(*command, check=False)
    except CommandError as problem:
        return str(problem)
