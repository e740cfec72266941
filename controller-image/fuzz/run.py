"""Fuzz one target: `run.py TARGET [FILE ...]` with the arguments of libFuzzer, for example `run.py beacon -runs=1000000 -seed=1`.

With files, each is run once. Coverage of the controller guides the inputs (Atheris over libFuzzer); an input that raises, takes longer than
libFuzzer's `-timeout` or more memory than its `-rss_limit_mb` is written to a file, which reproduces it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent


def function(name: str) -> Callable[[bytes], None]:
    """A target, with the controller instrumented; Ryu and the engine are loaded for those that need them only."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
    with atheris.instrument_imports(include=["sos_controller"]):
        import targets

        found = targets.parsers()
        if name == "document":
            import documents

            return documents.document
        if name not in found:
            import live

            found = live.stateful()
    return found[name]


def main() -> None:
    """Fuzz until libFuzzer has enough."""
    target = function(sys.argv[1])
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
