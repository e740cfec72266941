"""Names of rendered objects: stable, unique, at most 63 characters, so that they also fit into labels."""

from __future__ import annotations

import hashlib
import re

MAX_NAME = 63  # RFC 1123 label; DaemonSet names become label values of their pods
HASH_DIGITS = 8
HASHED = re.compile(rf"-[0-9a-f]{{{HASH_DIGITS}}}$")  # a name that seems to end in a hash


def child(*parts: str) -> str:
    """Join the parts with `-`; a name that is too long, or ambiguous with another join, ends in a hash of the parts."""
    joined = "-".join(parts)
    name = re.sub(r"[^a-z0-9-]", "-", joined.lower())
    ambiguous = any("-" in part for part in parts[1:-1]) or HASHED.search(joined) is not None
    if name == joined and len(name) <= MAX_NAME and not ambiguous:
        return name
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:HASH_DIGITS]
    return f"{name[: MAX_NAME - HASH_DIGITS - 1].rstrip('-')}-{digest}"


def controller(prefix: str, name: str, replica: int = 0) -> str:
    """Return the name of the Deployment and Service of a controller's replica, and of the first one's ConfigMap, which all mount."""
    return child(prefix, "controller" if replica == 0 else f"controller{replica + 1}", name)


def controller_label(name: str, replica: int = 0) -> str:
    """Return the label by which a controller's replica is selected. No controller is named with an underscore."""
    if replica == 0:
        return name
    label = f"{name}_{replica + 1}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:HASH_DIGITS]
    return label if len(label) <= MAX_NAME else f"{name[: MAX_NAME - HASH_DIGITS - 3]}-{digest}_{replica + 1}"


def controller_keys(prefix: str, name: str) -> str:
    """Return the name of the Secret with the site keys of a controller."""
    return child(prefix, "controllerkeys", name)


def controller_token(prefix: str, name: str) -> str:
    """Return the name of the Secret with a controller's bearer token (key `token`)."""
    return child(prefix, "controllertoken", name)


def openflow_ca(prefix: str) -> str:
    """Return the name of the Secret with the certification authority of OpenFlow channels, which no pod mounts."""
    return child(prefix, "openflowca")


def controller_certificate(prefix: str, name: str) -> str:
    """Return the name of the Secret with the TLS folder of a controller."""
    return child(prefix, "controllercert", name)


def site_certificate(prefix: str, site: str) -> str:
    """Return the name of the Secret with the TLS folder of a site's switches."""
    return child(prefix, "sitecert", site)


def site_keys(prefix: str, site: str) -> str:
    """Return the name of the Secret with the key folder of a site's agents."""
    return child(prefix, "sitekeys", site)


def node(prefix: str, site: str) -> str:
    """Return the name of a site's OVS and sos-node DaemonSet and of its ConfigMap."""
    return child(prefix, "node", site)


def agent(prefix: str, pool: str, site: str) -> str:
    """Return the name of the DaemonSet of a pool's agents at one site and of its ConfigMap."""
    return child(prefix, "agent", pool, site)


def agent_network(prefix: str, pool: str, site: str) -> str:
    """Return the name of the network by which a pool's agents join a site's bridge. It has a dot, unlike the name of any site's network."""
    return agent(prefix, pool, site).replace("-", ".", 1)


def peers(prefix: str) -> str:
    """Return the name of the ConfigMap with the site cards for peers, which the agents of sites without bridges mount."""
    return child(prefix, "peers")


def network(prefix: str, site: str) -> str:
    """Return the name of a site's NetworkAttachmentDefinition."""
    return child(prefix, site)


def controller_openflow(prefix: str, name: str, replica: int = 0) -> str:
    """Return the name of the Service by which switches outside the pod network reach a controller's replica."""
    return child(prefix, "openflow" if replica == 0 else f"openflow{replica + 1}", name)


def drain_label(pool: str) -> str:
    """Return the label that keeps a pool's agents off a node: setting it drains them."""
    return f"drain.sos.network/{child(pool)}"
