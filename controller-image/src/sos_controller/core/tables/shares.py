"""Shares: maximum fraction of a site's sessions for the services of one namespace (spec/controller-config.md clause 3, docs/adr/0049).

Connections over the share stay plain TCP, so that a namespace that opens many connections leaves sessions to other namespaces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sos_controller.core.config import Service, Share, Site
from sos_controller.core.tables.sessions import Group

ALL = 100


class Shares:
    """The bounds in force, by service."""

    def __init__(self, services: Iterable[Service] = (), sites: Mapping[str, Site] | None = None) -> None:
        given = {(site.name, share.namespace): share for site in (sites or {}).values() for share in site.shares}
        self._percent = {key: share.percent for key, share in given.items()}
        self.groups: dict[str, tuple[Group, ...]] = {}
        """Groups in which sessions of a service are counted: one for each of the service's two sites that has a share for the service's
        namespace."""
        for service in services if given else ():
            bounded = tuple(key for key in keys_of(service) if key in given)
            if bounded:
                self.groups[service.id] = bounded

    def allows(self, service: str, used: Mapping[Group, int], capacity: Callable[[str], int]) -> bool:
        """Return whether a service may have one more session. `capacity`: sum of the session limits of a site's agents."""
        return all(used.get(key, 0) * ALL < self._percent[key] * capacity(key[0]) for key in self.groups.get(service, ()))


class Bound(NamedTuple):
    """A share that prevents a service from being proactive."""

    site: str
    share: Share


def keys_of(service: Service) -> tuple[Group, Group]:
    """Return the namespace of a service at its two sites."""
    namespace = service.id.partition("/")[0]
    return (service.from_.site, namespace), (service.to.site, namespace)


def counted_one_by_one(service: Service, sites: Mapping[str, Site]) -> Bound | None:
    """Return the share that requires a decision for each connection of a service, None if there is none."""
    for site, namespace in keys_of(service):
        for share in sites[site].shares:
            if share.namespace == namespace and not share.standing:
                return Bound(site, share)
    return None
