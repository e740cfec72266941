"""What two transfers between the same hosts say: one that a service covers, and one that none does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One download, as the client saw it."""

    port: int
    bytes: int
    seconds: float
    intact: bool
    """Whether the bytes had the digest that the server sent behind them."""
    own: str
    """address:port of the client's socket."""
    seen: str
    """address:port of the client as the server saw it."""
    listed: bool | None = None
    """Whether a controller listed a session for it while it ran; None if nobody was asked, or nobody answered."""

    @property
    def mbps(self) -> float:
        """Goodput in Mbit/s."""
        return self.bytes * 8 / 1e6 / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """The lines to print, and whether all is well."""

    lines: tuple[str, ...]
    good: bool


def wrong_with(transfer: Transfer) -> list[str]:
    """What is wrong with a transfer, whoever carried it."""
    found = []
    if transfer.bytes == 0:
        found.append("no bytes arrived")
    if not transfer.intact:
        found.append("the bytes are not those the server sent")
    if transfer.own != transfer.seen:
        found.append(f"the server saw {transfer.seen}, the client is {transfer.own}")
    return found


def compare(plain: Transfer, covered: Transfer | None, least_gain: float, *, asked: bool = True) -> Verdict:
    """Judge a plain transfer and, if there is a service to try, one that it covers. `asked`: a controller was to say which is which."""
    lines = [_line("plain", plain)]
    wrong = [f"port {plain.port}: {what}" for what in wrong_with(plain)]
    if plain.listed:
        wrong.append(f"port {plain.port} is accelerated: name a port that no SosService covers (test.plainPort)")
    if covered is None:
        lines.append("no port of a SosService was named (test.port): nothing was accelerated, and nothing compared")
        return Verdict((*lines, *_ends(wrong)), not wrong)
    lines.append(_line("service", covered))
    wrong += [f"port {covered.port}: {what}" for what in wrong_with(covered)]
    if covered.listed is False:
        wrong.append(f"port {covered.port} was not accelerated: no controller listed a session (kubectl get sossvc -A says why)")
    if covered.listed is None and asked:
        wrong.append(f"port {covered.port}: the controller did not answer, so nobody knows whether it was accelerated (test.controller)")
    if not asked:
        lines.append("no controller was asked whether the second was accelerated")
    if plain.mbps > 0:
        gain = covered.mbps / plain.mbps
        lines.append(f"with the service {gain:.1f} times as fast as plain TCP")
        if gain < least_gain:
            wrong.append(f"that is less than {least_gain:g} times (test.leastGain)")
    return Verdict((*lines, *_ends(wrong)), not wrong)


def _line(name: str, transfer: Transfer) -> str:
    state = "intact" if transfer.intact else "DAMAGED"
    return f"{name:8}port {transfer.port:<6}{transfer.bytes:>12} bytes in {transfer.seconds:.1f} s, {transfer.mbps:.1f} Mbit/s, {state}"


def _ends(wrong: list[str]) -> list[str]:
    return [*(f"wrong: {what}" for what in wrong), "FAILED" if wrong else "passed"]
