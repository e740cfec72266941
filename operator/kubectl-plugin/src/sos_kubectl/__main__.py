"""Command line of `kubectl sos`.

Exit codes: 0 success; 1 negative result (something is not ready, broken, plain or left behind); 2 wrong usage, or no answer.
"""

from __future__ import annotations

import sys

import typer

from sos_kubectl.base.source import SourceError
from sos_kubectl.commands import diagnose, drain, enroll, flows, peer, report, status, topology, trace, uninstall
from sos_kubectl.commands.options import FAILED

app = typer.Typer(
    name="kubectl-sos",
    help="Show the state of SOS objects and controllers, and test real transfers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 success; 1 negative result (not ready, plain, broken, left behind); 2 wrong usage or no answer.",
)
for command in (
    status.status,
    topology.topology,
    flows.flows,
    trace.trace,
    diagnose.diagnose,
    report.report,
    drain.drain,
    enroll.enroll,
    uninstall.uninstall,
):
    app.command()(command)
app.add_typer(peer.app, name="peer")


def main() -> None:
    """Entry point of `kubectl-sos`, which kubectl finds by that name."""
    try:
        app()
    except SourceError as error:
        typer.echo(f"kubectl-sos: {error}", err=True)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
