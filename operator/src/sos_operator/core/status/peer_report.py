"""Status of a SosPeer: its own validity, the exchange of site cards, and the sites that services can name."""

from __future__ import annotations

from typing import Any

import sos_compile

from sos_operator.core.model.conditions import Verdict, summary
from sos_operator.core.model.custom_resources import SosPeer
from sos_operator.core.peers.contact import CONNECTED_S, Contact, Received
from sos_operator.core.status.situation import Report, Situation, accepted_verdict

ERROR_MAX = 300


def build_peer_report(obj: SosPeer, facts: sos_compile.Facts, situation: Situation) -> Report:
    """Return the status of a SosPeer."""
    name = obj.name
    contact = situation.contacts.get(name, Contact())
    received = situation.received.get(name)
    accepted = accepted_verdict(obj, facts, situation)
    connected = _connected(name, contact, received, situation)
    message = f"sites {', '.join(facts.sites)}" if facts.sites else "the peer announces no site yet"
    return Report(_fields(received, facts), (accepted, connected, summary([accepted, connected], "Connected", message)))


def _fields(received: Received | None, facts: sos_compile.Facts) -> dict[str, Any]:
    if received is None:
        return {}
    usable = [site for site in received.card.sites if site.name in facts.sites]
    usable.sort(key=lambda site: site.name)
    rows = [{"name": site.name, "siteID": site.id, "prefixes": list(site.prefixes), "agents": len(site.agents)} for site in usable]
    names = ",".join(site.name for site in usable)
    return {"installation": received.installation, "software": received.card.software, "siteNames": names, "sites": rows}


def _connected(name: str, contact: Contact, received: Received | None, situation: Situation) -> Verdict:
    if name in situation.pairing_errors:
        return Verdict("Connected", "False", "SecretNotFound", situation.pairing_errors[name])
    if contact.refused:
        return Verdict("Connected", "False", "CardRefused", contact.refused[:ERROR_MAX])
    error = contact.error[:ERROR_MAX]
    if contact.connected(situation.now_s):
        return Verdict("Connected", "True", "Connected", "; ".join(filter(None, ("the peer's agents answer", error))))
    error = f": {error}" if error else ""
    if received is None:
        return Verdict("Connected", "False", "NeverConnected", f"no contact yet{error or ': the peer has not connected to this cluster'}")
    return Verdict("Connected", "False", "Disconnected", f"no answer for more than {CONNECTED_S:.0f} s{error}")
