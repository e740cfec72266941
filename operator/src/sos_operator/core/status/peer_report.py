"""Status of a SosPeer: its own validity, the exchange with the cluster or the machine, and the sites that services can name."""

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
    if obj.machine:
        verdicts = [accepted, connected, _configured(name, contact, situation)]
        return Report(_machine_fields(name, contact, received, situation), (*verdicts, summary(verdicts, "Connected", f"site {name}")))
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


def _machine_fields(name: str, contact: Contact, received: Received | None, situation: Situation) -> dict[str, Any]:
    document = situation.compiled.machines.get(name)
    fields: dict[str, Any] = {}
    if document:
        site = document["site"]
        fields |= {"siteNames": name, "sites": [{"name": name, "siteID": site["id"], "prefixes": site["prefixes"], "agents": 1}]}
    if received is not None:
        fields |= {"installation": received.installation, "software": received.card.software}
    if contact.report is not None:
        fields["configuration"] = contact.report.generation
    if contact.key_id is not None:
        fields["keyID"] = contact.key_id
    return fields


def _configured(name: str, contact: Contact, situation: Situation) -> Verdict:
    """Return the verdict on whether a machine has its present configuration in force, as the machine reports it."""
    document, report = situation.compiled.machines.get(name), contact.report
    if document is None:
        return Verdict("Programmed", "False", "NotResolved", "there is no configuration for the machine")
    if name in situation.undelivered:
        message = (
            "the cards of all peers and the configurations of all machines exceed the size of a ConfigMap: remove services or machines"
        )
        return Verdict("Programmed", "False", "LimitExceeded", message)
    if report is None:
        return Verdict("Programmed", "Unknown", "NotObserved", "the machine has not reported its configuration")
    if report.problem:
        return Verdict("Programmed", "False", "ConfigRefused", f"the machine keeps generation {report.generation}: {report.problem}")
    if report.hash != document["hash"]:
        return Verdict("Programmed", "False", "Programming", "the machine has not taken over the present configuration yet")
    return Verdict("Programmed", "True", "Programmed", f"generation {report.generation} is in force")


def _connected(name: str, contact: Contact, received: Received | None, situation: Situation) -> Verdict:
    if name in situation.pairing_errors:
        return Verdict("Connected", "False", "SecretNotFound", situation.pairing_errors[name])
    if contact.refused:
        return Verdict("Connected", "False", "CardRefused", contact.refused[:ERROR_MAX])
    error = contact.error[:ERROR_MAX]
    if contact.connected(situation.now_s):
        answers = "the machine reports" if contact.machine else "the peer's agents answer"
        return Verdict("Connected", "True", "Connected", "; ".join(filter(None, (answers, error))))
    error = f": {error}" if error else ""
    if received is None:
        return Verdict("Connected", "False", "NeverConnected", f"no contact yet{error or ': the peer has not connected to this cluster'}")
    if contact.machine:
        return Verdict("Connected", "False", "Disconnected", f"no report for more than {CONNECTED_S:.0f} s: is sos-agent running there?")
    return Verdict("Connected", "False", "Disconnected", f"no answer for more than {CONNECTED_S:.0f} s{error}")
