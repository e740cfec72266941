"""Command line: `python -m sos_operator [run]` and `python -m sos_operator uninstall --timeout 240`."""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys

from sos_operator import __version__
from sos_operator.core.model.errors import OperatorError
from sos_operator.process import logs
from sos_operator.process.settings import SettingsError, load_settings

# A listing creates tens of thousands of acyclic dictionaries: collecting garbage after every 700 of them takes longer than parsing.
GC_THRESHOLD = (50_000, 20, 20)


def build_parser() -> argparse.ArgumentParser:
    """Build the command-line parser."""
    parser = argparse.ArgumentParser(
        prog="sos_operator", description="Makes a cluster match its SOS objects. Settings come from SOS_* variables."
    )
    parser.add_argument("--version", action="version", version=f"sos_operator {__version__}")
    commands = parser.add_subparsers(dest="command")
    commands.add_parser("run", help="run the operator (the default)")
    uninstall = commands.add_parser(
        "uninstall", help="remove everything that the operator created, from nodes and cluster; users' objects and CRDs stay"
    )
    uninstall.add_argument(
        "--purge",
        action="store_true",
        help="also remove users' objects and the CRDs; needs an administrator's KUBECONFIG, because the operator lacks the right",
    )
    uninstall.add_argument("--timeout", type=float, default=240.0, metavar="SECONDS", help="time limit of the whole removal (default 240)")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run a command; 0 = done, 1 = failed, 2 = bad usage or settings."""
    arguments = build_parser().parse_args(argv)
    try:
        settings = load_settings()
    except SettingsError as error:
        sys.stderr.write(f"sos_operator: {error}\n")
        return 2
    logs.configure(settings.log_level)
    try:
        if arguments.command == "uninstall":
            from sos_operator.uninstall import uninstall

            return asyncio.run(uninstall(settings, arguments.timeout, purge=arguments.purge))
        from sos_operator.loop import run

        gc.set_threshold(*GC_THRESHOLD)
        asyncio.run(run(settings))
    except OperatorError as error:
        sys.stderr.write(f"sos_operator: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
