"""Edge of the election: carries out role requests, and begins and ends the terms of this replica (`core.openflow.election` decides).

With one replica, there is no election: the controller has role EQUAL at its switches and is always active. Once a configuration has had
several replicas, this process takes part in elections until it ends, since another replica may still run.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Collection
from typing import Any, Protocol

from sos_controller.core.openflow.election import Election, Role, RoleReport, RoleRequest
from sos_controller.core.types import DatapathId, format_dpid
from sos_controller.openflow import ofp

LOG = logging.getLogger("sos_controller.mastership")


class Owner(Protocol):
    """The controller, as far as an election needs it."""

    def connections(self) -> Collection[DatapathId]:
        """Return the datapaths that are connected."""

    def claims(self, dpid: DatapathId, /) -> bool:
        """Return whether the configuration in force names a datapath."""

    def send(self, dpid: DatapathId, message: bytes, /) -> None:
        """Send a message to a datapath now."""

    def begin(self, term: int | None, /) -> None:
        """Become active in a term, or a standby (None), in both cases without switches."""

    def join(self, dpid: DatapathId, /) -> None:
        """Use a datapath, which has granted role MASTER."""

    def count(self, what: str, which: str = "", /) -> None:
        """Count for the metrics."""


class Mastership:
    """Role of this replica, and the switches that it may use."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._election: Election | None = None
        self._term: int | None = None
        self._channels: set[DatapathId] = set()
        """Claimed datapaths that are connected."""
        self._joined: set[DatapathId] = set()
        """Datapaths that the engine knows in this term."""

    @property
    def elects(self) -> bool:
        """Return whether there may be other replicas."""
        return self._election is not None

    @property
    def is_active(self) -> bool:
        """Return whether this replica sets up connections."""
        return self._election is None or self._term is not None

    def configure(self, replicas: int, used: Collection[DatapathId]) -> None:
        """Handle a configuration that has just been applied. `used`: datapaths in use. A controller that gets replicas while it uses
        switches stays active."""
        if self._election is None and replicas > 1:
            self._election = Election(secrets.randbits(31))
            self._match_channels()
            if used:
                self._election.claim(time.monotonic(), time.time())
                self._term, self._joined = self._election.term, set(self._channels)
            LOG.info("taking part in elections, %s", "active" if used else "standby")
        self._match_channels()

    def connected(self, dpid: DatapathId) -> None:
        """Handle a switch that has connected."""
        self._lose(dpid)
        self._match_channels()

    def disconnected(self, dpid: DatapathId) -> None:
        """Handle a lost connection."""
        self._lose(dpid)

    def reported(self, dpid: DatapathId, report: RoleReport) -> None:
        """Handle a switch's report about roles."""
        election = self._election
        if election is None:
            return
        was_supported = election.is_supported(dpid)
        self._send(election.reported(dpid, report, time.monotonic()))
        if was_supported and not election.is_supported(dpid):
            LOG.warning("datapath %s does not support roles: it is not used, since there are several replicas", format_dpid(dpid))
            self._owner.count("role_changes", "unsupported")
        self._follow(election)

    def tick(self) -> None:
        """Send requests that are due, and begin a term if the active replica is gone."""
        if self._election is not None:
            requests = self._election.tick(time.monotonic(), time.time())
            self._follow(self._election)
            self._send(requests)

    def vacate(self) -> None:
        """Let a standby become active without waiting; this replica has sent its last change."""
        if self._election is not None:
            self._send(self._election.vacate(time.monotonic()))
            self._owner.count("role_changes", "vacated")

    def standing_by(self) -> int:
        """Return the number of switches at which this replica is a SLAVE, so that it can take over."""
        return 0 if self._election is None or self._term is not None else self._election.channels(Role.SLAVE)

    def report(self) -> dict[str, Any]:
        """Return the role of this replica, for the API."""
        if self._election is None:
            return {"role": "Equal", "active": True}
        role = Role.SLAVE if self._term is None else Role.MASTER
        return {
            "role": role.name.capitalize(),
            "active": self._term is not None,
            "generationId": f"{self._election.newest():016x}",
            "datapathsInRole": self._election.channels(role),
        }

    def _match_channels(self) -> None:
        """Elect by the switches that are claimed and connected."""
        election = self._election
        if election is None:
            return
        wanted = {dpid for dpid in self._owner.connections() if self._owner.claims(dpid)}
        for dpid in self._channels - wanted:
            self._lose(dpid)
        for dpid in sorted(wanted - self._channels):
            election.opened(dpid)
        self._channels = wanted

    def _lose(self, dpid: DatapathId) -> None:
        self._channels.discard(dpid)
        self._joined.discard(dpid)
        if self._election is not None:
            self._election.closed(dpid)

    def _send(self, requests: list[RoleRequest]) -> None:
        for dpid, role, generation_id, number in requests:
            self._owner.send(dpid, ofp.role_request(number & 0xFFFFFFFF, role, generation_id))

    def _follow(self, election: Election) -> None:
        """Carry out the election's decisions."""
        if election.term != self._term:
            self._term = election.term
            self._joined.clear()
            if self._term is None:
                LOG.warning("standby: another replica is active")
            else:
                LOG.info("active in term %d", self._term)
            self._owner.count("role_changes", "resigned" if self._term is None else "claimed")
            self._owner.begin(self._term)
        for dpid in [dpid for dpid in sorted(self._channels - self._joined) if election.is_master(dpid)]:
            self._joined.add(dpid)
            self._owner.join(dpid)
