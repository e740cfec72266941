"""Peers: pairings, messages, contacts and the exchange of site cards (spec/card.md)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from sos_compile.model.site_card import SiteCard
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.model.world import Seen
from sos_operator.core.peers import messages
from sos_operator.core.peers.contact import CONNECTED_S, Contact, Received
from sos_operator.core.peers.desired import Peering, Target, key_files, known_cards, peer_manifests, read_pairings
from sos_operator.core.peers.documents import AGENTS_FILE, Offered, agents_manifest, card_manifests, stored_cards
from sos_operator.core.peers.messages import ANSWER, OFFER, Message, MessageError, Status
from sos_operator.core.peers.pairing import Pairing, PairingError, parse_pairing
from sos_operator.process.bugs import Bugs
from sos_operator.process.metrics import Metrics
from sos_operator.remote import peers as exchange
from sos_operator.remote.peers import Peers

VECTORS = Path(__file__).parents[3] / "spec" / "vectors" / "card"
GOOD = json.loads((VECTORS / "v1.json").read_text())
BAD = json.loads((VECTORS / "bad.json").read_text())
SETTINGS = Settings(namespace="sos-system", images=Images(controller="c", agent="a", node="n", ovs="o"))
PAIRING = Pairing(bytes(range(16)), {1: bytes(32)})
THEM, US = b"T" * 16, b"U" * 16
CARD = SiteCard(software="0.1.0", sites=(), services=())


def message(entry: dict[str, Any]) -> Message:
    fields = entry["fields"]
    ids = {name: bytes.fromhex(fields[name]) for name in ("pairing", "installation", "nonce")}
    return Message(
        fields["type"], fields["key_id"], sequence=fields["sequence"], card=fields["card"].encode(), status=fields["status"], **ids
    )


@pytest.mark.parametrize("entry", GOOD, ids=lambda entry: entry["name"])
def test_messages_match_the_vectors(entry: dict[str, Any]) -> None:
    one, key, whole = message(entry), bytes.fromhex(entry["key"]), bytes.fromhex(entry["hex"])
    if one.type == OFFER:
        assert messages.sign_offer(one, key) == whole
        assert messages.open_offer(whole, one.pairing, {one.key_id: key}) == one
        return
    offer = bytes.fromhex(entry["offer"])
    assert messages.sign_answer(one, key, offer[-messages.TAG_BYTES :]) == whole
    asked = messages.open_offer(offer, one.pairing, {one.key_id: key})
    assert messages.open_answer(whole, asked, offer, key) == one


@pytest.mark.parametrize("entry", BAD, ids=lambda entry: f"{entry['type']}-{entry['name']}")
def test_bad_messages_are_refused(entry: dict[str, Any]) -> None:
    key, offer, whole = (bytes.fromhex(entry[name]) for name in ("key", "offer", "hex"))
    asked = messages.open_offer(offer, offer[8:24], {int.from_bytes(offer[6:8]): key})
    with pytest.raises(MessageError):
        if entry["type"] == OFFER:
            messages.open_offer(whole, asked.pairing, {asked.key_id: key})
        else:
            messages.open_answer(whole, asked, offer, key)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(MessageError):
        messages.open_offer(content, PAIRING.id, PAIRING.card_keys())
    with pytest.raises(MessageError):
        messages.open_offer(b"SOSC\x01\x01" + content, PAIRING.id, PAIRING.card_keys())


def secret(**files: str) -> dict[str, Any]:
    data = {name.replace("_", "-"): base64.b64encode(text.encode()).decode() for name, text in files.items()}
    return {"metadata": {"name": "sos-peer-dc2"}, "data": data}


def test_a_pairing_is_read_from_its_secret() -> None:
    found = parse_pairing("sos-peer-dc2", secret(pairing="ab" * 16, key_1="01" * 32, key_7="07" * 32 + "\n", key_x="02" * 32, note="x"))
    assert (found.id, sorted(found.secrets)) == (b"\xab" * 16, [1, 7])
    assert found.sending[0] == 7


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (None, "there is no Secret sos-peer-dc2"),
        ({"key_1": "01" * 32}, "pairing of Secret sos-peer-dc2"),
        ({"pairing": "ab" * 15, "key_1": "01" * 32}, "pairing of Secret sos-peer-dc2"),
        ({"pairing": "ab" * 16}, "holds no key"),
        ({"pairing": "ab" * 16, "key_1": "01" * 31, "key_0": "01" * 32}, "holds no key"),
    ],
)
def test_an_invalid_secret_is_named(files: dict[str, str] | None, says: str) -> None:
    with pytest.raises(PairingError, match=says):
        parse_pairing("sos-peer-dc2", None if files is None else secret(**files))


def peer(name: str, uid: str = "u1") -> dict[str, Any]:
    meta = {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosPeer", "metadata": meta, "spec": {"prefixes": ["10.0.0.0/8"]}}


def seen(*peers: dict[str, Any], **changes: Any) -> Seen:
    system = {"metadata": {"name": "kube-system", "uid": "00112233-4455-6677-8899-aabbccddeeff"}}
    return Seen(objects=peers, namespaces=(system,), **changes)


def test_two_peers_cannot_share_a_pairing() -> None:
    same = secret(pairing="ab" * 16, key_1="01" * 32)
    found = read_pairings(seen(peer("dc2"), peer("dc3")), {"sos-peer-dc2": same, "sos-peer-dc3": same})
    assert list(found.usable) == ["dc2"]
    assert "the pairing of SosPeer dc2" in found.errors["dc3"]


def heard(
    contact: Contact, sequence: int = 5, card: bytes = CARD.encode().encode(), installation: bytes = THEM, at: float = 100.0
) -> Contact:
    return contact.heard(Message(ANSWER, 1, PAIRING.id, installation, b"", sequence, card), at)


def test_a_card_replaces_an_older_card_only() -> None:
    newer = CARD.model_copy(update={"software": "2"})
    contact = heard(heard(Contact(), 5), 6, newer.encode().encode())
    assert contact.received and contact.received.card == newer
    late = heard(contact, 5, at=200.0)
    assert late.received == contact.received
    assert late.connected(200.0 + CONNECTED_S) and not late.connected(200.1 + CONNECTED_S)


def test_the_first_installation_keeps_the_pairing() -> None:
    contact = heard(heard(Contact()), 9, installation=b"X" * 16, at=200.0)
    assert contact.received and contact.received.installation == THEM.hex()
    assert "uses the pairing of installation" in contact.refused
    assert contact.last_s == 100.0


def test_an_unusable_card_leaves_the_former_one_in_use() -> None:
    contact = heard(heard(Contact()), 6, b"{}")
    assert contact.received and contact.received.sequence == 5
    assert "cannot be used" in contact.refused
    assert heard(contact, 7).refused == ""


def test_a_card_keeps_its_time_of_issue_while_it_does_not_change() -> None:
    offered = [Offered(PAIRING.id, None, "one")]
    first = agents_manifest(SETTINGS, seen(), offered, 1_000)
    again = agents_manifest(SETTINGS, seen(children=(first,)), offered, 2_000)
    changed = agents_manifest(SETTINGS, seen(children=(first,)), [Offered(PAIRING.id, THEM.hex(), "two")], 500)
    assert again == first
    document = json.loads(changed["data"][AGENTS_FILE])
    assert document["installation"] == "00112233445566778899aabbccddeeff"
    assert document["peers"] == [{"pairing": PAIRING.id.hex(), "installation": THEM.hex(), "sequence": 1_001, "card": "two"}]


def test_cards_survive_a_restart_but_not_another_sospeer() -> None:
    known = Received(THEM.hex(), 7, CARD)
    (stored,) = card_manifests(SETTINGS, seen(peer("dc2")), {"dc2": known})
    assert stored_cards(seen(peer("dc2"), children=(stored,))) == {"dc2": known}
    assert stored_cards(seen(peer("dc2", "u2"), children=(stored,))) == {}
    assert known_cards(seen(peer("dc2"), children=(stored,)), {"dc2": Contact()}) == {"dc2": known}
    newer = replace(known, sequence=8)
    assert known_cards(seen(peer("dc2"), children=(stored,)), {"dc2": Contact(received=newer)}) == {"dc2": newer}


def test_agents_hold_keys_for_their_own_site_only() -> None:
    card = SiteCard.model_validate(
        {"software": "1", "sites": [{"name": "east", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": []}], "services": []}
    )
    pairings = read_pairings(seen(peer("dc2")), {"sos-peer-dc2": secret(pairing="ab" * 16, key_1="01" * 32)})
    files = key_files([1, 3], Peering(pairings, {"dc2": Received(THEM.hex(), 7, card)}))
    assert sorted(files[1]) == [f"card-{'ab' * 16}-1", "pair-2-1"]
    assert files[1]["pair-2-1"] != files[3]["pair-2-1"]
    assert "01" * 32 not in [*files[1].values(), *files[3].values()]


def test_nothing_is_written_without_peers() -> None:
    assert peer_manifests(SETTINGS, seen(), None, Peering(), 0) == []  # type: ignore[arg-type]


@dataclass
class Agent:
    """An agent of the other cluster."""

    card: bytes = CARD.encode().encode()
    sequence: int = 5
    installation: bytes = THEM
    status: int = Status.STORED
    keys: dict[int, bytes] = field(default_factory=PAIRING.card_keys)
    offers: list[Message] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readexactly(messages.HEADER.size)
        whole = header + await reader.readexactly(messages.card_length(header) + messages.TAG_BYTES)
        try:
            offer = messages.open_offer(whole, PAIRING.id, self.keys)
            self.offers.append(offer)
            answer = Message(ANSWER, offer.key_id, offer.pairing, self.installation, offer.nonce, self.sequence, self.card, self.status)
            writer.write(messages.sign_answer(answer, self.keys[offer.key_id], whole[-messages.TAG_BYTES :]))
        except MessageError:
            pass
        writer.close()


@asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[Agent]:
    server = await asyncio.start_server(agent.serve, "127.0.0.1", 0)
    agent.port = server.sockets[0].getsockname()[1]
    async with server:
        yield agent


@contextmanager
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exchange, "EXCHANGE_S", 0.05)
    monkeypatch.setattr(exchange, "TIMEOUT_S", 1.0)
    yield


async def until(condition: Any, timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "not within the time"
        await asyncio.sleep(0.01)


def target(*ports: int, pairing: Pairing = PAIRING) -> Target:
    return Target(pairing, US, b"our card", tuple(("127.0.0.1", port) for port in ports))


@asynccontextmanager
async def exchanging(own_agents: tuple[str, ...], **targets: Target) -> AsyncIterator[tuple[Peers, list[int]]]:
    changes: list[int] = []
    async with aiohttp.ClientSession() as session:
        found = Peers(session, Bugs(Metrics()))
        found.serve(targets, own_agents, lambda: changes.append(1))
        try:
            yield found, changes
        finally:
            await found.close()


def test_cards_are_exchanged_and_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(Agent()) as agent, exchanging((), dc2=target(agent.port)) as (found, changes):
            await until(lambda: len(agent.offers) >= 3)
            contact = found.contacts["dc2"]
            assert contact.received == Received(THEM.hex(), 5, CARD)
            assert (contact.error, contact.refused, changes) == ("", "", [1])
            assert [offer.card for offer in agent.offers[:1]] == [b"our card"]
            sequences = [offer.sequence for offer in agent.offers]
            assert sequences == sorted(set(sequences))

    with quick(monkeypatch):
        asyncio.run(scenario())


@pytest.mark.parametrize(
    ("agent", "says"),
    [
        (Agent(keys={1: b"k" * 32}), "does not know this pairing"),
        (Agent(status=Status.OTHER_INSTALLATION, card=b""), "with another cluster"),
    ],
)
def test_refusals_are_reported(agent: Agent, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(agent), exchanging((), dc2=target(agent.port)) as (found, _):
            await until(lambda: says in found.contacts["dc2"].error)
            assert found.contacts["dc2"].received is None

    with quick(monkeypatch):
        asyncio.run(scenario())


def test_the_next_agent_is_tried_when_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(Agent()) as agent, exchanging((), dc2=target(1, agent.port)) as (found, _):
            await until(lambda: found.contacts["dc2"].received is not None)

    with quick(monkeypatch):
        asyncio.run(scenario())


def test_offers_at_own_agents_count_while_the_peer_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer behind NAT connects to our agents; their HTTP interface is not authenticated, so the operator checks the tag."""
    key_id, key = PAIRING.sending
    genuine = messages.sign_offer(Message(OFFER, key_id, PAIRING.id, THEM, bytes(16), 9, CARD.encode().encode()), key)
    forged = messages.sign_offer(Message(OFFER, key_id, PAIRING.id, b"F" * 16, bytes(16), 99, CARD.encode().encode()), b"f" * 32)

    async def cards(_: web.Request) -> web.Response:
        offers = [{"ageMilliseconds": 10, "message": base64.b64encode(content).decode()} for content in (forged, genuine)]
        return web.json_response({"offers": offers, "refused": {}})

    async def scenario() -> None:
        app = web.Application()
        app.router.add_get("/cards", cards)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            async with exchanging((f"127.0.0.1:{port}", "127.0.0.1:1"), dc2=target()) as (found, _):
                await until(lambda: found.contacts["dc2"].received is not None)
                assert found.contacts["dc2"].received == Received(THEM.hex(), 9, CARD)
                assert found.contacts["dc2"].connected(time.monotonic())
        finally:
            await runner.cleanup()

    with quick(monkeypatch):
        asyncio.run(scenario())


def test_another_invitation_forgets_the_former_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with running(Agent()) as agent, exchanging((), dc2=target(agent.port)) as (found, _):
            await until(lambda: found.contacts["dc2"].received is not None)
            found.serve({"dc2": target(pairing=Pairing(b"n" * 16, {1: bytes(32)}))}, (), lambda: None)
            assert found.contacts["dc2"].received is None
            found.serve({}, (), lambda: None)
            assert found.contacts == {}

    with quick(monkeypatch):
        asyncio.run(scenario())
