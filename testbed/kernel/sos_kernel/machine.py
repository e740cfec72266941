"""Command line of qemu, and the files that the guest reads. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEMORY_MB = 4096  # a lab needs 1 GB; changed files are in memory, too
QUICK = "mitigations=off rcupdate.rcu_expedited=1"
"""Kernel parameters: no mitigations, for which emulation has no use, and short waits when interfaces and namespaces are deleted."""
CLOCK = "tsc=reliable clocksource=tsc"
"""Kernel parameters for emulation, where the kernel distrusts the TSC: each reading of the HPET instead leaves the emulated processor, and
the kernel reads a clock for each packet."""
BOOTED = "guest: Linux "
"""Start of the first line that guest.sh prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Execution of the guest's instructions."""

    name: str
    arguments: tuple[str, ...]
    parameters: str = ""
    """Kernel parameters."""
    processors: int
    """Processors of the guest, if this machine has as many."""
    time_factor: int
    """Factor of all time limits (SOS_TIME_FACTOR)."""
    boot_s: int
    """Limit for the guest's first line, in seconds."""


KVM = Accelerator(name="KVM", arguments=("-accel", "kvm", "-cpu", "host"), processors=4, time_factor=2, boot_s=60)
"""Hardware virtualization; the factor covers a busy machine. More processors would wait for each other more often than they compute."""
TCG = Accelerator(
    name="TCG, 1 ns per instruction",
    arguments=("-accel", "tcg,thread=single", "-icount", "shift=0,align=off,sleep=on", "-cpu", "max,la57=off"),
    parameters=CLOCK,
    processors=1,
    time_factor=3,
    boot_s=240,
)
"""Emulation, in which the clock follows the executed instructions.

The guest's processor thus executes a billion instructions per second of the guest, like a slow real one, however long that takes here.
With the clock of this machine, everything takes ten to fifty times as long in the guest, and the periodic work of a lab leaves no time
for the tests on a busy machine. The clock stands still for one processor only if no other runs, so there is one. Four levels of page
tables instead of five shorten each walk of them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A virtual machine over the host's file system. `results`: folder of the host that the guest writes."""

    image: Path
    initial: Path
    results: Path
    processors: int
    memory_mb: int = MEMORY_MB


def command(machine: Machine, accelerator: Accelerator) -> tuple[str, ...]:
    """Command line of qemu: no network, no disk, the console on standard output, and an exit instead of a restart."""
    shared = "security_model=none,multidevs=remap"
    return (
        "qemu-system-x86_64",
        *accelerator.arguments,
        *("-m", str(machine.memory_mb), "-smp", str(min(machine.processors, accelerator.processors))),
        *("-kernel", str(machine.image), "-initrd", str(machine.initial)),
        *("-append", f"console=ttyS0 quiet panic=-1 edd=off {QUICK} {accelerator.parameters}".strip()),
        *("-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{shared}"),
        *("-virtfs", f"local,path={machine.results},mount_tag=results,{shared}"),
    )


def settings(environment: Mapping[str, str]) -> str:
    """Shell text that exports these variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
