"""Policy of one balance, parsed for decisions at its datapath."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import NamedTuple

from sos_controller.core.balance import entries
from sos_controller.core.config import Balance, BalanceUplink
from sos_controller.core.state import Switch
from sos_controller.core.topology.neighbours import Place
from sos_controller.core.types import Address, DatapathId, PortNo, Prefix
from sos_controller.core.wire.packets import Syn


class Policy(NamedTuple):
    """A balance with parsed addresses and ports. `number`: position among the balances of its datapath."""

    balance: Balance
    number: int
    dpid: DatapathId
    client: Address
    destinations: tuple[Prefix, ...]
    ports: tuple[tuple[int, int], ...]
    fits: bool

    def covers(self, syn: Syn) -> bool:
        """Return whether a connection belongs to this balance."""
        right = syn.client == self.client and any(first <= syn.server_port <= last for first, last in self.ports)
        return right and self.reaches(syn.server)

    def reaches(self, address: Address) -> bool:
        """Return whether an address is a destination."""
        return any(p.holds(address) for p in self.destinations)

    @property
    def host(self) -> Place:
        """Return the place where the host answers ARP."""
        return Place(self.dpid, "", self.client)

    def router(self, uplink: BalanceUplink) -> Place:
        """Return the place where an uplink's router answers ARP."""
        return Place(self.dpid, uplink.name, uplink.router)

    @property
    def mark(self) -> int:
        """Return the number in the cookies of its connections, the same in every run of the controller."""
        return zlib.crc32(self.balance.id.encode()) & 0xFFFF


def policies(balances: Iterable[Balance]) -> dict[DatapathId, list[Policy]]:
    """Return the balances of each datapath, in the order in which they are tried."""
    found: dict[DatapathId, list[Policy]] = {}
    for balance in balances:
        mine = found.setdefault(balance.number, [])
        ports = tuple((r.first, r.last) for r in balance.ports)
        fits = len(entries.conditions(balance)) <= entries.MAX_CONDITIONS
        mine.append(Policy(balance, len(mine), balance.number, balance.host, balance.destinations(), ports, fits))
    return found


def port_of(switch: Switch, uplink: BalanceUplink) -> PortNo | None:
    """Return the port of an uplink, up or down."""
    return next((no for no, port in switch.ports.items() if port.name == uplink.name), None)
