"""WAN cables between node containers: veth pairs with the link emulator in the middle (needs root on the machine of the engine).

          delay, rate, loss                          plain
west.wan0 ====[emulator]==== core1.wan0   core1.wan1 ------ east.wan0
west.wan1 ====[emulator]==== core2.wan0   core2.wan1 ------ east.wan1
"""

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sos_e2e.cluster import pid
from sos_e2e.run import run, say
from sos_e2e.settings import ROOT, Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Wan:
    """One emulated path, both directions alike."""

    rate_mbit: int
    delay_ms: float  # one way
    loss_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """A cable from interface `a` of one site's node to interface `b` of another's."""

    a: tuple[str, str]
    b: tuple[str, str]
    wan: Wan | None = None


def figure8(path1: Wan, path2: Wan) -> list[Cable]:
    """The wires of example 01."""
    return [
        Cable(a=("west", "wan0"), b=("core1", "wan0"), wan=path1),
        Cable(a=("core1", "wan1"), b=("east", "wan0")),
        Cable(a=("west", "wan1"), b=("core2", "wan0"), wan=path2),
        Cable(a=("core2", "wan1"), b=("east", "wan1")),
    ]


def _veth(left: tuple[int, str], right: tuple[int, str]) -> None:
    """Make a veth pair with each end in the namespace of a process, up, named as asked, with no IPv6 chatter."""
    token = secrets.token_hex(3)
    ends = ((f"se{token}a", left), (f"se{token}b", right))
    run("ip", "link", "add", ends[0][0], "type", "veth", "peer", "name", ends[1][0])
    for temporary, (process, name) in ends:
        run("ip", "link", "set", temporary, "netns", str(process))
        inside = ("nsenter", "-t", str(process), "-n")
        run(*inside, "ip", "link", "set", temporary, "name", name)
        run(*inside, "sysctl", "-qw", f"net.ipv6.conf.{name}.disable_ipv6=1", check=False)
        run(*inside, "ip", "link", "set", name, "up")


def emulator() -> Path:
    """Build the link emulator and return its path."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "testbed" / "linkemu" / "target"))
    say("building the link emulator")
    run("cargo", "build", "--release", "--quiet", "--manifest-path", ROOT / "testbed" / "linkemu" / "Cargo.toml", timeout=900)
    return target / "release" / "sos-linkemu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugged:
    """Cables that are plugged."""

    nodes: dict[str, str]  # site -> node
    cables: list[Cable]
    holder: int  # process in the emulator's network namespace

    def plug(self, number: int, *, only: str | None = None) -> None:
        """Plug one cable; an emulated one in two halves, `only` that of one site if it is told."""
        cable = self.cables[number]
        ends = {site: (pid(self.nodes[site]), name) for site, name in (cable.a, cable.b)}
        if cable.wan is None:
            _veth(*ends.values())
            return
        for site, name in zip(ends, _emulated(number), strict=True):
            if only in (None, site):
                _veth(ends[site], (self.holder, name))

    def plug_again(self, site: str) -> None:
        """The site's node was started again: its ends went with its network namespace, and took the other ends along."""
        for number, cable in enumerate(self.cables):
            if site in (cable.a[0], cable.b[0]):
                self.plug(number, only=site)


def _emulated(number: int) -> tuple[str, str]:
    """Names of the emulator's interfaces for a cable."""
    return f"c{number}a", f"c{number}b"


def _link(number: int, wan: Wan) -> str:
    a, b = _emulated(number)
    return f"A={a},B={b},rate={wan.rate_mbit}mbit,delay={wan.delay_ms}ms,loss={wan.loss_percent / 100},queue=bdp"


@contextlib.contextmanager
def plugged(settings: Settings, nodes: dict[str, str], cables: list[Cable]) -> Iterator[Plugged]:
    """Plug all cables; on leaving, end the emulator and remove its namespace (the veth ends go with it and with the nodes).

    To keep a cluster is to keep its cables: then both stay, also when this process ends.
    """
    binary, space = emulator(), f"sose2e-{secrets.token_hex(2)}"
    with contextlib.ExitStack() as undo:
        run("ip", "netns", "add", space)
        undo.callback(run, "ip", "netns", "del", space, check=False)
        holder = subprocess.Popen(["ip", "netns", "exec", space, "sleep", "infinity"], start_new_session=True)
        undo.callback(holder.wait)
        undo.callback(holder.kill)
        run("ip", "netns", "exec", space, "true")
        there = Plugged(nodes=nodes, cables=cables, holder=holder.pid)
        for number in range(len(cables)):
            there.plug(number)
        links = [word for number, cable in enumerate(cables) if cable.wan for word in ("--link", _link(number, cable.wan))]
        with (settings.out / "linkemu.log").open("w") as log:
            process = subprocess.Popen(["ip", "netns", "exec", space, str(binary), *links], stdout=log, stderr=log, start_new_session=True)
        undo.callback(process.wait)
        undo.callback(process.terminate)
        say(f"{len(cables)} cables plugged")
        if settings.keep:
            undo.pop_all()
            say(f"they stay plugged: kill {holder.pid} {process.pid}; ip netns del {space}")
        yield there
