"""List the pods of all namespaces, and keep them up to date by the events of a watch, while services select pods."""

from __future__ import annotations

import logging
import threading

import sos_compile

from sos_operator.cluster.client import Cluster
from sos_operator.core.model.errors import Refused
from sos_operator.core.model.kinds import POD
from sos_operator.core.workloads.client_pods import Place, PodCache, WorkloadPods, parse_workload_pod

log = logging.getLogger(__name__)

RELIST_S = 600.0
"""Interval of lists of all pods, which find changes that the watch has missed."""
REFUSED = "the operator may not list pods: set the chart's value rbac.pods"


class PodObserver:
    """Pods of the cluster, empty while no service selects pods. All methods except `is_wanted` belong to one event loop."""

    def __init__(self, cluster: Cluster, *, permitted: bool) -> None:
        self._cluster = cluster
        self._permitted = permitted
        self._cache = PodCache()
        self._listed_at: float | None = None
        self._wanted = threading.Event()
        self._problem = "" if permitted else REFUSED

    def is_wanted(self) -> bool:
        """True while services select pods. The watch may ask from its own thread."""
        return self._wanted.is_set()

    def forget(self) -> None:
        """List all pods at the next pass, for example because the watch was interrupted."""
        self._listed_at = None

    def note(self, place: Place, pod: sos_compile.Pod | None) -> bool:
        """Store the pod of a watch event. True if this changed the pods."""
        return self._wanted.is_set() and self._cache.note(place, pod)

    async def see(self, wanted: bool, now: float) -> WorkloadPods:
        """Return the pods, or nothing if they are not wanted. Raises NotReady if the API server cannot list them now."""
        if not wanted:
            self._wanted.clear()
            self._cache, self._listed_at = PodCache(), None
            return WorkloadPods()
        if not self._permitted:
            return WorkloadPods(problem=REFUSED)
        self._wanted.set()
        if self._listed_at is None or now - self._listed_at >= RELIST_S:
            await self._list(now)
        return WorkloadPods(self._cache.pods(), self._problem)

    async def _list(self, now: float) -> None:
        self._cache.begin_list()
        found = []
        try:
            async for page in self._cluster.pages(POD):
                found += [pod for pod in map(parse_workload_pod, page) if pod is not None]
        except Refused as error:
            # Other objects must not wait for a right that only services with spec.from.pods need.
            log.warning(f"pods not listed: {error}")
            self._cache, self._problem = PodCache(), REFUSED
            return
        self._cache.end_list(found)
        self._listed_at, self._problem = now, ""
