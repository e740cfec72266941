"""Read the Kubernetes Services that SosServices name as their destination, again and again.

They are read by name, and not watched: a watch would bring all EndpointSlices of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import sos_compile

from sos_operator.cluster.client import Cluster
from sos_operator.core.model.errors import NotReady, Refused
from sos_operator.core.model.kinds import ENDPOINT_SLICE, K8S_SERVICE
from sos_operator.core.workloads.kubernetes_services import (
    SERVICE_NAME_LABEL,
    KubernetesServices,
    Place,
    is_headless,
    parse_kubernetes_service,
)

log = logging.getLogger(__name__)

READ_AGAIN_S = 4.0
"""Minimum age of a Service that is read again; passes follow each other after at most 5 s."""
READ_AT_ONCE = 8
READ_AGAIN_MAX = 100
"""Number of known Services that a pass reads again, oldest first, so that many Services do not slow down the passes."""
REFUSED = "the operator may not read Services: set the chart's value rbac.services"


class ServiceObserver:
    """The named Services, as last read. All methods belong to one event loop."""

    def __init__(self, cluster: Cluster, *, permitted: bool) -> None:
        self._cluster = cluster
        self._permitted = permitted
        self._known: dict[Place, tuple[float, sos_compile.KubernetesService | None]] = {}

    async def see(self, named: Sequence[Place], now: float) -> KubernetesServices:
        """Return the named Services that exist. Raises NotReady if the API server cannot be asked about a Service for the first time."""
        self._known = {place: self._known[place] for place in named if place in self._known}
        if named and not self._permitted:
            return KubernetesServices(problem=REFUSED)
        new = [place for place in named if place not in self._known]
        old = sorted((at, place) for place, (at, _) in self._known.items() if now - at >= READ_AGAIN_S)
        try:
            await self._read_all(new, now)
            await self._again([place for _, place in old[:READ_AGAIN_MAX]], now)
        except Refused as error:
            # Other objects must not wait for a right that only services with spec.to.service need.
            log.warning(f"Services not read: {error}")
            self._known = {}
            return KubernetesServices(problem=REFUSED)
        found = (self._known[place][1] for place in named)
        return KubernetesServices(tuple(each for each in found if each is not None))

    async def _again(self, places: Sequence[Place], now: float) -> None:
        try:
            await self._read_all(places, now)
        except NotReady as error:
            log.warning(f"Services not read again, their last addresses stay in force: {error}")

    async def _read_all(self, places: Sequence[Place], now: float) -> None:
        for first in range(0, len(places), READ_AT_ONCE):
            calls = (self._read(place, now) for place in places[first : first + READ_AT_ONCE])
            for error in filter(None, await asyncio.gather(*calls, return_exceptions=True)):
                raise error

    async def _read(self, place: Place, now: float) -> None:
        namespace, name = place
        service = await self._cluster.get(K8S_SERVICE, name, namespace)
        slices = []
        if service is not None and is_headless(service):
            slices = await self._cluster.list(ENDPOINT_SLICE, namespace, f"{SERVICE_NAME_LABEL}={name}")
        self._known[place] = now, None if service is None else parse_kubernetes_service(service, slices)
