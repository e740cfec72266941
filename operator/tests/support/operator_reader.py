"""Common kubectl calls without its start-up time: get, apply, patch and delete. Resources are accepted by any of their names."""

from __future__ import annotations

import argparse
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

TIMEOUT_S = 30
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MERGE = "application/merge-patch+json"
ARGUMENTS = argparse.ArgumentParser()
ARGUMENTS.add_argument("kinds")
ARGUMENTS.add_argument("name", nargs="?")
ARGUMENTS.add_argument("-n", dest="namespace", default="default")
ARGUMENTS.add_argument("-A", dest="everywhere", action="store_true")
ARGUMENTS.add_argument("-l", dest="selector")


@dataclass(frozen=True)
class Resource:
    """API resource of a kind."""

    prefix: str
    plural: str
    kind: str
    version: str
    namespaced: bool
    listable: bool


@dataclass
class Reader:
    """Client of one API server as one user."""

    url: str
    token: str
    resources: dict[str, Resource] = field(default_factory=dict)

    def get(self, *args: str) -> dict[str, Any]:
        """An object, or {"items": [...]}; raise AssertionError if the object or kind does not exist."""
        asked = ARGUMENTS.parse_args(args)
        found = [self._of(kind) for kind in asked.kinds.split(",")]
        if asked.name is not None:
            (resource,) = found
            return self._read(f"{self._place(resource, asked.namespace)}/{asked.name}")
        query = f"?labelSelector={urllib.parse.quote(asked.selector)}" if asked.selector else ""
        items = []
        for resource in found:
            namespace = None if asked.everywhere else asked.namespace
            # lists of built-in kinds omit apiVersion and kind of their items
            named = {"apiVersion": resource.version, "kind": resource.kind}
            items += [{**named, **item} for item in self._read(self._place(resource, namespace) + query)["items"]]
        return {"items": items}

    def clear(self, *args: str) -> None:
        """Delete the objects that `get` would list, without waiting; remove their finalizers first."""
        for obj in self.get(*args)["items"]:
            meta, resource = obj["metadata"], self._of(obj["kind"].lower())
            path = f"{self._place(resource, meta.get('namespace'))}/{meta['name']}"
            try:
                if meta.get("finalizers"):
                    self._send("PATCH", path, MERGE, {"metadata": {"finalizers": None}})
                self._send("DELETE", path, "application/json", {"gracePeriodSeconds": 0, "propagationPolicy": "Background"})
            except LookupError:
                continue  # deleted in the meantime

    def apply(self, obj: Mapping[str, Any]) -> None:
        """`kubectl apply --server-side --force-conflicts`."""
        resource, meta = self._of(obj["kind"].lower()), obj["metadata"]
        path = f"{self._place(resource, meta.get('namespace', 'default'))}/{meta['name']}"
        self._send("PATCH", f"{path}?fieldManager=kubectl&force=true&fieldValidation=Strict", "application/apply-patch+yaml", obj)

    def patch(self, kind: str, name: str, namespace: str, content: Mapping[str, Any], subresource: str = "") -> None:
        """`kubectl patch --type=merge`; the namespace is ignored for cluster-scoped kinds."""
        path = f"{self._place(self._of(kind), namespace)}/{name}{subresource}"
        self._send("PATCH", f"{path}?fieldManager=kubectl&fieldValidation=Strict", MERGE, content)

    def raw(self, path: str) -> dict[str, Any]:
        """Read a path of the API."""
        return self._read(path)

    def everything(self) -> set[str]:
        """Names of all objects of all listable kinds except events."""
        self.resources = {**self._discover("/apis"), **self._discover("/api")}
        found = set()
        for resource in {*self.resources.values()}:
            if resource.listable and resource.plural != "events":
                items = self._read(f"{resource.prefix}/{resource.plural}")["items"]
                found |= {f"{resource.plural}/{i['metadata'].get('namespace', '')}/{i['metadata']['name']}" for i in items}
        return found

    def _place(self, resource: Resource, namespace: str | None) -> str:
        inside = f"/namespaces/{namespace}" if resource.namespaced and namespace else ""
        return f"{resource.prefix}{inside}/{resource.plural}"

    def _of(self, kind: str) -> Resource:
        if kind.lower() not in self.resources:
            self.resources = {**self._discover("/apis"), **self._discover("/api")}
        assert kind.lower() in self.resources, f"the server has no {kind!r}"
        return self.resources[kind.lower()]

    def _discover(self, path: str) -> dict[str, Resource]:
        found: dict[str, Resource] = {}
        for group in self._read(path, DISCOVERY)["items"]:
            name = group["metadata"].get("name", "")
            preferred = group["versions"][0]
            version = f"{name}/{preferred['version']}" if name else preferred["version"]
            for raw in preferred["resources"]:
                kind = raw.get("responseKind", {}).get("kind", "")
                resource = Resource(
                    f"{path}/{version}", raw["resource"], kind, version, raw["scope"] == "Namespaced", "list" in raw["verbs"]
                )
                names = (raw["resource"], raw["singularResource"], kind.lower(), *raw.get("shortNames", ()))
                found |= {each: resource for each in names if each not in found}
        return found

    def _send(self, method: str, path: str, content_type: str, body: Mapping[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method=method)
        try:
            urllib.request.urlopen(request, timeout=TIMEOUT_S, context=unverified()).close()
        except urllib.error.HTTPError as error:
            said = f"{method} {path}: {error.code} {error.read().decode()[:1000]}"
            raise (LookupError if error.code == 404 else AssertionError)(said) from None

    def _read(self, path: str, accept: str = "application/json") -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self.token}", "Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=unverified()) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"GET {path}: {error.code} {error.read().decode()[:300]}") from None


@cache
def unverified() -> ssl.SSLContext:
    """TLS context without verification, because the server has created its own certificate."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@cache
def reader(url: str, token: str) -> Reader:
    """Shared reader of this server and user, which caches the discovered resources."""
    return Reader(url, token)
