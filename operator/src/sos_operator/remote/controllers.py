"""Push configurations concurrently to all controllers whose configuration differs, and read their status.

Each replica of a controller is asked and configured by itself, never through an address that both share.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import sos_compile

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.custom_resources import SosController
from sos_operator.core.model.errors import NotReady, OperatorError
from sos_operator.core.model.options import Settings
from sos_operator.core.model.remote.controller_view import ControllerView, Heard, config_of, counted, fresh_status, join_replicas
from sos_operator.core.model.world import Seen, api_base
from sos_operator.core.scheduling.backoff import refused_delay
from sos_operator.core.secrets.secrets import token_of
from sos_operator.process.bugs import Bugs
from sos_operator.process.metrics import Metrics
from sos_operator.remote.bounded_requests import BoundedRequests
from sos_operator.remote.controller_api import ControllerApi

log = logging.getLogger(__name__)


class Replica(NamedTuple):
    """A process of a controller."""

    controller: str
    number: int

    def __str__(self) -> str:
        return self.controller if self.number == 0 else f"{self.controller}/{self.number + 1}"


CONCURRENT = 16  # maximum number of concurrent requests
NOT_YET = "HTTP 401"  # the controller has not read a new token yet; the error passes by itself


@dataclass(frozen=True, slots=True)
class _Said:
    """Result of the last exchange with a controller."""

    error: str = ""
    push_error: str = ""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """A refused document. `of`: its hash, the token of the request, and the controller's name and start time."""

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
        self._heard: dict[Replica, Heard] = {}
        self._said: dict[Replica, _Said] = {}
        self._refusals: dict[Replica, _Refusal] = {}
        self._in_flight = BoundedRequests(partial(Bugs(metrics).note, "controller"))
        self._slots = asyncio.Semaphore(CONCURRENT)

    def in_force(self) -> dict[str, tuple[int, str]]:
        """(generation, hash) of the newest configuration that the replicas of each controller last reported."""
        newest: dict[str, tuple[int, str]] = {}
        for replica, heard in self._heard.items():
            config = config_of(heard.status)
            found = counted(config.get("generation")), str(config.get("hash"))
            if found[0]:
                newest[replica.controller] = max(found, newest.get(replica.controller, found))
        return newest

    async def visit(
        self, seen: Seen, compiled: sos_compile.Compiled, secrets: Mapping[str, Secret], late: Callable[[], None]
    ) -> dict[str, ControllerView]:
        """Read the status of every controller, and push its configuration if needed. Errors of controllers are not raised, and a slow
        controller delays the call only briefly."""
        present = {Replica(o.name, n): o for o in seen.of(SosController) if not o.leaving for n in range(o.replicas)}
        self._heard = {replica: heard for replica, heard in self._heard.items() if replica in present}
        self._said = {replica: said for replica, said in self._said.items() if replica in present}
        self._refusals = {replica: refusal for replica, refusal in self._refusals.items() if replica in present}
        overrides = self._settings.controller_api_override
        bases = {replica: api_base(o, seen, overrides, replica.number) for replica, o in present.items()}
        tokens = {replica: token_of(secrets, o) for replica, o in present.items()}
        documents = {replica: compiled.controllers.get(replica.controller) for replica in present}
        calls = {
            str(replica): partial(self._visit, replica, base, documents[replica], tokens[replica])
            for replica, base in bases.items()
            if base
        }
        await self._in_flight.run(calls, late)
        views = {
            replica: replace(self._view(replica, base, documents[replica]), has_token=tokens[replica] is not None)
            for replica, base in bases.items()
        }
        joined = {replica.controller: view for replica, view in views.items() if replica.number == 0}
        for replica, view in views.items():
            if replica.number > 0:
                joined[replica.controller] = join_replicas(joined[replica.controller], view)
        return joined

    async def close(self) -> None:
        """Cancel requests in flight."""
        await self._in_flight.close()

    def _view(self, replica: Replica, base: str | None, document: Mapping[str, Any] | None) -> ControllerView:
        wanted = document["hash"] if document else ""
        if not base:
            error = "its Service has no address yet"
            return ControllerView(name=replica.controller, asked=base is not None, error=error, wanted_hash=wanted)
        fresh = fresh_status(self._heard.get(replica, Heard()), time.monotonic())
        said = self._said.get(replica, _Said("no answer yet"))
        awaited = str(replica) in self._in_flight.names and fresh is not None
        return ControllerView(
            name=replica.controller, status=fresh, error=said.error, push_error=said.push_error, wanted_hash=wanted, awaited=awaited
        )

    async def _visit(self, replica: Replica, base: str, document: Mapping[str, Any] | None, token: str | None) -> None:
        error, push_error = "", ""
        async with self._slots:
            try:
                # If the last status already shows that the controller lacks the document, push without reading the status again, which
                # takes long with a thousand services.
                heard = fresh_status(self._heard.get(replica, Heard()), time.monotonic())
                if heard is None or not _wants(heard, document):
                    heard = await self._ask(replica, base)
                if document is not None and _wants(heard, document):
                    push_error = await self._offer(replica, base, (heard, document), token)
                    await self._ask(replica, base)
            except OperatorError as problem:
                error = str(problem)
                log.debug("controller does not answer", extra={"controller": str(replica), "error": error})
        self._said[replica] = _Said(error, push_error)

    async def _ask(self, replica: Replica, base: str) -> dict[str, Any]:
        status = await self._api.status(base)
        self._heard[replica] = Heard(time.monotonic(), status)
        return status

    async def _offer(self, replica: Replica, base: str, both: tuple[Mapping[str, Any], Mapping[str, Any]], token: str | None) -> str:
        """Push a document with `_push`; after a refusal, retry at growing intervals until document, token or controller changes."""
        (heard, document), before = both, self._refusals.get(replica)
        of, now = (document["hash"], token, _process(heard)), time.monotonic()
        if before is not None and before.of == of and now < before.again_at:
            return before.words
        words = await self._push(str(replica), base, document, token)
        self._refusals.pop(replica, None)
        if words and not words.startswith(NOT_YET):
            times = before.times + 1 if before is not None and before.of == of else 0
            self._refusals[replica] = _Refusal(of, words, times, now + refused_delay(times))
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


def _process(status: Mapping[str, Any]) -> tuple[str, str]:
    """Return name and start time of a controller's process."""
    said = status.get("controller")
    found = said if isinstance(said, Mapping) else {}
    return str(found.get("name")), str(found.get("startedAt"))


def _wants(status: Mapping[str, Any], document: Mapping[str, Any] | None) -> bool:
    """True if a controller with this status does not have the wanted configuration."""
    return document is not None and config_of(status).get("hash") != document["hash"]
