"""Talks to all controllers at once: asks each how it is, and hands it a new configuration when it has another one."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import sos_compile

from sos_operator.controller_api import ControllerApi
from sos_operator.core.errors import NotReady, OperatorError
from sos_operator.core.kinds import CONTROLLER
from sos_operator.core.options import Settings
from sos_operator.core.secrets import token_of
from sos_operator.core.views import ControllerView, Heard, fresh_status
from sos_operator.core.world import Object, Seen, api_base, leaving
from sos_operator.metrics import Metrics

log = logging.getLogger(__name__)
CONCURRENT = 16  # controllers talked to at once


class Controllers:
    """What is known about every controller, renewed once per pass."""

    def __init__(self, api: ControllerApi, settings: Settings, metrics: Metrics) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        self._heard: dict[str, Heard] = {}
        self._slots = asyncio.Semaphore(CONCURRENT)

    def in_force(self) -> list[tuple[int, str]]:
        """(generation, hash) of the configurations that controllers last said to have."""
        configs = [(heard.status or {}).get("config") or {} for heard in self._heard.values()]
        return [(c["generation"], str(c.get("hash"))) for c in configs if isinstance(c.get("generation"), int)]

    async def visit(self, seen: Seen, compiled: sos_compile.Compiled, secrets: Mapping[str, Object]) -> dict[str, ControllerView]:
        """Ask and, where needed, push; never raises for a controller that misbehaves."""
        present = [o for o in seen.of(CONTROLLER.kind) if not leaving(o)]
        names = {o["metadata"]["name"] for o in present}
        self._heard = {name: heard for name, heard in self._heard.items() if name in names}
        views = await asyncio.gather(*(self._visit(o, seen, compiled, token_of(secrets, o)) for o in present))
        return {view.name: view for view in views}

    async def _visit(self, controller: Object, seen: Seen, compiled: sos_compile.Compiled, token: str | None) -> ControllerView:
        name, base = controller["metadata"]["name"], api_base(controller, seen, self._settings.controller_api_override)
        document = compiled.controllers.get(name)
        wanted = document["hash"] if document else ""
        if base is None:
            return ControllerView(name=name, asked=False, wanted_hash=wanted)
        if not base:
            return ControllerView(name=name, error="its Service has no address yet", wanted_hash=wanted)
        error, push_error = "", ""
        async with self._slots:
            try:
                status = await self._ask(name, base)
                if document and (status.get("config") or {}).get("hash") != wanted:
                    push_error = await self._push(name, base, document, token)
                    await self._ask(name, base)
            except OperatorError as problem:
                error = str(problem)
                log.debug("controller does not answer", extra={"controller": name, "error": error})
        fresh = fresh_status(self._heard.get(name, Heard()), time.monotonic())
        return ControllerView(name=name, status=fresh, error=error, push_error=push_error, wanted_hash=wanted)

    async def _ask(self, name: str, base: str) -> dict[str, Any]:
        status = await self._api.status(base)
        self._heard[name] = Heard(time.monotonic(), status)
        return status

    async def _push(self, name: str, base: str, document: Mapping[str, Any], token: str | None) -> str:
        """Returns what the controller has against the document, empty if it took it. Raises NotReady if it did not answer."""
        if token is None:
            return "there is no bearer token for it yet"
        result, words = "taken", ""
        try:
            await self._api.put_config(base, dict(document), token)
        except NotReady:
            result = "unanswered"
            raise
        except OperatorError as problem:
            result, words = "refused", str(problem)
        finally:
            self._metrics.pushes.labels(controller=name, result=result).inc()
            extra = {"controller": name, "generation": document["generation"], "result": result, "said": words}
            log.info("configuration pushed", extra=extra)
        return words
