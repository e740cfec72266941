"""Metrics of the operator. Written by the loop only; no decision reads them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from sos_operator import __version__


class Metrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.registry = registry
        self.reconciles = Counter("sos_operator_reconcile", "Passes of the reconcile loop", ["result"], registry=registry)
        self.duration = Histogram("sos_operator_reconcile_duration_seconds", "Duration of one pass", registry=registry)
        self.writes = Counter("sos_operator_writes", "Calls that change the cluster", ["verb", "kind", "result"], registry=registry)
        self.pushes = Counter(
            "sos_operator_config_pushes", "Configurations sent to controllers", ["controller", "result"], registry=registry
        )
        self.bugs = Counter("sos_operator_bugs", "Unexpected exceptions, each confined to one object or step", ["where"], registry=registry)
        self.watch_ends = Counter("sos_operator_watch_ends", "Watches that ended and were restarted", ["watch"], registry=registry)
        self.problems = Gauge("sos_operator_problems", "Problems in the objects at the last pass, without warnings", registry=registry)
        self.last_success = Gauge("sos_operator_last_success_timestamp_seconds", "Time of the last successful pass", registry=registry)
        self.generation = Gauge("sos_operator_config_generation", "Generation of the documents in force", registry=registry)
        self.queue_wakes = Counter("sos_operator_wakes", "Passes triggered by a watch", registry=registry)
        self.leader = Gauge("sos_operator_leader", "1 while this operator leads, 0 while it stands by", registry=registry)
        self.expected_pods = Gauge(
            "sos_operator_expected_pods", "Pods that should run, by component and site", ["component", "site"], registry=registry
        )
        self.build = Gauge("sos_operator_build_info", "Always 1; the version is in the label", ["version"], registry=registry)
        self.build.labels(version=__version__).set(1)

    def expect(self, pods: Mapping[tuple[str, str], int]) -> None:
        """Replace the numbers of expected pods: a group that is gone must not remain expected."""
        self.expected_pods.clear()
        for (component, site), count in pods.items():
            self.expected_pods.labels(component=component, site=site).set(count)

    def text(self) -> bytes:
        """Return the metrics in the Prometheus text format."""
        return generate_latest(self.registry)
