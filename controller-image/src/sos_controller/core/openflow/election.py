"""Election of the active controller among the replicas of one controller, by the roles of their switches (OpenFlow 1.3.5, 6.3.5).

Replicas do not talk to each other; the generation id of each switch is the only state that they share:

- generation id = term (32 bits) and beat (32 bits). A switch refuses a role request whose generation id is older than the last one.
- The active replica repeats its request for role MASTER at every switch with the next beat, so its generation id advances. Beats never
  reach the next term, so a replica that was stopped cannot return to a switch that another replica has claimed.
- A standby has role SLAVE and reads the generation ids. If none has advanced for the expiry, it claims the next term: it requests role
  MASTER with a newer generation id, and each switch makes the former holder a SLAVE, whose changes and packet-outs it refuses.
- The first beat of a term is random, so that two replicas that claim the same term at the same time have different generation ids: the
  newer one wins at every switch.
- An active replica that is refused somewhere resigns everywhere and waits twice as long before it claims again.
- A replica that stops vacates its term: beat 0 of the next term, after which a standby claims without waiting.

Terms are seconds since 1970, or the former term and one, if that is more. So a term is also the most significant part of a boot id.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple

from sos_controller.core.types import DatapathId

BEAT_S: Final = 0.2
"""Interval of role requests to each switch."""
EXPIRY_S: Final = 1.0
"""Time without an advance of any generation id after which a standby claims: five beats. A killed replica is replaced three beats later
at most; agents' beacons then take up to a second, and set-up has to be back within 3 s."""
MAX_EXPIRY_S: Final = 20.0
"""Maximum of the expiry, which doubles with each term that this replica has lost, except for a claim at the same time as another one."""
CALM_S: Final = 60.0
"""Time after the last loss of a term after which the expiry is EXPIRY_S again."""
MAX_KNOWN: Final = 8_192
"""Maximum number of switches whose last generation id is remembered after their connection is lost: twice the datapaths of a
configuration."""
ROUNDS_KEPT: Final = 64
"""Number of rounds of requests whose answers count: 13 s."""

_BITS: Final = 32
_BEATS: Final = 1 << _BITS
_ALL: Final = (1 << 64) - 1
UNDEFINED: Final = _ALL
"""Generation id in the answer of a switch that has none yet (OpenFlow 1.3.5, 7.3.9)."""


class Role(IntEnum):
    """Roles of ofp_role_request (OpenFlow 1.3.5, 7.3.9)."""

    NOCHANGE = 0
    EQUAL = 1
    MASTER = 2
    SLAVE = 3


class RoleRequest(NamedTuple):
    """A role request to send. `number` identifies its round."""

    dpid: DatapathId
    role: Role
    generation_id: int
    number: int


class Granted(NamedTuple):
    """A switch has answered a role request with its role for this replica and its generation id."""

    number: int
    role: int
    generation_id: int


class Refused(NamedTuple):
    """A switch has refused a role request. `stale`: it has a newer generation id. Otherwise it does not support roles, and a replica leaves
    it alone, because nothing would exclude the former active replica from it."""

    number: int
    stale: bool


class Demoted(NamedTuple):
    """A switch has refused a change or a packet-out, because this replica is a SLAVE there."""


RoleReport = Granted | Refused | Demoted


class _Channel:
    """A connected switch."""

    __slots__ = ("asked_with", "role", "supported")

    def __init__(self) -> None:
        self.asked_with = 0
        """Number of the round of the last request for role SLAVE."""
        self.role: Role | None = None
        """Role in the switch's last answer in this term."""
        self.supported = True


def is_newer(one: int, other: int) -> bool:
    """Return whether a generation id is newer than another, in the circular order of switches (OpenFlow 1.3.5, 6.3.5)."""
    return 0 < (one - other & _ALL) < 1 << 63


def is_vacant(generation_id: int) -> bool:
    """Return whether the last active replica has vacated its term."""
    return generation_id % _BEATS == 0


class Election:
    """State of one replica. `now` is in monotonic seconds."""

    def __init__(self, first_beat: int) -> None:
        self.term: int | None = None
        """The term in which this replica is active, None while it is a standby."""
        self.generation_id = 0
        """The generation id of the last request for MASTER or of the last vacated term; valid if `term` is, or was, set."""
        self._first_beat = first_beat % (_BEATS // 2) + 1
        self._channels: dict[DatapathId, _Channel] = {}
        self._seen: dict[DatapathId, int] = {}
        """Last generation id of each switch, also of those that are disconnected."""
        self._newest: int | None = None
        self._advanced_at: float | None = None
        """Time of the answer in which a generation id had advanced."""
        self._unchanged_until: float | None = None
        """Transmission time of the last request whose answer showed no advance."""
        self._expiry_s = EXPIRY_S
        self._lost_at = float("-inf")
        self._sent_at = float("-inf")
        self._number = 0
        self._claimed_with = 0  # number of the first round of this term
        self._claimed_at = float("-inf")
        self._shifted_with = 0  # number of the round after which the rhythm was shifted last
        self._rounds: dict[int, float] = {}
        self._over = False
        """True once this replica has vacated a term."""

    # -- observations

    def opened(self, dpid: DatapathId) -> None:
        """Handle a switch that has connected."""
        self._channels[dpid] = _Channel()
        self._sent_at = float("-inf")  # its role is due now

    def closed(self, dpid: DatapathId) -> None:
        """Handle a lost connection."""
        self._channels.pop(dpid, None)

    def reported(self, dpid: DatapathId, report: RoleReport, now: float) -> list[RoleRequest]:
        """Handle a switch's report. Return the request that follows at once: a standby requests role SLAVE with the generation id that it
        has just read, before the active replica advances it."""
        channel = self._channels.get(dpid)
        if channel is None:
            return []
        if isinstance(report, Granted):
            return self._granted(dpid, channel, report, now)
        if isinstance(report, Demoted):
            if self.is_master(dpid):
                self._resign(now)
        elif not report.stale:
            channel.supported = False
        elif self.term is None:
            self._shift()
        elif report.number >= self._claimed_with:
            self._resign(now)
        return []

    def _shift(self) -> None:
        """Make the next round earlier, once: the active replica has advanced a generation id between its reading and the request for role
        SLAVE, and would do so again if both kept their rhythm."""
        if self._shifted_with != self._number:
            self._shifted_with = self._number
            self._sent_at -= BEAT_S / 3

    def _granted(self, dpid: DatapathId, channel: _Channel, report: Granted, now: float) -> list[RoleRequest]:
        if self.term is None:
            channel.role = _role(report.role)
            self._observe(dpid, report.generation_id, self._rounds.get(report.number), now)
            if channel.role is Role.SLAVE or self._over or channel.asked_with == self._number:
                return []
            channel.asked_with = self._number  # once per round, whatever the switch answers
            # A newer generation id than the switch's would end the term of the active replica.
            known = 0 if report.generation_id == UNDEFINED else report.generation_id
            return [RoleRequest(dpid, Role.SLAVE, known, self._number)]
        if report.number >= self._claimed_with:  # not of a request before this term
            if is_newer(report.generation_id, self.generation_id):
                self._resign(now)
            else:
                channel.role = _role(report.role)
        return []

    # -- state

    def is_master(self, dpid: DatapathId) -> bool:
        """Return whether a switch has granted role MASTER in this term."""
        channel = self._channels.get(dpid)
        return self.term is not None and channel is not None and channel.role is Role.MASTER

    def newest(self) -> int:
        """Return the newest generation id that this replica knows."""
        return self.generation_id if self.term is not None else self._newest or 0

    def channels(self, role: Role) -> int:
        """Return the number of connected switches that have granted a role."""
        return sum(channel.role is role for channel in self._channels.values())

    def is_supported(self, dpid: DatapathId) -> bool:
        """Return whether a switch supports roles, as far as known."""
        channel = self._channels.get(dpid)
        return channel is None or channel.supported

    # -- decisions

    def tick(self, now: float, wall_s: float) -> list[RoleRequest]:
        """Return the requests that are due; become active if no generation id has advanced for the expiry."""
        if self.term is None and self._may_claim(now):
            self.claim(now, wall_s)
        if self._over or now - self._sent_at < BEAT_S:
            return []
        self._sent_at = now
        number = self._next_number(now)
        channels = [dpid for dpid, channel in self._channels.items() if channel.supported]
        if self.term is not None:
            self.generation_id = self.generation_id + 1 & _ALL
            return [RoleRequest(dpid, Role.MASTER, self.generation_id, number) for dpid in channels]
        return [RoleRequest(dpid, Role.NOCHANGE, 0, number) for dpid in channels]

    def claim(self, now: float, wall_s: float) -> None:
        """Become active in the next term. The caller may do so without an election only for a controller that was active before."""
        self.term = self._next_term(wall_s)
        self.generation_id = self.term << _BITS | self._first_beat
        self._claimed_with, self._claimed_at = self._number + 1, now
        self._sent_at = float("-inf")
        for channel in self._channels.values():
            channel.role = None

    def vacate(self, now: float) -> list[RoleRequest]:
        """Give up the term, so that a standby claims without waiting; return the requests. This replica does not claim any more."""
        if self.term is None:
            return []
        self.generation_id = (self.term + 1) % _BEATS << _BITS
        self.term, self._over = None, True
        number = self._next_number(now)
        return [RoleRequest(dpid, Role.SLAVE, self.generation_id, number) for dpid, channel in self._channels.items() if channel.supported]

    def _observe(self, dpid: DatapathId, generation_id: int, asked_at: float | None, now: float) -> None:
        before, newest = self._seen.get(dpid), self._newest
        self._remember(dpid, generation_id)
        newer = generation_id != UNDEFINED and (newest is None or is_newer(generation_id, newest))
        advanced = newer if before is None else generation_id != before
        if newer:
            self._newest = generation_id
        if advanced or self._advanced_at is None:
            self._advanced_at = now
        elif asked_at is not None:
            self._unchanged_until = asked_at if self._unchanged_until is None else max(self._unchanged_until, asked_at)

    def _remember(self, dpid: DatapathId, generation_id: int) -> None:
        self._seen.pop(dpid, None)
        if len(self._seen) >= MAX_KNOWN:
            del self._seen[next(iter(self._seen))]
        self._seen[dpid] = generation_id

    def _may_claim(self, now: float) -> bool:
        if now - self._lost_at > CALM_S:
            self._expiry_s = EXPIRY_S
        if self._advanced_at is None or self._over:
            return False
        if self._newest is not None and is_vacant(self._newest):
            return True
        return self._unchanged_until is not None and self._unchanged_until - self._advanced_at >= self._expiry_s

    def _resign(self, now: float) -> None:
        """Become a standby. Everything this replica has sent since is refused by switches that have another MASTER."""
        self.term = None
        self._newest = self.generation_id if self._newest is None or is_newer(self.generation_id, self._newest) else self._newest
        self._advanced_at, self._unchanged_until = now, None
        if now - self._claimed_at > EXPIRY_S / 2:
            self._expiry_s, self._lost_at = min(2 * self._expiry_s, MAX_EXPIRY_S), now
        self._sent_at = float("-inf")
        for channel in self._channels.values():
            channel.role = None

    def _next_term(self, wall_s: float) -> int:
        term = int(wall_s) % _BEATS
        if self._newest is None:
            return term
        former = self._newest >> _BITS
        return term if is_newer(term << _BITS, former << _BITS) else (former + 1) % _BEATS

    def _next_number(self, now: float) -> int:
        self._number += 1
        self._rounds[self._number] = now
        self._rounds.pop(self._number - ROUNDS_KEPT, None)
        return self._number


def _role(number: int) -> Role | None:
    return Role(number) if number in _KNOWN else None


_KNOWN: Final = frozenset(int(role) for role in Role)
