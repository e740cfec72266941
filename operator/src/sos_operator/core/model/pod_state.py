"""State of pods, DaemonSets and Deployments, with messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sos_operator.core.model.cluster_objects import ContainerStatus, DaemonSet, Deployment, Node, Pod
from sos_operator.core.model.conditions import Verdict
from sos_operator.core.model.remote.node_status import NodeAnswer

# The kubelet's reasons for containers that cannot start until something is changed.
_FAILING = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "RunContainerError",
    }
)
_MESSAGE_MAX = 300


@dataclass(frozen=True, slots=True)
class PodState:
    """State of one node of a site, or of one agent."""

    state: Literal["Pending", "Progressing", "Ready", "Failed", "Aborted"]
    message: str = ""


def pod_state(pod: Pod | None) -> PodState:
    """Return the state that a pod's status shows."""
    if pod is None:
        return PodState("Pending", "no pod on the node yet")
    if pod.leaving:
        return PodState("Progressing", "the pod is stopping")
    for container in pod.statuses:
        if container.waiting_reason in _FAILING:
            return PodState("Failed", _said(container))
    if pod.phase == "Failed":
        return PodState("Failed", (pod.message or pod.reason or "the pod failed")[:_MESSAGE_MAX])
    if pod.ready:
        return PodState("Ready")
    unready = [container.name for container in pod.statuses if not container.ready]
    return PodState("Progressing", f"waiting for container {', '.join(unready)}" if unready else "the pod is starting")


def lost(node: Node | None) -> PodState | None:
    """Return a Failed state if a node's kubelet is silent or not ready, because its pods' status is then stale; None if the node is
    ready."""
    ready = node.ready if node else None
    if ready is None or ready.status == "True":
        return None
    said = ready.message or ready.reason or f"Ready is {ready.status}"
    return PodState("Failed", f"the node is not ready: {said}"[:_MESSAGE_MAX])


def with_answer(state: PodState, answer: NodeAnswer | None) -> PodState:
    """A pod's state combined with the answer of its node process."""
    if answer is None or state.state == "Failed":
        return state
    if answer.state == "Failed":
        return PodState("Failed", answer.message)
    return PodState(state.state, answer.noteworthy or state.message)


def _said(container: ContainerStatus) -> str:
    """Return the container's last message, if known: the kubelet's own message only states the back-off."""
    message = (container.ended_message or container.waiting_message).strip().rpartition("\n")[2]
    text = f"container {container.name}: {container.waiting_reason}"
    return (text + (f": {message}" if message else ""))[:_MESSAGE_MAX]


def daemon_set_settled(daemon_set: DaemonSet | None) -> bool:
    """True if the DaemonSet controller has observed the current spec and every node has a ready pod, made from the current template if the
    controller replaces older pods."""
    if daemon_set is None:
        return False
    if daemon_set.observed_generation < daemon_set.meta.generation:
        return False
    updated = not daemon_set.updates or daemon_set.updated >= daemon_set.desired
    return daemon_set.ready >= daemon_set.desired and updated


def deployment_verdict(deployment: Deployment | None) -> Verdict | None:
    """Return why a controller's Deployment is not up; None if the Deployment is up (and the fault lies elsewhere)."""
    if deployment is None:
        return Verdict("Available", "False", "RollingOut", "its Deployment has not been created yet")
    if deployment.available > 0:
        return None
    said = next((c.message for c in deployment.conditions if c.type in ("ReplicaFailure", "Available") and c.message), "")
    return Verdict("Available", "Unknown", "ControllerUnreachable", "its pod is not available" + (f": {said}" if said else ""))
