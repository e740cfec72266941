"""Kernel packages of Debian 12 and of its backports.

apt has lists and a cache of its own here, so the machine's package lists stay unchanged, and signatures are checked by Debian's keys. The
machine's proxy settings for apt apply.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

APT_SOURCES = Path("/etc/apt")
MIRRORS = {"debian": "http://ftp.debian.org/debian", "debian-security": "http://security.debian.org/debian-security"}
"""Debian's own servers by archive, for machines whose apt sources name none."""
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
SUITES = {
    "6.1": (("debian", "bookworm"), ("debian-security", "bookworm-security")),
    "backports": (("debian", "bookworm-backports"),),
}
"""Archives and suites by the name of a kernel: the kernel of Debian 12 (6.1), and the newest kernel of its backports."""
_MIRROR = re.compile(r"https?://\S+/(debian|debian-security)/?(?=\s|$)")
NEWEST = "linux-image-amd64"  # depends on the newest kernel of a suite
APT_TIMEOUT_S = 300
_DEPENDS = re.compile(r"^Depends: (linux-image-[^ ,]+)(?: \(= ([^)]+)\))?", re.MULTILINE)


class KernelError(Exception):
    """A kernel cannot be fetched or started. The message is one line for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """An unpacked kernel package."""

    package: str
    version: str
    """Version of the package; "" if its dependency names none."""
    root: Path

    @property
    def release(self) -> str:
        """Name of the kernel (`uname -r`)."""
        return self.package.removeprefix("linux-image-")

    @property
    def image(self) -> Path:
        """The compressed kernel."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def modules(self) -> Path:
        """Folder of the kernel's modules."""
        return self.root / "lib" / "modules" / self.release


def parse_depends(shown: str) -> tuple[str, str]:
    """Package and version of the newest kernel, from `apt-cache show linux-image-amd64`; KernelError without a dependency."""
    found = _DEPENDS.search(shown)
    if found is None:
        raise KernelError(f"{NEWEST} names no kernel: {shown[:200]!r}")
    return found[1], found[2] or ""


def mirrors(folder: Path = APT_SOURCES) -> dict[str, str]:
    """URIs by archive: those of the machine's apt sources, else Debian's own servers."""
    files = [folder / "sources.list", *sorted(folder.glob("sources.list.d/*.list")), *sorted(folder.glob("sources.list.d/*.sources"))]
    found: dict[str, str] = {}
    for line in (line for file in files if file.is_file() for line in file.read_text().splitlines() if not line.lstrip().startswith("#")):
        for match in _MIRROR.finditer(line):
            found.setdefault(match[1], match[0].rstrip("/"))
    return MIRRORS | found


def sources(name: str, folder: Path = APT_SOURCES) -> str:
    """Contents of sources.list; KernelError for an unknown name."""
    if name not in SUITES:
        raise KernelError(f"no kernel {name!r}; there are {', '.join(SUITES)}")
    uris = mirrors(folder)
    return "".join(f"deb [arch=amd64 signed-by={KEYRING}] {uris[archive]} {suite} main\n" for archive, suite in SUITES[name])


def fetch(name: str, cache: Path) -> Kernel:
    """Newest kernel of this name, from the cache or downloaded into it."""
    folder = cache / name
    options = _apt(folder, sources(name))
    _run("apt-get", *options, "update")
    package, version = parse_depends(_run("apt-cache", *options, "show", "--no-all-versions", NEWEST))
    kernel = Kernel(package=package, version=version, root=folder / f"{package}_{version}".replace(":", "_"))
    if not (kernel.modules / "modules.dep").exists():
        _unpack(kernel, options)
    return kernel


def _unpack(kernel: Kernel, options: tuple[str, ...]) -> None:
    """Replace the kernels of this name by this one; an interrupted attempt leaves no folder with the final name."""
    for old in kernel.root.parent.glob("linux-image-*"):
        shutil.rmtree(old)
    half = kernel.root.with_name("unpacking")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True)
    wanted = f"{kernel.package}={kernel.version}" if kernel.version else kernel.package
    _run("apt-get", *options, "download", wanted, cwd=half)
    (archive,) = half.glob("*.deb")
    _run("dpkg", "-x", str(archive), str(half))
    archive.unlink()
    _run("depmod", "-b", str(half), kernel.release)
    half.rename(kernel.root)


def _apt(folder: Path, listed: str) -> tuple[str, ...]:
    """Options that give apt its own sources, lists and cache."""
    lists, cached, file = folder / "apt" / "lists", folder / "apt" / "cache", folder / "apt" / "sources.list"
    for each in (lists / "partial", cached / "archives" / "partial"):
        each.mkdir(parents=True, exist_ok=True)
    file.write_text(listed, encoding="ascii")
    settings = {
        "Dir::Etc::sourcelist": file,
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": lists,
        "Dir::Cache": cached,
        "APT::Sandbox::User": "root",  # the unprivileged user of apt cannot write to these folders
        "Acquire::Languages": "none",
    }
    return ("-qq", *(word for key, value in settings.items() for word in ("-o", f"{key}={value}")))


def _run(*argv: str, cwd: Path | None = None) -> str:
    """Output of a command; KernelError with the last line of its error output."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=APT_TIMEOUT_S, cwd=cwd, env=environment)
    except FileNotFoundError:
        raise KernelError(f"{argv[0]} is not installed (scripts/setup.sh kernel)") from None
    except subprocess.TimeoutExpired:
        raise KernelError(f"{argv[0]} still runs after {APT_TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise KernelError(f"{argv[0]}: {(done.stderr.strip() or f'status {done.returncode}').splitlines()[-1]}")
    return done.stdout
