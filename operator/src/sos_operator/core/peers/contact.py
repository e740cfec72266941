"""State of a peer: its card, its installation, and the time of its last message."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sos_compile.model.site_card import CardError, SiteCard, parse_card

from sos_operator.core.peers.machine import MachineReport, ReportError, parse_report
from sos_operator.core.peers.messages import OFFER, Message

CONNECTED_S = 7.0  # a peer that was silent for longer is disconnected
OLDER_S = 60.0  # time until older cards are reported as an error: by then, all agents of the peer have a changed card


@dataclass(frozen=True, slots=True)
class Received:
    """The last usable card of a peer."""

    pairing: str
    """32 hex digits."""
    installation: str
    """32 hex digits."""
    card: SiteCard


@dataclass(frozen=True, slots=True)
class Contact:
    """State of the exchange with one peer. Times are in seconds of a monotonic clock."""

    received: Received | None = None
    last_s: float | None = None
    """Time of the last message that the peer signed."""
    error: str = ""
    """Reason why the last attempt failed, "" after a success."""
    refused: str = ""
    """Reason why the peer's last card is not used, "" if it is used."""
    older_since_s: float | None = None
    """Time at which the peer began to send only cards older than `received`."""
    machine: bool = False
    """True if the peer is a machine, which sends reports in place of cards."""
    report: MachineReport | None = None
    """The last report of a machine."""
    key_id: int | None = None
    """Id of the newest key that has signed a message of the peer; both sides have this key."""
    offered: int = 0
    """Sequence of the last Offer. Agents keep Offers for as long as they run, so older Offers are found later."""

    def connected(self, now_s: float) -> bool:
        """Return whether the peer has sent a signed message within CONNECTED_S."""
        return self.last_s is not None and now_s - self.last_s <= CONNECTED_S

    def failed(self, error: str) -> Contact:
        """Return the state after a failed attempt."""
        return replace(self, error=error)

    def heard(self, message: Message, at_s: float) -> Contact:
        """Return the state after a message that the peer's key has signed.

        The first installation keeps the pairing, so a copy of the invitation is of no use to a third cluster. An older card is ignored,
        because agents of the peer receive a new card at different times.
        """
        installation = message.installation.hex()
        known = self.received
        if known is not None and installation != known.installation:
            return replace(self, refused=f"installation {installation} uses the pairing of installation {known.installation}")
        if message.type == OFFER and message.sequence < self.offered:
            return self
        offered = message.sequence if message.type == OFFER else self.offered
        key_id = max(message.key_id, self.key_id or 0)
        here = replace(self, last_s=max(at_s, self.last_s or at_s), error="", offered=offered, key_id=key_id)
        return here._with_content(message, at_s) if message.card else here

    def _with_content(self, message: Message, at_s: float) -> Contact:
        """Return the state after the card, or the report, of a message."""
        if self.machine:
            return self._reported(message)
        try:
            card = parse_card(message.card)
        except CardError as error:
            return replace(self, refused=f"the peer's site card cannot be used: {error}")
        if self.received is not None and card.issued < self.received.card.issued:
            return self._after_an_older_card(at_s)
        return replace(self, received=Received(message.pairing.hex(), message.installation.hex(), card), refused="", older_since_s=None)

    def _reported(self, message: Message) -> Contact:
        """Return the state after a machine's report. The machine's site is in its SosPeer, so that `received` has a card without sites."""
        try:
            report = parse_report(message.card)
        except ReportError as error:
            return replace(self, refused=f"the machine's report cannot be used: {error}")
        card = SiteCard(software=report.software, sites=(), services=())
        received = Received(message.pairing.hex(), message.installation.hex(), card)
        return replace(self, received=received, report=report, refused="")

    def _after_an_older_card(self, at_s: float) -> Contact:
        since = at_s if self.older_since_s is None else self.older_since_s
        late = at_s - since > OLDER_S
        refused = "the peer's site cards are older than the one in use: the peer's clock has been set back" if late else self.refused
        return replace(self, older_since_s=since, refused=refused)
