"""Exchange of site cards with agents of other clusters (spec/card.md section 2).

One task for each peer connects to the peer's agents in turn. While no agent of the peer can be reached, the task reads what the peer's
operator has left at this cluster's own agents: one of two clusters may be behind NAT.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import aiohttp

from sos_operator.core.peers import messages
from sos_operator.core.peers.contact import Contact
from sos_operator.core.peers.desired import Target
from sos_operator.core.peers.messages import Message, MessageError, Status
from sos_operator.process.bugs import Bugs

EXCHANGE_S = 3.0  # interval of exchanges; contact.CONNECTED_S is three of them
TIMEOUT_S = 2.0  # of one exchange
ATTEMPTS = 2  # agents of a peer tried in one interval
CARDS_PATH = "/cards"
CARDS_MAX_BYTES = 32 * 1024 * 1024  # 64 offers of 256 KiB in base64
CONCURRENT = 16
MAX_ENDPOINTS = 1024 + 16


@dataclass(slots=True)
class _Exchange:
    """State of the exchange with one peer."""

    target: Target
    contact: Contact
    task: asyncio.Task[None] | None = None
    turn: int = 0
    sequence: int = 0
    reported: object = field(default=None)


class Peers:
    """Contacts with all peers, by SosPeer. Used from one event loop only."""

    def __init__(self, session: aiohttp.ClientSession, bugs: Bugs) -> None:
        self._session = session
        self._bugs = bugs
        self._exchanges: dict[str, _Exchange] = {}
        self._own_agents: tuple[str, ...] = ()
        self._slots = asyncio.Semaphore(CONCURRENT)

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
            if exchange is not None and exchange.target.pairing.id != target.pairing.id:
                self._cancel(self._exchanges.pop(name))  # another invitation: another peer
                exchange = None
            if exchange is None:
                exchange = self._exchanges[name] = _Exchange(target, Contact(received=target.stored))
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
        """Try some agents of the peer; if none answers, read the Offers at our own agents."""
        endpoints = _endpoints(exchange)
        for _ in range(min(ATTEMPTS, len(endpoints))):
            address, port = endpoints[exchange.turn % len(endpoints)]
            exchange.turn += 1
            try:
                # Not wait_for: before Python 3.12, it loses a cancellation that coincides with the result.
                async with asyncio.timeout(TIMEOUT_S):
                    answer = await self._exchange(exchange, address, port)
            except (MessageError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                exchange.contact = exchange.contact.failed(f"{address}:{port}: {_words(error)}")
                continue
            exchange.contact = _after(exchange.contact, answer)
            return
        await self._read_offers(exchange)

    async def _exchange(self, exchange: _Exchange, address: str, port: int) -> Message:
        target = exchange.target
        key_id, key = target.pairing.sending
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
        return messages.open_answer(header + rest, offer, signed, key)

    async def _read_offers(self, exchange: _Exchange) -> None:
        # The peer connects to any of our agents.
        found = await asyncio.gather(*(self._offers(address) for address in self._own_agents))
        keys, pairing = exchange.target.pairing.card_keys(), exchange.target.pairing.id
        for age_s, content in sorted((offer for offers in found for offer in offers), key=lambda offer: -offer[0]):
            try:
                message = messages.open_offer(content, pairing, keys)
            except MessageError:
                continue  # of another pairing
            exchange.contact = exchange.contact.heard(message, time.monotonic() - age_s)

    async def _offers(self, address: str) -> list[tuple[float, bytes]]:
        """Return age in seconds and content of the Offers at one of our agents; none if it does not answer."""
        async with self._slots:
            try:
                timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
                async with self._session.get(f"http://{address}{CARDS_PATH}", timeout=timeout) as reply:
                    if reply.status != 200:
                        return []
                    content = await reply.content.read(CARDS_MAX_BYTES)
                    rows = json.loads(content)["offers"]
                    return [(max(0.0, float(row["ageMilliseconds"]) / 1000), base64.b64decode(row["message"])) for row in rows]
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError, RecursionError):
                return []


def _after(contact: Contact, answer: Message) -> Contact:
    if answer.status == Status.OTHER_INSTALLATION:
        return contact.failed("the peer has this pairing with another cluster")
    return contact.heard(answer, time.monotonic())


def _endpoints(exchange: _Exchange) -> list[tuple[str, int]]:
    """Return the endpoints of the spec and, as far as the peer has announced agents, those of all its agents, without duplicates."""
    received = exchange.contact.received
    agents = [(agent.addresses[0], agent.card_port) for site in received.card.sites for agent in site.agents] if received else []
    return list(dict.fromkeys([*exchange.target.endpoints, *agents]))[:MAX_ENDPOINTS]


def _shown(contact: Contact) -> object:
    """Return what a pass depends on."""
    return contact.received and replace(contact.received, sequence=0), contact.connected(time.monotonic()), contact.refused


def _words(error: BaseException) -> str:
    match error:
        case MessageError():
            return f"invalid answer: {error}"
        case asyncio.IncompleteReadError() | ConnectionResetError():
            return "closed without an answer: it does not know this pairing, or the key"
        case TimeoutError():
            return f"no answer within {TIMEOUT_S:.0f} s"
        case _:
            return getattr(error, "strerror", None) or str(error)
