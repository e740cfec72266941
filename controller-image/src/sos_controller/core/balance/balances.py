"""Balances: decisions, ARP and desired entries for spreading a host's connections over uplinks without agents (docs/adr/0013).

State per connection: its key while it has entries, and its uplink for RECENT_S, for retransmissions of its SYN that were punted before the
entries were installed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from sos_controller.core.balance import arp as balance_arp
from sos_controller.core.balance import entries as balance_entries
from sos_controller.core.balance import ovs_round_robin
from sos_controller.core.balance.entries import MAX_CONDITIONS, ResolvedBalance, UplinkRoute
from sos_controller.core.balance.ovs_round_robin import MAX_PORT, Learned
from sos_controller.core.balance.policy import Policy, policies, port_of
from sos_controller.core.balance.weighted_round_robin import WeightedRoundRobin
from sos_controller.core.commands import Apply, PacketOut
from sos_controller.core.config import BalanceUplink
from sos_controller.core.openflow.flow_entries import Action, FlowEntry, Match, Output, ToGroup
from sos_controller.core.openflow.groups import GroupTable, group_id
from sos_controller.core.openflow.pipeline import (
    GATEWAY_MAC,
    LEASE_RENEWAL_S,
    PORT_CONTROLLER,
    PRIORITY_CONNECTION,
    SETTLE_S,
    Kind,
    cookie_kind,
    cookie_number,
)
from sos_controller.core.openflow.pipeline import cookie as cookie_of
from sos_controller.core.state import State, Switch
from sos_controller.core.tables.service_state import ProgrammedReason
from sos_controller.core.topology.neighbours import Neighbours
from sos_controller.core.types import Address, DatapathId, FlowKey, Location, MacAddress, Port, PortNo, format_dpid, parse_address
from sos_controller.core.wire.packets import Arp, Syn, build_arp_reply, build_arp_request, complete_checksum, is_claim, parse_syn

CHECK_S = 0.25
GROUP_AFTER_S = 3.0
"""Time after a datapath connects during which its groups are made only if all routers have answered: adding an uplink to a group later
moves existing connections to other uplinks."""
MAX_CONNECTIONS = 65_536
"""Maximum number of connections of one datapath with their own entries; further connections use the group."""
MAX_RECENT = 16_384
RECENT_S = 130.0
"""Time for which the uplink of a SYN is remembered, so that retransmissions use the same uplink: Linux retransmits a SYN for 127 s."""

Json = dict[str, Any]


class Balances:
    """All balances, with their neighbours and groups."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._neighbours = Neighbours()
        self._groups = GroupTable()
        self._policies: dict[DatapathId, list[Policy]] = {}
        self._ready: dict[str, ResolvedBalance] = {}
        self._round_robins: dict[str, WeightedRoundRobin] = {}
        self._answers: dict[str, list[FlowEntry]] = {}
        self._recent: OrderedDict[tuple[DatapathId, FlowKey], tuple[bytes, str, float]] = OrderedDict()
        self._live: dict[DatapathId, dict[FlowKey, int]] = {}
        self._check_at = self._renew_at = 0.0

    def configure(self) -> None:
        """Index the configuration in force."""
        config = self._state.config
        self._policies = policies(config.balances if config is not None else ())
        there = {p.balance.id for p in self._all()}
        self._answers = {i: answers for i, answers in self._answers.items() if i in there}
        self._neighbours.keep({place for p in self._all() for place in (p.host, *map(p.router, p.balance.uplinks))})
        self._state.dirty.add("balance")

    # -- messages of switches

    def syn(self, switch: Switch, in_port: PortNo, data: bytes) -> None:
        """Choose the uplink of a punted first packet. Without a usable uplink, drop the packet; its host retransmits it."""
        state, syn = self._state, parse_syn(data)
        policy = None if syn is None else next((p for p in self._policies.get(switch.dpid, ()) if p.covers(syn)), None)
        ready = None if policy is None else self._ready.get(policy.balance.id)
        if syn is None or policy is None or ready is None:
            state.count("balance_left", "dropped")
            return
        actions: tuple[Action, ...] = (ToGroup(ready.group_id),)
        after_s = 0.0
        if policy.balance.at == "Controller" and self._has_room(switch.dpid, syn.key):
            way = self._choose(switch, syn, ready)
            if way is None:
                state.count("balance_left", "dropped")
                return
            actions = balance_entries.out_actions(way)
            after_s = self._assign(switch, syn, policy, ready, way)
        else:
            state.count("balance_left", "group")
        state.out.append(PacketOut(switch.dpid, in_port, actions, complete_checksum(data), after_s))

    def arp(self, switch: Switch, in_port: PortNo, packet: Arp) -> bool:
        """Handle an ARP packet copied to the controller. Return True if it arrived on an uplink, where the site has no hosts."""
        mine = self._policies.get(switch.dpid)
        if not mine:
            return False
        uplinks = [(p, u) for p in mine for u in p.balance.uplinks if port_of(switch, u) == in_port]
        for policy, uplink in uplinks:
            if packet.sender == uplink.router:
                self._neighbours.hear(policy.router(uplink), packet.sender_mac, in_port, self._state.now)
            if switch.is_ours and packet.request and packet.target == uplink.ip:
                self._answer(switch, in_port, packet, switch.ports[in_port].mac)
                return True
        if not uplinks:
            self._host_arp(switch, in_port, packet, mine)
        return bool(uplinks)

    def entry_gone(self, dpid: DatapathId, cookie: int, match: Match) -> None:
        """Handle an entry removed by its switch: its connection has been idle or has ended."""
        owner, mask = self._state.programmer.owner
        key = balance_entries.connection_key(match)
        if key is not None and cookie & mask == owner and cookie_kind(cookie) == Kind.CONNECTION:
            self._live.get(dpid, {}).pop(key, None)

    def datapath_down(self, dpid: DatapathId) -> None:
        """Handle a lost datapath: forget the groups sent to it, since it may reconnect without them."""
        self._groups.forget(dpid)

    def take_over(self, dpid: DatapathId, entries: Iterable[FlowEntry]) -> tuple[FlowEntry, ...]:
        """Prepare for the comparison of a datapath's entries, which were just read, with the desired entries: send the datapath's groups,
        and record its connections. Return the entries to compare: all except those of connections, which stay installed."""
        state, entries = self._state, tuple(entries)
        connections = [e for e in entries if cookie_kind(e.cookie) == Kind.CONNECTION]
        out = [(balance_entries.connection_key(e.match), e.cookie) for e in connections if e.priority == PRIORITY_CONNECTION]
        self._live[dpid] = {key: cookie_number(cookie) for key, cookie in out if key is not None}
        self._groups.found(dpid, state.controller_id, entries, state.now)
        state.out.extend(self._groups.puts(dpid))
        state.dirty.add("balance")
        return tuple(e for e in entries if cookie_kind(e.cookie) not in (Kind.CONNECTION, Kind.LEARNED))

    # -- time and planning

    def tick(self) -> None:
        """Refresh neighbours, apply changes, renew leases."""
        state = self._state
        if state.now >= self._check_at:
            self._check_at = state.now + CHECK_S
            self._ask()
            self._neighbours.expire(state.now)
            if self._find_ready() != self._ready:
                state.dirty.add("balance")
            for dpid in state.switches:
                state.out.extend(self._groups.deletes(dpid, state.now))
        if state.now >= self._renew_at:
            self._renew_at = state.now + LEASE_RENEWAL_S
            state.programmer.renew("balance-punts", state.out)

    def replan(self) -> None:
        """Update groups, then entries, to the current state."""
        state = self._state
        self._ready = self._find_ready()
        turning = {i: {w.name: w.weight for w in r.ways if w.up} for i, r in self._ready.items()}
        known = self._round_robins
        self._round_robins = {i: known[i] if i in known and known[i].weights == w else WeightedRoundRobin(w) for i, w in turning.items()}
        cookie = state.cookie(Kind.BALANCE)
        standing: dict[DatapathId, list[FlowEntry]] = {}
        punts: dict[DatapathId, list[FlowEntry]] = {}
        for policy in self._all():
            there, ready = standing.setdefault(policy.dpid, []), self._ready.get(policy.balance.id)
            there.extend(balance_entries.listening(port, cookie) for port in self._uplink_ports(policy, ready))
            there.extend(self._arp_answers(policy, cookie))
            if ready is not None:
                there.extend(balance_entries.standing(ready, cookie))
            if ready is not None and ready.takes_turns:
                there.extend(ovs_round_robin.entries(ready, cookie, self._learned(policy)))
            if ready is not None and policy.balance.at == "Controller":
                punts.setdefault(policy.dpid, []).extend(balance_entries.punts(ready, cookie))
        self._groups.want({dpid: [balance_entries.group(r) for r in self._of(dpid)] for dpid in self._policies})
        for dpid in filter(state.programmer.is_synced, self._policies):
            state.out.extend(self._groups.puts(dpid))
        state.programmer.set_group("balances", standing, state.out)
        state.programmer.set_group("balance-punts", punts, state.out)
        for dpid in state.switches:
            state.out.extend(self._groups.deletes(dpid, state.now))

    def status(self) -> list[Json]:
        """Return the rows of `GET /v1/status` (spec/northbound.md 1)."""
        return [self._status(policy) for policy in self._all()]

    # -- internals

    def _all(self) -> list[Policy]:
        return [policy for policies in self._policies.values() for policy in policies]

    def _learned(self, policy: Policy) -> Learned:
        """Return the cookies of learned entries, the same in every run, so that entries with learn actions compare equal."""
        out, back = (cookie_of(self._state.controller_id, Kind.LEARNED, way, policy.mark) for way in (0, 1))
        return Learned(out, back)

    def _of(self, dpid: DatapathId) -> list[ResolvedBalance]:
        return [self._ready[p.balance.id] for p in self._policies.get(dpid, ()) if p.balance.id in self._ready]

    def _has_room(self, dpid: DatapathId, key: FlowKey) -> bool:
        live = self._live.get(dpid, {})
        return key in live or len(live) < MAX_CONNECTIONS

    def _choose(self, switch: Switch, syn: Syn, ready: ResolvedBalance) -> UplinkRoute | None:
        """Return the uplink already chosen for this SYN, else the next uplink in turn; None if no uplink works."""
        now, key = self._state.now, (switch.dpid, syn.key)
        working = {way.name: way for way in ready.ways if way.up}
        before = self._recent.get(key)
        if before is not None and before[0] == syn.isn and now - before[2] < RECENT_S and before[1] in working:
            return working[before[1]]
        self._recent.pop(key, None)
        round_robin = self._round_robins.get(ready.balance.id)
        return working[round_robin.turn()] if working and round_robin is not None and round_robin.weights.keys() == working.keys() else None

    def _assign(self, switch: Switch, syn: Syn, policy: Policy, ready: ResolvedBalance, way: UplinkRoute) -> float:
        """Install a connection's entries. Return the seconds by which to delay its SYN: more than 0 if the switch may still have cached the
        entries of an earlier connection with the same 4-tuple."""
        state, key = self._state, (switch.dpid, syn.key)
        live = self._live.setdefault(switch.dpid, {})
        after_s = 0.0
        if key not in self._recent:
            after_s = SETTLE_S if syn.key in live else 0.0
            state.count("balanced", way.name)
            self._recent[key] = (syn.isn, way.name, state.now)
            if len(self._recent) > MAX_RECENT:
                self._recent.popitem(last=False)
        live[syn.key] = policy.mark
        cookie = state.cookie(Kind.CONNECTION, policy.mark)
        entries = balance_entries.connection(ready, syn, way, cookie, ours=not switch.is_ours)
        state.out.append(Apply(switch.dpid, entries, (), 0, False))
        return after_s

    def _host_arp(self, switch: Switch, in_port: PortNo, packet: Arp, there: list[Policy]) -> None:
        """Learn a balanced host's location, and answer its request for the gateway or for a destination outside its subnets."""
        if not self._state.is_edge(Location(switch.dpid, in_port)):
            return
        mine = [p for p in there if p.client == packet.sender]
        if mine:
            self._neighbours.hear(mine[0].host, packet.sender_mac, in_port, self._state.now)
        if switch.is_ours and packet.request and not is_claim(packet) and any(self._stands_in(p, packet.target) for p in mine):
            self._answer(switch, in_port, packet, GATEWAY_MAC)

    def _stands_in(self, policy: Policy, target: Address) -> bool:
        site = self._state.sites[policy.balance.site]
        if site.gateway is not None and target == parse_address(site.gateway):
            return True
        return policy.reaches(target) and not any(p.holds(target) for p in self._state.subnets[site.name])

    def _stand_in(self, policy: Policy) -> Address | None:
        """Return an address that the host resolves to `GATEWAY_MAC`: its gateway or, without a gateway, a router or destination outside its
        subnets."""
        gateway = self._state.sites[policy.balance.site].gateway
        if gateway is not None:
            return parse_address(gateway)
        beyond = [*(u.router for u in policy.balance.uplinks), *(Address(p.network + (p.length < 32)) for p in policy.destinations)]
        return next((address for address in beyond if self._stands_in(policy, address)), None)

    def _answer(self, switch: Switch, in_port: PortNo, packet: Arp, mac: MacAddress) -> None:
        self._state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, (Output(in_port),), build_arp_reply(packet, mac)))
        self._state.count("arp", "answered")

    def _ask(self) -> None:
        for policy in self._all():
            switch = self._state.switches.get(policy.dpid)
            if switch is None or switch.claim is None or not self._state.programmer.is_synced(policy.dpid):
                continue
            for uplink in policy.balance.uplinks:
                self._ask_router(switch, policy, uplink)
            if self._neighbours.due(policy.host, self._state.now):
                self._ask_host(switch, policy)

    def _ask_router(self, switch: Switch, policy: Policy, uplink: BalanceUplink) -> None:
        number, place = port_of(switch, uplink), policy.router(uplink)
        port = None if number is None else switch.ports[number]
        if port is None or not port.up:
            self._neighbours.excuse(place, self._state.now)
        elif self._neighbours.due(place, self._state.now):
            frame = build_arp_request(port.mac, uplink.ip, uplink.router)
            self._state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, (Output(port.port_no),), frame))

    def _ask_host(self, switch: Switch, policy: Policy) -> None:
        uplinks = {u.name for p in self._policies[policy.dpid] for u in p.balance.uplinks}
        edge = [p for p in switch.live_ports() if p.name not in uplinks and self._state.is_edge(Location(switch.dpid, p.port_no))]
        sender = self._stand_in(policy)
        if edge and sender is not None:
            frame = build_arp_request(GATEWAY_MAC, sender, policy.client)
            outputs = tuple(Output(p.port_no) for p in edge)
            self._state.out.append(PacketOut(switch.dpid, PORT_CONTROLLER, outputs, frame))

    def _find_ready(self) -> dict[str, ResolvedBalance]:
        found = ((policy, self._ready_one(policy)) for policy in self._all())
        return {policy.balance.id: ready for policy, ready in found if ready is not None}

    def _ready_one(self, policy: Policy) -> ResolvedBalance | None:
        """Return the resolved form of a balance. While its datapath is disconnected, return the former value, so that a comparison finds no
        change."""
        state, before = self._state, self._ready.get(policy.balance.id)
        switch, host = state.switches.get(policy.dpid), self._neighbours.find(policy.host)
        if switch is None:
            return before if before is not None and (before.balance, before.number) == (policy.balance, policy.number) else None
        if switch.claim is None or host is None or not policy.fits:
            return None
        ways = tuple(way for u in policy.balance.uplinks if (way := self._way(switch, policy, u)) is not None)
        settled = before is not None or len(ways) == len(policy.balance.uplinks) or state.now - switch.connected_at >= GROUP_AFTER_S
        if not ways or not settled:
            return None
        number = group_id(state.controller_id, policy.number + 1)
        takes_turns = not switch.is_ours and all(way.port_no <= MAX_PORT for way in ways)
        return ResolvedBalance(policy.balance, policy.number, number, policy.client, host.mac, host.port_no, ways, takes_turns)

    def _uplink_ports(self, policy: Policy, ready: ResolvedBalance | None) -> list[PortNo]:
        switch = self._state.switches.get(policy.dpid)
        if switch is None:
            return [way.port_no for way in ready.ways] if ready is not None else []
        found = [port_of(switch, uplink) for uplink in policy.balance.uplinks] if switch.claim is not None else []
        return [port for port in found if port is not None]

    def _arp_answers(self, policy: Policy, cookie: int) -> list[FlowEntry]:
        """Return the ARP entries of a balance; while its datapath is disconnected, the former entries. External switches get none: there,
        the controller answers."""
        switch, site = self._state.switches.get(policy.dpid), self._state.sites[policy.balance.site]
        if switch is None or switch.claim is None:
            return self._answers.get(policy.balance.id, [])
        if switch.is_ours:
            return []
        gateway = None if site.gateway is None else parse_address(site.gateway)
        found = balance_arp.host_answers(policy, gateway, self._state.subnets[site.name], cookie)
        ports = [(port_of(switch, uplink), uplink) for uplink in policy.balance.uplinks]
        found += [balance_arp.router_answer(switch.ports[n], uplink.ip, cookie) for n, uplink in ports if n is not None]
        self._answers[policy.balance.id] = found
        return found

    def _way(self, switch: Switch, policy: Policy, uplink: BalanceUplink) -> UplinkRoute | None:
        number, router = port_of(switch, uplink), self._neighbours.find(policy.router(uplink))
        if number is None or router is None:
            return None
        port: Port = switch.ports[number]
        return UplinkRoute(uplink.name, uplink.weight, number, port.mac, uplink.ip, router.mac, port.up)

    def _status(self, policy: Policy) -> Json:
        state, balance, dpid = self._state, policy.balance, policy.dpid
        reason, message = self._reason(policy)
        return {
            "id": balance.id,
            "state": reason.state,
            "reason": reason.value,
            "message": message,
            "needed": [format_dpid(dpid)],
            "acknowledged": [format_dpid(dpid)] if reason.is_programmed and state.programmer.is_acknowledged(dpid) else [],
            "sessions": list(self._live.get(dpid, {}).values()).count(policy.mark),
        }

    def _reason(self, policy: Policy) -> tuple[ProgrammedReason, str]:
        state, balance, dpid = self._state, policy.balance, policy.dpid
        if not policy.fits:
            message = f"its prefixes and ports take more than {MAX_CONDITIONS} entries: use wider prefixes and port ranges"
            return ProgrammedReason.TABLE_FULL, message
        if dpid not in state.switches:
            return ProgrammedReason.DATAPATH_DISCONNECTED, ""
        if self._neighbours.find(policy.host) is None:
            return ProgrammedReason.NO_HOST, f"{balance.client} does not answer"
        ready = self._ready.get(balance.id)
        works = {way.name for way in ready.ways if way.up} if ready is not None else set()
        out = ", ".join(f"{u.name} ({u.gateway})" for u in balance.uplinks if u.name not in works)
        message = f"unused, because down or without an answer from the gateway: {out}" if out else ""
        if not works:
            return ProgrammedReason.NO_UPLINK, message
        acknowledged = state.programmer.is_acknowledged(dpid)
        return ProgrammedReason.PROGRAMMED if acknowledged else ProgrammedReason.PROGRAMMING, message
