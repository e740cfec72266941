"""`kubectl sos status`: all objects, with the reason of each that is not ready."""

from __future__ import annotations

import time

import click

from sos_kubectl.base.source import Kubectl, SourceError
from sos_kubectl.cli.options import NO, Form, colour, context_option, kubectl, output_option, show
from sos_kubectl.lifecycle import abandonment
from sos_kubectl.views import overview
from sos_kubectl.views.overview import Row

POLL_S = 1.0


@click.command(short_help="List all SOS objects, with the reason if one is not ready.")
@click.option("--wait", is_flag=True, help="Wait until everything is ready.")
@click.option("--timeout", type=click.FloatRange(min=0), default=120.0, show_default=True, help="Maximum time of --wait, in seconds.")
@output_option
@context_option
def status(*, wait: bool, timeout: float, output: Form, context: str) -> None:
    """List all SOS objects, with the reason of each that is not ready."""
    cluster, end = kubectl(context), time.monotonic() + timeout
    rows = _rows(cluster)
    while wait and not overview.is_ready(rows) and time.monotonic() < end:
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
        try:
            rows = _rows(cluster)
        except SourceError:  # --wait tolerates an API server that is briefly unreachable
            if time.monotonic() >= end:
                raise
    show(output, lambda: overview.as_json(rows), lambda: overview.lines(rows, colour()))
    if not overview.is_ready(rows):
        raise click.exceptions.Exit(NO)


def _rows(cluster: Kubectl) -> list[Row]:
    objects = cluster.objects()
    return overview.rows(objects, abandonment.held_up(cluster, objects))
