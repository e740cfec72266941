"""A gateway outside Kubernetes, with one host behind it: two containers beside a cluster, in a network of their own.

pods of cluster a -- worker ==engine's network kind== gateway --engine's network of this module-- host (curl and nginx)
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from sos_e2e.environment.pair import Side
from sos_e2e.run import run

NETWORK, GATEWAY, HOST = "10.80.0.0/24", "10.80.0.2", "10.80.0.3"
INTERFACE = "lan0"
_UNTRANSLATED = ("iptables", "-w", "-t", "nat")
_RULE = ("POSTROUTING", "-d", NETWORK, "-j", "ACCEPT")
LOG = "/var/log/sos-agent.log"
ADDRESS = "{{.NetworkSettings.Networks.kind.IPAddress}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The two containers."""

    name: str
    host: str
    address: str  # of the gateway in the engine's network kind

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the gateway."""
        return run("docker", "exec", self.name, *command, check=check)

    def on_host(self, *command: str, timeout: float = 120) -> str:
        """Run a command on the host behind the gateway."""
        return run("docker", "exec", self.host, *command, timeout=timeout)

    def start_agent(self) -> None:
        """Start the agent as its unit does."""
        run(
            "docker",
            "exec",
            "-d",
            self.name,
            "sh",
            "-c",
            f"exec sos-agent --enrollment /etc/sos/enrollment.json --state /var/lib/sos >>{LOG} 2>&1",
        )

    def kill_agent(self) -> None:
        """Kill the agent with SIGKILL."""
        self.run("sh", "-c", "kill -9 $(pidof sos-agent)")

    def log(self) -> str:
        """Return the agent's log."""
        return self.run("cat", LOG, check=False)


def _address(container: str) -> str:
    return run("docker", "inspect", "--format", ADDRESS, container).strip()


@contextlib.contextmanager
def beside(side: Side, agent_image: str, host_image: str, serve: str) -> Iterator[Gateway]:
    """Start the containers, and route between the host and the pods of a cluster, without address translation.

    `serve`: shell command of the host.
    """
    prefix = side.settings.cluster
    names = {part: f"{prefix}-{part}" for part in ("lan", "gateway", "lan-host")}
    with contextlib.ExitStack() as undo:
        # Not --internal: the engine's firewall would drop the pods' packets on the bridge, because their addresses are not of the subnet.
        run("docker", "network", "create", "--subnet", NETWORK, names["lan"])
        undo.callback(run, "docker", "network", "rm", names["lan"], check=False)
        run(
            "docker",
            "run",
            "-d",
            "--privileged",
            "--network",
            "kind",
            "--name",
            names["gateway"],
            "--entrypoint",
            "sleep",
            agent_image,
            "infinity",
        )
        undo.callback(run, "docker", "rm", "-f", names["gateway"], check=False)
        run("docker", "network", "connect", "--ip", GATEWAY, names["lan"], names["gateway"])
        where = ("--network", names["lan"], "--ip", HOST)
        run("docker", "run", "-d", "--cap-add", "NET_ADMIN", *where, "--name", names["lan-host"], host_image, "sh", "-c", serve)
        undo.callback(run, "docker", "rm", "-f", names["lan-host"], check=False)
        found = Gateway(name=names["gateway"], host=names["lan-host"], address=_address(names["gateway"]))
        _route(side, found)
        undo.callback(run, "docker", "exec", side.worker, "ip", "route", "del", NETWORK, check=False)
        undo.callback(run, "docker", "exec", side.worker, *_UNTRANSLATED, "-D", *_RULE, check=False)
        yield found


def _route(side: Side, gateway: Gateway) -> None:
    """Name the gateway's interface, and set the routes of gateway, host and worker."""
    renamed = (
        f"old=$(ip -o -4 addr show to {GATEWAY} | awk '{{print $2}}')",
        "ip link set $old down",
        f"ip link set $old name {INTERFACE}",
    )
    routes = (
        f"ip link set {INTERFACE} up",
        f"ip route add {side.pods} via {_address(side.worker)}",
        "echo 1 >/proc/sys/net/ipv4/ip_forward",
    )
    gateway.run("sh", "-ec", "\n".join((*renamed, *routes)))
    gateway.on_host("ip", "route", "replace", "default", "via", GATEWAY)
    inside = ("docker", "exec", side.worker)
    run(*inside, "ip", "route", "add", NETWORK, "via", gateway.address)
    run(*inside, *_UNTRANSLATED, "-I", *_RULE)
