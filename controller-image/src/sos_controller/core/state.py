"""State of the engine, in one place. The parts of the engine read and change it; code outside the core only reads it and increments
counters."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import networkx as nx

from sos_controller.core.commands import Command, Notice, SessionOver
from sos_controller.core.config import Config, Datapath, Service, Site
from sos_controller.core.flow_tables.programmer import Programmer
from sos_controller.core.openflow import pipeline
from sos_controller.core.plain.backoff import PlainBackoff
from sos_controller.core.plain.traffic import PlainTraffic
from sos_controller.core.tables.accepting_servers import AcceptingServers
from sos_controller.core.tables.agent_sessions import AgentSessions
from sos_controller.core.tables.agents import Agent, Agents
from sos_controller.core.tables.histogram import SET_UP_S, Histogram
from sos_controller.core.tables.policies import Policies, Policy, accelerated, why_not_proactive, widening
from sos_controller.core.tables.recent_flows import RecentFlows
from sos_controller.core.tables.sessions import Session, Sessions
from sos_controller.core.tables.shares import Shares
from sos_controller.core.topology.hosts import Hosts
from sos_controller.core.topology.links import Topology
from sos_controller.core.topology.path_stats import PathStats
from sos_controller.core.topology.tunnels import Tunnels
from sos_controller.core.types import MAX_PORT_NO, Address, AgentId, DatapathId, Location, Port, PortNo, Prefix, format_dpid, parse_prefix
from sos_controller.core.wire import keys

MAX_PLAIN = 131_072
"""Maximum number of plain decisions remembered; the oldest are dropped. At 1,000 plain SYNs per second this covers the 130 s for which a
decision is kept."""
MAX_PORTS = 4_000
"""Maximum number of ports used per datapath, so that one entry can output to all of them: a message has 64 KiB, an action 16 bytes
(OpenFlow 1.3.5, 7.2.5). Further ports carry plain traffic of a `Node` datapath only."""
PORT_SETTLE_S = 2.5
"""Time until a new port is settled: two and a half probe intervals, within which a probe of a neighbouring switch has arrived."""


@dataclass(frozen=True)
class Identity:
    """Identity of this run of the controller. The caller supplies it, since the core has no clock and no randomness."""

    epoch: int
    boot_id: int
    uuid_seed: int
    """80 random bits: the first half of every session's UUID."""
    probe_key: bytes


@dataclass
class Switch:
    """A connected datapath."""

    dpid: DatapathId
    ports: dict[PortNo, Port]
    connected_at: float
    heard_at: float
    asked_at: float = 0.0
    up_since: dict[PortNo, float] = field(default_factory=dict)
    marker_ms: int = 0
    """Time at which the last echo request was sent, in milliseconds of the engine's clock."""
    marked_ms: int = 0
    """The same of the last request that was answered; the time of the connection, before the first."""
    probe_round: int = 0
    """Number of the last round of probes (`probing`)."""
    site: Site | None = None
    claim: Datapath | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether the controller programs this switch's plain forwarding (`forwarding: Controller`)."""
        return self.claim is not None and self.claim.forwarding == "Controller"

    def connect(self, ports: Iterable[Port], was: Switch | None) -> None:
        """Set the ports of a datapath that has just connected. Ports that had settled when the last connection was lost are still settled,
        unless they have changed."""
        settled = {} if was is None else {was.ports[number]: up for number, up in was.up_since.items() if number in was.ports}
        for port in islice(ports, MAX_PORTS):
            self.ports[port.port_no] = port
            if port.up:
                self.up_since[port.port_no] = settled.get(port, self.connected_at)

    def keep_settled(self, now: float) -> None:
        """Forget the up times of ports that had not settled, now that the connection is lost."""
        self.up_since = {number: up for number, up in self.up_since.items() if now - up >= PORT_SETTLE_S}

    def live_ports(self, without: AbstractSet[PortNo] = frozenset()) -> list[Port]:
        """Return ports that are up, sorted, without reserved ports (LOCAL) and these ports."""
        return [self.ports[number] for number in sorted(self.up_since.keys() - without) if number < MAX_PORT_NO]


class State:
    """Tables and clocks. `now` and `out` belong to the event being handled."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.config: Config | None = None
        self.services: list[Service] = []
        self.policies = Policies(())
        self.shares = Shares()
        self.claims: dict[DatapathId, tuple[Site, Datapath]] = {}
        self.sites: dict[str, Site] = {}
        self.subnets: dict[str, tuple[Prefix, ...]] = {}
        self.reactive_because: dict[str, str] = {}
        """Services that request proactive set-up but are set up reactively, with the reason to show."""
        self.widened: dict[str, str] = {}
        """Services whose entries match more connections than the service covers, with the message to show."""
        self.no_room: dict[str, str] = {}
        """Services that get no entries, because these do not fit into a datapath's table, with the message to show."""
        self.unreadable: dict[DatapathId, float] = {}
        """Datapaths that have reported too many entries of ours, with the time of the report. Nothing is sent to them."""
        self.accurate: set[DatapathId] = set()
        """External datapaths that have the entries that they acknowledge (`entry_check`)."""
        self.inaccurate: dict[DatapathId, str] = {}
        """External datapaths that do not have the entries that they acknowledge, with the message to show."""
        self.agent_addresses: frozenset[Address] = frozenset()
        self.agent_sites: dict[AgentId, str] = {}
        """Sites of the agents that the configuration lists."""
        self.discovery_ip = Address(0)
        self.switches: dict[DatapathId, Switch] = {}
        self.away: dict[DatapathId, Switch] = {}
        """Claimed datapaths as they were when their connection was lost."""
        self.topology = Topology()
        self.tunnels = Tunnels(self.topology)
        self.graph: nx.MultiGraph = nx.MultiGraph()
        """Graph of the last planning, kept by `services.plan`; the object stays the same."""
        self.graph_revision = 0
        self.hosts = Hosts()
        self.agents = Agents(keys.KeyRing())
        self.sessions = Sessions()
        self.recent_flows = RecentFlows()
        self.accepting_servers = AcceptingServers()
        self.agent_sessions = AgentSessions()
        self.path_stats = PathStats()
        self.programmer = Programmer()
        self.plain_traffic = PlainTraffic()
        self.plain_backoff = PlainBackoff()
        self.plain: OrderedDict[bytes, float] = OrderedDict()
        self.counters: Counter[tuple[str, str]] = Counter()
        self.set_up_times = Histogram(SET_UP_S)
        self.dirty: set[str] = set()
        self.wall_offset_ms = 0.0
        self.now = 0.0
        self.out: list[Command] = []

    @property
    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return int(self.wall_offset_ms + self.now * 1000)

    @property
    def controller_id(self) -> int:
        """Return the controller's id, 0 before a configuration is in force."""
        return self.config.controller.id if self.config is not None else 0

    def cookie(self, kind: pipeline.Kind, number: int = 0) -> int:
        """Return the cookie of an entry of ours in this epoch."""
        return pipeline.cookie(self.controller_id, kind, self.identity.epoch, number)

    def count(self, what: str, which: str = "") -> None:
        """Count for the metrics."""
        self.counters[what, which] += 1

    def notice(self, kind: str, **data: Any) -> None:
        """Send a notice to the readers of the event stream."""
        self.out.append(Notice(kind, data))

    def forget_session(self, session: Session, why: str) -> None:
        """Remove a session from the tables. Nothing else removes sessions, so each session has one audit record."""
        self.sessions.remove(session)
        s, ends = session, session.ended_by
        began_ms = int(self.wall_offset_ms + s.created_at * 1000)
        lasted = self.now - s.created_at
        self.out.append(
            SessionOver(
                *(s.uuid, s.service, s.key, s.ingress, s.egress, s.labels, s.adopted),
                *(began_ms, lasted, why, ends.get(s.ingress), ends.get(s.egress)),
            )
        )

    def adopt_config(self, config: Config) -> None:
        """Index a configuration."""
        self.config = config
        self.sites = {s.name: s for s in config.sites}
        self.services = config.services
        self.policies = Policies(self.services)
        self.shares = Shares(self.services, self.sites)
        self.sessions.group(self.shares.groups)
        self.plain_traffic.configure((s.id for s in self.services), {s.id for s in self.services if s.require})
        self.reactive_because = self._reactive_because()
        every = (p for policies in self.policies.by_site.values() for p in policies if accelerated(p.service))
        self.widened = {p.service.id: said for p in every if (said := widening(p))}
        self.claims = {d.number: (s, d) for s in config.sites for d in s.datapaths}
        self.subnets = {s.name: tuple(parse_prefix(p) for p in ([s.subnet] if s.subnet else s.prefixes)) for s in config.sites}
        self.agent_addresses = frozenset(a.ip for s in config.sites for a in s.agents)
        self.agent_sites = {a.agent_id: s.name for s in config.sites for a in s.agents}
        self.discovery_ip = config.discovery.ip
        self.programmer.owner = pipeline.owner(config.controller.id)
        for switch in self.switches.values():
            was = switch.claim
            self.claim(switch)
            if was is None and switch.claim is not None:  # its ports have not been probed yet
                switch.up_since = dict.fromkeys(switch.up_since, self.now)
        self.away = {dpid: switch for dpid, switch in self.away.items() if dpid in self.claims}

    @property
    def tunnel_numbers(self) -> dict[DatapathId, int]:
        """Return the tunnel numbers of the configuration's bridges."""
        return {dpid: claim.tunnel for dpid, (_, claim) in self.claims.items() if claim.tunnel}

    def name_of(self, dpid: DatapathId) -> str:
        """Return the name of a datapath in the configuration, else its id."""
        return self.claims[dpid][1].name if dpid in self.claims else format_dpid(dpid)

    def is_usable(self, dpid: DatapathId) -> bool:
        """Return whether a datapath has been compared, and has the entries that it acknowledges."""
        switch = self.switches.get(dpid)
        return self.programmer.is_synced(dpid) and switch is not None and (not switch.is_ours or dpid in self.accurate)

    def is_proactive(self, service: Service) -> bool:
        """Return whether a service has standing entries, so that none of its SYNs is punted."""
        return service.setup == "Proactive" and accelerated(service) and service.id not in self.reactive_because

    def has_entries(self, service: Service) -> bool:
        """Return whether a service redirects connections, and its entries fit into the tables of its datapaths."""
        return accelerated(service) and service.id not in self.no_room

    def _reactive_because(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for policies in self.policies.by_site.values():
            earlier: list[Policy] = []
            for policy in policies:
                asks = policy.service.setup == "Proactive" and accelerated(policy.service)
                why = why_not_proactive(policy, earlier, self.sites) if asks else ""
                if why:
                    found[policy.service.id] = why
                if why or not asks:
                    earlier.append(policy)
        return found

    def claim(self, switch: Switch) -> None:
        """Set the site and declaration of a datapath."""
        switch.site, switch.claim = self.claims.get(switch.dpid, (None, None))

    def present(self, silence_s: float) -> set[DatapathId]:
        """Return datapaths that are connected and have sent a message in the last `silence_s` seconds."""
        return {dpid for dpid, switch in self.switches.items() if self.now - switch.heard_at <= silence_s}

    def missed_s(self, agent: Agent) -> float:
        """Return the seconds for which an agent's switch has sent messages, but no beacon of the agent."""
        switch = self.switches.get(agent.location.dpid)
        return 0.0 if switch is None else switch.heard_at - max(agent.seen_at, switch.connected_at)

    def site_of(self, dpid: DatapathId) -> tuple[int, tuple[Prefix, ...]] | None:
        """Return the site id of a datapath, and the prefixes that may contain its agents' addresses."""
        found = self.claims.get(dpid)
        return None if found is None else (found[0].id, self.subnets[found[0].name])

    def rewritten_port(self, agent_id: AgentId, ingress: bool, client_port: int) -> int:
        """Return the agent's own port of a flow if its site rewrites, else 0. An ingress agent has one port for all clients; an egress
        agent uses the client's port."""
        config, site = self.config, self.sites.get(self.agent_sites.get(agent_id, ""))
        if config is None or site is None or site.rewrite == "Transparent":
            return 0
        return config.discovery.redirect_port if ingress else client_port

    def learns(self, dpid: DatapathId) -> bool:
        """Return whether a datapath is an Open vSwitch that forwards by itself, to the ports where it has learned hosts."""
        claim = self.claims.get(dpid)
        return claim is not None and claim[1].forwarding == "Node"

    def is_edge(self, location: Location) -> bool:
        """Return whether hosts may be behind a port: no switch and no agent is there."""
        return not self.topology.is_inter_switch(location) and self.agents.at(location) is None

    def is_labelled(self, location: Location) -> bool:
        """Return whether a port carries labelled paths only: its switch neither floods into the port nor accepts plain packets
        from it."""
        switch = self.switches.get(location.dpid)
        if switch is None or switch.claim is None or not switch.claim.labelled_ports:
            return False
        port = switch.ports.get(location.port_no)
        return port is not None and port.name in switch.claim.labelled_ports

    def is_down(self, location: Location) -> bool:
        """Return whether a connected datapath reports a port as down."""
        switch = self.switches.get(location.dpid)
        return switch is not None and location.port_no not in switch.up_since

    def is_settled(self, location: Location) -> bool:
        """Return whether a port has been up long enough for `is_edge` to be reliable."""
        switch = self.switches.get(location.dpid)
        return switch is not None and self.now - switch.up_since.get(location.port_no, self.now) >= PORT_SETTLE_S
