"""Client of a controller's northbound API (spec/northbound.md). It sends requests and returns the answers."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp

from sos_operator.core.model.errors import NotReady, Refused

REQUEST_TIMEOUT_S = 2.0
ATTEMPTS = 2  # of each request, because one lost packet should not change a condition
RETRY_FIRST_S = 0.2
ANSWER_MAX_BYTES = 32 * 1024 * 1024  # a status lists every datapath, agent and service


def open_session() -> aiohttp.ClientSession:
    """Use one connection per request. For a while, the address of a new Service may lead to a wrong server, and a kept connection would
    send further requests there (observed on kind: a gateway's 404)."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))


class ControllerApi:
    """Calls on controllers over one HTTP session."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def status(self, base: str) -> dict[str, Any]:
        """GET /v1/status. Raises NotReady without a valid answer or for 5xx, Refused for any other error."""
        return await self._retried("GET", base + "/v1/status", None, None)

    async def put_config(self, base: str, document: dict[str, Any], token: str) -> dict[str, Any]:
        """PUT /v1/config. Raises NotReady, or Refused with the controller's message (400 with a path, 401, 409)."""
        return await self._retried("PUT", base + "/v1/config", json.dumps(document), token)

    async def _retried(self, method: str, url: str, body: str | None, token: str | None) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, url, body, token)
            except NotReady:
                if attempt == ATTEMPTS:
                    raise
                await asyncio.sleep(RETRY_FIRST_S * (1 + random.random()))  # noqa: S311 - jitter
        raise AssertionError("the loop above returns or raises")

    async def _once(self, method: str, url: str, body: str | None, token: str | None) -> dict[str, Any]:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        try:
            async with self._session.request(method, url, data=body, headers=headers, timeout=timeout) as answer:
                content = await answer.content.read(ANSWER_MAX_BYTES + 1)
                while len(content) <= ANSWER_MAX_BYTES and (more := await answer.content.read(ANSWER_MAX_BYTES)):
                    content += more
                return _parse(answer.status, content)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NotReady(str(error) or type(error).__name__) from error


def _parse(status: int, content: bytes) -> dict[str, Any]:
    if len(content) > ANSWER_MAX_BYTES:
        raise Refused(f"the answer has more than {ANSWER_MAX_BYTES} bytes")
    try:
        answer = json.loads(content) if content else {}
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise NotReady(f"HTTP {status} without a JSON object")
    if status == 200:
        return answer
    error = answer.get("error")
    said = error if isinstance(error, dict) else {}
    words = ": ".join(str(part) for part in (said.get("path"), said.get("message")) if part)
    message = f"HTTP {status}{': ' if words else ''}{words}"
    # A 5xx error may pass by itself; after a 4xx, the same request would fail again.
    raise (NotReady if status >= 500 else Refused)(message)
