"""The finalizer of a SosSite: added in the pass that first applies a node-config of the site, removed once its nodes are clean
(`departure`) or the cleanup time is over."""

from __future__ import annotations

from sos_operator.core.model.objects import Object, Resource

CLEANUP_FINALIZER = "sos.network/site-cleanup"


def finalizer_patch(site: Resource, wanted: bool) -> Object | None:
    """Merge patch that adds or removes our finalizer; None if nothing has to change."""
    present = site.meta.finalizers
    if wanted == (CLEANUP_FINALIZER in present):
        return None
    changed = [*present, CLEANUP_FINALIZER] if wanted else [f for f in present if f != CLEANUP_FINALIZER]
    # With the resource version, the write cannot drop a finalizer that another client has just added.
    return {"metadata": {"resourceVersion": site.meta.resource_version, "finalizers": changed}}
