"""`kubectl sos report`: a support bundle of a cluster or a lab in one file."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from sos_kubectl.base.labels import PART_OF
from sos_kubectl.base.source import API_VERSION, Controller, Kubectl, SourceError
from sos_kubectl.cli import options
from sos_kubectl.cli.options import Form, say, show, source_options
from sos_kubectl.support_bundle import scrub
from sos_kubectl.support_bundle.archive import Bundle
from sos_kubectl.targets.lab import Lab

Json = dict[str, Any]

DOCUMENTS = ("/v1/config", "/v1/status", "/v1/topology", "/v1/agents", "/v1/sessions", "/v1/measurements")
CHILDREN = "deployments,daemonsets,statefulsets,jobs,pods,services,configmaps,networkpolicies,poddisruptionbudgets,leases"
"""Kinds of children to collect, never Secrets."""
LOG_LINES = 5_000
SLOW_S = 60.0
NO_NAMESPACE = "default"
NAMESPACES_MAX = 100
"""Maximum number of namespaces queried one by one, if the user may not list events in all namespaces."""


@click.command(short_help="Write a support bundle without secrets.")
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="The archive to write. Default: sos-report-<time>.tar.gz in this folder."
)
@source_options
def report(  # noqa: PLR0913, PLR0917 - one parameter per option
    file: Path | None,
    name: str,
    namespace: str,
    url: str,
    lab: str,
    output: Form,
    context: str,
) -> None:
    """Write a support bundle: objects, events, logs, the controller's answers. Secrets are not read, and keys are removed."""
    path = file or Path(f"sos-report-{time.strftime('%Y%m%d-%H%M%S')}.tar.gz")
    if not path.name.endswith(".tar.gz"):
        raise click.UsageError(f"--file {path}: it ends with .tar.gz")
    try:
        bundle = Bundle(path)
    except OSError as error:
        raise SourceError(f"--file {path}: {error.strerror}") from None
    try:
        bundle.add_json("about.json", {"plugin": version("sos-kubectl"), "python": platform.python_version(), "time": time.time()})
        if lab:
            found = options.the_lab(lab)
            _lab(bundle, found)
            _controller(bundle, lambda: found.controller(name))
        elif url:
            _controller(bundle, lambda: Controller(url=url))
        else:
            kubectl = options.kubectl(context)
            _cluster(bundle, kubectl, namespace)
            _controller(bundle, lambda: options.controller(name, namespace, url, context))
    finally:
        bundle.close()
    missing = bundle.missing
    for line in missing:
        say(f"missing from the bundle: {line}")
    show(
        output,
        lambda: {"file": str(path), "members": bundle.members, "missing": missing},
        lambda: [f"{path}: {bundle.members} files, {path.stat().st_size // 1024 + 1} KiB"],
    )
    if bundle.members <= 2:  # about.json and missing.txt
        raise click.exceptions.Exit(options.FAILED)


def _try(bundle: Bundle, what: str, do: Callable[[], None]) -> None:
    try:
        do()
    except (SourceError, OSError) as error:
        bundle.missing.append(f"{what}: {error}")


def _controller(bundle: Bundle, find: Callable[[], Controller]) -> None:
    try:
        controller = find()
    except SourceError as error:
        bundle.missing.append(f"controller: {error}")
        return
    for what in DOCUMENTS:
        _try(bundle, what, lambda what=what: bundle.add_json(f"controller{what}.json", controller.get(what)))  # type: ignore[misc]
    _try(bundle, "/metrics", lambda: bundle.add_text("controller/metrics.txt", controller.text("/metrics")))

    def entries() -> None:
        for datapath in controller.get("/v1/status")["datapaths"]:
            dpid = datapath["dpid"]
            if not re.fullmatch(r"[0-9a-f]{16}", dpid):
                raise SourceError(f"{dpid[:40]!r} is no datapath id")  # the id becomes a file name
            bundle.add_json(f"controller/entries/{dpid}.json", controller.get(f"/v1/entries?dpid={dpid}"))

    _try(bundle, "/v1/entries", entries)


def _cluster(bundle: Bundle, kubectl: Kubectl, namespace: str) -> None:
    listed = ("-o", "json")
    _try(bundle, "version", lambda: bundle.add_text("kubectl-version.json", kubectl.run("version", *listed)))
    _try(bundle, "nodes", lambda: _objects(bundle, "nodes.json", kubectl.json("get", "nodes", *listed)["items"]))
    found: list[Json] = []

    def objects() -> None:
        found.extend(kubectl.objects())
        _objects(bundle, "objects.json", found)

    _try(bundle, "objects", objects)
    _events(bundle, kubectl, found)
    crds = ("get", "crds", "-l", PART_OF, *listed)
    _try(bundle, "CRDs", lambda: _objects(bundle, "crds.json", kubectl.json(*crds)["items"]))
    try:
        where = (namespace,) if namespace else kubectl.namespaces()
    except SourceError as error:
        bundle.missing.append(f"namespaces of SOS: {error}")
        return
    for each in where:
        _try(bundle, f"children in {each}", lambda each=each: _namespace(bundle, kubectl, each))  # type: ignore[misc]


def _events(bundle: Bundle, kubectl: Kubectl, objects: list[Json]) -> None:
    """Add events about SOS objects: from all namespaces, or from the objects' namespaces if the user may not list events in all."""
    ours = ("--field-selector", f"involvedObject.apiVersion={API_VERSION}", "-o", "json")
    try:
        found = kubectl.json("get", "events", "--all-namespaces", *ours, timeout_s=SLOW_S)["items"]
    except SourceError:
        found = []
        for namespace in event_namespaces(objects):
            command = ("get", "events", "-n", namespace, *ours)
            _try(bundle, f"events of objects in {namespace}", lambda: found.extend(kubectl.json(*command)["items"]))  # noqa: B023 - called at once
    _objects(bundle, "events.json", found)


def event_namespaces(objects: list[Json]) -> list[str]:
    """Namespaces with events about these objects: events about cluster-scoped objects are in `default` (API convention). At most
    NAMESPACES_MAX."""
    return sorted({obj["metadata"].get("namespace") or NO_NAMESPACE for obj in objects} | {NO_NAMESPACE})[:NAMESPACES_MAX]


def _namespace(bundle: Bundle, kubectl: Kubectl, namespace: str) -> None:
    for kind in CHILDREN.split(","):
        command = ("get", kind, "-n", namespace, "-l", PART_OF, "-o", "json")
        _try(bundle, f"{kind} in {namespace}", lambda: _objects(bundle, f"{namespace}/{kind}.json", kubectl.json(*command)["items"]))  # noqa: B023 - called at once
    events = ("get", "events", "-n", namespace, "-o", "json")
    _try(bundle, f"events in {namespace}", lambda: _objects(bundle, f"{namespace}/events.json", kubectl.json(*events)["items"]))
    for pod in kubectl.json("get", "pods", "-n", namespace, "-l", PART_OF, "-o", "json")["items"]:
        _logs(bundle, kubectl, namespace, pod)
        _metrics(bundle, kubectl, namespace, pod)


def _logs(bundle: Bundle, kubectl: Kubectl, namespace: str, pod: Json) -> None:
    """Add logs of every container, and of its previous run if it was restarted."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    statuses = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    restarted = {each["name"] for each in statuses if each.get("restartCount")}
    for container in (*pod["spec"].get("initContainers", ()), *pod["spec"].get("containers", ())):
        for before in (False, True) if container["name"] in restarted else (False,):
            command = ("logs", "-n", namespace, name, "-c", container["name"], f"--tail={LOG_LINES}", *(("--previous",) if before else ()))
            place = f"{namespace}/logs/{name}.{container['name']}{'.before' if before else ''}.log"
            _try(bundle, place, lambda: bundle.add_text(place, kubectl.run(*command, timeout_s=SLOW_S)))  # noqa: B023 - called at once


def _metrics(bundle: Bundle, kubectl: Kubectl, namespace: str, pod: Json) -> None:
    """Add the metrics of agents and node processes."""
    name, labels = pod["metadata"]["name"], pod["metadata"].get("labels") or {}
    if labels.get("app.kubernetes.io/component") not in ("agent", "node"):
        return
    for port in (port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports", ())):
        path = f"/api/v1/namespaces/{namespace}/pods/{name}:{port}/proxy/metrics"
        _try(bundle, f"metrics of {name}", lambda: bundle.add_text(f"{namespace}/metrics/{name}.txt", kubectl.raw(path)))  # noqa: B023 - called at once


def _objects(bundle: Bundle, name: str, found: list[Json]) -> None:
    bundle.add_json(name, scrub.objects(found))


def _lab(bundle: Bundle, lab: Lab) -> None:
    """Add a lab's folder without its keys and its token."""
    bundle.add_json("lab.json", lab.facts)
    for pattern in ("*-config.json", "*-config/*.json", "*/node-status.json", "log/*.log"):
        for path in sorted(lab.root.glob(pattern)):
            place = str(path.relative_to(lab.root))
            _try(bundle, place, lambda: bundle.add_text(place, path.read_text(encoding="utf-8", errors="replace")))  # noqa: B023 - called at once
    for _id, name, _site in lab.agents({}):
        _try(bundle, f"metrics of {name}", lambda: bundle.add_text(f"agents/{name}.metrics.txt", lab.agent_metrics(name)))  # noqa: B023
