"""Fuzz one target: `run.py TARGET [FILE ...]` with the arguments of libFuzzer, for example `run.py beacon -runs=1000000 -seed=1`.

If files are given, each is run once. Coverage of the controller guides the inputs (Atheris over libFuzzer). An input that raises an
exception, or exceeds libFuzzer's `-timeout` or `-rss_limit_mb`, is written to a file, which reproduces the failure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent


def function(name: str) -> Callable[[bytes], None]:
    """Return a target, with the controller instrumented. Load Ryu and the engine only for targets that need them."""
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
    """Fuzz until libFuzzer stops."""
    target = function(sys.argv[1])
    atheris.Setup([sys.argv[0], *sys.argv[2:]], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
