"""Push configurations concurrently to all controllers whose configuration differs, and read their status."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sos_compile

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.controller_view import ControllerView, Heard, config_of, counted, fresh_status
from sos_operator.core.model.custom_resources import SosController
from sos_operator.core.model.errors import NotReady, OperatorError
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import Seen, api_base
from sos_operator.core.scheduling.backoff import refused_delay
from sos_operator.core.secrets.secrets import token_of
from sos_operator.process.bugs import Bugs
from sos_operator.process.metrics import Metrics
from sos_operator.remote.bounded_requests import BoundedRequests
from sos_operator.remote.controller_api import ControllerApi

log = logging.getLogger(__name__)
CONCURRENT = 16  # maximum number of concurrent requests
NOT_YET = "HTTP 401"  # the controller has not read a new token yet; the error passes by itself


@dataclass(frozen=True, slots=True)
class _Said:
    """Result of the last exchange with a controller."""

    error: str = ""
    push_error: str = ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A refused document. `of`: its hash, the token of the request, and the controller's name, epoch and start time."""

    of: Hashable
    words: str
    times: int
    again_at: float


class Controllers:
    """Last known state of every controller, updated once per pass."""

    def __init__(self, api: ControllerApi, settings: Settings, metrics: Metrics) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        self._heard: dict[str, Heard] = {}
        self._said: dict[str, _Said] = {}
        self._refusals: dict[str, _Refusal] = {}
        self._in_flight = BoundedRequests(partial(Bugs(metrics).note, "controller"))
        self._slots = asyncio.Semaphore(CONCURRENT)

    def in_force(self) -> dict[str, tuple[int, str]]:
        """(generation, hash) of the configuration that each controller last reported."""
        configs = {name: config_of(heard.status) for name, heard in self._heard.items()}
        found = {name: (counted(c.get("generation")), str(c.get("hash"))) for name, c in configs.items()}
        return {name: in_force for name, in_force in found.items() if in_force[0]}

    async def visit(
        self, seen: Seen, compiled: sos_compile.Compiled, secrets: Mapping[str, Secret], late: Callable[[], None]
    ) -> dict[str, ControllerView]:
        """Read the status of every controller, and push its configuration if needed. Errors of controllers are not raised, and a slow
        controller delays the call only briefly."""
        present = {o.name: o for o in seen.of(SosController) if not o.leaving}
        self._heard = {name: heard for name, heard in self._heard.items() if name in present}
        self._said = {name: said for name, said in self._said.items() if name in present}
        self._refusals = {name: refusal for name, refusal in self._refusals.items() if name in present}
        bases = {name: api_base(o, seen, self._settings.controller_api_override) for name, o in present.items()}
        tokens = {name: token_of(secrets, o) for name, o in present.items()}
        calls = {
            name: partial(self._visit, name, base, compiled.controllers.get(name), tokens[name]) for name, base in bases.items() if base
        }
        await self._in_flight.run(calls, late)
        views = {name: self._view(name, base, compiled.controllers.get(name)) for name, base in bases.items()}
        return {name: replace(view, has_token=tokens[name] is not None) for name, view in views.items()}

    async def close(self) -> None:
        """Cancel requests in flight."""
        await self._in_flight.close()

    def _view(self, name: str, base: str | None, document: Mapping[str, Any] | None) -> ControllerView:
        wanted = document["hash"] if document else ""
        if not base:
            return ControllerView(name=name, asked=base is not None, error="its Service has no address yet", wanted_hash=wanted)
        fresh = fresh_status(self._heard.get(name, Heard()), time.monotonic())
        said = self._said.get(name, _Said("no answer yet"))
        awaited = name in self._in_flight.names and fresh is not None
        return ControllerView(name=name, status=fresh, error=said.error, push_error=said.push_error, wanted_hash=wanted, awaited=awaited)

    async def _visit(self, name: str, base: str, document: Mapping[str, Any] | None, token: str | None) -> None:
        error, push_error = "", ""
        async with self._slots:
            try:
                # If the last status already shows that the controller lacks the document, push without reading the status again, which
                # takes long with a thousand services.
                heard = fresh_status(self._heard.get(name, Heard()), time.monotonic())
                if heard is None or not _wants(heard, document):
                    heard = await self._ask(name, base)
                if document is not None and _wants(heard, document):
                    push_error = await self._offer(name, base, (heard, document), token)
                    await self._ask(name, base)
            except OperatorError as problem:
                error = str(problem)
                log.debug("controller does not answer", extra={"controller": name, "error": error})
        self._said[name] = _Said(error, push_error)

    async def _ask(self, name: str, base: str) -> dict[str, Any]:
        status = await self._api.status(base)
        self._heard[name] = Heard(time.monotonic(), status)
        return status

    async def _offer(self, name: str, base: str, both: tuple[Mapping[str, Any], Mapping[str, Any]], token: str | None) -> str:
        """Push a document with `_push`; after a refusal, retry at growing intervals until document, token or controller changes."""
        (heard, document), before = both, self._refusals.get(name)
        of, now = (document["hash"], token, str(heard.get("controller"))), time.monotonic()
        if before is not None and before.of == of and now < before.again_at:
            return before.words
        words = await self._push(name, base, document, token)
        self._refusals.pop(name, None)
        if words and not words.startswith(NOT_YET):
            times = before.times + 1 if before is not None and before.of == of else 0
            self._refusals[name] = _Refusal(of, words, times, now + refused_delay(times))
        return words

    async def _push(self, name: str, base: str, document: Mapping[str, Any], token: str | None) -> str:
        """Push a document; return the reason of a refusal, empty if accepted. Raises NotReady if the controller does not answer."""
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


def _wants(status: Mapping[str, Any], document: Mapping[str, Any] | None) -> bool:
    """True if a controller with this status does not have the wanted configuration."""
    return document is not None and config_of(status).get("hash") != document["hash"]
