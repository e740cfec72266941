"""Read the status of each node's `sos-node` (GET /status), which a pod's readiness does not show.

The status gives the reason why a bridge is not up, and tells whether a node has removed everything of a departing site.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import aiohttp

from sos_operator.core.model.node_status import STATUS_PATH, NodeAnswer, address_of, parse_answer, whom_to_ask
from sos_operator.core.model.objects import Object
from sos_operator.process.bugs import Bugs
from sos_operator.remote.bounded_requests import BoundedRequests

REQUEST_TIMEOUT_S = 2.0
CONCURRENT = 16
ANSWER_MAX_BYTES = 1024 * 1024


class Nodes:
    """The last answer of every node pod."""

    def __init__(self, session: aiohttp.ClientSession, bugs: Bugs) -> None:
        self._session = session
        self._answers: dict[str, NodeAnswer] = {}
        self._asked: dict[str, float] = {}
        self._in_flight = BoundedRequests(partial(bugs.note, "node"))
        self._slots = asyncio.Semaphore(CONCURRENT)

    @property
    def answers(self) -> Mapping[str, NodeAnswer]:
        """The last answers by pod uid."""
        return dict(self._answers)

    async def visit(self, pods: Iterable[Object], urgent: frozenset[str], late: Callable[[], None]) -> Mapping[str, NodeAnswer]:
        """Query nodes whose answer is urgent or old; `urgent`: uids of pods to query in every pass. Return all present answers by pod
        uid."""
        present = {pod["metadata"]["uid"]: pod for pod in pods if address_of(pod)}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in present}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in present}
        chosen = whom_to_ask(present, self._asked, urgent, time.monotonic())
        await self._in_flight.run({uid: partial(self._ask, uid, present[uid]) for uid in chosen}, late)
        return dict(self._answers)

    async def close(self) -> None:
        """Cancel requests in flight."""
        await self._in_flight.close()

    async def _ask(self, uid: str, pod: Object) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with self._slots:
            self._asked[uid] = time.monotonic()
            try:
                async with self._session.get(f"http://{address_of(pod)}{STATUS_PATH}", timeout=timeout) as reply:
                    content: Any = await reply.content.read(ANSWER_MAX_BYTES)
                    answer = parse_answer(content) if reply.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # ValueError: an invalid URL
                answer = None
        if answer is None:
            self._answers.pop(uid, None)
        else:
            self._answers[uid] = answer
