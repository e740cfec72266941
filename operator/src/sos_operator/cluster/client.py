"""The only module that talks to the API server for the reconcile loop. It carries out calls and decides nothing.

The dynamic client is used without its discovery: the kinds are known (core/model/kinds.py), and discovery would need a
cache file in a read-only file system and one request per API group.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.client.exceptions import ApiException
from kubernetes.aio.dynamic import DynamicClient

from sos_operator.core.model.errors import KindMissing, NotReady, OperatorError, Refused
from sos_operator.core.model.kinds import FIELD_MANAGER, Kind, kind_of
from sos_operator.core.model.objects import Object

REQUEST_TIMEOUT_S = 20.0
LIST_PAGE = 500
LIST_MAX = 50_000  # maximum number of objects of one kind; beyond it a pass fails, to save the node's memory

_RETRYABLE = frozenset({0, 408, 409, 410, 429, 500, 502, 503, 504})


class Cluster:
    """Calls on one API server."""

    def __init__(self, api: ApiClient) -> None:
        self._client = DynamicClient(api)  # type: ignore[no-untyped-call]

    async def list(
        self, kind: Kind, namespace: str | None = None, label_selector: str | None = None, name: str | None = None
    ) -> list[Object]:
        """List the objects of a kind, optionally of one name, in one namespace or all. Raises NotReady, Refused, KindMissing."""
        return [obj async for page in self.pages(kind, namespace, label_selector, name) for obj in page]

    async def pages(
        self, kind: Kind, namespace: str | None = None, label_selector: str | None = None, name: str | None = None
    ) -> AsyncIterator[Sequence[Object]]:
        """List objects as `list` does, page by page, so that a caller need not hold all of them at once."""
        count, token = 0, None
        while True:
            page = await self._call(
                "get",
                self._path(kind, None, namespace),
                kind=kind,
                limit=LIST_PAGE,
                _continue=token,
                label_selector=label_selector,
                field_selector=f"metadata.name={name}" if name else None,
            )
            found = [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page.get("items") or []]
            count += len(found)
            yield found
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return
            if count >= LIST_MAX:
                raise NotReady(f"more than {LIST_MAX} objects of kind {kind.kind}")

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        """Return one object; None if the object or its kind is missing."""
        try:
            return await self._call("get", self._path(kind, name, namespace), kind=kind)
        except KindMissing:
            return None

    async def apply(self, manifest: Object) -> Object:
        """Server-side apply of a whole manifest, taking fields over from other managers. Returns the result."""
        kind = kind_of(manifest)
        meta = manifest["metadata"]
        return await self._patch(self._path(kind, meta["name"], meta.get("namespace")), manifest, kind)

    async def apply_status(self, obj: Object, status: Object) -> Object:
        """Server-side apply of the status of one of our own objects; the server removes fields that we set before and now omit."""
        kind = kind_of(obj)
        meta = obj["metadata"]
        identity = {"name": meta["name"]} | ({"namespace": meta["namespace"]} if kind.namespaced else {})
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": identity, "status": status}
        return await self._patch(self._path(kind, meta["name"], meta.get("namespace")) + "/status", body, kind)

    async def create(self, manifest: Object) -> Object:
        """Create an object that must never be overwritten. Raises NotReady if it exists already."""
        kind = kind_of(manifest)
        path = self._path(kind, None, manifest["metadata"].get("namespace"))
        return await self._call("post", path, kind=kind, body=manifest, field_manager=FIELD_MANAGER)

    async def merge(self, obj: Object, patch: Object) -> Object:
        """Merge-patch (RFC 7386) a few fields, and leave the rest of the object to its other writers, for example a pod's annotation."""
        kind = kind_of(obj)
        meta = obj["metadata"]
        path = self._path(kind, meta["name"], meta.get("namespace"))
        content_type = "application/merge-patch+json"
        return await self._call("patch", path, kind=kind, body=patch, content_type=content_type, field_manager=FIELD_MANAGER)

    async def delete(self, obj: Object) -> None:
        """Delete this object. If `obj` contains a uid, a later object of the same name is not deleted. An absent object is no error."""
        kind = kind_of(obj)
        meta = obj["metadata"]
        exactly = {"preconditions": {"uid": meta["uid"]}} if meta.get("uid") else {}
        body = {**exactly, "propagationPolicy": "Background"}  # by default, deleting a Job leaves its pods
        try:
            await self._call("delete", self._path(kind, meta["name"], meta.get("namespace")), kind=kind, body=body)
        except KindMissing:
            return

    async def serves(self, kind: Kind) -> bool:
        """True if the API server serves the kind now."""
        prefix = "apis" if kind.group else "api"
        try:
            answer = await self._call("get", f"/{prefix}/{kind.api_version}", kind=kind)
        except KindMissing:
            return False
        return any(item.get("name") == kind.plural for item in answer.get("resources") or [])

    def _path(self, kind: Kind, name: str | None, namespace: str | None) -> str:
        parts = ["apis" if kind.group else "api", kind.api_version]
        parts += ["namespaces", namespace] if kind.namespaced and namespace else []
        parts += [kind.plural, *([name] if name else [])]
        return "/" + "/".join(quote(part, safe="/" if part is kind.api_version else "") for part in parts)

    async def _patch(self, path: str, body: Object, kind: Kind) -> Object:
        return await self._call(
            "patch",
            path,
            kind=kind,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=FIELD_MANAGER,
            force_conflicts=True,
        )

    async def _call(self, method: str, path: str, *, kind: Kind, **params: Any) -> Object:
        try:
            response = await self._client.request(method, path, serialize=False, _request_timeout=REQUEST_TIMEOUT_S, **params)
            answer: Object = await response.json()
            return answer
        except ApiException as error:
            raise _translate(error, method, kind) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NotReady(f"the API server cannot be reached: {type(error).__name__}: {error}") from error


def _translate(error: ApiException, method: str, kind: Kind) -> OperatorError:
    status = int(error.status or 0)
    message = f"{method} {kind.kind}: {_summary(error)}"
    if status == 404:
        return KindMissing(message)
    return NotReady(message) if status in _RETRYABLE else Refused(message)


def _summary(error: ApiException) -> str:
    body = error.body if isinstance(error.body, str) else ""
    try:
        message = json.loads(body).get("message") if body else None
    except (ValueError, AttributeError):
        message = None
    return f"{error.status} {str(message or error.reason or body)[:1000]}"


async def _configuration(kubeconfig: Path | None) -> Configuration:
    configuration = Configuration()
    if kubeconfig is None:
        kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        await kube_config.load_kube_config(config_file=str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    return configuration


@asynccontextmanager
async def connect(kubeconfig: Path | None) -> AsyncIterator[Cluster]:
    """Connect with a kubeconfig, or with the pod's service account if there is no kubeconfig."""
    async with ApiClient(await _configuration(kubeconfig)) as api:
        yield Cluster(api)
