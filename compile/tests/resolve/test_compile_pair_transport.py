"""Transport of the streams between two sites, declared in a SosPeer or a SosLink without uplinks (docs/adr/0061)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sos_compile import Compiled, Namespace, ObjectKey, Problem, Reason, World, admit, compile_world
from sos_compile.admission.typed_objects import parse
from sos_compile.admission.verdicts import MAX_PROBLEMS, Verdicts
from sos_compile.model.memo import Memo
from test_compile_peers import SERVICE, card_of, cluster, peer
from worlds import nodes, obj, site, world

MACHINES = nodes(west=1, east=1)
BRIDGED = (site("west", "10.0.0.0/24", services={"namespaces": "All"}), site("east", "10.1.0.0/24", services={"namespaces": "All"}))
ROUTED = tuple(
    site(name, prefix, wan={"type": "Routed"}, intake={"type": "Pods"}, services={"namespaces": "All"})
    for name, prefix in (("west", "10.0.0.0/24"), ("east", "10.1.0.0/24"))
)
TUNED = {"streams": 16, "congestionControl": "BBR", "encryption": "TLS", "protocol": "QUIC"}
DEFAULTS = {"streams": 0, "congestionControl": "Auto", "encryption": "None", "protocol": "TCP"}
transports = st.fixed_dictionaries(
    {},
    optional={
        "streams": st.sampled_from(["Auto", 1, 8, 128]),
        "congestionControl": st.sampled_from(["Auto", "Cubic", "BBR", "Reno"]),
        "encryption": st.sampled_from(["None", "TLS"]),
        "protocol": st.sampled_from(["TCP", "QUIC"]),
    },
)


def pair(name: str = "pair", a: str = "west", b: str = "east", created: int = 1, **transport: Any) -> dict[str, Any]:
    spec = {"a": {"site": a}, "b": {"site": b}, "transport": transport}
    return obj("SosLink", name, spec, creationTimestamp=f"2026-01-01T00:00:{created:02}Z")


def made(name: str, port: int, namespace: str = "a", back: bool = False, **spec: Any) -> dict[str, Any]:
    ends = ({"site": "west"}, {"site": "east"})
    source, target = reversed(ends) if back else ends
    return obj("SosService", name, {"from": source, "to": target, "ports": [{"port": port}], **spec}, namespace=namespace)


def given_world(*objects: dict[str, Any], sites: tuple[dict[str, Any], ...] = BRIDGED) -> World:
    return world(*sites, *objects, nodes=MACHINES, namespaces=(Namespace("a"), Namespace("b")))


def compiled(*objects: dict[str, Any], sites: tuple[dict[str, Any], ...] = BRIDGED) -> Compiled:
    return compile_world(given_world(*objects, sites=sites))


def of_agents(found: Compiled) -> list[dict[str, Any]]:
    """Return the shared settings of each service at each agent."""
    services = [each for document in found.agents.values() for each in document["services"]]
    return [{field: each["transport"].get(field, value) for field, value in DEFAULTS.items()} for each in services]


def of_controllers(found: Compiled) -> list[dict[str, Any]]:
    services = [each for document in found.controllers.values() for each in document["services"]]
    known = {field: value for field, value in DEFAULTS.items() if field != "encryption"}
    return [{field: each["transport"].get(field, value) for field, value in known.items()} for each in services]


def of(transport: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    full = {**DEFAULTS, **defaults, **transport}
    return {**full, "streams": 0 if full["streams"] == "Auto" else full["streams"]}


def said(found: Compiled, kind: str = "SosService") -> list[tuple[str, str, Reason, bool]]:
    return [(each.name, each.path, each.reason, each.warning) for each in found.problems if each.kind == kind]


def only(found: Compiled) -> Problem:
    (problem,) = found.problems
    return problem


@pytest.mark.parametrize("sites", [BRIDGED, ROUTED], ids=["bridges", "routes"])
@given(transports, transports, transports)
def test_declared_transport_applies_to_all_services_at_both_agents_and_the_controller(
    sites: tuple[dict[str, Any], ...], declared: dict[str, Any], one: dict[str, Any], other: dict[str, Any]
) -> None:
    services = (made("web", 80, transport=one), made("back", 81, namespace="b", back=True, transport=other))
    found = compiled(pair(**declared), *services, sites=sites)
    assert of_agents(found) == [of(declared)] * 4
    known = {field: value for field, value in of(declared).items() if field != "encryption"}
    assert of_controllers(found) == ([] if sites is ROUTED else [known] * 2)
    assert [each for each in found.problems if not each.warning] == []


@given(transports)
def test_service_settings_apply_and_are_deprecated_where_no_object_declares_them(own: dict[str, Any]) -> None:
    found = compiled(made("web", 80, transport=own))
    assert of_agents(found) == [of(own)] * 2
    changed = [field for field, value in of(own).items() if value != DEFAULTS[field]]
    assert [(each.reason, each.warning) for each in found.problems] == ([(Reason.DEPRECATED, True)] if changed else [])
    assert all(field in each.message for each in found.problems for field in changed)


def test_deprecated_and_overridden_fields_are_reported_with_the_object_that_declares_them() -> None:
    service = made("web", 80, transport={"streams": 4})
    problem = only(compiled(service))
    assert (problem.path, problem.reason) == ("spec.transport.streams", Reason.DEPRECATED)
    assert "set them in spec.transport of a SosLink with the sites west and east" in problem.message
    problem = only(compiled(service, pair()))
    assert (problem.path, problem.reason) == ("spec.transport.streams", Reason.OVERRIDDEN)
    assert problem.message.startswith("SosLink pair sets the transport between SosSites west and east: streams of this service")
    assert only(compiled(made("web", 80, transport=TUNED))).path == "spec.transport"
    assert compiled(made("web", 80, transport={"compression": "Adaptive", "blockKiB": 64, "queueMiB": 8}), pair()).problems == ()


def test_service_keeps_its_own_fields_under_a_declared_transport() -> None:
    found = compiled(made("web", 80, transport={"compression": "Adaptive", "blockKiB": 64, "queueMiB": 8}), pair(**TUNED))
    for document in found.agents.values():
        (service,) = document["services"]
        assert service["transport"] == {
            **TUNED, "compression": "Adaptive", "blockBytes": 64 * 1024, "queueBytes": 8 * 1024 * 1024
        }  # fmt: skip


def test_declared_transport_affects_only_its_pair() -> None:
    south = site("south", "10.2.0.0/24", services={"namespaces": "All"})
    other = made("other", 80)
    other["spec"]["to"] = {"site": "south"}
    found = compile_world(world(*BRIDGED, south, made("web", 80), other, pair(**TUNED), nodes=nodes(west=1, east=1, south=1)))
    (document,) = (each for each in found.agents.values() if each["site"]["name"] == "west")
    assert {each["peer"]: each["transport"]["streams"] for each in document["services"]} == {"east": 16, "south": 0}


def test_later_namespace_is_overridden_instead_of_refused_where_the_transport_is_declared() -> None:
    web, fast = made("web", 80), made("fast", 443, namespace="b", transport={"streams": 16})
    fast["metadata"]["creationTimestamp"] = "2026-01-02T00:00:00Z"
    assert said(compiled(web, fast)) == [("fast", "spec.transport.streams", Reason.NOT_PERMITTED, False)]
    assert said(compiled(web, fast, pair())) == [("fast", "spec.transport.streams", Reason.OVERRIDDEN, True)]


@pytest.mark.parametrize(
    ("link", "path", "reason", "message"),
    [
        (pair(b="atlantis"), "spec.b.site", Reason.SITE_NOT_FOUND, "no accepted SosSite atlantis"),
        (pair(a="middle"), "spec.a.site", Reason.INVALID, "transit site"),
        (pair("younger", a="east", b="west", created=2), "spec", Reason.DUPLICATE, "SosLink pair declares the transport"),
    ],
)
def test_unusable_declaration_is_rejected(link: dict[str, Any], path: str, reason: Reason, message: str) -> None:
    middle = site("middle", base=1)
    found = compiled(middle, *([pair(streams=2)] if reason is Reason.DUPLICATE else []), link, made("web", 80))
    problem = only(found)
    assert (problem.name, problem.path, problem.reason) == (link["metadata"]["name"], path, reason)
    assert message in problem.message
    assert {each["streams"] for each in of_agents(found)} == {2 if reason is Reason.DUPLICATE else 0}


def test_transport_is_no_link_of_a_controller() -> None:
    found = compiled(pair(**TUNED), made("web", 80))
    assert found.controllers["default"]["links"] == []
    facts = found.facts[ObjectKey("SosLink", "", "pair")]
    assert (facts.accepted, facts.sites) == (True, ("west", "east"))


def rejected(found: Compiled) -> list[str]:
    """Return the matches of connections that switches reset."""
    return [flow["match"] for document in found.nodes.values() for flow in document["baseFlows"] if flow["priority"] == 29970]


def test_requirement_of_encryption_is_met_by_the_pair() -> None:
    found = compiled(made("web", 80, require=["Encrypted"]), pair(encryption="TLS"))
    assert found.problems == ()
    assert [each["encryptedOnly"] for document in found.agents.values() for each in document["services"]] == [True, True]
    assert len(rejected(found)) == 1


@pytest.mark.parametrize(
    ("link", "own", "place"),
    [
        ((), {}, "a SosLink with the sites west and east"),
        ((), {"protocol": "QUIC"}, "a SosLink with the sites west and east"),
        ((pair(),), {"encryption": "TLS"}, "SosLink pair"),
    ],
)
def test_connections_that_require_encryption_are_refused_while_the_pair_has_none(
    link: tuple[dict[str, Any], ...], own: dict[str, Any], place: str
) -> None:
    found = compiled(made("web", 80, require=["Encrypted"], transport=own), made("other", 81), *link)
    problem = next(each for each in found.problems if not each.warning)
    assert (problem.name, problem.path, problem.reason) == ("web", "spec.require", Reason.NOT_ENCRYPTED)
    assert problem.remedy == f"set spec.transport.encryption of {place} to TLS"
    facts = found.facts[ObjectKey("SosService", "a", "web")]
    assert (facts.accepted, facts.resolved) == (True, False)
    assert [match.rpartition(",")[2] for match in rejected(found)] == ["tp_dst=80"], "switches reset them without a controller"
    known = {each["id"]: (each["percent"], each.get("require", [])) for each in found.controllers["default"]["services"]}
    assert known == {"a/web": (0, ["Encrypted"]), "a/other": (100, [])}, "the controller refuses what reaches it"
    assert {each["id"] for document in found.agents.values() for each in document["services"]} == {"a/other"}


def test_peer_declares_the_transport_of_all_services_with_its_sites() -> None:
    east = card_of("east", SERVICE, other=card_of("west"))
    tuned = {**SERVICE, "spec": {**SERVICE["spec"], "transport": {"streams": 4, "compression": "Adaptive"}}}
    found = compile_world(cluster("west", peer("other", transport={"streams": 8, "protocol": "QUIC"}), tuned, other=east))
    assert of_agents(found) == [of({"streams": 8, "protocol": "QUIC", "encryption": "TLS"})]
    assert found.agents["default", "a1"]["services"][0]["transport"]["compression"] == "Adaptive"
    assert only(found).message.startswith("SosPeer other sets the transport")
    undeclared = compile_world(cluster("west", peer("other"), tuned, other=east))
    assert of_agents(undeclared) == [of({"streams": 4, "encryption": "TLS"})]
    assert "set them in spec.transport of SosPeer other" in only(undeclared).message


def test_site_of_a_peer_is_no_end_of_a_transport() -> None:
    east = card_of("east", SERVICE, other=card_of("west"))
    found = compile_world(cluster("west", peer("other"), SERVICE, pair(streams=2), other=east))
    assert said(found, "SosLink") == [("pair", "spec.b.site", Reason.INVALID, False)]
    assert only(found).remedy == "set spec.transport of the SosPeer, and delete this SosLink"


def test_deprecated_fields_of_many_services_hide_no_problem() -> None:
    """A warning for each of 4,096 services fills the list of problems."""
    verdicts, warned = Verdicts(), parse(admit(made("web", 80))[0], None).origin
    for number in range(MAX_PROBLEMS + 1):
        verdicts.warn(warned, "spec.transport", Reason.DEPRECATED, str(number))
    verdicts.reject(parse(admit(BRIDGED[0])[0], None).origin, "spec", Reason.INVALID, "crooked")
    listed = verdicts.sorted()
    assert len(listed) == MAX_PROBLEMS and listed[0].message == "crooked"


@given(transports, transports)
def test_memo_does_not_keep_a_former_transport(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Services keep their identity when only the SosLink changes."""
    service = made("web", 80)
    service["metadata"] |= {"uid": "u", "generation": 1}
    memo = Memo()
    compile_world(given_world(service, pair(**before)), memo)
    following = given_world(service, pair(**after))
    assert compile_world(following, memo) == compile_world(replace(following))
