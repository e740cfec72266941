"""Certificates of OpenFlow channels: TLS folders of controllers and sites, renewal, and replacement of the CA."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from operator_fixtures import rotating_operator
from operator_kube import Kube
from operator_listing import listing
from operator_listing import secret as parsed
from operator_run import NAMESPACE, Operator, eventually
from sos_compile.certificates import Certified, is_current, new_ca
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.secrets import ca_rotation, key_rotation
from sos_operator.core.secrets.certificates import Issuer, ca_files, parse_authorities

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
OVERLAP = timedelta(seconds=180)
CA = new_ca(NOW)
SETTINGS = Settings(namespace="sos-system", images=Images(controller="c", agent="a", node="n", ovs="o"))
COMPILED: Any = SimpleNamespace(
    nodes={"edge1": {"site": "west"}},
    controllers={
        "default": {"sites": [{"name": "west", "datapaths": [{}]}, {"name": "core1", "datapaths": [{}]}, {"name": "pods", "datapaths": []}]}
    },
)


def encoded(files: dict[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}


def ca_secret(files: dict[str, str] | None = None, **annotations: str) -> dict[str, Any]:
    data = encoded(ca_files(1, CA) if files is None else files)
    return {"metadata": {"name": "sos-openflowca", "resourceVersion": "7", "annotations": annotations}, "data": data}


def merged(obj: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """Apply a merge patch (RFC 7386), limited to the features of these patches."""
    data = {name: text for name, text in (obj["data"] | patch.get("data", {})).items() if text is not None}
    return {"metadata": obj["metadata"] | {"annotations": obj["metadata"]["annotations"] | patch["metadata"]["annotations"]}, "data": data}


def folders(issuer: Issuer, ca: dict[str, Any], at: datetime, *children: dict[str, Any]) -> dict[str, dict[str, Any]]:
    authorities = ca_rotation.authorities(parsed(ca), parse_authorities(parsed(ca)))
    made = issuer.folders(COMPILED, authorities, SETTINGS, listing(children=children), at)
    return {secret["metadata"]["name"]: secret for secret in made}


def files(secret: dict[str, Any]) -> dict[str, str]:
    return {name: base64.b64decode(text).decode() for name, text in secret["data"].items()}


def certified(secret: dict[str, Any]) -> Certified:
    return Certified(files(secret)["tls.crt"], files(secret)["tls.key"])


def step_at(obj: dict[str, Any], at: datetime, *, everywhere: bool = True) -> tuple[str, dict[str, Any]] | None:
    return ca_rotation.next_step(parsed(obj), parse_authorities(parsed(obj)), at, OVERLAP, everywhere=everywhere)


def test_every_controller_and_site_with_switches_has_a_folder() -> None:
    made = folders(Issuer(), ca_secret(), NOW)
    assert sorted(made) == ["sos-controllercert-default", "sos-sitecert-core1", "sos-sitecert-west"]
    assert is_current(certified(made["sos-sitecert-west"]), CA, "west", NOW)
    assert all(sorted(secret["data"]) == ["ca.crt", "tls.crt", "tls.key"] for secret in made.values())
    assert CA.key not in str([files(secret) for secret in made.values()])


def test_certificates_are_kept_until_they_are_due() -> None:
    first = folders(Issuer(), ca_secret(), NOW)
    assert folders(Issuer(), ca_secret(), NOW + timedelta(days=59), *first.values()) == first
    later = folders(Issuer(), ca_secret(), NOW + timedelta(days=61), *first.values())
    assert all(later[name]["data"]["tls.crt"] != first[name]["data"]["tls.crt"] for name in first)


def test_listing_older_than_the_last_write_causes_no_new_certificate() -> None:
    issuer = Issuer()
    assert folders(issuer, ca_secret(), NOW) == folders(issuer, ca_secret(), NOW)


@pytest.mark.parametrize("file", ["tls.crt", "tls.key"])
def test_changed_certificate_is_replaced(file: str) -> None:
    first = folders(Issuer(), ca_secret(), NOW)
    first["sos-sitecert-west"]["data"][file] = encoded({"x": "changed"})["x"]
    assert is_current(certified(folders(Issuer(), ca_secret(), NOW, *first.values())["sos-sitecert-west"]), CA, "west", NOW)


def test_unusable_authorities_are_left_out() -> None:
    assert not parse_authorities(parsed(ca_secret({"ca-1.crt": "x", "ca-1.key": "y", "other": "z"})))
    assert not parse_authorities(parsed(ca_secret({"ca-1.crt": CA.certificate})))
    assert set(parse_authorities(parsed(ca_secret({**ca_files(1, CA), "ca-2.crt": CA.certificate})))) == {1}


@pytest.mark.parametrize("reason", ["request", "age"])
def test_new_ca_is_trusted_then_certifies_then_the_old_one_is_removed(reason: str) -> None:
    obj = ca_secret(**({ca_rotation.REQUEST_ANNOTATION: "march"} if reason == "request" else {}))
    at = NOW if reason == "request" else NOW + timedelta(days=3650 - 364)
    seen, issuer = [], Issuer()
    while step := step_at(obj, at):
        assert step[1]["metadata"]["resourceVersion"] == "7"
        obj = merged(obj, step[1])
        made = folders(issuer, obj, at)["sos-sitecert-west"]
        known = parse_authorities(parsed(obj))
        by = [number for number, ca in known.items() if is_current(certified(made), ca, "west", at)]
        trusted = [number for number, ca in known.items() if ca.certificate in files(made)["ca.crt"]]
        seen.append((step[0], trusted, by))
        if key_rotation.parse_state(parsed(obj), ca_rotation.STATE_ANNOTATION).since:
            at += OVERLAP
    assert seen == [
        ("CA 2 is announced", [1, 2], [1]),
        ("Announced: handed out to everybody", [1, 2], [1]),
        ("CA 2 certifies", [1, 2], [2]),
        ("InUse: handed out to everybody", [1, 2], [2]),
        ("CAs before 2 are gone", [2], [2]),
    ]


def test_step_waits_until_every_folder_has_its_content() -> None:
    obj = ca_secret(**{ca_rotation.REQUEST_ANNOTATION: "march"})
    step = step_at(obj, NOW)
    assert step is not None
    obj = merged(obj, step[1])
    assert step_at(obj, NOW + 10 * OVERLAP, everywhere=False) is None
    assert ca_rotation.is_asked_for(parsed(obj))


@pytest.fixture(scope="module")
def operator(installed: Kube, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    with rotating_operator(installed, tmp_path_factory.mktemp("operator")) as running:
        yield running


def content(kube: Kube, name: str) -> dict[str, str]:
    return files(kube.get("secret", name, "-n", NAMESPACE))


def authorities(kube: Kube, name: str) -> int:
    return len(x509.load_pem_x509_certificates(content(kube, name)["ca.crt"].encode()))


def test_ca_is_replaced_in_a_cluster_and_no_key_is_logged(example: Operator) -> None:
    kube = example.kube
    controller, site = "sos-controllercert-default", "sos-sitecert-west"
    eventually("the certificates", lambda: content(kube, controller) and content(kube, site), 30)
    first = content(kube, "sos-openflowca")
    before = content(kube, site)
    example.settle()
    assert content(kube, site) == before, "a pass issues no certificate again"
    kube.kubectl("annotate", "secret", "sos-openflowca", "-n", NAMESPACE, "sos.network/rotate-openflow-ca=test", "--overwrite")
    eventually("both CAs at the switches", lambda: authorities(kube, site) == authorities(kube, controller) == 2, 30)
    eventually("the old CA gone", lambda: authorities(kube, site) == authorities(kube, controller) == 1, 60)
    said = [line["message"] for line in example.lines() if line["message"].startswith("certificates: ")]
    assert said == [
        "certificates: CA 2 is announced",
        "certificates: Announced: handed out to everybody",
        "certificates: CA 2 certifies",
        "certificates: InUse: handed out to everybody",
        "certificates: CAs before 2 are gone",
    ]
    second = content(kube, "sos-openflowca")
    assert sorted(second) == ["ca-2.crt", "ca-2.key"] and content(kube, site)["ca.crt"] == second["ca-2.crt"]
    log = str(example.lines())
    secrets = [first["ca-1.key"], second["ca-2.key"], before["tls.key"], content(kube, controller)["tls.key"]]
    assert not any(line in log for key in secrets for line in key.splitlines()[1:-1])
