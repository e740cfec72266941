"""Interface between connections and the controller that owns them (`app.Controller`), so that `openflow` does not import `app`."""

from __future__ import annotations

from typing import Protocol, TypeVar

from sos_controller.core.openflow.election import RoleReport
from sos_controller.core.openflow.flow_entries import FlowEntry, Match
from sos_controller.core.types import DatapathId, Port

C_contra = TypeVar("C_contra", contravariant=True)  # a connection, which passes itself


class Receiver(Protocol[C_contra]):
    """Receiver of the reports of a switch's connection."""

    def arrived(self, connection: C_contra, /) -> None:
        """A connection was accepted; its switch is not known yet."""

    def left(self, connection: C_contra, /) -> None:
        """A connection is over, whether its handshake was done or not."""

    def connected(self, connection: C_contra, /) -> None:
        """The handshake is done."""

    def disconnected(self, connection: C_contra, /) -> None:
        """The connection to a switch is lost."""

    def packet_in(self, connection: C_contra, message: bytes, /) -> None:
        """A packet-in message arrived."""

    def barrier_replies(self, connection: C_contra, tokens: tuple[int, ...], /) -> None:
        """Barriers with these transaction ids were answered."""

    def echoed(self, connection: C_contra, marker_ms: int, /) -> None:
        """An echo request with a marker was answered."""

    def was_read(self, connection: C_contra, /) -> None:
        """All bytes of a read were handled."""

    def rejected(self, connection: C_contra, token: int, why: str, full_table: int | None, /) -> None:
        """The switch answered a message of ours with an error; `full_table` is set if a table is full."""

    def port_changed(self, connection: C_contra, port: Port, gone: bool, /) -> None:
        """A port was added, changed or removed."""

    def entry_gone(self, connection: C_contra, cookie: int, match: Match, /) -> None:
        """The switch removed an entry of ours."""

    def entries_read(self, connection: C_contra, entries: list[FlowEntry], /) -> None:
        """All requested entries have arrived."""

    def entries_unreadable(self, connection: C_contra, /) -> None:
        """The switch has more entries of ours than a datapath can have."""

    def tables_read(self, connection: C_contra, sizes: dict[int, int], /) -> None:
        """Table sizes have arrived."""

    def role_reported(self, connection: C_contra, report: RoleReport, /) -> None:
        """The switch has reported the role of this controller, or refused a message for its role."""

    def claims(self, dpid: DatapathId, /) -> bool:
        """Return whether a site claims a datapath."""

    def count(self, what: str, which: str = "", /) -> None:
        """Count for the metrics."""

    def bug(self, what: str, /) -> None:
        """Log the exception being handled and count it."""
