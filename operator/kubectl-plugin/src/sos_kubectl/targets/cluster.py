"""A cluster as a target: probe pods are created, send, and are deleted."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sos_kubectl.base import names
from sos_kubectl.base.labels import PART_OF
from sos_kubectl.base.source import Controller, Kubectl, SourceError
from sos_kubectl.targets import probe_pod
from sos_kubectl.targets.transfer import End

Json = dict[str, Any]

POLL_S = 0.5
DELETE_S = 30.0
NAME_ONE = "give a free address with --from-address or --to-address"
SITE, POOL = "sos.network/site", "sos.network/pool"


@dataclass(frozen=True, slots=True)
class Cluster:
    """SOS in one namespace of a cluster."""

    kubectl: Kubectl
    namespace: str
    controller: Controller
    name: str = "default"
    addresses: tuple[str, str] = ("", "")
    """Requested addresses of the two pods, as address/length; "" = find a free one."""
    ready_s: float = 60.0
    """Time limit for pods to be ready. It covers scheduling and network plugins, because the image is already on the node."""

    def objects(self) -> list[Json]:
        """All SOS objects."""
        return self.kubectl.objects()

    def config(self) -> Json:
        """The configuration that the operator mounted for the controller."""
        try:
            found = self.kubectl.json("get", "configmap", names.controller(self.name), "-n", self.namespace, "-o", "json")
            document: Json = json.loads(found["data"]["config.json"])
        except (SourceError, KeyError, ValueError):
            return {}
        return document

    @contextmanager
    def ends(self, sites: tuple[Json, Json], prefixes: tuple[list[str], list[str]]) -> Iterator[tuple[End | None, End | None, str]]:
        """Provide a pod at each of two sites inside the block; delete both pods at its end, also after an error."""
        with ExitStack() as stack:
            try:
                self._leftovers()
                networks = [self._network(site) for site in sites]
                given = [wanted or None for wanted in self.addresses]
                finding = [address is None and not probe_pod.assigns(network) for address, network in zip(given, networks, strict=True)]
                addresses = self._free(sites, prefixes, finding) if any(finding) else (None, None)
                made = [
                    stack.enter_context(self._pod(site, network, None if probe_pod.assigns(network) else asked or found))
                    for site, network, asked, found in zip(sites, networks, given, addresses, strict=True)
                ]
                ends = [self._settled(name) for name in made]
            except SourceError as error:
                yield None, None, str(error)
                return
            yield ends[0], ends[1], ""

    def _network(self, site: Json) -> Json:
        return self.kubectl.json("get", "net-attach-def", names.network(site["name"]), "-n", self.namespace, "-o", "json")

    def _free(self, sites: tuple[Json, Json], prefixes: tuple[list[str], list[str]], finding: list[bool]) -> tuple[str | None, str | None]:
        """Addresses for pods if the network assigns none. SourceError if no address is known to be free: a live host's address must not be
        reused."""
        known, found = self._taken(), list[str | None]()
        for site, within, wanted in zip(sites, prefixes, finding, strict=True):
            if not wanted:
                found.append(None)
                continue
            if not within:
                raise SourceError(f"site {site['name']} has no prefixes, so it has no hosts")
            address = probe_pod.free_address(within, site["subnet"] or within[0], known)
            if address is None:
                raise SourceError(f"no address in {', '.join(within)} of site {site['name']} is known to be free: {NAME_ONE}")
            known.add(address.partition("/")[0])
            found.append(address)
        return found[0], found[1]

    def _taken(self) -> set[str]:
        """Addresses of learnt hosts, declared addresses, and addresses of other diagnoses' pods."""
        try:
            config, topology = self.controller.get("/v1/config"), self.controller.get("/v1/topology")
        except SourceError as error:
            raise SourceError(f"without the controller the addresses of hosts are unknown ({error}): {NAME_ONE}") from None
        if topology.get("truncated"):
            raise SourceError(f"there are more hosts than the controller lists: {NAME_ONE}")
        pods = self.kubectl.json("get", "pods", "-n", self.namespace, "-l", probe_pod.SELECTOR, "-o", "json")["items"]
        return probe_pod.taken(config, topology) | probe_pod.addresses_asked(pods)

    @contextmanager
    def _pod(self, site: Json, network: Json, address: str | None) -> Iterator[str]:
        agents, switch = self._daemon_set("agent", site["name"]), self._daemon_set("node", site["name"])
        name = f"sos-{probe_pod.COMPONENT}-{site['name'][:30]}-{secrets.token_hex(3)}"
        manifest = probe_pod.build(name, network, agents, switch, address)
        try:
            self.kubectl.run("create", "-f", "-", stdin=json.dumps(manifest))
            yield name
        finally:
            # if this fails, the pod ends by itself and the next diagnosis deletes it; the failure must not hide the result of the diagnosis
            self.kubectl.tidy("delete", "pod", name, "-n", self.namespace, "--ignore-not-found", "--wait=false", timeout_s=DELETE_S)

    def _leftovers(self) -> None:
        """Delete pods of earlier diagnoses that could not be deleted: they ended at their deadline, but are still listed."""
        for phase in ("Succeeded", "Failed"):
            command = ("delete", "pods", "-n", self.namespace, "-l", probe_pod.SELECTOR, "--field-selector", f"status.phase={phase}")
            with suppress(SourceError):
                self.kubectl.run(*command, "--ignore-not-found", "--wait=false", timeout_s=DELETE_S)

    def _daemon_set(self, component: str, site: str) -> Json:
        selector = f"{PART_OF},app.kubernetes.io/component={component},{SITE}={site}"
        found = self.kubectl.json("get", "daemonsets", "-n", self.namespace, "-l", selector, "-o", "json")["items"]
        if not found:
            raise SourceError(f"site {site} has no DaemonSet of {component}s in namespace {self.namespace}")
        return dict(found[0])

    def _settled(self, name: str) -> End:
        deadline = time.monotonic() + self.ready_s
        while True:
            pod = self.kubectl.json("get", "pod", name, "-n", self.namespace, "-o", "json")
            ready = any(c["type"] == "Ready" and c["status"] == "True" for c in (pod.get("status") or {}).get("conditions") or ())
            address = probe_pod.address_of(pod)
            if ready and address:
                prefix = self.kubectl.argv("exec", "-i", "-n", self.namespace, name, "-c", probe_pod.CONTAINER, "--", "sos-probe")
                return End(name, address, prefix)
            if time.monotonic() > deadline:
                why = "it has no address on the site's network (is Multus there?)" if ready else probe_pod.why_not_ready(pod)
                raise SourceError(f"pod {name} is not ready after {self.ready_s:.0f} s: {why}")
            time.sleep(POLL_S)

    def agents(self, config: Json) -> list[tuple[str, str, str]]:
        """Every declared agent's id, name and site."""
        found = [(site, agent) for site in config.get("sites", ()) for agent in site["agents"]]
        return [(agent["id"], f"{agent['node']}/{agent['pool']}", site["name"]) for site, agent in found]

    def agent_metrics(self, name: str) -> str:
        """The metrics of the agent NODE/POOL; "" if its pod runs and the user may not query it. SourceError if it does not run."""
        node, _, pool = name.partition("/")
        selector = f"{PART_OF},app.kubernetes.io/component=agent,{POOL}={pool}"
        command = ("get", "pods", "-n", self.namespace, "-l", selector, "--field-selector", f"spec.nodeName={node}", "-o", "json")
        pods = self.kubectl.json(*command)["items"]
        if not pods:
            raise SourceError(f"no pod of pool {pool} is on node {node}")
        pod = pods[0]
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in (pod.get("status") or {}).get("conditions") or ()):
            raise SourceError(f"pod {pod['metadata']['name']} is not ready: {probe_pod.why_not_ready(pod)}")
        port = pod["spec"]["containers"][0]["ports"][0]["containerPort"]
        try:
            return self.kubectl.raw(f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}:{port}/proxy/metrics")
        except SourceError:
            return ""
