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
import sos_compile
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from operator_listing import listing
from operator_listing import secret as parsed
from sos_compile.model.site_card import SiteCard, parse_card
from sos_operator.core.model.options import Images, Settings
from sos_operator.core.model.world import Seen
from sos_operator.core.peers import messages
from sos_operator.core.peers.contact import CONNECTED_S, OLDER_S, Contact, Received
from sos_operator.core.peers.desired import Pairings, Peering, Target, key_files, known_cards, peer_manifests, read_pairings
from sos_operator.core.peers.documents import (
    AGENTS_FILE,
    Offered,
    agents_manifest,
    card_manifests,
    issue,
    issued_cards,
    stored_cards,
)
from sos_operator.core.peers.messages import ANSWER, OFFER, Message, MessageError, Status
from sos_operator.core.peers.pairing import Pairing, PairingError, parse_pairing
from sos_operator.core.secrets.keys import Masters
from sos_operator.core.secrets.secrets import derived_secrets, secret_files
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
    found = parse_pairing(
        "sos-peer-dc2", parsed(secret(pairing="ab" * 16, key_1="01" * 32, key_7="07" * 32 + "\n", key_x="02" * 32, note="x"))
    )
    assert (found.id, sorted(found.secrets)) == (b"\xab" * 16, [1, 7])
    assert [found.sending(refusals)[0] for refusals in range(3)] == [7, 1, 7]


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
        parse_pairing("sos-peer-dc2", None if files is None else parsed(secret(**files)))


def peer(name: str, uid: str = "u1") -> dict[str, Any]:
    meta = {"name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosPeer", "metadata": meta, "spec": {"prefixes": ["10.0.0.0/8"]}}


def seen(*peers: dict[str, Any], **changes: Any) -> Seen:
    system = {"metadata": {"name": "kube-system", "uid": "00112233-4455-6677-8899-aabbccddeeff"}}
    return listing(objects=peers, namespaces=(system,), **changes)


def test_two_peers_cannot_share_a_pairing() -> None:
    same = parsed(secret(pairing="ab" * 16, key_1="01" * 32))
    found = read_pairings(seen(peer("dc2"), peer("dc3")), {"sos-peer-dc2": same, "sos-peer-dc3": same})
    assert list(found.usable) == ["dc2"]
    assert "the pairing of SosPeer dc2" in found.errors["dc3"]


def card(issued: int, **changes: Any) -> SiteCard:
    return CARD.model_copy(update={"issued": issued, **changes})


def heard(contact: Contact, sent: SiteCard | bytes = CARD, installation: bytes = THEM, at: float = 100.0) -> Contact:
    content = sent if isinstance(sent, bytes) else sent.encode().encode()
    return contact.heard(Message(ANSWER, 1, PAIRING.id, installation, b"", 1, content), at)


def test_a_card_replaces_an_older_card_only() -> None:
    contact = heard(heard(Contact(), card(5)), card(6, software="2"))
    assert contact.received and contact.received.card == card(6, software="2")
    late = heard(contact, card(5), at=200.0)
    assert (late.received, late.refused) == (contact.received, "")
    assert late.connected(200.0 + CONNECTED_S) and not late.connected(200.1 + CONNECTED_S)


def test_a_peer_whose_clock_was_set_back_is_reported() -> None:
    contact = heard(heard(Contact(), card(50)), card(5), at=200.0)
    assert contact.refused == ""
    contact = heard(contact, card(5), at=201.0 + OLDER_S)
    assert "older than the one in use" in contact.refused
    assert heard(contact, card(50), at=300.0).refused == ""


def test_the_first_installation_keeps_the_pairing() -> None:
    contact = heard(heard(Contact()), card(9), installation=b"X" * 16, at=200.0)
    assert contact.received and contact.received.installation == THEM.hex()
    assert "uses the pairing of installation" in contact.refused
    assert contact.last_s == 100.0


def test_an_unusable_card_leaves_the_former_one_in_use() -> None:
    contact = heard(heard(Contact(), card(5)), b"{}")
    assert contact.received and contact.received.card == card(5)
    assert "cannot be used" in contact.refused
    assert heard(contact, card(7)).refused == ""


def test_a_card_keeps_its_time_of_issue_while_it_does_not_change() -> None:
    first = issue(CARD, None, 1_000)
    assert first == card(1_000)
    assert issue(CARD, first, 2_000) == first
    assert issue(card(0, software="2"), first, 500) == card(1_001, software="2")
    manifest = agents_manifest(SETTINGS, seen(), [Offered(PAIRING.id, THEM.hex(), first.issued, first.encode())])
    assert issued_cards(seen(children=(manifest,))) == {PAIRING.id.hex(): first}
    document = json.loads(manifest["data"][AGENTS_FILE])
    assert document["installation"] == "00112233445566778899aabbccddeeff"
    row = {"pairing": PAIRING.id.hex(), "installation": THEM.hex(), "sequence": 1_000, "card": first.encode()}
    assert document["peers"] == [row]


def pairings(*names: str, pairing: str = PAIRING.id.hex()) -> Pairings:
    held = {f"sos-peer-{name}": parsed(secret(pairing=pairing, key_1="01" * 32)) for name in names}
    return read_pairings(seen(*(peer(name) for name in names)), held)


def test_cards_survive_a_restart_but_not_another_sospeer() -> None:
    known = Received(PAIRING.id.hex(), THEM.hex(), CARD)
    (stored,) = card_manifests(SETTINGS, seen(peer("dc2")), {"dc2": known})
    present = seen(peer("dc2"), children=(stored,))
    assert stored_cards(present) == {"dc2": known}
    assert stored_cards(seen(peer("dc2", "u2"), children=(stored,))) == {}
    assert known_cards(present, pairings("dc2"), {"dc2": Contact()}) == {"dc2": known}
    newer = replace(known, card=card(8))
    assert known_cards(present, pairings("dc2"), {"dc2": Contact(received=newer)}) == {"dc2": newer}


def test_a_new_invitation_does_not_inherit_the_former_installation() -> None:
    known = Received(PAIRING.id.hex(), THEM.hex(), CARD)
    (stored,) = card_manifests(SETTINGS, seen(peer("dc2")), {"dc2": known})
    invited = pairings("dc2", pairing="cd" * 16)
    assert known_cards(seen(peer("dc2"), children=(stored,)), invited, {"dc2": Contact(received=known)}) == {}


EAST = {"name": "east", "id": 2, "prefixes": ["10.2.0.0/16"], "agents": []}


def site(number: int) -> dict[str, Any]:
    spec = {
        "nodeSelector": {"matchLabels": {"site": str(number)}},
        "siteID": number,
        "prefixes": [f"10.{100 + number}.0.0/16"],
        "wan": {"type": "Routed"},
        "intake": {"type": "Pods"},
    }
    return {"apiVersion": "sos.network/v1alpha1", "kind": "SosSite", "metadata": {"name": f"s{number}"}, "spec": spec}


def compiled_with(sent: SiteCard, *numbers: int) -> sos_compile.Compiled:
    """Compile a cluster with sites of these ids and the SosPeer dc2."""
    pool = {"apiVersion": "sos.network/v1alpha1", "kind": "SosAgent", "metadata": {"name": "default"}, "spec": {}}
    nodes = tuple(sos_compile.Node(f"n{number}", {"site": str(number)}, f"172.18.0.{number}") for number in numbers)
    objects = (*(site(number) for number in numbers), pool, peer("dc2"))
    return sos_compile.compile_world(sos_compile.World(objects=objects, nodes=nodes, cards={"dc2": sent}))


def test_agents_hold_keys_for_their_own_site_only() -> None:
    sent = SiteCard.model_validate({"software": "1", "sites": [EAST], "services": []})
    peering = Peering(pairings("dc2"), {"dc2": Received(PAIRING.id.hex(), THEM.hex(), sent)})
    files = key_files(compiled_with(sent, 1, 3), peering)
    assert sorted(files[1]) == [f"card-{PAIRING.id.hex()}-1", "pair-2-1", "sending-2"]
    assert files[1]["sending-2"] == "1"
    assert files[1]["pair-2-1"] != files[3]["pair-2-1"]
    assert "01" * 32 not in [*files[1].values(), *files[3].values()]


def test_a_card_does_not_choose_the_names_of_key_files() -> None:
    """A peer that announces the ids of our own sites must not learn the keys between them."""
    sent = SiteCard.model_validate({"software": "1", "sites": [EAST | {"id": 3}, EAST | {"name": "x", "id": 1}], "services": []})
    peering = Peering(pairings("dc2"), {"dc2": Received(PAIRING.id.hex(), THEM.hex(), sent)})
    compiled = compiled_with(sent, 1, 3)
    files = key_files(compiled, peering)
    assert sorted(files[1]) == sorted(files[3]) == [f"card-{PAIRING.id.hex()}-1"]
    masters = Masters({1: b"m" * 32}, 1)
    derived = derived_secrets(compiled, masters, SETTINGS, seen(), {1: {"pair-3-1": "00" * 32}})
    held = next(each for each in derived if each["metadata"]["name"] == "sos-sitekeys-s1")
    assert secret_files(parsed(held))["pair-3-1"].decode() == masters.site_files(1, [1, 3])["pair-3-1"]


def test_nothing_is_written_without_peers() -> None:
    assert peer_manifests(SETTINGS, seen(), {}, {}, Peering()) == []


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
            assert contact.received == Received(PAIRING.id.hex(), THEM.hex(), CARD)
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


def test_a_new_key_may_come_to_the_two_clusters_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Pairing(PAIRING.id, {**PAIRING.secrets, 2: b"2" * 32})

    async def scenario() -> None:
        async with running(Agent()) as agent, exchanging((), dc2=target(agent.port, pairing=both)) as (found, _):
            await until(lambda: found.contacts["dc2"].received is not None)
            assert agent.offers[-1].key_id == 1
            agent.keys = {2: both.card_keys()[2]}
            heard = len(agent.offers)
            await until(lambda: len(agent.offers) > heard)
            assert agent.offers[-1].key_id == 2

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
    key_id, key = PAIRING.sending()
    genuine = messages.sign_offer(Message(OFFER, key_id, PAIRING.id, THEM, bytes(16), 9, CARD.encode().encode()), key)
    forged = messages.sign_offer(Message(OFFER, key_id, PAIRING.id, b"F" * 16, bytes(16), 99, CARD.encode().encode()), b"f" * 32)
    reflected = messages.sign_offer(Message(OFFER, key_id, PAIRING.id, US, bytes(16), 99, CARD.encode().encode()), key)
    rows = [(10, forged), (0, reflected), (10, genuine)]

    async def cards(_: web.Request) -> web.Response:
        name = PAIRING.id.hex()
        offers = [{"pairing": name, "ageMilliseconds": age, "message": base64.b64encode(content).decode()} for age, content in rows]
        padding = [{"pairing": "other", "ageMilliseconds": 1, "message": "A" * 400_000}]  # more than one read of the reply returns
        return web.json_response({"offers": [*padding, *offers], "refused": {}})

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
                assert found.contacts["dc2"].received == Received(PAIRING.id.hex(), THEM.hex(), CARD)
                assert found.contacts["dc2"].connected(time.monotonic())
        finally:
            await runner.cleanup()

    with quick(monkeypatch):
        asyncio.run(scenario())


def test_agents_of_blocked_sites_are_not_dialed() -> None:
    agent = {"id": "c" * 32, "node": "b1", "addresses": ["192.0.2.3"], "firstStreamPort": 10000, "cardPort": 14790}
    sites = [
        {"name": name, "id": number, "prefixes": [f"10.{number}.0.0/16"], "agents": [{**agent, "addresses": [f"192.0.2.{number}"]}]}
        for number, name in enumerate(("open", "blocked"), 1)
    ]
    sites[1]["inbound"] = "Blocked"
    sent = parse_card(json.dumps({**json.loads(card(1).encode()), "sites": sites}))
    met = Contact(received=Received("", "", sent))
    assert exchange._endpoints(exchange._Exchange(target(7), met)) == [("127.0.0.1", 7), ("192.0.2.1", 14790)]


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
