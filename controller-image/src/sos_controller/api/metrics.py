"""Prometheus metrics `sos_controller_*`, read from the engine on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from sos_controller.core import snapshot

if TYPE_CHECKING:
    from sos_controller.app import Controller

COUNTERS = {
    "syns": ("SYNs punted, by outcome", "outcome"),
    "sessions": ("Sessions by outcome", "what"),
    "ended": ("Session ends reported by agents, by reason (spec/order.md 6)", "reason"),
    "beacons": ("Beacons accepted", ""),
    "beacons_dropped": ("Beacons dropped, by failed check", "reason"),
    "moves": ("Hosts with sessions that moved to another switch, by action", "what"),
    "fragments": ("Host pairs whose sessions sent IP fragments, by action: redirected to the agent, or made plain", "what"),
    "icmp_errors": ("ICMP errors copied by switches, by action", "what"),
    "orders_sent": ("Orders sent, by type", "type"),
    "orders_dropped": ("Orders from agents dropped, by failed check", "reason"),
    "probes": (
        "LLDP frames that make no link: not a valid probe of this controller (foreign), at a declared tunnel, "
        "or at a port that may not lead to another switch (undeclared)",
        "what",
    ),
    "arp": ("ARP requests by action", "what"),
    "balanced": ("Connections assigned to an uplink by weighted round robin", "uplink"),
    "balance_left": ("First packets of balanced connections without an assigned uplink, by outcome", "outcome"),
    "flow_mods": ("Flow-mods sent", "op"),
    "switch_errors": ("Messages refused by switches, by error type and code", "error"),
    "rejected": ("Changes refused by a datapath", "dpid"),
    "wire_errors": ("OpenFlow connections closed because of malformed messages", "what"),
    "connections_refused": ("OpenFlow connections closed: too many unknown switches, or a datapath that is connected already", ""),
    "tls_refusals": ("OpenFlow connections refused: no valid certificate, a certificate of another site, or a failed handshake", ""),
    "role_changes": ("Changes of the role of this replica, and switches without roles", "what"),
    "bugs": ("Events that raised an exception", "event"),
}


class _Collector(Collector):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        """Yield all families."""
        yield from self._counters()
        yield from self._roles()
        yield from self._gauges()
        times = self._controller.engine.state.set_up_times
        text = "Time from a punted SYN to its delivery to the ingress agent: orders and redirect entries are acknowledged"
        set_up = HistogramMetricFamily("sos_controller_set_up_seconds", text)
        set_up.add_metric([], times.buckets(), times.sum)
        yield set_up

    def _counters(self) -> Iterator[Metric]:
        counters = sorted(self._controller.engine.state.counters.items())
        for name, (text, label) in COUNTERS.items():
            family = CounterMetricFamily(f"sos_controller_{name}", text, labels=[label] if label else [])
            for (what, which), value in counters:
                if what == name:
                    family.add_metric([which] if label else [], value)
            yield family
        busy = CounterMetricFamily("sos_controller_busy_seconds", "Time spent in handling events and in encoding the resulting commands")
        busy.add_metric([], self._controller.busy_seconds)
        yield busy

    def _roles(self) -> Iterator[Metric]:
        config, mastership = self._controller.engine.state.config, self._controller.mastership
        if config is None:
            return
        for name, text, value in (
            ("active", "1 = this replica sets up connections, 0 = it is a standby", float(mastership.is_active)),
            ("replicas", "Number of replicas in the configuration", config.controller.replicas),
            ("standby_datapaths", "Claimed datapaths at which this replica is the standby", mastership.standing_by()),
        ):
            family = GaugeMetricFamily(f"sos_controller_{name}", text, labels=["controller"])
            family.add_metric([config.controller.name], value)
            yield family

    def _gauges(self) -> Iterator[Metric]:
        state = self._controller.engine.state
        yield _gauge("datapaths", "Claimed datapaths connected", sum(s.claim is not None for s in state.switches.values()))
        yield _gauge("datapaths_unclaimed", "Connected datapaths claimed by no site", sum(s.claim is None for s in state.switches.values()))
        yield _gauge("links", "Known links", len(state.topology))
        yield _gauge("hosts", "Known hosts", len(state.hosts))
        text = "Known hosts without entries on external switches, because a switch has no space for them or does not apply them"
        flooded = self._controller.engine.forwarding.flooded()
        yield _gauge("hosts_flooded", text, flooded)
        yield _gauge("sessions_open", "Known sessions", len(state.sessions) + len(state.agent_sessions))
        yield _gauge("sessions_accepted", "Sessions that agents started without an order", len(state.agent_sessions))
        yield _gauge("sessions_pending", "Sessions being set up", state.sessions.pending)
        yield _gauge("plain_decisions", "Plain decisions remembered", len(state.plain))
        yield _gauge("entries", "Desired flow entries of all datapaths", len(state.programmer))
        yield _gauge("config_generation", "Generation in force", state.config.generation if state.config else 0)
        agents = GaugeMetricFamily("sos_controller_agents", "Live agents", labels=["site"])
        names = {site.id: site.name for site in state.sites.values()}
        live = [a for a in state.agents.all() if not a.silent]
        for site_id in sorted({a.beacon.site_id for a in live}):
            count = sum(a.beacon.site_id == site_id for a in live)
            agents.add_metric([names.get(site_id, str(site_id))], count)
        yield agents
        services = GaugeMetricFamily("sos_controller_service_programmed", "1 = Programmed", labels=["service"])
        for found in self._controller.engine.plan.status():
            services.add_metric([found.service.id], float(found.reason.is_programmed))
        for row in self._controller.engine.balances.status():
            services.add_metric([row["id"]], float(row["state"] == "Programmed"))
        yield services
        plain = CounterMetricFamily("sos_controller_plain_connections", "Covered connections that went plain", labels=["service", "reason"])
        for service_id, reason, count in state.plain_traffic.totals():
            plain.add_metric([service_id, reason.label], count)
        yield plain
        refused = CounterMetricFamily(
            "sos_controller_refused_connections",
            "Connections refused because their service requires more than plain TCP",
            labels=["service", "reason"],
        )
        for service_id, reason, count in state.plain_traffic.refusals():
            refused.add_metric([service_id, reason.label], count)
        yield refused
        rule = GaugeMetricFamily(
            "sos_controller_service_plain", "1 = most connections of the last minutes went plain unexpectedly", labels=["service"]
        )
        for service in state.services:
            rule.add_metric([service.id], float(state.plain_traffic.recent(service.id, state.now).is_rule))
        yield rule
        yield from measured(snapshot.measurements(self._controller.engine))


def measured(shown: dict[str, Any]) -> Iterator[Metric]:
    """Yield measurements of agents and switches, as in `GET /v1/measurements`."""
    ends = ["low", "high", "label"]
    rtt = GaugeMetricFamily("sos_controller_path_rtt_seconds", "Round trip between two agents", labels=ends)
    rate = GaugeMetricFamily("sos_controller_path_bytes_per_second", "Host bytes over a path, mean of 10 s", labels=[*ends, "direction"])
    for path in shown["paths"]:
        where = [path["low"], path["high"], str(path["label"])]
        if path["rttMicros"] is not None:
            rtt.add_metric(where, path["rttMicros"] / 1e6)
        for direction in ("forward", "back"):
            rate.add_metric([*where, direction], path[f"{direction}BytesPerSecond"])
    goodput = GaugeMetricFamily(
        "sos_controller_service_bytes_per_second", "Bytes of accelerated connections, mean of 10 s", labels=["service", "direction"]
    )
    groups = ["service", "group"]
    seen = CounterMetricFamily("sos_controller_compared_connections", "Connections measured individually", labels=groups)
    speed = GaugeMetricFamily("sos_controller_compared_bytes_per_second", "Goodput of a connection, geometric mean", labels=groups)
    gain = GaugeMetricFamily("sos_controller_service_gain", "Speed of accelerated connections relative to plain ones", labels=["service"])
    for service in shown["services"]:
        for direction in ("up", "down"):
            goodput.add_metric([service["id"], direction], service[f"{direction}BytesPerSecond"])
        for group in ("accelerated", "plain"):
            found = service.get(group)
            if found is not None:
                seen.add_metric([service["id"], group], found["connections"])
            if found is not None and found["bytesPerSecond"] is not None:
                speed.add_metric([service["id"], group], found["bytesPerSecond"])
        if service.get("gain") is not None:
            gain.add_metric([service["id"]], service["gain"])
    yield from (rtt, rate, goodput, seen, speed, gain)


def _gauge(name: str, text: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"sos_controller_{name}", text)
    family.add_metric([], value)
    return family


def registry(controller: Controller) -> CollectorRegistry:
    """Return a registry of this controller."""
    made = CollectorRegistry(auto_describe=False)
    made.register(_Collector(controller))
    return made


def render(made: CollectorRegistry) -> bytes:
    """Return Prometheus text."""
    return generate_latest(made)
