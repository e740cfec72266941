"""Command line of `kubectl sos`.

Exit codes: 0 success; 1 negative result (something is not ready, broken, plain or left behind); 2 wrong usage, or no answer;
130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sos_kubectl.base.source import SourceError
from sos_kubectl.cli import completion
from sos_kubectl.cli.options import FAILED, NO
from sos_kubectl.commands import (
    diagnose,
    drain,
    enroll,
    estimate,
    flows,
    peer,
    report,
    status,
    topology,
    trace,
    uninstall,
    version,
)

INTERRUPTED = 130


@click.group(
    name="kubectl-sos",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 success; 1 negative result (not ready, plain, broken, left behind); 2 wrong usage or no answer.",
)
def app() -> None:
    """Show the state of SOS objects and controllers, and test real transfers."""


for command in (
    status.status,
    topology.topology,
    flows.flows,
    trace.trace,
    diagnose.diagnose,
    report.report,
    drain.drain,
    enroll.enroll,
    estimate.estimate,
    uninstall.uninstall,
    peer.peer,
    version.version,
):
    app.add_command(command)


def main() -> None:
    """Entry point of `kubectl-sos`, and of a link to it named `kubectl_complete-sos`; kubectl finds both by these names."""
    if Path(sys.argv[0]).name == completion.EXECUTABLE:
        click.echo("\n".join(completion.answer(app, sys.argv[1:])))
    else:
        sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line; return its exit code."""
    try:
        return int(app.main(arguments, prog_name="kubectl sos", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort as abort:
        click.echo("kubectl-sos: aborted", err=True)
        return INTERRUPTED if isinstance(abort.__cause__, KeyboardInterrupt) else NO
    except SourceError as error:
        click.echo(f"kubectl-sos: {error}", err=True)
        return FAILED


if __name__ == "__main__":
    main()
