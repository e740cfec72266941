"""The finalizer of a SosSite: added before a site's first node gets a configuration, removed once its nodes are clean (`departure`)."""

from __future__ import annotations

from sos_operator.core.model.objects import Object

CLEANUP_FINALIZER = "sos.network/site-cleanup"


def finalizer_patch(site: Object, wanted: bool) -> Object | None:
    """The merge patch that gives a site our finalizer or takes it away; None if it is as wanted."""
    meta = site["metadata"]
    present = list(meta.get("finalizers") or [])
    if wanted == (CLEANUP_FINALIZER in present):
        return None
    changed = [*present, CLEANUP_FINALIZER] if wanted else [f for f in present if f != CLEANUP_FINALIZER]
    # The resource version makes the list safe to write: another client's finalizer must not be lost.
    return {"metadata": {"resourceVersion": meta["resourceVersion"], "finalizers": changed}}
