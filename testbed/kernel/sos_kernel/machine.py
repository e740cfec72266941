"""Command line of qemu, and the files that the guest reads. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEMORY_MB = 4096  # two labs at once need 2 GB; changed files are in memory, too
MAX_PROCESSORS = 4  # with more, an emulated processor waits for others more often than it computes
QUICK = "mitigations=off rcupdate.rcu_expedited=1"
"""Kernel parameters: no mitigations, for which emulation has no use, and short waits when interfaces and namespaces are deleted."""
BOOTED = "guest: Linux "
"""Start of the first line that guest.sh prints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """Execution of the guest's instructions."""

    name: str
    arguments: tuple[str, ...]
    time_factor: int
    """Factor of all time limits (SOS_TIME_FACTOR)."""
    boot_s: int
    """Limit for the guest's first line, in seconds."""


KVM = Accelerator(name="KVM", arguments=("-accel", "kvm", "-cpu", "host"), time_factor=2, boot_s=60)
"""Hardware virtualization; the factor covers a busy machine."""
TCG = Accelerator(name="TCG", arguments=("-accel", "tcg,thread=multi", "-cpu", "max"), time_factor=10, boot_s=240)
"""Emulation: a lab of four switches took 48 s to build on two processors."""


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
        *("-m", str(machine.memory_mb), "-smp", str(min(machine.processors, MAX_PROCESSORS))),
        *("-kernel", str(machine.image), "-initrd", str(machine.initial)),
        *("-append", f"console=ttyS0 quiet panic=-1 edd=off {QUICK}"),
        *("-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot", "-nic", "none"),
        *("-virtfs", f"local,path=/,mount_tag=host,readonly=on,{shared}"),
        *("-virtfs", f"local,path={machine.results},mount_tag=results,{shared}"),
    )


def settings(environment: Mapping[str, str]) -> str:
    """Shell text that exports these variables."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))
