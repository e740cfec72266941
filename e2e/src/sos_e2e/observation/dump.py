"""Diagnostic data of a failure, written to the run's folder."""

from collections.abc import Mapping

from sos_e2e.kube import KINDS, Kube
from sos_e2e.run import CommandError, run, say
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
# Agents and pods have their own network namespaces on the node; the namespaces of agents have no names.
SOCKETS = """
ss -tuanp
seen=" $(readlink /proc/1/ns/net) "
for process in /proc/[0-9]*; do
  space=$(readlink "$process/ns/net") || continue
  case "$seen" in *" $space "*) continue;; esac
  seen="$seen$space "
  echo "== $space $(cat "$process/comm")"
  nsenter -t "${process#/proc/}" -n ss -tuani
done
"""
METRICS = "/api/v1/namespaces/sos-system/pods/{pod}:{port}/proxy/metrics"
METRICS_PORTS = {"agent": 9465, "node": 9464}


def dump(kube: Kube, settings: Settings, nodes: Mapping[str, str], name: str) -> None:
    """Write objects, events, logs of SOS pods, the state of every switch, and the sockets of every node (by place)."""
    folder = settings.out / f"dump-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    say(f"dumping the cluster's state to {folder}")
    for file, command in COMMANDS.items():
        (folder / file).write_text(_try(kube, *command))
    for pod in _try(kube, "get", "pods", "-n", "sos-system", "-o", "name").split():
        file = pod.removeprefix("pod/") + ".log"
        (folder / file).write_text(_try(kube, "logs", "-n", "sos-system", pod, "--all-containers", "--prefix", "--tail=2000"))
        for component, port in METRICS_PORTS.items():
            if f"sos-{component}-" in pod:
                what = METRICS.format(pod=pod.removeprefix("pod/"), port=port)
                (folder / f"{file}.metrics").write_text(_try(kube, "get", "--raw", what))
        if "node" in pod:
            (folder / f"{file}.ovs").write_text(_try(kube, "exec", "-n", "sos-system", pod, "-c", "node", "--", "sh", "-c", OVS))
    for place, node in nodes.items():
        (folder / f"sockets-{place}.txt").write_text(_sockets(node))


def _sockets(node: str) -> str:
    try:
        return run("docker", "exec", node, "sh", "-c", SOCKETS, check=False)
    except CommandError as problem:
        return str(problem)


def _try(kube: Kube, *command: str) -> str:
    try:
        return kube.ctl(*command, check=False)
    except CommandError as problem:
        return str(problem)
