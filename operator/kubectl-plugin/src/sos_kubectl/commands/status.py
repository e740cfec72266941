"""`kubectl sos status`: all objects, with the reason of each that is not ready."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from sos_kubectl.base.source import SourceError
from sos_kubectl.commands.options import (
    NO,
    ContextOption,
    Form,
    FormOption,
    colour,
    kubectl,
    show,
)
from sos_kubectl.views import overview

POLL_S = 1.0


def status(
    wait: Annotated[bool, typer.Option("--wait", help="Wait until everything is ready.")] = False,
    timeout: Annotated[float, typer.Option(min=0, help="Maximum time of --wait, in seconds.")] = 120.0,
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """List all SOS objects, with the reason of each that is not ready."""
    cluster, end = kubectl(context), time.monotonic() + timeout
    rows = overview.rows(cluster.objects())
    while wait and not overview.is_ready(rows) and time.monotonic() < end:
        time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))
        try:
            rows = overview.rows(cluster.objects())
        except SourceError:  # --wait tolerates an API server that is briefly unreachable
            if time.monotonic() >= end:
                raise
    show(output, lambda: overview.as_json(rows), lambda: overview.lines(rows, colour()))
    if not overview.is_ready(rows):
        raise typer.Exit(NO)
