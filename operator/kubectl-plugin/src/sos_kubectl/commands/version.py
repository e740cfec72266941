"""`kubectl sos version`: the versions of the plugin and of SOS in the cluster."""

from __future__ import annotations

from importlib.metadata import version as installed

import click

from sos_kubectl.base.labels import PART_OF
from sos_kubectl.base.source import SourceError
from sos_kubectl.cli.options import Form, context_option, kubectl, output_option, say, show
from sos_kubectl.views import versions

PACKAGE = "sos-kubectl"


@click.command(short_help="Show the versions of the plugin and of SOS in the cluster.")
@click.option("--client", is_flag=True, help="Show only the plugin's version; query no cluster.")
@output_option
@context_option
def version(*, client: bool, output: Form, context: str) -> None:
    """Show the versions of the plugin and of operators, controllers, agents and switches in the cluster."""
    plugin, found, failed = installed(PACKAGE), None, ""
    if not client:
        try:
            listed = kubectl(context).json("get", "deployments,daemonsets", "--all-namespaces", "-l", PART_OF, "-o", "json")
            found = versions.rows(listed["items"])
        except SourceError as error:
            failed = str(error)
    show(output, lambda: versions.as_json(plugin, found), lambda: versions.lines(plugin, found))
    if why := versions.skew(plugin, found or ()):
        say(why)
    if failed:
        raise SourceError(f"the versions in the cluster are unknown: {failed}")
