from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from sos_compile import artifacts
from sos_compile.documents.parts import standalone
from sos_compile.model.formats.shared import content_hash

VECTORS = artifacts.ROOT / "spec" / "vectors" / "config"
KINDS = {"controller": "controller-config", "node": "node-config", "agent": "agent-config"}
GOOD = sorted(path for kind in KINDS for path in (VECTORS / kind).glob("*.json"))
BAD = sorted((VECTORS / "bad").rglob("*.json"))
BEYOND_A_SCHEMA = {
    "reject-port-twice",
    "encrypted-only-without-tls",
    "balance-client",
    "balance-elsewhere",
    "balance-uplink-twice",
    "bad-prefix",
    "unknown-site",
    "wrong-hash",
    "lan-twice",
    "bond-of-one-uplink",
    "ofport-twice",
    "bad-address",
    "unknown-peer",
    "missing-interface",
    "source-on-a-bridge",
    "shares-on-a-bridge",
    "proxy-protocol-without-source",
    "reactive-on-routes",
    "routes-with-discovery",
    "routes-without-intake",
    "routes-and-labels-differ",
    "route-twice",
    "pods-of-a-router",
    "pods-at-one-address",
    "other-first-address",
}


def read(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def schema(kind: str) -> Any:
    content = read(artifacts.ROOT / "spec" / f"{KINDS[kind]}.schema.json")
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


def test_committed_files_equal_generated_files() -> None:
    assert artifacts.stale() == {}, "run: python -m sos_compile.artifacts write"


@pytest.mark.parametrize("path", sorted((VECTORS / "parts").rglob("*.json")), ids=lambda path: path.stem)
def test_documents_with_parts_match_the_schema_as_a_whole(path: Path) -> None:
    files = read(path)["files"]
    document = files.pop(f"{path.stem}.json")
    assert document["hash"] == content_hash(document)
    whole = standalone(document, {content_hash(part): part for part in files.values()})
    schema(path.parent.name).validate(whole)


def test_stale_files_are_found(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(artifacts.ROOT / "examples")
    wrong = tmp_path / "spec" / "vectors" / "config" / "left-over.json"
    wrong.parent.mkdir(parents=True)
    wrong.write_text("{}")
    found = artifacts.stale(tmp_path)
    assert found[wrong] is None
    assert found[tmp_path / "spec" / "node-config.schema.json"]


@pytest.mark.parametrize("path", GOOD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_good_vectors_fit_schema_and_model(path: Path) -> None:
    document = read(path)
    kind = path.parent.name
    schema(kind).validate(document)
    artifacts.SCHEMAS[KINDS[kind]].model_validate_json(path.read_text())
    assert document["hash"] == content_hash(document)


@pytest.mark.parametrize("path", BAD, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_bad_vectors_fail_at_their_declared_path(path: Path) -> None:
    vector = read(path)
    kind, document = path.parent.name, vector["document"]
    assert (document["hash"] == content_hash(document)) == (path.stem != "wrong-hash")
    errors = list(schema(kind).iter_errors(document))
    if path.stem in BEYOND_A_SCHEMA:
        assert errors == []
        return
    assert len(errors) == 1
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in errors[0].absolute_path).lstrip(".")
    assert vector["path"].startswith(where)
    with pytest.raises(ValidationError):
        artifacts.SCHEMAS[KINDS[kind]].model_validate_json(json.dumps(document))


def test_every_contract_has_good_and_bad_vectors() -> None:
    assert {path.parent.name for path in GOOD} == {path.parent.name for path in BAD} == set(KINDS)


def test_command_checks_files_and_prints_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert artifacts.main(["check"]) == 0
    assert artifacts.main([]) == 2
    assert "write" in capsys.readouterr().err
