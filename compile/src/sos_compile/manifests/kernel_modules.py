"""Init container that loads kernel modules before a node's switch starts, if the installation requests it."""

from __future__ import annotations

from sos_compile.manifests.common import host_path, mount, security_context
from sos_compile.model.resources import Site
from sos_compile.model.world import Json, Settings

FOLDER = "/lib/modules"
VOLUME = "modules"
LOADER_CAPABILITIES = ["SYS_MODULE"]


def build_modules(site: Site, settings: Settings) -> Json:
    """Return `initContainers` of a node's pod with the container that loads modules; empty if there is nothing to load."""
    arguments = _arguments(site) if settings.load_modules else []
    if not arguments:
        return {}
    loader = {
        "name": "modules",
        "image": settings.images.ovs,
        "imagePullPolicy": settings.pull_policy,
        "command": ["modules.sh"],
        "args": arguments,
        # On failure, the loader's output becomes the container's message, which the site's status shows as the node's message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": settings.resources.node,
        "securityContext": security_context(LOADER_CAPABILITIES),
        "volumeMounts": [mount(VOLUME, FOLDER, read_only=True)],
    }
    return {"initContainers": [loader]}


def module_volumes(site: Site, settings: Settings) -> list[Json]:
    """Return the volumes that `build_modules` mounts. They have no type, so that the pod also starts on a node without the folder, where
    there is nothing to load."""
    return [host_path(VOLUME, FOLDER, "")] if build_modules(site, settings) else []


def _arguments(site: Site) -> list[str]:
    """Return the arguments of modules.sh: the modules that the site uses, with indispensable modules marked as needed."""
    switch = {"System": ["--need", "openvswitch"], "Auto": ["--want", "openvswitch"], "Netdev": []}[site.datapath_type]
    return [*switch, *(["--want", "vxlan"] if site.wan == "Overlay" else [])]
