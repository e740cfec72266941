"""A SosPeer on a real API server, with a simulated agent of the other cluster (spec/card.md)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from operator_fixtures import FIGURE8, becomes, populated
from operator_kube import Kube
from operator_run import NAMESPACE, eventually, operator_running
from sos_compile.model.site_card import SiteCard
from sos_operator.core.peers import messages
from sos_operator.core.peers.messages import ANSWER, Message, MessageError
from sos_operator.core.peers.pairing import Pairing

PAIRING = Pairing(bytes.fromhex("ab" * 16), {1: bytes.fromhex("01" * 32)})
SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "sos-peer-other", "namespace": NAMESPACE},
    "stringData": {"pairing": "ab" * 16, "key-1": "01" * 32},
}
WEST = {
    "nodeSelector": {"matchLabels": {"sos.network/site": "west"}},
    "siteID": 1,
    "prefixes": ["10.244.1.0/24"],
    "wan": {"type": "Routed"},
    "intake": {"type": "Pods"},
}
AGENT = {
    "id": "b" * 32,
    "node": "far1",
    "addresses": ["172.18.0.9"],
    "firstStreamPort": 10000,
    "cardPort": 14790,
    "prefixes": ["10.244.2.0/24"],
}
EAST = {"name": "east", "id": 2, "prefixes": ["10.244.2.0/24"], "agents": [AGENT]}


def obj(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": "sos.network/v1alpha1", "kind": kind, "metadata": meta, "spec": spec}


class Other:
    """The other cluster: an agent that answers Offers with a card."""

    def __init__(self) -> None:
        self.card: dict[str, Any] = {"software": "9.9", "sites": [EAST], "services": []}
        self.installation = b"T" * 16
        self.sequence = 1
        self.offered: list[SiteCard] = []
        self.port = 0
        self.silent = False
        self._loop = asyncio.new_event_loop()

    def announce(self, **changes: Any) -> None:
        self.card, self.sequence = {**self.card, **changes, "issued": self.sequence + 1}, self.sequence + 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        header = await reader.readexactly(messages.HEADER.size)
        whole = header + await reader.readexactly(messages.card_length(header) + messages.TAG_BYTES)
        try:
            offer = messages.open_offer(whole, PAIRING.id, PAIRING.card_keys())
            self.offered.append(SiteCard.model_validate_json(offer.card))
            card = SiteCard.model_validate_json(json.dumps(self.card)).encode().encode()
            answer = Message(ANSWER, offer.key_id, offer.pairing, self.installation, offer.nonce, self.sequence, card)
            if not self.silent:
                writer.write(messages.sign_answer(answer, PAIRING.sending()[1], whole[-messages.TAG_BYTES :]))
        except MessageError:
            pass
        writer.close()

    @contextmanager
    def serving(self) -> Iterator[Other]:
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            thread.join()
            server.close()


def document(kube: Kube) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kube.get("configmap", "sos-agent-default-west", "-n", NAMESPACE)["data"]["edge1.json"])
    return found


def peers_file(kube: Kube) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(kube.get("configmap", "sos-peers", "-n", NAMESPACE)["data"]["peers.json"])["peers"]
    return rows


def test_a_peer_is_paired_announces_its_sites_and_leaves(installed: Kube, tmp_path: Path) -> None:
    with populated(installed) as kube, Other().serving() as other, operator_running(kube, tmp_path):
        for number, node in enumerate(FIGURE8, start=2):
            address = {"addresses": [{"type": "InternalIP", "address": f"172.18.0.{number}"}]}
            kube.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps({"status": address}))
        ends = {"from": {"site": "west"}, "to": {"site": "east"}}
        spec = {"endpoints": [f"127.0.0.1:{other.port}"], "prefixes": ["10.244.0.0/16"]}
        kube.apply(obj("SosAgent", "default", {}), obj("SosSite", "west", WEST), obj("SosService", "web", ends, NAMESPACE))
        kube.apply(obj("SosPeer", "other", spec))
        becomes(kube, "sospeer/other", "Connected", "False", "SecretNotFound")
        becomes(kube, f"sosservice/{NAMESPACE}/web", "ResolvedRefs", "False", "SiteNotFound")

        kube.apply(SECRET)
        becomes(kube, "sospeer/other", "Ready", "True", "Connected")
        status = kube.get("sospeer", "other")["status"]
        assert status["sites"] == [{"name": "east", "siteID": 2, "prefixes": ["10.244.2.0/24"], "agents": 1}]
        assert (status["software"], status["siteNames"], status["installation"]) == ("9.9", "east", "54" * 16)
        becomes(kube, f"sosservice/{NAMESPACE}/web", "ResolvedRefs", "False", "WaitingForPeer")
        eventually("an offer with the service", lambda: other.offered[-1].services == (f"{NAMESPACE}/web",))
        assert [site.name for site in other.offered[-1].sites] == ["west"]

        other.announce(services=[f"{NAMESPACE}/web"])
        becomes(kube, f"sosservice/{NAMESPACE}/web", "ResolvedRefs", "True", "ResolvedRefs")
        eventually("the peer's agent in the agent's document", lambda: [row["site"] for row in document(kube)["peers"]] == ["east"])
        assert document(kube)["services"][0]["transport"]["encryption"] == "TLS"
        keys = kube.get("secret", "sos-sitekeys-west", "-n", NAMESPACE)["data"]
        assert {"pair-2-1", f"card-{'ab' * 16}-1"} <= set(keys)
        (row,) = peers_file(kube)
        assert (row["pairing"], row["installation"]) == ("ab" * 16, "54" * 16)

        other.installation = b"X" * 16
        becomes(kube, "sospeer/other", "Connected", "False", "CardRefused")
        other.installation = b"T" * 16
        becomes(kube, "sospeer/other", "Connected", "True", "Connected")
        other.silent = True
        becomes(kube, "sospeer/other", "Connected", "False", "Disconnected")
        assert [peer["site"] for peer in document(kube)["peers"]] == ["east"]

        kube.kubectl("delete", "sospeer", "other")
        becomes(kube, f"sosservice/{NAMESPACE}/web", "ResolvedRefs", "False", "SiteNotFound")
        eventually("an agent without a peer", lambda: document(kube)["peers"] == [])
        gone = kube.kubectl("get", "configmap", "sos-peercard-other", "sos-peers", "-n", NAMESPACE, "--ignore-not-found", "-o", "name")
        assert gone.stdout == ""
