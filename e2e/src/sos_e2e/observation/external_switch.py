"""An OpenFlow switch outside the cluster and a host behind it, in containers with Debian's Open vSwitch.

          80 ms, 200 Mbit/s, 0.01 %
outside.net1 --- host0 tor wan0 ====[emulator]==== core1.wan4
                    lan0
                     |
                south.wan0
"""

import contextlib
from collections.abc import Iterator

from sos_e2e.environment.cables import SLOW, Cable, Panel
from sos_e2e.observation import workload
from sos_e2e.run import run, wait_for
from sos_e2e.settings import Settings

DPID = "00000000000000ab"  # as in examples/01-two-sites/external-switch
PORTS = ("host0", "lan0", "wan0")
DIRECT = Cable(a=("south", "wan0"), b=("core1", "wan4"), wan=SLOW)  # cable that the switch replaces
CABLES = (
    Cable(a=("outside", "net1"), b=("tor", "host0")),
    Cable(a=("south", "wan0"), b=("tor", "lan0")),
    Cable(a=("tor", "wan0"), b=("core1", "wan4"), wan=SLOW),
)
HOST = workload.Host(name="outside", place="outside", site="south", address="10.0.1.21")


@contextlib.contextmanager
def switch(settings: Settings, panel: Panel, images: dict[str, str], controller: str) -> Iterator[str]:
    """Insert the switch between a site's node and a core, connected to the controller at ADDRESS:PORT; yield the host's container."""
    names = {place: f"{settings.cluster}-{place}" for place in ("tor", "outside")}
    with contextlib.ExitStack() as undo:
        for place, image, network in (("tor", images["ovs"], "kind"), ("outside", images["e2e-host"], "none")):
            undo.callback(run, "docker", "rm", "-f", names[place], check=False)
            run("docker", "run", "-d", "--name", names[place], "--privileged", "--network", network, image)
        panel.containers.update(names)
        panel.unplug(DIRECT)
        undo.callback(panel.plug, DIRECT)
        panel.plug(*CABLES)
        undo.callback(panel.unplug, *CABLES)
        _configure(names["tor"], controller)
        for words in (f"address add {HOST.address}/{HOST.bits} dev net1", f"route change 10.0.0.0/{HOST.bits} dev net1 congctl cubic"):
            run("docker", "exec", names["outside"], "ip", *words.split())
        yield names["outside"]


def _configure(container: str, controller: str) -> None:
    """Configure the switch as its owner would: datapath id, ports and controller."""
    vsctl = ("docker", "exec", container, "ovs-vsctl", "--timeout=5")
    wait_for("Open vSwitch", lambda: run(*vsctl, "show"), 30)
    add = ("add-br", "tor", "--", "set", "bridge", "tor", "datapath_type=netdev", "fail_mode=secure", "protocols=OpenFlow13",
           f"other-config:datapath-id={DPID}", "other-config:disable-in-band=true")  # fmt: skip
    run(*vsctl, *add)
    for port in PORTS:
        run(*vsctl, "add-port", "tor", port)
    run(*vsctl, "set-controller", "tor", f"tcp:{controller}")


def download(container: str, server: str, port: int, seconds: float) -> workload.Transfer:
    """Download the long file to the outside host, with the script that pods use."""
    script = workload.download_script(server, port, seconds, workload.LONG)
    return workload.parse_download(run("docker", "exec", container, "sh", "-c", script, timeout=seconds + 60))
