"""Objects of tables/objects.yaml, and their creation at the API server: one request per object, optionally as a dry run."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from operator_kube import Kube
from operator_reader import unverified
from operator_run import NAMESPACE

TABLE: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parents[1] / "tables" / "objects.yaml").read_text())
PLURALS = {
    "SosSite": "sossites",
    "SosAgent": "sosagents",
    "SosService": "sosservices",
    "SosController": "soscontrollers",
    "SosLink": "soslinks",
    "SosPeer": "sospeers",
}


def build(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Object of a table row."""
    place = {"namespace": row.get("namespace", NAMESPACE)} if row["kind"] == "SosService" else {}
    return {"apiVersion": "sos.network/v1alpha1", "kind": row["kind"], "metadata": {"name": name, **place}, "spec": row["spec"]}


def objects(group: str) -> list[dict[str, Any]]:
    return [build(name, row) for name, row in TABLE[group].items()]


def path_of(obj: Mapping[str, Any], *, with_name: bool = False) -> str:
    meta = obj["metadata"]
    inside = f"/namespaces/{meta['namespace']}" if "namespace" in meta else ""
    return f"/apis/sos.network/v1alpha1{inside}/{PLURALS[obj['kind']]}" + (f"/{meta['name']}" if with_name else "")


def send(kube: Kube, method: str, path: str, body: Mapping[str, Any], *, dry: bool) -> dict[str, Any]:
    """Send a request with strict validation, as kubectl does, and return the answer; a refusal is a Status with status Failure."""
    token = yaml.safe_load(kube.admin.read_text())["users"][0]["user"]["token"]
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    url = f"{kube.url}{path}?fieldValidation=Strict" + ("&dryRun=All" if dry else "")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30, context=unverified()) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        return dict(json.load(error))


def create(kube: Kube, obj: Mapping[str, Any], *, dry: bool = False) -> dict[str, Any]:
    return send(kube, "POST", path_of(obj), obj, dry=dry)
