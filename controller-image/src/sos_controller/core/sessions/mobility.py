"""Mobility: sessions follow their hosts to other ports and switches of their site (live migration, address failover; docs/adr/0047).

A host is located by its ARP, its SYNs, and, while it has sessions, by its segments, which a *track* entry at each other switch of its site
copies to the controller. Redirect entries are placed at the new switch first. Redirect entries at the old switch are removed LINGER_S
later, and only where a track entry can replace them: if a host's entries are removed because another host spoofs its address, the next
segment of the real host is copied to the controller and its entries are installed again, so no session breaks.

A host detected where none of our entries matches its packets (at another site, behind an uplink) is looked up by ARP at its own site. If it
does not answer, its sessions are reset at both ends: its packets would reach the peer host, whose connection has other sequence numbers.

Segments that arrive at the new switch before the entries are forwarded to the peer host, which ignores them. Their copies at the controller
are sent from the switch to the agent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from sos_controller.core.commands import PacketOut
from sos_controller.core.openflow.flow_entries import Action, FlowEntry, Goto, Match, Output, Placed, TellApart
from sos_controller.core.openflow.pipeline import (
    ETH_IPV4,
    NOT_SYN,
    OWN_PORTS,
    PORT_CONTROLLER,
    PORT_NORMAL,
    PRIORITY_REDIRECT,
    PRIORITY_TRACK,
    PROTO_TCP,
    TABLE_REDIRECT,
    Kind,
    shared,
)
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.sessions import redirect
from sos_controller.core.sessions.order_sender import OrderSender
from sos_controller.core.sessions.routes import leg_of
from sos_controller.core.sessions.server_lookup import ServerLookup
from sos_controller.core.state import State
from sos_controller.core.tables.sessions import FINAL, PENDING, Session
from sos_controller.core.types import Address, DatapathId, FlowKey, Location, MacAddress
from sos_controller.core.wire.order import OrderType
from sos_controller.core.wire.packets import build_presence, complete_checksum, parse_segment

BATCH: Final = 128
"""Maximum number of sessions moved in one tick (25 ms): 1,000 take a quarter of a second, and no tick takes more than about 15 ms."""
MAX_RESENT: Final = 256
"""Maximum number of copied segments sent to agents in one tick; the hosts retransmit further segments."""
MAX_RESENT_BYTES: Final = 1514
"""Largest frame sent to an agent: larger frames, which await segmentation, lose the size of their segments on the way to the controller."""
MAX_ANNOUNCED: Final = 16
"""Maximum number of moves announced in one tick. Switches learn further hosts' places from the hosts' own packets."""
LINGER_S: Final = 2.0
"""Delay before entries at the old switch are removed: packets in flight through it, or from a host that moves back, still reach the
agent."""
GIVE_UP_S: Final = 60.0
"""Time limit to confirm a host at its new switch. If the host is not confirmed in time, it keeps its entries at both switches."""
FORGET_S: Final = 30.0
"""Time for which a host's track entries outlive its last session, so that sequential connections cause no changes at its site's
switches."""
SWEEP_S: Final = 5.0
MAX_TRACKING: Final = 8_192
"""Maximum number of track entries over all switches. Further hosts are followed only by their ARP packets and SYNs."""
ASK_S: Final = 0.5
ASK_TIMES: Final = 4
"""Number of ARP requests for a host detected out of reach; if none is answered, the host is gone."""
MAX_ASKED: Final = 256
"""Maximum number of hosts being looked up; further hosts are looked up when they are detected out of reach again."""

UNKNOWN: Final = DatapathId(0)
"""Placeholder for the switch of a server whose location is unknown: a new session then has entries at all switches of the server's site."""

_EXACT: Final = 0xFFFFFFFF


class HostSwitches:
    """Switches of a site that have a host's entries: the newest switch, and earlier switches."""

    __slots__ = ("complete", "dpids", "idle_since", "newest", "since", "site", "tracking")

    def __init__(self, site: str, newest: DatapathId, dpids: set[DatapathId], now: float) -> None:
        self.site, self.newest = site, newest
        self.dpids: set[DatapathId] = set()  # with the entries of some session
        self.complete = dpids  # with the entries of every session: a new session has entries at the current switch only
        self.since = self.idle_since = now
        self.tracking = 0  # share of MAX_TRACKING: one for each switch of the site, 0 without track entries


class Move(NamedTuple):
    """Sessions of a host still to be processed: to be placed at its new switch, or removed from its `old` switches."""

    address: Address
    where: Location
    sessions: deque[Session]
    old: frozenset[DatapathId] = frozenset()


class Asked(NamedTuple):
    """A host that was detected out of reach."""

    due: float
    times: int


class Mobility:
    """Locations of hosts with sessions, and the moves of their entries."""

    def __init__(self, state: State, order_sender: OrderSender) -> None:
        self._state, self._order_sender = state, order_sender
        self.give_up: Callable[[Session, Outcome], None] | None = None  # gives up a session that is being set up
        self._where: dict[Address, HostSwitches] = {}
        self._moves: deque[Move] = deque()
        self._moving: dict[Address, HostSwitches] = {}
        self._asked: dict[Address, Asked] = {}
        self._server_lookup = ServerLookup(state)
        self._resent = self._announced = 0  # in this tick
        self._tracking = 0
        self._sweep_at = 0.0

    def __len__(self) -> int:
        """Return the number of hosts followed."""
        return len(self._where)

    def begun(self, session: Session) -> None:
        """Record a session whose entries are being installed at its hosts' switches, or were adopted there."""
        host = self._state.hosts.by_address(session.server)
        self._note(session.client, session.ingress_entries, session.dpid)
        self._note(session.server, session.egress_entries, host.location.dpid if host is not None else UNKNOWN)

    def adopted(self, dpid: DatapathId) -> None:
        """Record sessions of an earlier run with entries on a datapath."""
        for session in self._state.sessions:
            if session.adopted and dpid in session.datapaths():
                self.begun(session)

    def heard(self, mac: MacAddress, addresses: Iterable[Address], location: Location) -> None:
        """Record that packets of a host with these addresses arrived at an edge port."""
        moved = False
        for address in addresses:
            where = self._where.get(address)
            if where is not None and self._state.sessions.has_host(address):
                moved |= self._heard(address, where, location)
        if moved and self._announced < MAX_ANNOUNCED and self._state.learns(location.dpid):
            self._announced += 1
            self._state.out.append(PacketOut(*location, (Output(PORT_NORMAL),), build_presence(mac)))

    def resend(self, where: Location, data: bytes) -> None:
        """Send a copied segment to the agent of its session, if its host is at this switch and the session has an entry there by now."""
        segment = parse_segment(data) if len(data) <= MAX_RESENT_BYTES and self._resent < MAX_RESENT else None
        if segment is None or not self._state.is_edge(where):
            return
        for key, ingress in ((reverse(segment.back), True), (segment.back, False)):
            session = self._state.sessions.by_key(key)
            if session is None or session.state in FINAL:
                continue
            host = self._where.get(session.client if ingress else session.server)
            placed = session.ingress_entries if ingress else session.egress_entries
            entry = next((entry for dpids, entry in placed if where.dpid in dpids and entry.match.in_port is None), None)
            if entry is not None and host is not None and host.newest == where.dpid:
                self._resent += 1
                actions = tuple(Output(PORT_NORMAL) if isinstance(action, Goto) else action for action in entry.actions)
                self._state.out.append(PacketOut(where.dpid, where.port_no, actions, complete_checksum(data)))

    def tick(self) -> None:
        """Continue moves, remove entries after LINGER_S, repeat lookups, forget hosts without sessions."""
        self._resent = self._announced = 0
        self._work()
        busy = {move.address for move in self._moves}
        for address in [address for address in self._moving if address not in busy]:
            self._leave(address, self._moving[address])
        for address, asked in list(self._asked.items()):
            if asked.due <= self._state.now:
                self._ask(address, asked)
        if self._state.now >= self._sweep_at:
            self._sweep_at = self._state.now + SWEEP_S
            self._sweep()

    def replan(self) -> None:
        """Update track entries, since the switches of sites may have changed."""
        for address, where in self._where.items():
            self._track(address, where)

    # -- locations of hosts

    def _note(self, address: Address, placed: Iterable[Placed], newest: DatapathId) -> None:
        """Record that a host has entries at these switches."""
        state, where = self._state, self._where.get(address)
        dpids = {dpid for those, _ in placed for dpid in those}
        if where is None:
            claim = next((state.claims[dpid] for dpid in dpids if dpid in state.claims), None)
            if claim is None:
                return
            where = self._where[address] = HostSwitches(claim[0].name, UNKNOWN, set(dpids), state.now)
        if where.newest == UNKNOWN and newest in dpids:
            where.newest = newest
        if not dpids <= where.dpids or not where.complete <= dpids:
            where.dpids |= dpids
            where.complete &= dpids
            self._track(address, where)

    def _heard(self, address: Address, where: HostSwitches, location: Location) -> bool:
        """Record the place of a host with sessions. Return whether the host has moved there from another switch of its site."""
        state, dpid = self._state, location.dpid
        site, datapath = state.claims[dpid]
        if site.name != where.site or (datapath.forwarding == "Node" and location.port_no in OWN_PORTS):
            if address not in self._asked and len(self._asked) < MAX_ASKED:
                self._asked[address] = Asked(state.now, 0)
            return False
        self._asked.pop(address, None)
        if where.newest == dpid and dpid in where.complete:
            return False
        before, where.newest, where.since = where.newest, dpid, state.now
        moved = before not in (UNKNOWN, dpid)
        if moved:
            self._moving[address] = where
            state.count("moves", "followed")
        if dpid not in where.complete:
            where.dpids.add(dpid)
            where.complete.add(dpid)
            self._track(address, where)
            self._moves.append(Move(address, location, deque(state.sessions.of_host(address))))
            self._work()
        return moved

    # -- entries of sessions

    def _work(self) -> None:
        """Process at most BATCH sessions."""
        for _ in range(BATCH):
            while self._moves and not self._moves[0].sessions:
                self._moves.popleft()
            if not self._moves:
                return
            move = self._moves[0]
            session = move.sessions.popleft()
            if session.state in FINAL:
                continue
            if move.old:
                self._withdraw(session, move)
            else:
                self._place(session, move)

    def _place(self, session: Session, move: Move) -> None:
        """Install the entries of the host's side also at its new switch."""
        for ingress, placed in _sides(session, move.address):
            agent_id = session.ingress if ingress else session.egress
            if ingress:
                session.dpid, session.in_port = move.where
            if agent_id in session.ended_by or _stands(placed, move.where.dpid):
                continue
            agent = self._state.agents.get(agent_id)
            if agent is None:  # the controller has restarted: the agent's beacon arrives soon, or its sessions end
                self._moves.append(Move(move.address, move.where, deque((session,))))
                continue
            leg = leg_of(self._state, agent, ingress, session.client_port)
            self._install(session, redirect.redirects(session.key, leg, move.where.dpid, self._cookie(session)), placed)

    def _install(self, session: Session, made: list[Placed], placed: list[Placed]) -> None:
        state = self._state
        placed.extend(made)
        for dpids, entry in made:
            state.programmer.install(dpids, entry, partial(self._placed, session), state.out)

    def _cookie(self, session: Session) -> int:
        return self._state.cookie(Kind.REDIRECT, session.number)

    def _placed(self, session: Session, done: bool) -> None:
        """Handle a switch's answer: the entry is installed or refused, or the switch is disconnected."""
        if not done and session.state not in FINAL:
            self.reset(session, Outcome.NOT_FOLLOWED)

    def _leave(self, address: Address, where: HostSwitches) -> None:
        """Remove a host's entries from its former switches, once its location is certain and track entries can replace them."""
        state, age = self._state, self._state.now - where.since
        host = state.hosts.by_address(address)
        if age < LINGER_S:
            return
        if host is None or host.location.dpid != where.newest:
            if age >= GIVE_UP_S:
                del self._moving[address]
            return
        del self._moving[address]
        if self._can_track(where):
            old = frozenset(where.dpids - {where.newest})
            where.dpids, where.complete = {where.newest}, {where.newest}
            self._track(address, where)
            self._moves.append(Move(address, host.location, deque(state.sessions.of_host(address)), old))

    def _withdraw(self, session: Session, move: Move) -> None:
        """Remove the entries of the host's side from its former switches."""
        state = self._state
        for _, placed in _sides(session, move.address):
            kept: list[Placed] = []
            for dpids, entry in placed:
                gone = tuple(d for d in dpids if d in move.old) if entry.priority == PRIORITY_REDIRECT else ()
                if gone:
                    state.programmer.remove(gone, entry, state.out)
                if len(gone) < len(dpids):
                    kept.append((tuple(d for d in dpids if d not in gone), entry))
            placed[:] = kept

    # -- track entries

    def _can_track(self, where: HostSwitches) -> bool:
        """Return whether each switch of a host's site that has none of the host's entries copies the host's segments to the controller."""
        site = self._state.sites.get(where.site)
        return where.tracking > 0 and site is not None and all(d.forwarding == "Node" for d in site.datapaths)

    def _track(self, address: Address, where: HostSwitches) -> None:
        """Install track entries for a host at the other switches of its site."""
        state, site = self._state, self._state.sites.get(where.site)
        dpids = [] if site is None else [d.number for d in site.datapaths if d.forwarding == "Node"]
        needed = len(dpids) if len(dpids) > 1 and self._tracking - where.tracking + len(dpids) <= MAX_TRACKING else 0
        self._tracking += needed - where.tracking
        where.tracking = needed
        entries = (
            {dpid: (self._track_entry(address),) for dpid in dpids if dpid not in where.complete and dpid != where.newest} if needed else {}
        )
        state.programmer.set_group(("track", address), entries, state.out)

    def _track_entry(self, address: Address) -> FlowEntry:
        cookie = self._state.cookie(Kind.TRACK)
        match = Match(eth_type=ETH_IPV4, ip_proto=PROTO_TCP, ipv4_src=(address, _EXACT), tcp_flags=NOT_SYN, reg0=0)
        actions: tuple[Action, ...] = (TellApart("both"), Output(PORT_CONTROLLER))
        return FlowEntry(TABLE_REDIRECT, shared(PRIORITY_TRACK, cookie), match, actions, cookie)

    def _sweep(self) -> None:
        """Forget hosts that have had no session for FORGET_S."""
        state = self._state
        for address, where in list(self._where.items()):
            if state.sessions.has_host(address):
                where.idle_since = state.now
            elif state.now - where.idle_since >= FORGET_S:
                del self._where[address]
                self._moving.pop(address, None)
                self._asked.pop(address, None)
                self._tracking -= where.tracking
                state.programmer.set_group(("track", address), {}, state.out)

    # -- hosts out of reach

    def _ask(self, address: Address, asked: Asked) -> None:
        """Send an ARP request for a host at its own site; a host that has moved away does not answer."""
        state, where = self._state, self._where.get(address)
        if where is not None and asked.times < ASK_TIMES:
            self._asked[address] = Asked(state.now + ASK_S, asked.times + 1)
            self._server_lookup.ask(where.site, address)
            return
        del self._asked[address]
        for session in state.sessions.of_host(address):
            self.reset(session, Outcome.MOVED_AWAY)

    def end(self, fragmented: Iterable[Session]) -> None:
        """Reset sessions whose hosts send fragments."""
        for session in fragmented:
            self.reset(session, Outcome.FRAGMENTS)

    def reset(self, session: Session, why: Outcome) -> None:
        """Reset a session at both hosts, so that neither waits for the other; give up a session that is still being set up."""
        if session.state in PENDING and self.give_up is not None:
            self.give_up(session, why)
            return
        self._state.count("sessions", why.text)
        for agent in (session.ingress, session.egress):
            self._order_sender.send_to(agent, OrderType.ABORT, session.uuid)


def reverse(key: FlowKey) -> FlowKey:
    """Return the key of the flow in the other direction."""
    return FlowKey(key[4:8] + key[:4] + key[10:] + key[8:10])


def _sides(session: Session, address: Address) -> list[tuple[bool, list[Placed]]]:
    """Return the sides of a session that a host is on, and their entries."""
    ends = ((True, session.client, session.ingress_entries), (False, session.server, session.egress_entries))
    return [(ingress, placed) for ingress, host, placed in ends if host == address]


def _stands(placed: Iterable[Placed], dpid: DatapathId) -> bool:
    """Return whether a side has its entry at a datapath. At the switch of an agent that rewrites, this entry rewrites addresses."""
    return any(dpid in dpids for dpids, _ in placed)
