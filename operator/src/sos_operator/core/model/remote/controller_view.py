"""Last known state of each controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

# Age from which a controller's last answer counts as missing. With polls every 2 s while anything is pending, requests of up to 2 s and one
# retry, no reported status is then older than 10 s.
UNREACHABLE_AFTER_S = 4.0
COUNT_MAX = 2**53
"""Maximum of a count: larger numbers are invalid, and some programs cannot read them."""


@dataclass(frozen=True, kw_only=True)  # without slots, for the index below
class ControllerView:
    """One controller as its API describes it."""

    name: str
    asked: bool = True
    """False for an External controller without apiURL: the operator cannot query the controller."""
    status: Mapping[str, Any] | None = None
    """The last answer to GET /v1/status, None if it is too old or missing."""
    error: str = ""
    """Reason of a missing answer."""
    push_error: str = ""
    """Reason why the controller refused the configuration."""
    wanted_hash: str = ""
    """Hash of the configuration that the controller should have."""
    has_token: bool = True
    """True if a bearer token for the controller exists."""
    awaited: bool = False
    """True while a request to the controller is pending and its last answer is still fresh: conditions wait for the new answer."""
    standby: ControllerView | None = None
    """The replica that is not active, if the controller has two."""

    @property
    def reachable(self) -> bool:
        """True if the controller has answered recently."""
        return self.status is not None

    @property
    def current(self) -> bool:
        """True if the configuration in force is the wanted one."""
        return bool(self.wanted_hash) and self.config("hash") == self.wanted_hash

    def config(self, key: str) -> Any:
        """A field of the configuration in force, None if unknown."""
        return config_of(self.status).get(key)

    def own(self, key: str) -> Any:
        """A field of the controller's description of itself, None if unknown."""
        found = (self.status or {}).get("controller")
        return found.get(key) if isinstance(found, Mapping) else None

    def listed(self, key: str) -> list[Mapping[str, Any]]:
        """A list of objects of the status; empty if the answer has no valid list."""
        value = (self.status or {}).get(key)
        return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []

    def count(self, key: str) -> int:
        """A number of the status, 0 if the value is not a number."""
        return counted((self.status or {}).get(key))

    def connected(self) -> frozenset[str]:
        """Ids of connected datapaths."""
        return frozenset(str(d.get("dpid")) for d in self.listed("datapaths") if d.get("connected") is True)

    def agents(self) -> frozenset[str]:
        """Ids of registered agents."""
        return frozenset(str(a.get("id")) for a in self.listed("agents"))

    def service(self, id_: str) -> Mapping[str, Any] | None:
        """Return the controller's state of a service."""
        return self._services.get(id_)

    def link(self, a: tuple[str, str], b: tuple[str, str]) -> bool | None:
        """Return the state of a declared link, by (site, uplink) of its ends: True if up, None if unknown."""
        return self._links.get(frozenset((a, b)))

    @cached_property
    def _links(self) -> Mapping[frozenset[tuple[str, str]], bool]:
        found = {}
        for declared in self.listed("declaredLinks"):
            ends = [declared.get(end) for end in ("a", "b")]
            keys = frozenset((str(end.get("site")), str(end.get("uplink"))) for end in ends if isinstance(end, Mapping))
            found[keys] = declared.get("up") is True
        return found

    @cached_property
    def _services(self) -> Mapping[str, Mapping[str, Any]]:
        # Indexed, because every pass looks up each of up to a thousand services.
        return {str(s.get("id")): s for s in reversed(self.listed("services"))}


def join_replicas(first: ControllerView, second: ControllerView) -> ControllerView:
    """Return the view of a controller with two replicas: of the active one, with the other as its standby. Of two that report to be active,
    the one with the newer generation id is: the other has been replaced, and has not noticed it or does not answer any more."""
    active = [view for view in (first, second) if view.reachable and view.own("active") is not False]
    if not active:
        error = first.error or second.error if not (first.reachable or second.reachable) else "none of its replicas is active"
        return replace(first, status=None, error=error, push_error=first.push_error or second.push_error, standby=second)
    newest = max(active, key=lambda view: str(view.own("generationId") or ""))
    return replace(newest, standby=second if newest is first else first)


def config_of(status: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the configuration in force according to a status; empty if it names none."""
    config = (status or {}).get("config")
    return config if isinstance(config, Mapping) else {}


def counted(value: Any) -> int:
    """Clamp a received count to COUNT_MAX; 0 if the value is no count."""
    return min(value, COUNT_MAX) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def ids(row: Mapping[str, Any], key: str) -> frozenset[str]:
    """Return the ids in a received row; none if the value is no list."""
    value = row.get(key)
    return frozenset(str(item) for item in value) if isinstance(value, list) else frozenset()


@dataclass(frozen=True, slots=True)
class Heard:
    """The last good answer of one controller, and its time of arrival (monotonic seconds)."""

    at: float = float("-inf")
    status: Mapping[str, Any] | None = field(default=None)


def fresh_status(heard: Heard, now: float) -> Mapping[str, Any] | None:
    """The last answer, None once it is too old."""
    return heard.status if now - heard.at <= UNREACHABLE_AFTER_S else None
