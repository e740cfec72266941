"""`kubectl sos diagnose` in a cluster: its pods, their addresses, and complete clean-up. A real API server; no kubelets."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_kube import Kube
from operator_plugin import INTERRUPTED, sos, sos_process
from operator_run import NAMESPACE, Operator, eventually
from sos_kubectl.targets import probe_pod

MINE = "app.kubernetes.io/managed-by=kubectl-sos"
NETWORK = {"metadata": {"name": "sos-west", "namespace": NAMESPACE}, "spec": {"config": json.dumps({"ipam": {"type": "static"}})}}
STATUS = [
    {"name": "cluster", "interface": "eth0", "ips": ["10.244.0.9"]},
    {"name": "x/sos-west", "interface": "net1", "ips": ["10.0.0.120"]},
]

NAMED = ("--from-address", "10.0.0.120/24", "--to-address", "10.0.0.250/24")
"""Addresses for the pods, because no controller runs here that knows free addresses."""

prefixes = st.tuples(st.integers(0, 2**32 - 1), st.integers(20, 30)).map(lambda p: IPv4Network(p, strict=False))


@settings(deadline=None)  # execution time depends on the machine's load
@given(prefixes, st.data())
def test_a_found_address_is_a_free_host_address_of_the_prefix(prefix: IPv4Network, data: st.DataObject) -> None:
    hosts = [str(prefix[i]) for i in range(min(prefix.num_addresses, 64))] + [str(prefix[-i]) for i in range(1, 5)]
    taken = data.draw(st.sets(st.sampled_from(hosts)))
    found = probe_pod.free_address([str(prefix)], str(prefix), taken)
    if found is None:
        assert prefix.num_addresses - 2 <= len(taken)
        return
    interface = IPv4Interface(found)
    assert interface.ip in prefix and str(interface.ip) not in taken and interface.network == prefix
    assert interface.ip not in (prefix.network_address, prefix.broadcast_address)


def test_a_free_address_is_within_the_requested_half_of_a_subnet() -> None:
    assert probe_pod.free_address(["10.0.0.0/25"], "10.0.0.0/24", {"10.0.0.127"}) == "10.0.0.126/24"
    assert probe_pod.free_address(["10.0.0.128/25"], "10.0.0.0/24", set()) == "10.0.0.254/24"
    assert probe_pod.free_address(["10.0.0.0/31"], "10.0.0.0/24", {"10.0.0.1"}) is None


@pytest.mark.parametrize(
    ("ipam", "assigns"),
    [({}, False), ({"ipam": {"type": "static"}}, False), ({"ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}}, True)],
)
def test_every_ipam_except_static_assigns_addresses(ipam: dict[str, Any], assigns: bool) -> None:
    assert probe_pod.assigns({"spec": {"config": json.dumps(ipam)}}) == assigns
    assert not probe_pod.assigns({"spec": {"config": "nonsense"}})


def test_every_known_address_counts_as_taken() -> None:
    """Includes further addresses of a host, and single addresses in prefixes of services: their hosts may not have been learnt yet."""
    config = {
        "sites": [{"gateway": "10.0.0.1/24", "agents": [{"address": "10.0.0.126"}]}, {"gateway": None, "agents": []}],
        "services": [{"from": {"prefixes": ["10.0.0.0/25", "10.0.0.11/32"]}, "to": {"prefixes": ["10.0.0.139/32"]}}],
        "balances": [{"client": "10.0.0.12", "to": ["10.9.0.0/16", "10.9.0.7/32"]}],
    }
    hosts = [
        {"address": "10.0.0.40", "addresses": ["10.0.0.40", "10.0.0.41"]},
        {"address": "10.0.0.50"},
        {"address": None, "addresses": []},
    ]
    assert probe_pod.taken(config, {"hosts": hosts}) == {
        *("10.0.0.1", "10.0.0.126", "10.0.0.11", "10.0.0.139", "10.0.0.12", "10.9.0.7", "10.0.0.40", "10.0.0.41", "10.0.0.50"),
    }
    pods = [{"metadata": {"annotations": {probe_pod.NETWORKS: json.dumps([{"ips": ["10.0.0.60/24"]}])}}}, {"metadata": {}}]
    other = [{"metadata": {"annotations": {probe_pod.NETWORKS: text}}} for text in ("sos-west", '["sos-west"]', "[1]")]
    assert probe_pod.addresses_asked([*pods, *other]) == {"10.0.0.60"}


def test_a_pods_address_is_its_address_on_the_sites_network() -> None:
    pod = {"metadata": {"annotations": {probe_pod.NETWORK_STATUS: json.dumps(STATUS)}}}
    assert probe_pod.address_of(pod) == "10.0.0.120"
    for wrong in (
        {},
        {"annotations": {probe_pod.NETWORK_STATUS: json.dumps(STATUS[:1])}},
        {"annotations": {probe_pod.NETWORK_STATUS: "{"}},
    ):
        assert probe_pod.address_of({"metadata": wrong}) is None


# -- against an API server


@pytest.fixture
def networks(example: Operator) -> Iterator[Kube]:
    """The example with the CRD of Multus, networks as the operator creates them, and the configuration in the controller's ConfigMap."""
    kube = example.kube
    names = {"plural": "network-attachment-definitions", "singular": "network-attachment-definition", "kind": "NetworkAttachmentDefinition"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    crd = {
        **{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"},
        "metadata": {"name": "network-attachment-definitions.k8s.cni.cncf.io"},
        "spec": {
            **{"group": "k8s.cni.cncf.io", "scope": "Namespaced", "names": {**names, "shortNames": ["net-attach-def"]}},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    kube.apply(crd)
    kube.kubectl("wait", "--for=condition=Established", f"crd/{crd['metadata']['name']}", "--timeout=30s")
    networks = [
        {
            "apiVersion": "k8s.cni.cncf.io/v1",
            "kind": "NetworkAttachmentDefinition",
            **NETWORK,
            "metadata": {**NETWORK["metadata"], "name": name},
        }
        for name in ("sos-west", "sos-east")
    ]
    kube.apply(*networks)
    yield kube
    kube.kubectl("delete", "crd", crd["metadata"]["name"])


@contextmanager
def kubelets(kube: Kube, *, ready: bool) -> Iterator[list[dict[str, Any]]]:
    """Play the kubelets: give our pods a status and the annotation of Multus; yield all pods that ever existed."""
    stop, met = threading.Event(), list[dict[str, Any]]()

    def run() -> None:
        while not stop.wait(0.1):
            for pod in kube.items("pods", "-n", NAMESPACE, "-l", MINE):
                name = pod["metadata"]["name"]
                if name in [known["metadata"]["name"] for known in met]:
                    continue
                met.append(pod)
                if not ready:
                    waiting = {"name": "probe", "image": "x", "imageID": "", "ready": False, "restartCount": 0}
                    state = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
                    kube.patch_status("pod", name, NAMESPACE, {"phase": "Pending", "containerStatuses": [{**waiting, "state": state}]})
                    continue
                (asked,) = json.loads(pod["metadata"]["annotations"][probe_pod.NETWORKS])
                told = json.dumps([{"interface": "net1", "ips": [asked["ips"][0].partition("/")[0]]}])
                kube.kubectl("annotate", "pod", name, "-n", NAMESPACE, f"{probe_pod.NETWORK_STATUS}={told}")
                now = {"lastTransitionTime": None, "lastProbeTime": None}
                kube.patch_status("pod", name, NAMESPACE, {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", **now}]})

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield met
    finally:
        stop.set()
        thread.join(30)


def none_left(kube: Kube) -> None:
    """Finish the deletion of the pods, which no kubelet confirms here."""
    kube.kubectl("delete", "pods", "-n", NAMESPACE, "-l", MINE, "--force", "--grace-period=0", "--ignore-not-found")


def all_leaving(kube: Kube) -> bool:
    return all(pod["metadata"].get("deletionTimestamp") for pod in kube.items("pods", "-n", NAMESPACE, "-l", MINE))


def test_probe_pods_use_the_sites_network_and_are_deleted(networks: Kube) -> None:
    kube = networks
    kube.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted", "--overwrite")
    try:
        with kubelets(kube, ready=True) as met:
            done = sos(kube, "diagnose", "west", "east", *NAMED, "-o", "json", "--seconds", "1")
    finally:
        kube.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce-")
    assert all_leaving(kube) and len(met) == 2
    west, east = met
    (network,) = json.loads(west["metadata"]["annotations"][probe_pod.NETWORKS])
    assert (network["name"], network["namespace"], network["interface"]) == ("sos-west", NAMESPACE, "net1")
    assert network["ips"] == ["10.0.0.120/24"]
    agents = kube.get("daemonset", "sos-agent-default-west", "-n", NAMESPACE)["spec"]["template"]["spec"]
    switch = kube.get("daemonset", "sos-node-west", "-n", NAMESPACE)["spec"]["template"]["spec"]
    assert west["spec"]["containers"][0]["image"] == agents["containers"][0]["image"]
    assert west["spec"]["affinity"] == switch["affinity"]
    assert not west["spec"]["automountServiceAccountToken"] and west["spec"]["activeDeadlineSeconds"] == probe_pod.LIFE_S
    assert [json.loads(pod["metadata"]["annotations"][probe_pod.NETWORKS])[0]["name"] for pod in (west, east)] == ["sos-west", "sos-east"]
    (sysctl,) = west["spec"]["securityContext"]["sysctls"]
    assert sysctl == {"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}, "a service may cover only port 22"
    # Without a kubelet no command runs in the pods, and no controller answers: both are reported.
    (said,) = json.loads(done.stdout)["pairs"]
    found = [finding["code"] for finding in said["findings"]]
    assert (done.returncode, said["verdict"], found[0]) == (1, "unknown", "ControllerUnreachable") and "NoEnds" in found
    none_left(kube)


def test_without_a_controller_no_address_is_assumed_free(networks: Kube) -> None:
    """A pod with the address of a live host would break the host's connections."""
    done = sos(networks, "diagnose", "west", "east", "-o", "json", "--from-address", "10.0.0.120/24")
    (said,) = json.loads(done.stdout)["pairs"]
    (why,) = [finding["what"] for finding in said["findings"] if finding["code"] == "NoEnds"]
    assert "--to-address" in why and "without the controller" in why and networks.items("pods", "-n", NAMESPACE, "-l", MINE) == []


def test_a_pod_that_does_not_start_is_reported_and_deleted(networks: Kube) -> None:
    with kubelets(networks, ready=False) as met:
        done = sos(networks, "diagnose", "west", "east", *NAMED, "-o", "json", "--pod-timeout", "4")
    (said,) = json.loads(done.stdout)["pairs"]
    (why,) = [finding["what"] for finding in said["findings"] if finding["code"] == "NoEnds"]
    assert "ErrImagePull no such image" in why and len(met) == 2 and all_leaving(networks)
    none_left(networks)


def test_an_interrupted_diagnosis_leaves_no_pod(networks: Kube) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        with sos_process(networks, "diagnose", "west", "east", *NAMED) as process:
            eventually("both pods", lambda: len(networks.items("pods", "-n", NAMESPACE, "-l", MINE)) == 2)
            process.send_signal(number)
            process.send_signal(signal.SIGINT)  # users press Ctrl-C again: the clean-up continues
            assert process.wait(timeout=120) == INTERRUPTED
        assert all_leaving(networks), number
        none_left(networks)


def test_pods_of_an_earlier_diagnosis_are_deleted(networks: Kube) -> None:
    """A pod that could not be deleted has ended at its deadline."""
    meta = {"namespace": NAMESPACE, "labels": probe_pod.LABELS}
    spec = {"containers": [{"name": "probe", "image": "x"}]}
    for name in ("ended", "runs"):
        networks.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {**meta, "name": name}, "spec": spec})
    networks.patch_status("pod", "ended", NAMESPACE, {"phase": "Failed"})
    sos(networks, "diagnose", "west", "east")
    left = [pod["metadata"]["name"] for pod in networks.items("pods", "-n", NAMESPACE, "-l", MINE)]
    assert left == ["runs"]
    none_left(networks)


def test_addresses_are_checked(example: Operator) -> None:
    for wrong in ("10.0.0.1", "x/24"):
        done = sos(example.kube, "diagnose", "west", "east", "--from-address", wrong)
        assert done.returncode == 2 and wrong in done.stderr
