"""Init container that loads kernel modules before a node's switch starts, where the cluster's operator asks for it."""

from __future__ import annotations

from sos_compile.manifests.common import host_path, mount, security_context
from sos_compile.model.resources import Site
from sos_compile.model.world import Json, Settings

FOLDER = "/lib/modules"
VOLUME = "modules"
LOADER_CAPABILITIES = ["SYS_MODULE"]


def build_modules(site: Site, settings: Settings) -> Json:
    """Return `initContainers` of a node's pod with the one that loads modules; nothing if there is nothing to load."""
    arguments = _arguments(site) if settings.load_modules else []
    if not arguments:
        return {}
    loader = {
        "name": "modules",
        "image": settings.images.ovs,
        "imagePullPolicy": settings.pull_policy,
        "command": ["modules.sh"],
        "args": arguments,
        # On failure, its output becomes the container's message, and so the node's message in the site's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": settings.node_resources.node,
        "securityContext": security_context(LOADER_CAPABILITIES),
        "volumeMounts": [mount(VOLUME, FOLDER, read_only=True)],
    }
    return {"initContainers": [loader]}


def module_volumes(site: Site, settings: Settings) -> list[Json]:
    """Return the volumes that `build_modules` mounts. Of no type: a node without the folder has nothing to load, and its pod starts."""
    return [host_path(VOLUME, FOLDER, "")] if build_modules(site, settings) else []


def _arguments(site: Site) -> list[str]:
    """Return what modules.sh is asked for: nothing that the site makes no use of, and what it cannot do without as needed."""
    switch = {"System": ["--need", "openvswitch"], "Auto": ["--want", "openvswitch"], "Netdev": []}[site.datapath_type]
    return [*switch, *(["--want", "vxlan"] if site.wan == "Overlay" else [])]
