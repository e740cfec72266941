"""Names of the objects that the operator creates, as the compiler defines them.

The compiler is imported only on use, because `status` must be fast.
"""

from __future__ import annotations

PREFIX = "sos"


def controller(name: str, replica: int = 0) -> str:
    """The Deployment and Service of a controller's replica, and the ConfigMap of both."""
    from sos_compile.manifests import naming

    return naming.controller(PREFIX, name, replica)


def network(site: str) -> str:
    """A site's NetworkAttachmentDefinition."""
    from sos_compile.manifests import naming

    return naming.network(PREFIX, site)


def drain_label(pool: str) -> str:
    """The label that keeps a pool's agents off a node."""
    from sos_compile.manifests import naming

    return naming.drain_label(pool)


def peer_secret(peer: str) -> str:
    """The Secret of a SosPeer."""
    from sos_compile.manifests import naming

    return naming.child(PREFIX, "peer", peer)
