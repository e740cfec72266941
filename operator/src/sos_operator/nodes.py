"""Asks the `sos-node` of each node how it stands (its GET /status): what a pod's readiness cannot say.

Two things depend on it: the reason why a bridge is not up, and whether a node has taken away what a departing site made on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

import aiohttp

from sos_operator.core.nodes import STATUS_PATH, NodeAnswer, address_of, parse_answer, whom_to_ask
from sos_operator.core.world import Object

REQUEST_TIMEOUT_S = 2.0
CONCURRENT = 16
ANSWER_MAX_BYTES = 1024 * 1024


class Nodes:
    """The last answer of every node pod."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._answers: dict[str, NodeAnswer] = {}
        self._asked: dict[str, float] = {}

    @property
    def answers(self) -> Mapping[str, NodeAnswer]:
        """The last answers by pod uid."""
        return dict(self._answers)

    async def visit(self, pods: Iterable[Object], urgent: frozenset[str]) -> Mapping[str, NodeAnswer]:
        """Ask those whose answer is needed or old; `urgent` are uids of pods to ask in every pass. Answers by pod uid."""
        present = {pod["metadata"]["uid"]: pod for pod in pods if address_of(pod)}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in present}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in present}
        slots = asyncio.Semaphore(CONCURRENT)
        chosen = whom_to_ask(present, self._asked, urgent, time.monotonic())
        await asyncio.gather(*(self._ask(uid, present[uid], slots) for uid in chosen))
        return dict(self._answers)

    async def _ask(self, uid: str, pod: Object, slots: asyncio.Semaphore) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        async with slots:
            self._asked[uid] = time.monotonic()
            try:
                async with self._session.get(f"http://{address_of(pod)}{STATUS_PATH}", timeout=timeout) as reply:
                    content: Any = await reply.content.read(ANSWER_MAX_BYTES)
                    answer = parse_answer(content) if reply.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError):
                answer = None
        if answer is None:
            self._answers.pop(uid, None)
        else:
            self._answers[uid] = answer
