"""`kubectl sos peer`: content of an invitation, and its creation on a real API server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sos_compile
import yaml
from operator_fixtures import populated
from operator_kube import Kube
from operator_plugin import sos
from sos_kubectl.peering import invitation
from sos_kubectl.peering.invitation import End

NAMESPACE = "sos-system"


def routed(name: str, *prefixes: str) -> dict[str, Any]:
    spec = {
        "nodeSelector": {"matchLabels": {"a": "b"}},
        "prefixes": list(prefixes),
        "wan": {"type": "Routed"},
        "intake": {"type": "Pods"},
    }
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": name}, "spec": spec}


def pod(address: str, *args: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"args": list(args)}]}, "status": {"hostIP": address}}


def test_prefixes_are_those_of_sites_without_bridges() -> None:
    bridge = {"kind": "SosSite", "spec": {"prefixes": ["10.9.0.0/16"], "wan": {"type": "Overlay"}}}
    assert invitation.own_prefixes([routed("a", "10.2.0.0/17"), routed("b", "10.2.128.0/17", "10.4.0.0/16"), bridge]) == (
        "10.2.0.0/16",
        "10.4.0.0/16",
    )


def test_endpoints_are_the_nodes_of_agents_on_routes() -> None:
    pods = [pod("192.0.2.2", "--peers", "x"), pod("192.0.2.1", "--peers", "x"), pod("192.0.2.2", "--peers", "x"), pod("192.0.2.9")]
    assert invitation.own_endpoints(pods) == ("192.0.2.1:14790", "192.0.2.2:14790")
    assert len(invitation.own_endpoints([pod(f"192.0.2.{i}", "--peers") for i in range(40)])) == 16


def test_an_invitation_is_admitted_as_it_is() -> None:
    made = invitation.objects(End("dc1", "elsewhere", ("10.2.0.0/16",), ("192.0.2.1:14790",)), "there", "ab" * 16, "01" * 32)
    secret, peer = yaml.safe_load_all(invitation.text(made))
    assert (secret["metadata"]["name"], secret["metadata"]["namespace"]) == ("sos-peer-dc1", "there")
    assert secret["stringData"] == {"pairing": "ab" * 16, "key-1": "01" * 32}
    assert sos_compile.admit(peer)[1] == []


def test_invite_creates_one_half_and_prints_the_other(installed: Kube) -> None:
    with populated(installed) as cluster:
        flags = ("-n", NAMESPACE, "--prefix", "10.20.0.0/16", "--as", "dc1")
        none = sos(cluster, "peer", "invite", "dc2", *flags)
        assert none.returncode == 2 and "no SosSite with wan.type: Routed" in none.stderr
        cluster.apply(routed("west", "10.1.0.0/16"))
        early = sos(cluster, "peer", "invite", "dc2", *flags)
        assert early.returncode == 2 and "no agent" in early.stderr and cluster.items("sospeers") == []

        done = sos(cluster, "peer", "invite", "dc2", *flags, "--endpoint", "192.0.2.7:14790")
        assert done.returncode == 0, done.stderr
        secret, peer = yaml.safe_load_all(done.stdout)
        assert (peer["metadata"]["name"], peer["spec"]) == ("dc1", {"prefixes": ["10.1.0.0/16"], "endpoints": ["192.0.2.7:14790"]})
        assert cluster.get("sospeer", "dc2")["spec"]["prefixes"] == ["10.20.0.0/16"]
        ours = cluster.get("secret", "sos-peer-dc2", "-n", NAMESPACE)["data"]
        assert set(ours) == {"pairing", "key-1"}
        assert secret["stringData"]["key-1"] not in done.stderr

        again = sos(cluster, "peer", "invite", "dc2", *flags, "--no-endpoints")
        assert again.returncode == 2 and "there is a SosPeer dc2 already" in again.stderr
        listed = json.loads(sos(cluster, "peer", "list", "-o", "json").stdout)["peers"]
        assert [each["metadata"]["name"] for each in listed] == ["dc2"]
        assert "dc2" in sos(cluster, "peer", "list").stdout
        assert sos(cluster, "peer", "remove", "dc2", "-n", NAMESPACE).returncode == 0
        assert cluster.items("sospeers") == []
        assert cluster.kubectl("get", "secret", "sos-peer-dc2", "-n", NAMESPACE, "--ignore-not-found").stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("invite", "DC2", "--as", "dc1", "--prefix", "10.0.0.0/8"), "'DC2' is not a valid name"),
        (("invite", "dc2", "--as", "dc1", "--prefix", "10.0.0.1/8"), "--prefix 10.0.0.1/8"),
        (("invite", "dc2", "--as", "dc1"), "--prefix"),
    ],
)
def test_wrong_arguments_are_named(installed: Kube, arguments: tuple[str, ...], says: str) -> None:
    done = sos(installed, "peer", *arguments)
    assert done.returncode == 2 and says in done.stderr, done.stderr
