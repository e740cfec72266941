"""Compiles generated worlds at their schemas' limits and has the controller's parser read what comes out.

    .venv/bin/python scripts/worlds.py --count 10000 [--first SEED]

No object, node or address may make the compiler raise, or meet an exception that only the fence catches (sos_compile.isolate), and the
controller must take what the compiler writes. Ends with one line; 1 if anything was found, each with the seed that makes its world again.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOP / "compile" / "tests"))

from limits import limits_world  # noqa: E402 - of the compiler's tests
from sos_compile import compile_world  # noqa: E402
from sos_controller.config import ConfigError, parse  # noqa: E402

SHOWN = 20  # findings; more say no more


def examine(seed: int, written: Counter[str]) -> Iterator[str]:
    """What is wrong with one world; its documents are counted in `written`."""
    try:
        compiled = compile_world(limits_world(seed))
    except Exception:
        yield f"seed {seed}: the compilation raised\n{traceback.format_exc()}"
        return
    yield from (f"seed {seed}: {fault.key.kind} {fault.key.name[:40]}: {fault.message}\n{fault.trace}" for fault in compiled.faults)
    for name, document in compiled.controllers.items():
        try:
            parse(json.dumps(document).encode())
        except ConfigError as error:
            yield f"seed {seed}: controller {name} refuses its configuration: {error}"
    written.update(controller=len(compiled.controllers), node=len(compiled.nodes), agent=len(compiled.agents))


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="worlds (default 300)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="of the first one (default 0)")
    given = parser.parse_args(arguments)
    written: Counter[str] = Counter()
    found = [text for seed in range(given.first, given.first + given.count) for text in examine(seed, written)]
    for text in found[:SHOWN]:
        print(text)
    read = ", ".join(f"{count} {part}-configs" for part, count in sorted(written.items()))
    print(f"{given.count} worlds, {read}: {len(found)} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
