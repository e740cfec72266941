"""Run of a virtual machine within its time limit."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sos_kernel.debian import KernelError
from sos_kernel.machine import BOOTED, KVM, TCG, Accelerator, Machine, command

_POLL_S = 0.2
_END_S = 10.0  # limit for a killed qemu to end

Say = Callable[[str], None]
Prepare = Callable[[Accelerator], None]


def accelerators(wanted: str) -> tuple[Accelerator, ...]:
    """Accelerators to try in order: `kvm`, `tcg`, or `auto` for both if the machine has KVM."""
    if wanted == "auto":
        return (KVM, TCG) if Path("/dev/kvm").exists() else (TCG,)
    return {"kvm": (KVM,), "tcg": (TCG,)}[wanted]


def run(machine: Machine, tried: Sequence[Accelerator], limit_s: float, prepare: Prepare, say: Say) -> Accelerator:
    """Run the machine to its end with the first accelerator that boots it, and return this accelerator.

    `prepare` writes the guest's settings. `say` gets the guest's lines. Raise KernelError if no accelerator boots the machine, or if it is
    still running after `limit_s`.
    """
    why = ""
    for accelerator in tried:
        prepare(accelerator)
        why = watch(command(machine, accelerator), machine.results / "console.log", (accelerator.boot_s, limit_s), say)
        if not why:
            return accelerator
        say(f"kernel: {accelerator.name} does not boot the machine: {why}")
    raise KernelError(f"no accelerator boots the machine: {why}")


def watch(argv: Sequence[str], log_file: Path, limits_s: tuple[float, float], say: Say) -> str:
    """Run qemu to its end; return "" afterwards, or the reason why the guest did not boot. `limits_s`: for the guest's first line, and for
    everything. Raise KernelError after the second limit, and if qemu is not installed."""
    boot_s, limit_s = limits_s
    if shutil.which(argv[0]) is None:
        raise KernelError(f"{argv[0]} is not installed (scripts/setup.sh kernel)")
    began = time.monotonic()
    with log_file.open("w", encoding="utf-8", buffering=1) as log:
        qemu = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        console = _Console(qemu, log.write, say)
        try:
            while console.is_alive():
                console.join(_POLL_S)
                passed = time.monotonic() - began
                if not console.booted and passed > boot_s:
                    return f"no line of the guest within {boot_s:g} s"
                if passed > limit_s:
                    raise KernelError(f"the virtual machine is still running after {limit_s:.0f} s: {log_file}")
        finally:
            qemu.kill()
            qemu.wait(_END_S)
            console.join(_END_S)
    return "" if console.booted else f"qemu ended with {console.last!r}"


class _Console(threading.Thread):
    """Reader of the machine's console, which logs each line, and says those after the first line of the guest."""

    def __init__(self, qemu: subprocess.Popen[str], log: Callable[[str], object], say: Say) -> None:
        super().__init__(daemon=True)
        self._qemu = qemu
        self._log = log
        self._say = say
        self.booted = False
        self.last = ""
        self.start()

    def run(self) -> None:
        """Read to the end."""
        for raw in self._qemu.stdout or ():
            line = raw.rstrip()
            self._log(f"{line}\n")
            self.last = line or self.last
            self.booted = self.booted or line.startswith(BOOTED)
            if self.booted and line:
                self._say(line)
