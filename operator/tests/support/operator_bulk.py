"""Many requests to the API server at once, over connections that stay open: a TLS handshake for each takes longer than the request."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import yaml
from operator_kube import Kube
from operator_reader import unverified

AT_ONCE = 8
"""Concurrent requests: an API server with two processors answers no more in the same time."""
TIMEOUT_S = 30.0
MERGE, PLAIN = "application/merge-patch+json", "application/json"


@dataclass(frozen=True)
class Request:
    """One request; merge patches have the method PATCH."""

    method: str
    path: str
    body: Mapping[str, Any] | None = None


class Bulk:
    """Client of one API server as administrator."""

    def __init__(self, kube: Kube, pool: ThreadPoolExecutor) -> None:
        token = yaml.safe_load(kube.admin.read_text())["users"][0]["user"]["token"]
        self._headers, self._place, self._pool = {"Authorization": f"Bearer {token}"}, urlsplit(kube.url).netloc, pool
        self._own = threading.local()

    def send(self, requests: Iterable[Request]) -> list[dict[str, Any]]:
        """Send all requests, and return the answers in the same order; a refusal is a Status with status Failure."""
        return list(self._pool.map(self._send, requests))

    def items(self, *paths: str) -> list[dict[str, Any]]:
        """Objects of several lists."""
        answers = self.send(Request("GET", path) for path in paths)
        return [item for answer in answers for item in answer["items"]]

    def _send(self, request: Request) -> dict[str, Any]:
        if not hasattr(self._own, "connection"):
            self._own.connection = http.client.HTTPSConnection(self._place, timeout=TIMEOUT_S, context=unverified())
        kind = MERGE if request.method == "PATCH" else PLAIN
        path = request.path + ("" if request.method in ("GET", "DELETE") else "?fieldValidation=Strict")
        body = None if request.body is None else json.dumps(request.body)
        self._own.connection.request(request.method, path, body, {**self._headers, "Content-Type": kind})
        return dict(json.loads(self._own.connection.getresponse().read()))


@contextmanager
def bulk(kube: Kube) -> Iterator[Bulk]:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Bulk(kube, pool)
