from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import DefaultResources, Images, Settings, World, compile_world
from sos_compile.artifacts import FIGURE8, OVERLAY, example_world
from sos_compile.manifests import naming
from worlds import nodes, obj, service, site, world, worlds

ROOT = Path(__file__).resolve().parents[3]
STANDARD = {"name", "instance", "component", "part-of", "managed-by"}


def by_name(compiled_world: World) -> dict[tuple[str, str], dict[str, Any]]:
    return {(m["kind"], m["metadata"]["name"]): m for m in compile_world(compiled_world).manifests}


@pytest.fixture(scope="module")
def figure8() -> dict[tuple[str, str], dict[str, Any]]:
    return by_name(example_world("01-two-sites", FIGURE8))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return spec


def test_example_01_yields_the_expected_objects(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert sorted(figure8) == [
        ("ConfigMap", "sos-agent-default-east"),
        ("ConfigMap", "sos-agent-default-west"),
        ("ConfigMap", "sos-controller-default"),
        ("ConfigMap", "sos-node-core1"),
        ("ConfigMap", "sos-node-core2"),
        ("ConfigMap", "sos-node-east"),
        ("ConfigMap", "sos-node-west"),
        ("DaemonSet", "sos-agent-default-east"),
        ("DaemonSet", "sos-agent-default-west"),
        ("DaemonSet", "sos-node-core1"),
        ("DaemonSet", "sos-node-core2"),
        ("DaemonSet", "sos-node-east"),
        ("DaemonSet", "sos-node-west"),
        ("Deployment", "sos-controller-default"),
        ("NetworkAttachmentDefinition", "sos-east"),
        ("NetworkAttachmentDefinition", "sos-west"),
        ("NetworkPolicy", "sos-controller-default"),
        ("Service", "sos-controller-default"),
    ]


@given(worlds())
def test_every_object_is_unique_named_labelled_and_owned(given_world: World) -> None:
    compiled = compile_world(given_world)
    names = [(m["kind"], m["metadata"]["namespace"], m["metadata"]["name"]) for m in compiled.manifests]
    assert len(set(names)) == len(names)
    uids = {o["metadata"]["uid"]: o["metadata"]["name"] for o in given_world.objects if isinstance(o, dict) and "uid" in o["metadata"]}
    for manifest in compiled.manifests:
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "sos-system"
        assert len(metadata["name"]) <= 63
        assert {f"app.kubernetes.io/{name}" for name in STANDARD} <= set(metadata["labels"])
        assert all(len(value) <= 63 for value in metadata["labels"].values())
        for owner in metadata.get("ownerReferences", []):
            assert uids[owner["uid"]] == owner["name"]
        json.dumps(manifest)


@given(worlds())
def test_selectors_match_only_their_own_pods(given_world: World) -> None:
    manifests = compile_world(given_world).manifests
    templates = [m for m in manifests if m["kind"] in {"DaemonSet", "Deployment"}]
    for selecting in templates:
        wanted = selecting["spec"]["selector"]["matchLabels"].items()
        found = [m["metadata"]["name"] for m in templates if wanted <= m["spec"]["template"]["metadata"]["labels"].items()]
        assert found == [selecting["metadata"]["name"]]
    for chosen in (m for m in manifests if m["kind"] == "Service"):
        wanted = chosen["spec"]["selector"].items()
        assert [m["metadata"]["name"] for m in templates if wanted <= m["spec"]["template"]["metadata"]["labels"].items()] == [
            "sos-controller-default"
        ]


def test_every_mounted_volume_exists(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    for manifest in figure8.values():
        if manifest["kind"] in {"DaemonSet", "Deployment"}:
            volumes = {volume["name"] for volume in pod_of(manifest)["volumes"]}
            mounts = {mount["name"] for container in pod_of(manifest)["containers"] for mount in container["volumeMounts"]}
            assert mounts == volumes


def test_config_maps_contain_the_documents() -> None:
    compiled = compile_world(example_world("02-overlay", OVERLAY))
    found = {m["metadata"]["name"]: m["data"] for m in compiled.manifests if m["kind"] == "ConfigMap"}
    assert json.loads(found["sos-controller-default"]["config.json"]) == compiled.controllers["default"]
    assert {name: json.loads(text) for name, text in found["sos-node-clemson"].items()} == {
        f"{node}.json": compiled.nodes[node] for node in ("clemson-1", "clemson-2")
    }
    assert json.loads(found["sos-agent-default-cambridge"]["cambridge-1.json"]) == compiled.agents["default", "cambridge-1"]


def test_new_configuration_replaces_no_pod() -> None:
    before = by_name(example_world("01-two-sites", FIGURE8))
    after = by_name(example_world("01-two-sites", {**FIGURE8, "edge3": "west"}))
    changed = {key for key in before if before[key] != after[key]}
    assert {kind for kind, _ in changed} == {"ConfigMap"}
    assert ("ConfigMap", "sos-node-west") in changed


def test_update_strategies_match_the_design(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    assert figure8["DaemonSet", "sos-node-west"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert figure8["DaemonSet", "sos-agent-default-west"]["spec"]["updateStrategy"]["type"] == "RollingUpdate"
    assert figure8["Deployment", "sos-controller-default"]["spec"]["strategy"] == {"type": "Recreate"}
    assert pod_of(figure8["DaemonSet", "sos-agent-default-west"])["terminationGracePeriodSeconds"] > 60


def test_a_switch_pod_has_time_to_remove_the_bridge_when_it_stops(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    """The limits are constants of sos-node and of the start script of Open vSwitch."""
    source = (ROOT / "agent-image" / "crates" / "sos-node" / "src" / "planning" / "orphan.rs").read_text()
    silence, part, removal = (
        int(re.findall(rf"const {name}: \S+ = \D*(\d+)", source)[0]) for name in ("SILENCE", "LISTENED_PART", "REMOVAL")
    )
    held = int(re.findall(r"readonly HOLD_S=(\d+)", (ROOT / "agent-image" / "ovs" / "start.sh").read_text())[0])
    assert silence // part + removal < held < pod_of(figure8["DaemonSet", "sos-node-west"])["terminationGracePeriodSeconds"]


def test_privileges_are_minimal_and_the_controller_has_none(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    for manifest in figure8.values():
        if manifest["kind"] in {"DaemonSet", "Deployment"}:
            assert pod_of(manifest)["automountServiceAccountToken"] is False
            for container in pod_of(manifest)["containers"]:
                context = container["securityContext"]
                assert not context.get("privileged", False)
                assert context["capabilities"]["drop"] == ["ALL"]
                assert context["readOnlyRootFilesystem"]
                profile = context.get("seccompProfile") or pod_of(manifest)["securityContext"]["seccompProfile"]
                assert profile == {"type": "RuntimeDefault"}, container["name"]
    controller = pod_of(figure8["Deployment", "sos-controller-default"])
    assert controller["securityContext"]["runAsNonRoot"]
    assert controller["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "hostNetwork" not in controller


def arguments(manifest: dict[str, Any], container: str) -> dict[str, str]:
    args = next(each for each in pod_of(manifest)["containers"] if each["name"] == container)["args"]
    return dict(zip(args[::2], args[1::2], strict=True))


def test_container_arguments_match_the_programs_options(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    controller = arguments(figure8["Deployment", "sos-controller-default"], "controller")
    assert controller.pop("--log-format") == "json"
    listeners = {"--openflow-listen", "--openflow-tls", "--api-listen"}
    assert set(controller) == {"--config", "--keys", "--token-file", *listeners, "--state", "--log-level"}
    agent = arguments(figure8["DaemonSet", "sos-agent-default-west"], "agent")
    assert agent["--attach"] == "host"
    assert set(agent) == {"--config", "--node", "--keys", "--state", "--attach", "--log-format"}
    node = arguments(figure8["DaemonSet", "sos-node-west"], "node")
    assert node["--ovs-rundir"] == "/run/sos/openvswitch"
    assert node["--anchor"] == "$(KUBERNETES_SERVICE_HOST):$(KUBERNETES_SERVICE_PORT)"
    options = {"--config", "--node", "--state", "--ovs-rundir", "--openflow-tls", "--status-file", "--listen", "--anchor", "--log-format"}
    assert set(node) == options


def test_multus_agents_get_a_network_without_ipam() -> None:
    given = world(site("a", "10.0.0.0/16"), obj("SosAgent", "pods", {"attach": "Multus"}), nodes=nodes(a=2))
    found, compiled = by_name(given), compile_world(given)
    network = json.loads(found["NetworkAttachmentDefinition", "sos.agent-pods-a"]["spec"]["config"])
    documents = {node: document for (pool, node), document in compiled.agents.items() if pool == "pods"}
    (port,) = {document["interface"]["hostPort"] for document in documents.values()}
    assert (network["type"], network["bridge"], network["ofport_request"]) == ("ovs", "br-sos", port)
    assert "ipam" not in network, "the operator assigns addresses, so no IPAM plugin can assign an address twice"
    addresses = [document["interface"]["address"] for document in compiled.agents.values()]
    assert len(addresses) == len(set(addresses)) == 4
    daemon_set = found["DaemonSet", "sos-agent-pods-a"]
    template = daemon_set["spec"]["template"]
    asked = json.loads(template["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    assert asked == [{"name": "sos.agent-pods-a", "namespace": "sos-system", "interface": "net0"}]
    assert {document["interface"]["name"] for document in documents.values()} == {"net0"}
    assert "hostNetwork" not in template["spec"]
    assert not [p for p in template["spec"]["containers"][0]["ports"] if "hostPort" in p]
    assert arguments(daemon_set, "agent")["--attach"] == "none"
    for node in documents:
        document = compiled.nodes[node]
        assert [p["ofport"] for p in document["agentPorts"]] == [34001], "sos-node does not wait for ports of a CNI plugin"
        assert [flow for flow in document["baseFlows"] if f"in_port={port}" in flow["match"]], "the guard entries cover the port"


def test_network_names_of_agents_and_sites_do_not_collide() -> None:
    given = world(
        site("a", "10.0.0.0/16"),
        site("agent-pods-a", "10.1.0.0/16"),
        obj("SosAgent", "pods", {"attach": "Multus"}),
        nodes=nodes(**{"a": 1, "agent-pods-a": 1}),
    )
    names = [m["metadata"]["name"] for m in compile_world(given).manifests if m["kind"] == "NetworkAttachmentDefinition"]
    assert len(names) == len(set(names)) == 4
    assert {naming.network("sos", name) for name in ("a", "agent-pods-a")} < set(names)


def test_mounted_secrets_have_the_operators_names(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    volumes = pod_of(figure8["Deployment", "sos-controller-default"])["volumes"]
    secrets = {volume["secret"]["secretName"] for volume in volumes if "secret" in volume}
    assert secrets == {"sos-controllerkeys-default", "sos-controllertoken-default", "sos-controllercert-default"}
    agent = pod_of(figure8["DaemonSet", "sos-agent-default-west"])["volumes"]
    assert [volume["secret"]["secretName"] for volume in agent if "secret" in volume] == ["sos-sitekeys-west"]
    node = pod_of(figure8["DaemonSet", "sos-node-west"])
    (tls,) = [volume["secret"] for volume in node["volumes"] if "secret" in volume]
    assert tls["secretName"] == "sos-sitecert-west" and tls["optional"], "a bridge forwards plainly before the operator has certificates"
    places = {mount["mountPath"] for container in node["containers"] for mount in container["volumeMounts"] if mount["name"] == "tls"}
    assert places == {arguments(figure8["DaemonSet", "sos-node-west"], "node")["--openflow-tls"]}, "Open vSwitch opens the same paths"


def test_manifests_are_owned_by_their_objects() -> None:
    found = by_name(world(site("a", "10.0.0.0/16", metadata={"uid": "u-a"}), obj("SosAgent", "p", uid="u-p"), nodes=nodes(a=1)))
    owners = {key: [owner["uid"] for owner in m["metadata"].get("ownerReferences", [])] for key, m in found.items()}
    assert owners["DaemonSet", "sos-node-a"] == ["u-a"]
    assert owners["NetworkAttachmentDefinition", "sos-a"] == ["u-a"]
    assert owners["DaemonSet", "sos-agent-p-a"] == ["u-p"]
    assert owners["DaemonSet", "sos-agent-default-a"] == []


def test_settings_and_overrides_reach_the_pods() -> None:
    images = Images(controller="c:1", agent="a:1", node="n:1", ovs="o:1")
    settings = Settings(images=images, pull_policy="Never", pull_secrets=("pull",), namespace="elsewhere", release="r")
    pool = obj("SosAgent", "p", {"image": "own:2", "resources": {"limits": {"memory": "1Gi"}}})
    found = by_name(world(site("a", "10.0.0.0/16"), pool, nodes=nodes(a=1), settings=settings))
    pods = {name: pod_of(m) for (kind, name), m in found.items() if kind in {"DaemonSet", "Deployment"}}
    assert [c["image"] for c in pods["sos-node-a"]["containers"]] == ["o:1", "n:1"]
    assert pods["sos-agent-default-a"]["containers"][0]["image"] == "a:1"
    assert pods["sos-agent-p-a"]["containers"][0]["image"] == "own:2"
    assert pods["sos-agent-p-a"]["containers"][0]["resources"] == {"limits": {"memory": "1Gi"}}
    assert pods["sos-controller-default"]["containers"][0]["image"] == "c:1"
    assert all(pod["imagePullSecrets"] == [{"name": "pull"}] for pod in pods.values())
    assert all(c["imagePullPolicy"] == "Never" for pod in pods.values() for c in pod["containers"])
    assert {m["metadata"]["namespace"] for m in found.values()} == {"elsewhere"}


def test_every_container_of_a_node_requests_resources(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    """A node's pod without requests would be evicted first when the node's memory runs short."""
    asked = {each["name"]: each["resources"] for each in pod_of(figure8["DaemonSet", "sos-node-west"])["containers"]}
    assert asked == {
        "ovs": {"requests": {"cpu": "50m", "memory": "128Mi"}},
        "node": {"requests": {"cpu": "20m", "memory": "32Mi"}},
    }
    more = {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    told = replace(example_world("01-two-sites", FIGURE8), settings=Settings(resources=DefaultResources(ovs=more)))
    assert pod_of(by_name(told)["DaemonSet", "sos-node-west"])["containers"][0]["resources"] == more


def test_probes_check_both_daemons_of_open_vswitch(figure8: dict[tuple[str, str], dict[str, Any]]) -> None:
    ovs = pod_of(figure8["DaemonSet", "sos-node-west"])["containers"][0]
    for probe in (ovs["livenessProbe"], ovs["readinessProbe"]):
        shell, options, script = probe["exec"]["command"]
        assert (shell, options) == ("sh", "-ec"), "the first failing command must fail the probe"
        limits = [int(each) for each in re.findall(r"--timeout=(\d+)", script)]
        assert len(limits) == 2 and sum(limits) < probe["timeoutSeconds"]
        assert "/run/sos/openvswitch/db.sock" in script
        assert "-t /run/sos/openvswitch/ovs-vswitchd.ctl version" in script


def test_openflow_is_exposed_outside_only_on_request() -> None:
    exposed = obj("SosController", "default", {"service": {"type": "LoadBalancer"}})
    found = by_name(world(exposed, obj("SosAgent", "default"), defaults=False))
    outer, inner = found["Service", "sos-openflow-default"]["spec"], found["Service", "sos-controller-default"]["spec"]
    assert (outer["type"], [port["name"] for port in outer["ports"]]) == ("LoadBalancer", ["openflow"])
    assert (inner["type"], [port["name"] for port in inner["ports"]]) == ("ClusterIP", ["openflow", "api"])


def test_external_controllers_have_no_deployment() -> None:
    external = obj("SosController", "default", {"type": "External", "external": {"endpoints": ["tcp:192.0.2.1:6653"]}})
    made = world(external, obj("SosAgent", "default"), site("a", "10.0.0.0/16"), nodes=nodes(a=1), defaults=False)
    compiled = compile_world(World(objects=made.objects, nodes=made.nodes))
    assert "Deployment" not in {m["kind"] for m in compiled.manifests}
    assert compiled.nodes["a-0"]["controllers"] == ["tcp:192.0.2.1:6653"]
    assert set(compiled.controllers) == {"default"}


def network_config(**spec: Any) -> dict[str, Any]:
    found = by_name(world(site("a", "10.0.0.0/16", **spec), nodes=nodes(a=1)))
    config: dict[str, Any] = json.loads(found["NetworkAttachmentDefinition", "sos-a"]["spec"]["config"])
    return config


def test_pods_join_the_bridge_with_their_requested_address() -> None:
    config = network_config()
    assert config == {
        "cniVersion": "1.0.0",
        "name": "sos-a",
        "type": "ovs",
        "bridge": "br-sos",
        "mtu": 1450,
        "socket_file": "unix:/run/sos/openvswitch/db.sock",
        "capabilities": {"ips": True},
        "ipam": {"type": "static"},
    }


def test_routes_and_ipam_are_rendered() -> None:
    routed = network_config(gateway="10.0.0.1/16", network={"routes": [{"to": "10.1.0.0/16"}, {"to": "10.2.0.0/16", "via": "10.0.0.9"}]})
    assert routed["ipam"]["routes"] == [{"dst": "10.1.0.0/16", "gw": "10.0.0.1"}, {"dst": "10.2.0.0/16", "gw": "10.0.0.9"}]
    own = {"type": "whereabouts", "range": "10.0.0.0/17"}
    assert network_config(network={"ipam": own})["ipam"] == own


def test_transit_sites_have_neither_network_nor_agents() -> None:
    kinds = [(m["kind"], m["metadata"]["name"]) for m in compile_world(world(site("t"), nodes=nodes(t=1))).manifests]
    assert ("DaemonSet", "sos-node-t") in kinds
    assert not [name for kind, name in kinds if kind == "NetworkAttachmentDefinition" or name.startswith("sos-agent")]


@given(worlds(), st.sampled_from(["SosSite", "SosAgent", "SosController"]))
def test_manifests_of_an_object_that_becomes_invalid_are_held(given_world: World, kind: str) -> None:
    """Manifests that are missing because of an error in one object are held. No other manifests are held."""
    before = by_name(given_world)
    victim = next(o for o in given_world.objects if isinstance(o, dict) and o["kind"] == kind)
    broken = {**victim, "spec": {**victim["spec"], "typo": True}}
    others = tuple(o for o in given_world.objects if o is not victim)
    wrong = compile_world(replace(given_world, objects=(*others, broken)))
    rendered = {(m["kind"], m["metadata"]["name"]) for m in wrong.manifests}
    assert set(before) - rendered <= set(wrong.held)
    assert not rendered & set(wrong.held)
    assert compile_world(given_world).held == ()
    gone = compile_world(replace(given_world, objects=others))
    assert gone.held == ()


def test_oversized_config_map_is_a_problem() -> None:
    far = [site(f"s{i}", f"10.{i}.0.0/16") for i in range(2)]
    without_parts = Settings(share_from_bytes=10**9)
    made = world(*far, service("s", "s0", "s1", 80), nodes=nodes(s0=200, s1=1), settings=without_parts)
    problems = compile_world(made).problems
    assert [(problem.name, str(problem.reason)) for problem in problems] == [("s0", "LimitExceeded")]
    assert "of its 200 nodes" in problems[0].message and "fewer nodes" in problems[0].remedy


def test_controller_with_too_many_services_has_a_problem_about_services() -> None:
    """The remedy must not advise to split a site: the services make the controller's configuration too large."""
    many = [service(f"s{number}", "west", "east", 1000 + number) for number in range(3000)]
    made = world(site("west", "10.0.0.0/16"), site("east", "10.1.0.0/16"), *many, nodes=nodes(west=1, east=1))
    (problem,) = compile_world(made).problems
    assert (problem.kind, problem.name, str(problem.reason)) == ("SosController", "default", "LimitExceeded")
    assert "with 3000 services" in problem.message and "services" in problem.remedy and "site" not in problem.remedy
