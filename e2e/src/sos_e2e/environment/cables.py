"""WAN cables between containers: veth pairs with the link emulator in the middle (needs root on the machine of the engine).

           80 ms one way                              plain
west.wan0  ====[emulator]==== core1.wan0   core1.wan1 ------ east.wan0
west2.wan0 ====[emulator]==== core1.wan2   core1.wan3 ------ east2.wan0

           30 ms one way
west.wan1  ====[emulator]==== core2.wan0   core2.wan1 ------ east.wan1
west2.wan1 ====[emulator]==== core2.wan2   core2.wan3 ------ east2.wan1

The node at south is connected likewise: its wan0 and wan1 go to wan4 of core1 and core2. The two nodes of a site have no direct cable:
packets between them pass core1. All emulated cables have 200 Mbit/s and lose one packet in ten thousand.
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sos_e2e.environment.cluster import pid
from sos_e2e.run import run, say, wait_for
from sos_e2e.settings import ROOT, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wan:
    """One emulated path with the same properties in both directions."""

    rate_mbit: int
    delay_ms: float  # one way
    loss_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A cable from interface `a` of one container to interface `b` of another container, each given by place and name."""

    a: tuple[str, str]
    b: tuple[str, str]
    wan: Wan | None = None


SLOW = Wan(rate_mbit=200, delay_ms=80, loss_percent=0.01)  # by core1: carries all plain traffic
QUICK = Wan(rate_mbit=200, delay_ms=30, loss_percent=0.01)  # by core2: carries labelled paths only


def figure8(places: Collection[str]) -> list[Cable]:
    """Cables of example 01 between these nodes: one cable from each node to each core; the cables of west and south are emulated."""
    cables = []
    for number, place in enumerate(place for place in ("west", "east", "west2", "east2", "south") if place in places):
        far = not place.startswith("east")
        cables += [
            Cable(a=(place, "wan0"), b=("core1", f"wan{number}"), wan=SLOW if far else None),
            Cable(a=(place, "wan1"), b=("core2", f"wan{number}"), wan=QUICK if far else None),
        ]
    return cables


def _veth(left: tuple[int, str], right: tuple[int, str]) -> None:
    """Create a veth pair between the namespaces of two processes, with these names, set up, without IPv6."""
    token = secrets.token_hex(3)
    ends = ((f"se{token}a", left), (f"se{token}b", right))
    run("ip", "link", "add", ends[0][0], "type", "veth", "peer", "name", ends[1][0])
    for temporary, (process, name) in ends:
        run("ip", "link", "set", temporary, "netns", str(process))
        inside = ("nsenter", "-t", str(process), "-n")
        run(*inside, "ip", "link", "set", temporary, "name", name)
        run(*inside, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1", check=False)
        run(*inside, "ip", "link", "set", name, "up")


def route(cable: Cable, nodes: Mapping[str, str]) -> None:
    """Route all traffic between the cluster addresses of two nodes over this cable."""
    places = (cable.a, cable.b)
    addresses = [
        run("docker", "inspect", "--format", "{{.NetworkSettings.Networks.kind.IPAddress}}", nodes[place]).strip() for place, _ in places
    ]
    for (place, interface), own, other in zip(places, addresses, reversed(addresses), strict=True):
        inside = ("nsenter", "-t", str(pid(nodes[place])), "-n")
        run(*inside, "ip", "route", "add", f"{other}/32", "dev", interface, "src", own)
        # The emulator segments plain TCP super-frames, but not tunnelled super-frames: the sender must segment them.
        run(*inside, "ethtool", "-K", interface, "gso", "off", "tso", "off", "tx-udp_tnl-segmentation", "off")


def emulator() -> Path:
    """Build the link emulator and return its path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "testbed" / "linkemu" / "target"))
    say("building the link emulator")
    run("cargo", "build", "--release", "--quiet", "--manifest-path", ROOT / "testbed" / "linkemu" / "Cargo.toml", timeout=900)
    return target / "release" / "sos-linkemu"


class Panel:
    """Plugged cables. A restarted container has a new network namespace, so its cables must be plugged again."""

    def __init__(self, settings: Settings, containers: Mapping[str, str]) -> None:
        """`containers` maps places to containers; the emulators run in their own network namespace."""
        self._binary, self._space, self._log = emulator(), f"sose2e-{secrets.token_hex(2)}", settings.out / "linkemu.log"
        self.containers = dict(containers)
        run("ip", "netns", "add", self._space)
        # Not our output: a pipe behind it would stay open as long as kept cables.
        null, hold = subprocess.DEVNULL, ["ip", "netns", "exec", self._space, "sleep", "infinity"]
        self._holder = subprocess.Popen(hold, start_new_session=True, stdin=null, stdout=null, stderr=null)
        wait_for("the emulators' namespace", self._is_inside, 10, interval=0.05)
        self._plugged: dict[Cable, subprocess.Popen[bytes] | None] = {}

    def _is_inside(self) -> bool:
        inode = Path("/run/netns", self._space).stat().st_ino
        return Path(f"/proc/{self._holder.pid}/ns/net").stat().st_ino == inode

    def plug(self, *cables: Cable) -> None:
        """Plug cables between the places' current containers."""
        for cable in cables:
            a, b = ((pid(self.containers[place]), name) for place, name in (cable.a, cable.b))
            self._plugged[cable] = None
            if cable.wan is None:
                _veth(a, b)
            else:
                self._plugged[cable] = self._emulated(a, b, cable.wan)
        say(f"{len(self._plugged)} cables plugged")

    def unplug(self, *cables: Cable) -> None:
        """Unplug cables: delete the interfaces at both ends."""
        for cable in cables:
            process = self._plugged.pop(cable)
            if process is not None:
                process.terminate()
                process.wait()
            for place, name in (cable.a, cable.b):
                where = ("nsenter", "-t", str(pid(self.containers[place])), "-n")
                run(*where, "ip", "link", "del", name, check=False)  # deleting one end of a plain cable has deleted the other end

    def replug(self, place: str) -> None:
        """Plug all cables of a place again, after a restart of its container."""
        those = [cable for cable in self._plugged if place in {cable.a[0], cable.b[0]}]
        self.unplug(*those)
        self.plug(*those)

    def _emulated(self, a: tuple[int, str], b: tuple[int, str], wan: Wan) -> subprocess.Popen[bytes]:
        token = secrets.token_hex(3)
        ends = (f"c{token}a", f"c{token}b")
        _veth(a, (self._holder.pid, ends[0]))
        _veth((self._holder.pid, ends[1]), b)
        link = f"A={ends[0]},B={ends[1]},rate={wan.rate_mbit}mbit,delay={wan.delay_ms}ms,loss={wan.loss_percent / 100},queue=bdp"
        command = ["ip", "netns", "exec", self._space, str(self._binary), "--link", link]
        with self._log.open("a") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def close(self) -> None:
        """Stop the emulators and remove their namespace, which removes the veth ends inside; the containers remove the other ends."""
        for process in self._processes():
            process.kill()
            process.wait()
        run("ip", "netns", "del", self._space, check=False)

    def keep(self) -> None:
        """Leave the cables plugged after this process has ended, until one of the containers ends."""
        place, container = next(iter(self.containers.items()))
        close = f"kill {' '.join(str(process.pid) for process in self._processes())}; ip netns del {self._space}"
        watch = f"tail --pid={pid(container)} -f /dev/null; {close}"
        null = subprocess.DEVNULL
        subprocess.Popen(["sh", "-c", watch], start_new_session=True, stdin=null, stdout=null, stderr=null)
        say(f"cables stay plugged until the node at {place} ends; to unplug them by hand: {close}")

    def _processes(self) -> list[subprocess.Popen[bytes]]:
        return [*(process for process in self._plugged.values() if process is not None), self._holder]


@contextlib.contextmanager
def plugged(settings: Settings, containers: Mapping[str, str], cables: Iterable[Cable]) -> Iterator[Panel]:
    """Plug all cables, and remove everything on exit.

    A kept cluster keeps its cables, also after this process has ended.
    """
    panel = Panel(settings, containers)
    try:
        panel.plug(*cables)
        yield panel
    finally:
        if settings.keep:
            panel.keep()
        else:
            panel.close()
