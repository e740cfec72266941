"""Initial file system of the virtual machine: busybox, init.sh, and the modules that it needs before it has the host's file system."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from sos_kernel.debian import Kernel, KernelError
from sos_kernel.machine import settings

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
FOLDERS = ("bin", "modules", "proc", "sys", "dev", "host", "layer", "newroot")
_HERE = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 60


def parse_order(listings: Iterable[str]) -> tuple[Path, ...]:
    """Files of the modules in the order of their insertion, each once, from the output of `modprobe --show-depends` for each module."""
    words = (line.split() for listing in listings for line in listing.splitlines())
    return tuple(dict.fromkeys(Path(each[1]) for each in words if each[:1] == ["insmod"]))  # a `builtin` needs no file


def pack(kernel: Kernel, folder: Path, guest: Path) -> Path:
    """Write `initial.gz` to the folder. It runs `guest`, a script of the host, after the host's file system has been mounted."""
    tree = folder / "initial"
    shutil.rmtree(tree, ignore_errors=True)
    for name in FOLDERS:
        (tree / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    if busybox is None:
        raise KernelError("busybox is not installed (scripts/setup.sh kernel)")
    shutil.copy(busybox, tree / "bin" / "busybox")
    shutil.copy(_HERE / "init.sh", tree / "init")
    files = parse_order(_depends(kernel, module) for module in MODULES)
    for file in files:
        (tree / "modules" / _plain(file)).write_bytes(_content(file))
    (tree / "order").write_text("".join(f"{_plain(file)}\n" for file in files), encoding="ascii")
    known = {"RELEASE": kernel.release, "MODULES": str(kernel.modules), "GUEST": str(guest)}
    (tree / "settings").write_text(settings(known), encoding="utf-8")
    packed = folder / "initial.gz"
    packed.write_bytes(gzip.compress(_archive(tree), compresslevel=1))
    shutil.rmtree(tree)
    return packed


def _depends(kernel: Kernel, module: str) -> str:
    argv = ("modprobe", "-d", str(kernel.root), "-S", kernel.release, "--show-depends", module)
    return _run(argv).decode()


def _archive(tree: Path) -> bytes:
    names = "".join(f"{path.relative_to(tree)}\n" for path in sorted(tree.rglob("*")))
    return _run(("cpio", "--create", "--quiet", "--format=newc", "--owner=0:0", f"--directory={tree}"), names.encode())


def _run(argv: tuple[str, ...], given: bytes = b"") -> bytes:
    try:
        done = subprocess.run(argv, input=given, capture_output=True, check=False, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise KernelError(f"{argv[0]} is not installed (scripts/setup.sh kernel)") from None
    if done.returncode != 0:
        raise KernelError(f"{argv[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _plain(file: Path) -> str:
    return file.name.removesuffix(".xz")


def _content(file: Path) -> bytes:
    """The module without compression, because busybox's insmod inserts files as they are."""
    return lzma.decompress(file.read_bytes()) if file.suffix == ".xz" else file.read_bytes()
