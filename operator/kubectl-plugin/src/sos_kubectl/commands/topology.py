"""`kubectl sos topology`: datapaths, agents, hosts and links, as a controller sees them."""

from __future__ import annotations

from sos_kubectl.commands.options import (
    ContextOption,
    Form,
    FormOption,
    LabOption,
    NameOption,
    NamespaceOption,
    UrlOption,
    colour,
    controller,
    show,
)
from sos_kubectl.views import network


def topology(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: NameOption = "default",
    namespace: NamespaceOption = "",
    url: UrlOption = "",
    lab: LabOption = "",
    output: FormOption = Form.TEXT,
    context: ContextOption = "",
) -> None:
    """List datapaths, agents, hosts and links, as a controller sees them."""
    asked = controller(name, namespace, url, context, lab)
    known, seen, agents = (asked.get(what) for what in ("/v1/status", "/v1/topology", "/v1/agents"))
    show(
        output,
        lambda: {**seen, "agents": agents["agents"], "unclaimed": known["unclaimed"]},
        lambda: network.topology(known, seen, agents, colour()),
    )
