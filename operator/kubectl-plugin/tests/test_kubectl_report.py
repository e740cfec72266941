"""Content of a `kubectl sos report` bundle, and above all the absence of secrets."""

from __future__ import annotations

import base64
import json
import secrets
import tarfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from operator_fixtures import children, play_kubelet
from operator_kube import Kube
from operator_plugin import sos
from operator_run import NAMESPACE, Operator, eventually
from sos_kubectl.__main__ import app
from sos_kubectl.base.source import API_VERSION, Controller, Kubectl
from sos_kubectl.commands import report
from sos_kubectl.support_bundle import scrub
from sos_kubectl.support_bundle.archive import MEMBER_MAX_BYTES, Bundle

keys = st.binary(min_size=32, max_size=32)
around = st.sampled_from(["", " ", '"', "\n", "key=", "key: ", "'", "<", ","])


def forms(key: bytes) -> list[str]:
    """Encodings of a 32-byte key in files, logs and Secrets."""
    line = key.hex().encode()
    padded = [base64.b64encode(form).decode() for form in (key, line, line + b"\n")]
    bare = [base64.urlsafe_b64encode(form).decode().rstrip("=") for form in (key, line)]
    spaced = [key.hex(separator) for separator in (" ", ":")]
    return [key.hex(), key.hex().upper(), (key + key).hex(), *spaced, *padded, *(form for form in bare if form.lower() != form)]


@given(keys, around, around, st.text(max_size=40))
def test_no_form_of_a_key_gets_through(key: bytes, before: str, after: str, rest: str) -> None:
    for form in forms(key):
        ends = "" if form.endswith("=") else " "  # the end of a key that runs into a word cannot be detected
        assert form not in scrub.text(f"x {before}{form}{ends}{after} {rest}")
        assert form not in scrub.text(json.dumps(f"\n{form}")), "in a JSON document of the bundle"
        assert form not in scrub.text(f"/var/run/{form}")


@pytest.mark.parametrize(
    "told",
    [
        *(
            "password=hunter2",
            '{"password": "hunter2 and more"}',
            "token: hunter2",
            "X-Api-Key: hunter2",
            "--token=hunter2",
            "--token hunter2",
        ),
        *('{\\"password\\": \\"hunter2\\"}', "DB_PASSWORD='hunter2'", "redis://:hunter2@h", "https://hunter2@h/x", "passwd = hunter2"),
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nhunter2\n-----END PGP PRIVATE KEY BLOCK-----",
    ],
)
def test_values_with_secret_names_are_scrubbed(told: str) -> None:
    found = scrub.text(f"a {told} b")
    assert "hunter2" not in found and scrub.HIDDEN in found and found.startswith("a ") and found.endswith("b")


def test_documents_stay_documents() -> None:
    document = {"automountServiceAccountToken": False, "secretName": "sos-site", "token": None, "a": {"password": "x y", "passwordAge": 3}}
    document["b"] = {"secret": {"secretName": "sos"}, "tokens": ["a"]}
    found = json.loads(scrub.text(json.dumps(document, indent=1)))
    assert found == {**document, "a": {"password": scrub.HIDDEN, "passwordAge": 3}}


def test_noise_annotations_are_removed_and_values_scrubbed_by_key() -> None:
    applied = {"kubectl.kubernetes.io/last-applied-configuration": '{"data": "hunter2"}'}
    (found,) = scrub.objects(
        [{"kind": "ConfigMap", "metadata": {"annotations": applied}, "data": {"password": "hunter2", "level": "info"}}]
    )
    assert "hunter2" not in json.dumps(found) and found["data"] == {"password": scrub.HIDDEN, "level": "info"}


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=60))
def test_scrubbing_is_idempotent(found: str) -> None:
    assert scrub.text(scrub.text(found)) == scrub.text(found)


def test_useful_lines_stay_and_secrets_are_scrubbed() -> None:
    hashed, agent = f"sha256:{'ab' * 32}", "5f0c" * 8
    kept = f"image sos@{hashed} agent {agent} 10.0.0.126:9465 2026-01-01T00:00:00Z"
    assert scrub.text(kept) == kept
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
    pem = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIIGl\n-----END EC PRIVATE KEY-----"
    for told in (f"Authorization: Bearer {'s3cr3t' * 3}", token, pem, "https://joe:hunter2@example.test/x"):
        found = scrub.text(f"a {told} b")
        assert scrub.HIDDEN in found and found.startswith("a ") and found.endswith(" b")
        assert not any(word in found for word in ("s3cr3ts3cr3t", "eyJpc3Mi", "MHcCAQEEIIGl", "hunter2"))


def test_objects_lose_secrets_noise_and_telling_variables() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {
            "name": "a",
            "managedFields": [1],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "b": "c"},
        },
        "spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": "short"}, {"name": "RUST_LOG", "value": "info"}]}]},
    }
    (cleaned,) = scrub.objects([pod, {"kind": "Secret", "metadata": {"name": "x"}, "data": {"k": "djE="}}])
    assert cleaned["metadata"] == {"name": "a", "annotations": {"b": "c"}}
    values = {env["name"]: env["value"] for env in cleaned["spec"]["containers"][0]["env"]}
    assert values == {"API_TOKEN": scrub.HIDDEN, "RUST_LOG": "info"}


def read(path: Path) -> dict[str, str]:
    with tarfile.open(path) as tar:
        found = {member.name.partition("/")[2]: tar.extractfile(member) for member in tar.getmembers()}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def test_of_a_long_text_the_end_is_kept(tmp_path: Path) -> None:
    bundle = Bundle(tmp_path / "b.tar.gz")
    bundle.add_text("log/a.log", "first\n" + "x" * MEMBER_MAX_BYTES + "\nlast\n")
    bundle.close()
    members = read(tmp_path / "b.tar.gz")
    assert len(members["log/a.log"]) == MEMBER_MAX_BYTES and members["log/a.log"].endswith("last\n")
    assert members["missing.txt"] == "nothing\n"


def spoilt(kube: Kube, key: str) -> None:
    """Put a key where it does not belong: into an annotation, a variable and an event."""
    kube.kubectl("annotate", "sossite", "west", f"test/note=the key is {key}", "--overwrite")
    container = {"name": "c", "image": "x", "env": [{"name": "PASSWORD", "value": "hunter2"}, {"name": "NOTE", "value": key}]}
    labels = {"app.kubernetes.io/part-of": "sos"}
    kube.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "spoilt", "namespace": NAMESPACE, "labels": labels},
            "spec": {"containers": [container], "initContainers": [{"name": "before", "image": "x"}]},
        },
        {
            **{"apiVersion": "v1", "kind": "Event", "metadata": {"name": "spoilt", "namespace": NAMESPACE}, "type": "Warning"},
            **{"involvedObject": {"kind": "Pod", "name": "spoilt", "namespace": NAMESPACE}, "reason": "Test", "message": f"with {key}"},
        },
    )


def service_elsewhere(kube: Kube) -> None:
    """Create a refused service in another team's namespace, which also contains the events about the service."""
    spec = {"from": {"site": "west"}, "to": {"site": "nowhere"}, "ports": [{"port": 7000}]}
    kube.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "science"}},
        {"apiVersion": API_VERSION, "kind": "SosService", "metadata": {"name": "theirs", "namespace": "science"}, "spec": spec},
    )
    eventually("an event about it", lambda: kube.items("events", "-n", "science"))


def test_the_bundle_names_the_plugins_version_where_no_operator_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed_alone(package: str) -> str:
        if package != "sos-kubectl":
            raise PackageNotFoundError(package)
        return "1.2.3"

    monkeypatch.setattr(report, "version", installed_alone)
    path = tmp_path / "all.tar.gz"
    done = CliRunner().invoke(app, ["report", "--url", "http://127.0.0.1:9", "-f", str(path)])
    assert json.loads(read(path)["about.json"])["plugin"] == "1.2.3", done.output


def test_a_clusters_bundle_has_everything_but_secrets(example: Operator, tmp_path: Path) -> None:
    kube, path, key = example.kube, tmp_path / "all.tar.gz", secrets.token_hex(32)
    eventually("the Secrets", lambda: len(children(kube, "secrets")) >= 5)
    play_kubelet(kube)
    spoilt(kube, key)
    service_elsewhere(kube)
    done = sos(kube, "report", "-f", str(path), "-o", "json")
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    members = read(path)
    assert said["members"] == len(members) and {"about.json", "objects.json", f"{NAMESPACE}/pods.json", "missing.txt"} <= set(members)
    objects = json.loads(members["objects.json"])
    (west,) = [o for o in objects if o["kind"] == "SosSite" and o["metadata"]["name"] == "west"]
    assert west["status"]["conditions"] and "managedFields" not in west["metadata"]
    assert f"{NAMESPACE}/daemonsets.json" in members and "with [removed]" in members[f"{NAMESPACE}/events.json"]
    about = {(event["involvedObject"]["kind"], event["metadata"]["namespace"]) for event in json.loads(members["events.json"])}
    assert {("SosSite", "default"), ("SosService", "science")} <= about, "each event in the namespace of its object"
    # Without kubelets and a controller, logs and documents are missing: the bundle lists them.
    assert "logs" in members["missing.txt"] and "/v1/status" in members["missing.txt"]
    for container in ("c", "before"):
        assert f"{NAMESPACE}/logs/spoilt.{container}.log" in members, "init containers, too"
    everything = "\n".join(members.values())
    assert "hunter2" not in everything and key not in everything
    secret = kube.items("secrets", "-A")
    values = [value for obj in secret for value in (obj.get("data") or {}).values() if len(value) > 20]
    assert len(values) >= 5
    for value in values:
        plain = base64.b64decode(value).decode(errors="replace").strip()
        assert value not in everything and plain not in everything and plain[:40] not in everything
    kube.kubectl("delete", "pod/spoilt", "event/spoilt", "-n", NAMESPACE, "--force", "--grace-period=0")
    kube.kubectl("delete", "sosservice/theirs", "-n", "science")


EVERYWHERE = r"""#!/bin/sh
case "$*" in
*"--all-namespaces"*) [ -n "$SOS_TEST_REFUSED" ] && { echo "events is forbidden" >&2; exit 1; }; echo '{"items": [{"n": "all"}]}';;
*"-n science"*) echo '{"items": [{"n": "science"}]}';;
*"-n default"*) echo "not here either" >&2; exit 1;;
esac
"""


@pytest.mark.parametrize(("refused", "names"), [("", ["all"]), ("1", ["science"])])
def test_events_are_requested_from_the_objects_namespaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str, names: list[str]
) -> None:
    """Events of all namespaces with one call, or per namespace if the user may not list all; refused namespaces are listed as missing."""
    (tmp_path / "kubectl").write_text(EVERYWHERE)
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("SOS_TEST_REFUSED", refused)
    objects = [{"metadata": {"name": "west"}}, {"metadata": {"name": "bulk", "namespace": "science"}}]
    assert report.event_namespaces(objects) == ["default", "science"]
    bundle = Bundle(tmp_path / "b.tar.gz")
    report._events(bundle, Kubectl(), objects)
    bundle.close()
    members = read(tmp_path / "b.tar.gz")
    assert [event["n"] for event in json.loads(members["events.json"])] == names
    assert ("events of objects in default: not here either" in members["missing.txt"]) == bool(refused)


def test_wrong_files_are_named(kube: Kube, tmp_path: Path) -> None:
    done = sos(kube, "report", "-f", str(tmp_path / "x.zip"))
    assert done.returncode == 2 and "x.zip" in done.stderr
    (tmp_path / "x.tar.gz").touch()
    done = sos(kube, "report", "-f", str(tmp_path / "x.tar.gz"))
    assert done.returncode == 2 and "x.tar.gz: File exists" in done.stderr and "Traceback" not in done.stderr


def test_invalid_utf8_and_ids_with_paths_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kubectl").write_text("#!/bin/sh\nprintf 'a\\377b'\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert Kubectl().run("logs") == "a\N{REPLACEMENT CHARACTER}b"
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho \'{"datapaths": [{"dpid": "../../x"}]}\'\n')
    bundle = Bundle(tmp_path / "b.tar.gz")
    report._controller(bundle, lambda: Controller(kubectl=Kubectl(), path="/p"))
    bundle.close()
    members = read(tmp_path / "b.tar.gz")
    assert not any(".." in name for name in members) and "is no datapath id" in members["missing.txt"]
