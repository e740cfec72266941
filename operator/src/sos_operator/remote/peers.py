"""Exchange of site cards with agents of other clusters (spec/card.md section 2).

One task for each peer connects to the peer's agents in turn. While no agent of the peer answers, the task also reads the Offers that the
peer's operator has left at this cluster's own agents: if the peer is behind NAT, only the peer can open connections.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from sos_operator.core.peers import messages
from sos_operator.core.peers.contact import Contact
from sos_operator.core.peers.desired import Target
from sos_operator.core.peers.messages import Message, MessageError, Status
from sos_operator.process.bugs import Bugs
from sos_operator.remote.bounded_requests import bounded_body

# If only the peer can connect, it leaves an Offer at our agents every 2 s. Rounds here then start at most 6 s apart (two timeouts and the
# pause), so that the newest known Offer is normally not older than contact.CONNECTED_S.
EXCHANGE_S = 2.0  # pause between two rounds
TIMEOUT_S = 2.0  # of one exchange
ATTEMPTS = 2  # agents of a peer tried in one round
CARDS_PATH = "/cards"
CARDS_MAX_BYTES = 32 * 1024 * 1024  # limit on an agent's list of Offers, which has at most 64 Offers of 256 KiB in base64
CONCURRENT = 16
MAX_ENDPOINTS = 1024 + 16

Found = tuple[float, bytes]
"""An Offer: the time at which an agent received it (monotonic clock, in seconds), and the whole message."""


@dataclass(slots=True)
class _Exchange:
    """State of the exchange with one peer."""

    target: Target
    contact: Contact
    task: asyncio.Task[None] | None = None
    turn: int = 0
    refusals: int = 0
    """Number of Offers whose connection was closed without an Answer. The agent may not know the newest key yet, so each such
    refusal selects the next older key."""
    sequence: int = 0
    reached: bool = False
    """True if an agent of the peer answered in the last round."""
    reported: object = field(default=None)


class Peers:
    """Contacts with all peers, by SosPeer. Used from one event loop only."""

    def __init__(self, session: aiohttp.ClientSession, bugs: Bugs) -> None:
        self._session = session
        self._bugs = bugs
        self._exchanges: dict[str, _Exchange] = {}
        self._own_agents: tuple[str, ...] = ()
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._reading = asyncio.Lock()
        self._read: tuple[float, dict[str, list[Found]]] = (float("-inf"), {})

    @property
    def contacts(self) -> Mapping[str, Contact]:
        """State of each exchange, by SosPeer."""
        return {name: exchange.contact for name, exchange in self._exchanges.items()}

    def serve(self, targets: Mapping[str, Target], own_agents: tuple[str, ...], changed: Callable[[], None]) -> None:
        """Exchange cards with these peers from now on. `own_agents`: host:port of the HTTP servers of this cluster's agents. `changed` is
        called when a peer's card, or its reachability, changes."""
        self._own_agents = own_agents
        for name in self._exchanges.keys() - targets.keys():
            self._cancel(self._exchanges.pop(name))
        for name, target in targets.items():
            exchange = self._exchanges.get(name)
            former = exchange.target if exchange else target
            if (former.pairing.id, former.machine) != (target.pairing.id, target.machine):
                self._cancel(self._exchanges.pop(name))  # another invitation or enrollment: another peer
                exchange = None
            if exchange is None:
                exchange = self._exchanges[name] = _Exchange(target, Contact(received=target.stored, machine=target.machine))
                exchange.task = asyncio.create_task(self._run(name, exchange, changed), name=f"peer {name}")
            exchange.target = target

    async def close(self) -> None:
        """End all exchanges."""
        tasks = [exchange.task for exchange in self._exchanges.values() if exchange.task]
        for exchange in self._exchanges.values():
            self._cancel(exchange)
        await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    def _cancel(exchange: _Exchange) -> None:
        if exchange.task:
            exchange.task.cancel()

    async def _run(self, name: str, exchange: _Exchange, changed: Callable[[], None]) -> None:
        while True:
            with self._bugs.fence("peer", f"SosPeer {name}"):
                await self._round(exchange)
                shown = _shown(exchange.contact)
                if shown != exchange.reported:
                    exchange.reported = shown
                    changed()
            await asyncio.sleep(EXCHANGE_S)

    async def _round(self, exchange: _Exchange) -> None:
        """Try up to ATTEMPTS agents of the peer. If none answered in the previous round, read the Offers at our own agents in parallel."""
        if not exchange.reached:
            await asyncio.gather(self._dial(exchange), self._read_offers(exchange))
        else:
            await self._dial(exchange)

    async def _dial(self, exchange: _Exchange) -> None:
        endpoints, exchange.reached = _endpoints(exchange), False
        for _ in range(min(ATTEMPTS, len(endpoints))):
            address, port = endpoints[exchange.turn % len(endpoints)]
            exchange.turn += 1
            try:
                # Not wait_for: before Python 3.12, it loses a cancellation that coincides with the result.
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await self._exchange(exchange, address, port)
            except (MessageError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                exchange.refusals += isinstance(error, asyncio.IncompleteReadError | ConnectionResetError)
                exchange.contact = exchange.contact.failed(f"{address}:{port}: {_words(error)}")
                continue
            exchange.contact, exchange.reached = _after(exchange.contact, answer), True
            return

    async def _exchange(self, exchange: _Exchange, address: str, port: int) -> Message:
        target = exchange.target
        key_id, key = target.pairing.sending(exchange.refusals)
        exchange.sequence = max(time.time_ns() // 1_000_000, exchange.sequence + 1)
        nonce = os.urandom(messages.NONCE_BYTES)
        offer = Message(messages.OFFER, key_id, target.pairing.id, target.installation, nonce, exchange.sequence, target.card)
        signed = messages.sign_offer(offer, key)
        reader, writer = await asyncio.open_connection(address, port)
        try:
            writer.write(signed)
            await writer.drain()
            header = await reader.readexactly(messages.HEADER.size)
            rest = await reader.readexactly(messages.card_length(header) + messages.TAG_BYTES)
        finally:
            writer.close()
        answer = messages.open_answer(header + rest, offer, signed, key)
        if answer.installation == target.installation:
            raise MessageError("it is from this cluster itself: correct spec.endpoints")
        return answer

    async def _read_offers(self, exchange: _Exchange) -> None:
        """Use the Offers that the peer has left at our own agents. The agents' pages are not authenticated, so each tag is checked here."""
        pairing, own = exchange.target.pairing, exchange.target.installation
        for at_s, content in sorted((await self._offers()).get(pairing.id.hex(), ())):
            try:
                message = messages.open_offer(content, pairing.id, pairing.card_keys())
            except MessageError:
                continue
            if message.installation != own:
                # `heard` clears the error, but the last attempt to connect to the peer has still failed: restore the error.
                exchange.contact = exchange.contact.heard(message, at_s).failed(exchange.contact.error)

    async def _offers(self) -> dict[str, list[Found]]:
        """Return the Offers at all our agents, by pairing; one reading serves all peers."""
        async with self._reading:
            if time.monotonic() - self._read[0] >= EXCHANGE_S:
                found: dict[str, list[Found]] = {}
                for rows in await asyncio.gather(*(self._page(address) for address in self._own_agents)):
                    for pairing, offer in rows:
                        found.setdefault(pairing, []).append(offer)
                self._read = time.monotonic(), found
            return self._read[1]

    async def _page(self, address: str) -> list[tuple[str, Found]]:
        """Return the Offers at one of our agents, with their pairings; none if it does not answer."""
        async with self._slots:
            try:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                async with self._session.get(f"http://{address}{CARDS_PATH}", timeout=timeout) as reply:
                    if reply.status != 200:
                        return []
                    page = json.loads(await bounded_body(reply, CARDS_MAX_BYTES))
                    now_s = time.monotonic()
                    return [(str(row["pairing"]), (now_s - _age_s(row), base64.b64decode(row["message"]))) for row in page["offers"]]
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
                return []


def _age_s(row: Mapping[str, object]) -> float:
    return max(0.0, float(str(row["ageMilliseconds"])) / 1000)


def _after(contact: Contact, answer: Message) -> Contact:
    if answer.status == Status.OTHER_INSTALLATION:
        return contact.failed("the peer has this pairing with another cluster")
    heard = contact.heard(answer, time.monotonic())
    if answer.status == Status.NOT_NEWER:
        return heard.failed("the peer has a later Offer of this cluster: is this cluster's clock behind?")
    return heard


def _endpoints(exchange: _Exchange) -> list[tuple[str, int]]:
    """Return the endpoints of the spec and the addresses of all agents that the peer has announced, without duplicates.

    Agents of Blocked sites cannot be reached; attempts would only delay the next reading of the peer's Offers.
    """
    received = exchange.contact.received
    sites = [site for site in received.card.sites if site.inbound == "Open"] if received else []
    agents = [(agent.addresses[0], agent.card_port) for site in sites for agent in site.agents]
    return list(dict.fromkeys([*exchange.target.endpoints, *agents]))[:MAX_ENDPOINTS]


def _shown(contact: Contact) -> object:
    """Return the parts of a contact whose change requires a pass."""
    return contact.received, contact.report, contact.key_id, contact.connected(time.monotonic()), contact.refused


def _words(error: BaseException) -> str:
    match error:
        case MessageError():
            return f"invalid answer: {error}"
        case asyncio.IncompleteReadError() | ConnectionResetError():
            return "connection closed without an answer: the agent does not know this pairing, or the key"
        case TimeoutError():
            return f"no answer within {TIMEOUT_S:.0f} s"
        case _:
            return getattr(error, "strerror", None) or str(error)
