"""Check style, types and import rules of every part. Run all checks, then list the failed checks; change nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
BIN = TOP / ".venv" / "bin"
PYTHON_FOLDERS = ("compile", "operator", "controller-image", "testbed", "e2e", "bench", "scripts")
TYPED_BENCHES = tuple(TOP / "bench" / name for name in ("controller", "measure", "harness", "wan", "relay", "short", "sessions", "matrix"))
KERNEL = TOP / "testbed" / "kernel"
PLUGIN = TOP / "operator" / "kubectl-plugin" / "src"
BLOCKS = TOP / "scripts" / "shell_blocks"
CARGO_FOLDERS = ("agent-image", "agent-image/fuzz", "testbed/linkemu", "bench/controller")


def commands() -> list[tuple[str, ...]]:
    """Commands of all checks."""
    found: list[tuple[str, ...]] = [
        ("test", "!", "-e", "operator/__init__.py"),
        (sys.executable, "scripts/generate.py", "--check"),
        (sys.executable, "scripts/links.py"),
        (sys.executable, "scripts/blocks.py"),
        (sys.executable, "scripts/modules.py"),
        (str(BIN / "ruff"), "check", *PYTHON_FOLDERS),
        (str(BIN / "ruff"), "format", "--check", "-q", *PYTHON_FOLDERS),
        *((str(BIN / "mypy"), str(source)) for source in (*sorted(TOP.glob("*/src")), PLUGIN, KERNEL, *TYPED_BENCHES, BLOCKS)),
    ]
    if (TOP / ".importlinter").exists():
        found.append((str(BIN / "lint-imports"),))
    for folder in CARGO_FOLDERS:
        manifest = ("--manifest-path", f"{folder}/Cargo.toml")
        found.append(("cargo", "fmt", *manifest, "--all", "--check"))
        found.append(("cargo", "clippy", "-q", "--locked", *manifest, "--workspace", "--all-targets", "--", "-D", "warnings"))
    shell = sorted(path for folder in (TOP / "scripts", KERNEL) for path in folder.glob("*.sh"))
    found.append((str(BIN / "shellcheck"), "lab", ".ci/run", *map(str, shell)))
    return found


def main() -> int:
    """Run all checks."""
    failed = []
    for argv in commands():
        print("==", " ".join(argv).replace(f"{TOP}/", ""), flush=True)
        if subprocess.run(argv, cwd=TOP, check=False, env={**os.environ, "PYTHONSAFEPATH": "1"}).returncode != 0:
            failed.append(" ".join(argv).replace(f"{TOP}/", ""))
    print("lint: " + (f"{len(failed)} failed: " + "; ".join(failed) if failed else "all good"), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
