"""Read the status of each node's `sos-node`, and of agents without controllers (GET /status).

The status contains facts that a pod's readiness does not show: a node's status gives the reason why a bridge is not up, and confirms that
the node has removed everything of a departing site. An agent's status lists the services that the agent accelerates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Generic, TypeVar

import aiohttp

from sos_operator.core.model.cluster_objects import Pod
from sos_operator.core.model.remote import agent_status, node_status
from sos_operator.core.model.remote.agent_status import AgentAnswer
from sos_operator.core.model.remote.node_status import STATUS_PATH, USER_AGENT, NodeAnswer, address_of, whom_to_ask
from sos_operator.process.bugs import Bugs
from sos_operator.remote.bounded_requests import BoundedRequests, bounded_body

REQUEST_TIMEOUT_S = 2.0
CONCURRENT = 16
ANSWER_MAX_BYTES = 1024 * 1024


Answer = TypeVar("Answer")


class PodStatuses(Generic[Answer]):
    """The last answer of every pod that has a container named `container`."""

    def __init__(self, session: aiohttp.ClientSession, bugs: Bugs, container: str, parse: Callable[[bytes], Answer | None]) -> None:
        self._session = session
        self._container = container
        self._parse = parse
        self._answers: dict[str, Answer] = {}
        self._asked: dict[str, float] = {}
        self._in_flight = BoundedRequests(partial(bugs.note, container))
        self._slots = asyncio.Semaphore(CONCURRENT)

    @property
    def answers(self) -> Mapping[str, Answer]:
        """The last answers by pod uid."""
        return dict(self._answers)

    async def visit(self, pods: Iterable[Pod], urgent: frozenset[str], late: Callable[[], None]) -> Mapping[str, Answer]:
        """Query pods whose answer is urgent or old; `urgent`: uids of pods to query in every pass. Return present answers by pod uid."""
        present = {pod.meta.uid: pod for pod in pods if address_of(pod, self._container)}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in present}
        self._asked = {uid: at for uid, at in self._asked.items() if uid in present}
        chosen = whom_to_ask(present, self._asked, urgent, time.monotonic())
        await self._in_flight.run({uid: partial(self._ask, uid, present[uid]) for uid in chosen}, late)
        return dict(self._answers)

    async def close(self) -> None:
        """Cancel requests in flight."""
        await self._in_flight.close()

    async def _ask(self, uid: str, pod: Pod) -> None:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S)
        url = f"http://{address_of(pod, self._container)}{STATUS_PATH}"
        async with self._slots:
            self._asked[uid] = time.monotonic()
            try:
                async with self._session.get(url, headers={"User-Agent": USER_AGENT}, timeout=timeout) as reply:
                    content = await bounded_body(reply, ANSWER_MAX_BYTES)
                    answer = self._parse(content) if reply.status == 200 else None
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError):  # ValueError: an invalid URL
                answer = None
        if answer is None:
            self._answers.pop(uid, None)
        else:
            self._answers[uid] = answer


def nodes(session: aiohttp.ClientSession, bugs: Bugs) -> PodStatuses[NodeAnswer]:
    """Return the statuses of node pods."""
    return PodStatuses(session, bugs, node_status.CONTAINER, node_status.parse_answer)


def agents(session: aiohttp.ClientSession, bugs: Bugs) -> PodStatuses[AgentAnswer]:
    """Return the statuses of agent pods."""
    return PodStatuses(session, bugs, agent_status.CONTAINER, agent_status.parse_agent_answer)
