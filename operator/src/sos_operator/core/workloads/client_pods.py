"""Pods of users' workloads, which services select as clients."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import sos_compile

from sos_operator.core.model.custom_resources import SosService, SosSite
from sos_operator.core.model.objects import Object, identity, mapping, text
from sos_operator.core.model.world import Seen

ENDED = frozenset({"Succeeded", "Failed"})

Place = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class WorkloadPods:
    """The pods that services may select, in the form that `sos_compile` takes. `problem`: reason why they are unknown."""

    pods: tuple[sos_compile.Pod, ...] = ()
    problem: str = ""


def parse_workload_pod(content: Object) -> sos_compile.Pod | None:
    """Return a running pod that has a network namespace of its own, with its address; None for every other pod."""
    spec, status = mapping(content.get("spec")), mapping(content.get("status"))
    node, address = text(spec.get("nodeName")), text(status.get("podIP"))
    if not node or not address or spec.get("hostNetwork") is True or text(status.get("phase")) in ENDED:
        return None
    meta = identity(content)[2]
    # Intern labels: the pods of a workload have the same labels.
    labels = {sys.intern(key): sys.intern(value) for key, value in meta.labels.items()}
    return sos_compile.Pod(sys.intern(meta.namespace), meta.name, sys.intern(node), address, labels, meta.created)


def selects_pods(seen: Seen) -> bool:
    """True if a service selects pods, or if a site's rules confine services to the pods of their own namespaces."""
    return any(service.selects_pods for service in seen.of(SosService)) or any(site.confines_to_own_pods for site in seen.of(SosSite))


class PodCache:
    """Pods by namespace and name, filled by lists and kept up to date by the events of a watch.

    Events that arrive while a list is being read are applied after the list, because the list may be older.
    """

    def __init__(self) -> None:
        self._pods: dict[Place, sos_compile.Pod] = {}
        self._since_list: dict[Place, sos_compile.Pod | None] | None = None
        self._sorted: tuple[sos_compile.Pod, ...] | None = None

    def note(self, place: Place, pod: sos_compile.Pod | None) -> bool:
        """Store the pod of an event, None for a pod that is no longer a client. True if this changed the pods."""
        if self._since_list is not None:
            self._since_list[place] = pod
        if self._pods.get(place) == pod:
            return False
        self._put(place, pod)
        return True

    def begin_list(self) -> None:
        """Start to collect events, before a list is requested."""
        self._since_list = {}

    def end_list(self, listed: Iterable[sos_compile.Pod]) -> None:
        """Replace all pods by a list and the events since `begin_list`."""
        later, self._since_list = self._since_list or {}, None
        found = {(pod.namespace, pod.name): pod for pod in listed}
        changed = {place: pod for place, pod in (found | later).items() if pod is not None}
        if changed != self._pods:
            self._pods, self._sorted = changed, None

    def pods(self) -> tuple[sos_compile.Pod, ...]:
        """All pods, sorted; the same object as before if nothing has changed."""
        if self._sorted is None:
            self._sorted = tuple(self._pods[place] for place in sorted(self._pods))
        return self._sorted

    def _put(self, place: Place, pod: sos_compile.Pod | None) -> None:
        self._sorted = None
        if pod is None:
            self._pods.pop(place, None)
        else:
            self._pods[place] = pod
