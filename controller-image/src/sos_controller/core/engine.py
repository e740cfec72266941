"""Single entry point of the controller's core: `Engine.handle(event, now)` takes an event and returns commands.

Its parts: `plan` (entries of services), `stale_entries` (entries of an earlier run), `table_limits` (full tables), `entry_check` (switches
that do not have the entries that they acknowledge), `setup`, `mobility` and `teardown` (sessions), `agent_messages` (beacons and
orders), `forwarding` and `routing` (plain traffic), `balances`, `order_sender`. They share one `State`; `state.out` collects the commands
of the event being handled. Nothing here blocks, reads a clock or draws a random number; the same events give the same commands.
"""

from __future__ import annotations

from collections.abc import Callable

from sos_controller.core import events
from sos_controller.core.balance.balances import Balances
from sos_controller.core.commands import Command, ReadEntries, ReadTables
from sos_controller.core.entry_check import EntryCheck
from sos_controller.core.forwarding.l2 import Forwarding
from sos_controller.core.forwarding.l3 import Routing
from sos_controller.core.openflow import pipeline
from sos_controller.core.openflow.pipeline import ETH_ARP, ETH_IPV4, ETH_LLDP, LEASE_RENEWAL_S, Kind
from sos_controller.core.plain.outcome import Outcome
from sos_controller.core.probing import Probing
from sos_controller.core.replan_gap import ReplanGap
from sos_controller.core.services.plan import Plan
from sos_controller.core.sessions.agent_messages import AgentMessages
from sos_controller.core.sessions.mobility import Mobility
from sos_controller.core.sessions.order_sender import OrderSender
from sos_controller.core.sessions.setup import SetUp
from sos_controller.core.sessions.teardown import Teardown
from sos_controller.core.stale_entries import StaleEntries
from sos_controller.core.state import MAX_PORTS, Identity, State, Switch
from sos_controller.core.table_limits import TableLimits
from sos_controller.core.tables.agents import Agent
from sos_controller.core.types import DatapathId, Location, PortNo, format_dpid
from sos_controller.core.wire.keys import KeyRing
from sos_controller.core.wire.packets import ethertype, parse_arp

READ_AGAIN_S = 5.0
"""Delay before an unanswered request for a datapath's entries is repeated."""
DEAF_AFTER_S = 0.5
"""Maximum gap between two ticks. A longer gap means that the controller itself was stopped, and could not receive or send."""
LISTEN_S = 1.5
"""Time after a gap of more than DEAF_AFTER_S during which no agent and no link expires: one and a half probe intervals."""
SILENT = 0.5
"""Fraction of the link expiry after which a silent datapath counts as unreachable: less than 1, so that its links become unheard and do not
expire."""
WATCH_S = 5.0
"""Interval of Watch orders to an agent: three may be lost in a row before the agent stops reporting agent sessions (spec/order.md 11)."""


class Engine:
    """The only stateful object of the core."""

    def __init__(self, identity: Identity) -> None:
        self.state = State(identity)
        self.probing = Probing(self.state)
        self.replan_gap = ReplanGap()
        self.order_sender = OrderSender(self.state)
        self.plan = Plan(self.state)
        self.routing = Routing(self.state)
        self.mobility = Mobility(self.state, self.order_sender)
        self.forwarding = Forwarding(self.state, self.routing, self.mobility.heard)
        self.teardown = Teardown(self.state, self.order_sender)
        self.balances = Balances(self.state)
        self.setup = SetUp(self.state, self.order_sender, self.plan, self.forwarding, self.teardown)
        self.agent_messages = AgentMessages(self.state, self.setup, self.teardown, self.forwarding, self.order_sender)
        self.setup.begun, self.mobility.give_up = self.mobility.begun, self.setup.give_up
        self.stale_entries = StaleEntries(self.state)
        self.entry_check = EntryCheck(self.state, self._read)
        self.table_limits = TableLimits(self.state, self._read, self.balances.take_over)
        self._compared: set[DatapathId] = set()  # claimed datapaths whose entries this run has already compared
        self._ticked_at = self._listening_from = 0.0
        self._due = {"renew": 0.0, "check": 0.0, "watch": 0.0}
        self._handlers = {
            events.PacketIn: self._packet_in,
            events.BarrierReplies: self._barrier_replies,
            events.Tick: self._tick,
            events.Echoed: self._echoed,
            events.DatapathUp: self._datapath_up,
            events.DatapathDown: self._datapath_down,
            events.PortChanged: self._port_changed,
            events.EntriesRead: self._entries_read,
            events.EntriesUnreadable: self.table_limits.unreadable,
            events.TablesRead: self.table_limits.tables_read,
            events.EntryGone: lambda event: self.balances.entry_gone(event.dpid, event.cookie, event.match),
            events.Rejected: self._rejected,
            events.ConfigChanged: self._config_changed,
            events.KeysChanged: self._keys_changed,
            events.Leaving: self._leave,
            events.EndLeases: lambda _event: self.state.programmer.end_leases(self.state.out),
        }
        self._by_kind: dict[int, Callable[[Switch, events.PacketIn], None]] = {  # by the kind of the entry that punted a packet
            Kind.PUNT: lambda switch, event: self.setup.syn(switch, event.in_port, event.data),
            Kind.MEASURE: lambda switch, event: self.plan.passive_measurement.copied(switch, event.data),
            Kind.TRACK: self._tracked,
            Kind.FRAGMENT: lambda _switch, event: self.mobility.end(self.plan.fragments.copied(event.dpid, event.data)),
            Kind.ICMP: lambda _switch, event: self.plan.icmp.copied(Location(event.dpid, event.in_port), event.data),
            Kind.BALANCE: lambda switch, event: self._punted_ipv4(self.balances.syn, switch, event),
            Kind.ROUTE: lambda switch, event: self._punted_ipv4(self.routing.packet, switch, event),
        }
        self._by_ethertype: dict[int, Callable[[Switch, events.PacketIn], None]] = {  # all other packets
            ETH_IPV4: lambda _switch, event: self.agent_messages.datagram(Location(event.dpid, event.in_port), event.data),
            ETH_ARP: self._arp,
            ETH_LLDP: lambda _switch, event: self._probe_seen(Location(event.dpid, event.in_port), event.data),
        }
        self._leaving = False

    def handle(self, event: events.Event, now: float, more: bool = False) -> list[Command]:
        """Handle an event that happened at `now` (monotonic seconds, never decreasing) and return the commands, in order.

        With `more`, barriers are deferred to a later event or to `close`, so that one barrier follows the entries of several SYNs.
        """
        state = self.state
        out: list[Command] = []
        state.now, state.out = now, out
        if self._leaving and type(event) not in events.WHILE_LEAVING:
            return out
        self._handlers[type(event)](event)  # type: ignore[operator]
        if state.dirty and not self._leaving and self.replan_gap.is_due(now):
            self._replan()
        state.dirty |= state.programmer.settle(out)
        if not more:
            state.programmer.close(out)
        return out

    def _tracked(self, _switch: Switch, event: events.PacketIn) -> None:
        """Handle a copied segment of a host with sessions."""
        location = Location(event.dpid, event.in_port)
        self.forwarding.segment(location, event.data)
        self.mobility.resend(location, event.data)

    def close(self) -> list[Command]:
        """Return the barriers that events with `more` have deferred."""
        out: list[Command] = []
        self.state.programmer.close(out)
        return out

    # -- packets

    def _packet_in(self, event: events.PacketIn) -> None:
        state = self.state
        switch = state.switches.get(event.dpid)
        if switch is None or switch.claim is None or state.config is None:
            return
        switch.heard_at = state.now
        owner, mask = state.programmer.owner
        punted = self._by_kind.get(pipeline.cookie_kind(event.cookie)) if event.cookie & mask == owner else None
        if punted is not None:
            punted(switch, event)
        else:
            self._other_packet(switch, event)

    def _punted_ipv4(self, handler: Callable[[Switch, PortNo, bytes], None], switch: Switch, event: events.PacketIn) -> None:
        if ethertype(event.data) == ETH_IPV4:
            handler(switch, event.in_port, event.data)
        else:
            self._other_packet(switch, event)

    def _other_packet(self, switch: Switch, event: events.PacketIn) -> None:
        handler = self._by_ethertype.get(ethertype(event.data))
        if handler is not None:
            handler(switch, event)

    def _arp(self, switch: Switch, event: events.PacketIn) -> None:
        packet = parse_arp(event.data)
        if packet is not None and not self.balances.arp(switch, event.in_port, packet):
            self.forwarding.arp(switch, event.in_port, packet)

    def _probe_seen(self, receiver: Location, data: bytes) -> None:
        state = self.state
        if state.topology.is_tunnel(receiver):
            state.count("probes", "tunnel")
            return
        seen = self.probing.check(receiver, data)
        if seen is None:
            state.count("probes", "foreign")
            return
        if not self.probing.is_declared(receiver):
            self.probing.report_undeclared(receiver, seen.origin)
            return
        was = state.topology.is_inter_switch(receiver)
        if state.topology.observe(seen.origin, receiver, state.now):
            if not was:
                self.forwarding.purge(state.hosts.forget_location(receiver))
                self.agent_messages.lose(lambda agent: agent.location == receiver)
            self._links_changed()

    # -- datapaths

    def _datapath_up(self, event: events.DatapathUp) -> None:
        state = self.state
        if event.dpid in state.switches:
            self._datapath_down(events.DatapathDown(event.dpid))
        switch = Switch(event.dpid, {}, state.now, state.now)
        switch.marker_ms = switch.marked_ms = int(state.now * 1000)
        state.claim(switch)
        state.switches[event.dpid] = switch
        switch.connect(event.ports, state.away.pop(event.dpid, None))
        if switch.claim is not None:  # unclaimed switches that join and leave must not trigger probes or planning
            self.probing.hurry()
        self._tunnels_changed(state.tunnels.connect(event.dpid, switch.ports.values()))
        if switch.is_ours:
            state.dirty.add("forwarding")
            # Do not request table capacities from bridges with a base table: Open vSwitch accepts a million entries, and its reply would be
            # half a megabyte.
            state.out.append(ReadTables(event.dpid))
        self._read(switch)
        state.notice("datapath", dpid=format_dpid(event.dpid), state="connected", claimed=switch.claim is not None)

    def _datapath_down(self, event: events.DatapathDown) -> None:
        state = self.state
        switch = state.switches.pop(event.dpid, None)
        if switch is None:
            return
        state.notice("datapath", dpid=format_dpid(event.dpid), state="disconnected")
        self._tunnels_changed(state.tunnels.disconnect(event.dpid))
        if switch.claim is None:
            return
        switch.keep_settled(state.now)
        state.away[event.dpid] = switch
        self.balances.datapath_down(event.dpid)
        self.routing.datapath_down(event.dpid)
        state.programmer.disconnect(event.dpid)
        self.table_limits.datapath_down(event.dpid)
        self.entry_check.datapath_down(event.dpid)
        self.stale_entries.drop(event.dpid)  # on reconnection, its entries are read again
        if state.topology.datapath_down(event.dpid):
            self._links_changed()
        self.forwarding.purge(state.hosts.forget_datapath(event.dpid))
        state.dirty |= {"plan", "forwarding"}

    def _read(self, switch: Switch) -> None:
        """Request our entries from a claimed datapath; send nothing to an unclaimed datapath."""
        if switch.claim is not None:
            switch.asked_at = self.state.now
            self.state.out.append(ReadEntries(switch.dpid, *self.state.programmer.owner))

    def _entries_read(self, event: events.EntriesRead) -> None:
        state = self.state
        switch = state.switches.get(event.dpid)
        if switch is None or switch.claim is None:
            return
        self.table_limits.entries_read(event)
        self.entry_check.entries_read(event.dpid, event.entries)
        if state.programmer.is_synced(event.dpid):
            return
        if switch.is_ours and not self.forwarding.covers(event.dpid):  # else its flood entries would be deleted now and restored later
            self._replan_forwarding()
        entries, first = self.balances.take_over(event.dpid, event.entries), event.dpid not in self._compared
        self._compared.add(event.dpid)
        earlier = self.plan.proactive.adopt(event.dpid, self.teardown.adopt(event.dpid, entries, first))
        self.mobility.adopted(event.dpid)
        kept = [e for e in earlier if pipeline.cookie_kind(e.cookie) != Kind.PUNT and e.is_known]
        self.routing.adopt(event.dpid, kept)
        self.stale_entries.keep(event.dpid, kept)
        state.programmer.sync(event.dpid, entries, state.out)
        self.plan.cache_guard.compared(event.dpid)
        state.dirty |= {"plan", "forwarding"}

    def _port_changed(self, event: events.PortChanged) -> None:
        state = self.state
        switch = state.switches.get(event.dpid)
        if switch is None:
            return
        location = Location(event.dpid, event.port.port_no)
        up = event.port.up and not event.gone
        if event.gone:
            switch.ports.pop(location.port_no, None)
        elif location.port_no in switch.ports or len(switch.ports) < MAX_PORTS:
            switch.ports[location.port_no] = event.port
        if not up:
            switch.up_since.pop(location.port_no, None)
        elif location.port_no in switch.ports:
            switch.up_since.setdefault(location.port_no, state.now)
        if state.tunnels.port_changed(event.dpid, event.port, event.gone):
            self._tunnels_changed(True)
            self.replan_gap.hurry()
        if switch.claim is None:
            return
        if up and not state.topology.is_tunnel(location):
            self.probing.hurry()
        elif not up:
            self.forwarding.purge(state.hosts.forget_location(location))
            if state.topology.port_down(location, event.gone):
                self._links_changed()
                self.replan_gap.hurry()
        if switch.is_ours:
            state.dirty.add("forwarding")

    def _echoed(self, event: events.Echoed) -> None:
        switch = self.state.switches.get(event.dpid)
        if switch is not None:
            switch.heard_at = self.state.now
            self.probing.answered(switch, event.marker_ms)

    def _barrier_replies(self, event: events.BarrierReplies) -> None:
        state, grouped = self.state, False
        switch = state.switches.get(event.dpid)
        if switch is not None:
            switch.heard_at = state.now
        for token in event.tokens:
            grouped |= state.programmer.acknowledge(event.dpid, token)
        if grouped and state.programmer.is_acknowledged(event.dpid):
            self.entry_check.acknowledged(event.dpid)
            if self.plan.waits:
                state.dirty.add("arm")

    def _rejected(self, event: events.Rejected) -> None:
        state = self.state
        switch = state.switches.get(event.dpid)
        if switch is None or switch.claim is None:
            return
        state.count("rejected", format_dpid(event.dpid))
        if event.full_table is not None:
            self.table_limits.refused(switch, event.token, event.full_table)
        elif state.programmer.reject(event.dpid, event.token):
            switch.asked_at = state.now  # read again after READ_AGAIN_S

    # -- configuration, keys, time

    def _config_changed(self, event: events.ConfigChanged) -> None:
        state = self.state
        before, claimed = state.config, [switch for switch in state.switches.values() if switch.claim is not None]
        if before is not None and not before.controller.is_same(event.config.controller):
            raise ValueError("the controller's id cannot change while it runs: installed entries carry it")
        state.adopt_config(event.config)
        self.probing.hurry()
        # After a rejected message, nothing is sent to a switch until its entries have been read. The entries of a switch that is no longer
        # claimed are never read: mark it as synced, so that `_abandon` can remove our entries.
        for switch in claimed:
            if switch.claim is None and not state.programmer.is_synced(switch.dpid):
                state.programmer.sync(switch.dpid, state.programmer.entries(switch.dpid), state.out)
        self._compared &= state.claims.keys()
        self.plan.configure()
        self.balances.configure()
        self.routing.configure()
        self.order_sender.forget_templates()
        self.agent_messages.lose(lambda agent: (state.site_of(agent.location.dpid) or (0,))[0] != agent.beacon.site_id)
        self._tunnels_changed(state.tunnels.configure(state.tunnel_numbers))
        state.topology.keep(state.claims.keys())
        for switch in claimed:
            if switch.claim is None:
                self._abandon(switch)
        for switch in state.switches.values():
            if switch.claim is not None and not state.programmer.is_synced(switch.dpid):
                self._read(switch)
        state.dirty |= {"plan", "forwarding"}
        self.replan_gap.hurry()

    def _abandon(self, switch: Switch) -> None:
        """Remove our entries, sessions and hosts from a datapath that is no longer claimed."""
        state, dpid = self.state, switch.dpid
        for session in state.sessions:
            if dpid in session.datapaths():
                self.teardown.drop(session, Outcome.DATAPATH_UNCLAIMED)
        self.forwarding.purge(state.hosts.forget_datapath(dpid))
        self.stale_entries.drop(dpid)
        state.dirty |= {"plan", "forwarding"}
        self._replan()
        state.programmer.disconnect(dpid)

    def _keys_changed(self, event: events.KeysChanged) -> None:
        self.state.agents.ring = KeyRing(event.sites, event.sending)

    def _tick(self, event: events.Tick) -> None:
        state = self.state
        state.wall_offset_ms = event.wall_ms - state.now * 1000
        if state.now - self._ticked_at > DEAF_AFTER_S:
            self._listening_from = state.now + LISTEN_S
        self._ticked_at = state.now
        self.setup.tick()
        self.teardown.tick()
        self.balances.tick()
        self.routing.tick()
        self.mobility.tick()
        if state.config is None:
            return
        self.probing.tick(float(state.config.discovery.probe_interval_seconds))
        for what, gap, action in (
            ("renew", LEASE_RENEWAL_S, self.plan.renew),
            ("check", 0.25, self._check),
            ("watch", WATCH_S, self.order_sender.watch),
        ):
            if state.now >= self._due[what]:
                self._due[what] = state.now + gap
                action()

    def _check(self) -> None:
        """Expire agents, links and stale entries; repeat unanswered requests to datapaths."""
        state = self.state
        if state.config is None:
            return
        d = state.config.discovery
        if state.now >= self._listening_from:
            self.agent_messages.miss(float(d.beacon_expiry_seconds))
            present = state.present(d.link_expiry_seconds * SILENT)
            if state.topology.expire(state.now, d.link_expiry_seconds, present, state.is_down):
                self._links_changed()
                self.replan_gap.hurry()
            if state.tunnels.silence(state.switches.keys() - state.present(d.link_expiry_seconds)):
                self._links_changed()
                self.replan_gap.hurry()
        self.stale_entries.tick(bool(state.claims.keys() - self._compared))
        state.path_stats.expire(state.now)
        for switch in state.switches.values():
            after_s = self.table_limits.read_again_s(switch.dpid, READ_AGAIN_S)
            if not state.programmer.is_synced(switch.dpid) and state.now - switch.asked_at >= after_s:
                self._read(switch)
        self.table_limits.tick()
        self.entry_check.tick()
        self.plan.proactive.tick()
        self.forwarding.tick()

    def _leave(self, _event: events.Leaving) -> None:
        self._leaving = True
        self.setup.leave()

    # -- shared steps

    def _replan(self) -> None:
        state = self.state
        dirty, state.dirty = state.dirty, set()
        self.replan_gap.begin(state.now)
        if "plan" in dirty or "forwarding" in dirty:
            self.plan.replan()
            self.teardown.wanted_pairs = self.plan.wanted
            if self.plan.is_behind:
                state.dirty |= {"plan", "forwarding"}
        elif "arm" in dirty:
            self.plan.arm()
        if self.plan.is_arming:
            state.dirty.add("arm")
        if "forwarding" in dirty:
            self._replan_forwarding()
        if "balance" in dirty or "forwarding" in dirty:
            self.balances.replan()
        if "routes" in dirty or "forwarding" in dirty:
            self.routing.replan()

    def _replan_forwarding(self) -> None:
        """Plan host entries and flooding; the switches of sites may have changed."""
        self.mobility.replan()
        self.forwarding.replan()

    def _links_changed(self) -> None:
        self.state.dirty |= {"plan", "forwarding"}
        self.state.notice("link", links=len(self.state.topology))

    def _tunnels_changed(self, changed: bool) -> None:
        """Forget hosts and agents at ports that are now known as tunnels."""
        if not changed:
            return
        state = self.state
        is_inter_switch = state.topology.is_inter_switch
        for location in {host.location for host in state.hosts.all() if is_inter_switch(host.location)}:
            self.forwarding.purge(state.hosts.forget_location(location))
        self.agent_messages.lose(lambda agent: is_inter_switch(agent.location))
        self._links_changed()

    def _tell_agent(self, agent: Agent, what: str) -> None:
        self.state.notice("agent", id=agent.agent_id.hex(), name=agent.beacon.name, site=agent.beacon.site_id, state=what)
