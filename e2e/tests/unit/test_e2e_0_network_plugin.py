"""The network plugin in place of kind's: its place in kind's configuration, the routes it must have, and its traces on nodes."""

import pytest
from sos_e2e.environment import kube_router, network_plugin
from sos_e2e.observation import node_state
from sos_e2e.settings import settings

NETWORKS = {"one": "10.244.0.0/24", "two": "10.244.1.0/24", "three": "10.244.2.0/24"}
ROUTES = """\
default via 172.18.0.1 dev eth0
10.244.0.0/24 dev kube-bridge proto kernel scope link src 10.244.0.1
10.244.1.0/24 via 172.18.0.3 dev eth0 proto 17
"""


def test_a_node_needs_routes_to_the_pods_of_all_other_nodes() -> None:
    assert network_plugin.missing(NETWORKS, "one", ROUTES) == ["10.244.2.0/24"]
    assert network_plugin.missing(NETWORKS, "one", "") == ["10.244.1.0/24", "10.244.2.0/24"]


def test_kinds_plugin_is_disabled_and_networks_stay() -> None:
    config = {"kind": "Cluster", "networking": {"podSubnet": "10.60.0.0/16"}}
    assert network_plugin.without_default(config)["networking"] == {"podSubnet": "10.60.0.0/16", "disableDefaultCNI": True}
    assert network_plugin.without_default({"kind": "Cluster"})["networking"] == {"disableDefaultCNI": True}
    assert config == {"kind": "Cluster", "networking": {"podSubnet": "10.60.0.0/16"}}, "the argument is unchanged"


def test_all_objects_refer_to_the_same_plugin() -> None:
    objects = network_plugin.manifests("10.70.0.0/16")
    assert [each["kind"] for each in objects] == ["ConfigMap", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"]
    pod = objects[-1]["spec"]["template"]["spec"]
    mounts = {mount["name"] for each in (*pod["initContainers"], *pod["containers"]) for mount in each["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert kube_router.version().startswith("v")


def test_an_unknown_plugin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOS_E2E_CNI", "kuberouter")
    with pytest.raises(ValueError, match="kube-router"):
        settings(keep=False, small=True, cluster=None)


def test_the_bridge_of_pods_is_no_trace_of_sos() -> None:
    own = [{"ifname": "kube-bridge", "mtu": 1500}, {"ifname": "veth12ab", "mtu": 1500}, {"ifname": "kube-bridge2", "mtu": 1500}]
    assert node_state.links(own) == frozenset({" ifname=kube-bridge2 mtu=1500"})
    assert node_state.plain("10.244.0.0/24 dev kube-bridge scope link\n10.0.0.0/8 dev eth0\n") == frozenset({"10.0.0.0/8 dev eth0"})
