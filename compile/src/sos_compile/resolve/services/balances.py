"""Accept services with spec.balance, and determine their switch and uplinks (docs/adr/0013)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from sos_compile.admission.objects import Objects
from sos_compile.admission.verdicts import Verdicts
from sos_compile.model.network import PlacedBalance, PlacedSite
from sos_compile.model.problem import Reason
from sos_compile.model.resources import Balance, Service, Site, Uplink
from sos_compile.resolve.services.placement import MAX_SERVICES, Judge

MAX_PER_SITE = 64  # maximum number of groups of one switch (spec/controller-config.md clause 5)
MAX_CONDITIONS = 1024  # maximum number of (prefix, port range) pairs; each pair takes at least one entry of the switch

Shares = tuple[tuple[Uplink, int], ...]
Taken = dict[tuple[str, str], tuple[IPv4Address, str]]
"""(site, uplink) -> the host that uses the uplink's address, and the service that balances it."""


def place(objects: Objects, judge: Judge) -> list[PlacedBalance]:
    """Return the balanced services that their sites permit and support, in no particular order."""
    able = _BalanceJudge(judge, judge.verdicts)
    found = (judge.verdicts.attempt(each.origin, able.place, each) for each in objects.services if each.balance is not None)
    return [placed for placed in found if placed is not None]


def limited(balances: Iterable[PlacedBalance], verdicts: Verdicts) -> list[PlacedBalance]:
    """Return the balanced services that fit the limits; `balances` is in the order in which they are tried."""
    room, found = _Room(verdicts), list[PlacedBalance]()
    for placed in balances:
        if len(found) >= MAX_SERVICES:
            verdicts.reject(placed.service.origin, "", Reason.LIMIT_EXCEEDED, f"there are already {MAX_SERVICES} balances", "remove some")
        elif room.takes(placed):
            found.append(placed)
    return found


@dataclass
class _BalanceJudge:
    judge: Judge
    verdicts: Verdicts

    def place(self, service: Service) -> PlacedBalance | None:
        source = self.judge.end(service, "from", service.source)
        if service.balance is None or source is None or not self.judge.permitted(service, source[0], "from"):
            return None
        if source[0].routed:
            message = f"SosSite {source[0].name} has no bridge (wan.type: Routed): no switch spreads its connections"
            self._reject(service, "spec.from.site", Reason.INVALID, message, "name a site with a bridge")
            return None
        placed = self.judge.sites[source[0].name]
        client, dpid = self._client(service), self._switch(service, placed)
        shares = self._shares(service, service.balance, placed.site)
        if client is None or dpid is None or shares is None:
            return None
        controller, ports = self.judge.controller(service, placed.site), self.judge.granted(service, ("from", placed.site, service.source))
        if controller is None or ports is None or not self._bounded(service, ports):
            return None
        return PlacedBalance(service, placed.site.name, client, dpid, shares, ports, controller)

    def _client(self, service: Service) -> IPv4Address | None:
        prefixes = service.source.prefixes
        if len(prefixes) == 1 and prefixes[0].prefixlen == 32:
            return prefixes[0].network_address
        message = "an uplink's address can replace the address of one host only"
        self._reject(service, "spec.from.prefixes", Reason.INVALID, message, "name one host, like 10.0.0.11/32")
        return None

    def _switch(self, service: Service, placed: PlacedSite) -> str | None:
        """Return the datapath id of the site's only switch. Reject a site with several switches: a site declares one address for each
        uplink, so the same uplink of two switches would share it."""
        dpids = [node.dpid for node in placed.nodes] + [dpid for dpid, _ in placed.site.switches]
        if len(dpids) == 1:
            return dpids[0]
        message = f"SosSite {placed.site.name} has {len(dpids)} switches, but connections can be balanced at one switch only"
        self._reject(service, "spec.from.site", Reason.INVALID, message, "declare one SosSite for each node")
        return None

    def _shares(self, service: Service, balance: Balance, site: Site) -> Shares | None:
        known = {uplink.name: uplink for uplink in site.uplinks}
        able = [uplink.name for uplink in site.uplinks if uplink.address is not None]
        remedy = f"uplinks with an address: {', '.join(able) or 'none'}"
        if not able and not balance.uplinks:
            message = f"no uplink of SosSite {site.name} has an address"
            remedy = "set address and gateway of its spec.wan.uplinks"
            self._reject(service, "spec.balance", Reason.UPLINK_NOT_FOUND, message, remedy)
            return None
        for i, (name, _) in enumerate(balance.uplinks):
            path = f"spec.balance.uplinks[{i}].name"
            if name not in known:
                self._reject(service, path, Reason.UPLINK_NOT_FOUND, f"SosSite {site.name} has no uplink {name}", remedy)
                return None
            if name not in able:
                message = f"uplink {name} of SosSite {site.name} has no address"
                self._reject(service, path, Reason.UPLINK_NOT_FOUND, message, remedy)
                return None
        return tuple((known[name], weight) for name, weight in balance.uplinks or [(name, 1) for name in able])

    def _bounded(self, service: Service, ports: tuple[tuple[int, int], ...]) -> bool:
        conditions = len(service.target.prefixes) * len(ports)
        if conditions > MAX_CONDITIONS:
            message = f"{conditions} pairs of a prefix and a port range exceed the maximum of {MAX_CONDITIONS} per switch"
            self._reject(service, "spec.to.prefixes", Reason.LIMIT_EXCEEDED, message, "name wider prefixes or ranges")
        return conditions <= MAX_CONDITIONS

    def _reject(self, service: Service, path: str, reason: Reason, message: str, remedy: str) -> None:
        self.verdicts.reject(service.origin, path, reason, message, remedy)


@dataclass
class _Room:
    """Capacity that the services accepted so far use."""

    verdicts: Verdicts
    taken: Taken = field(default_factory=dict)
    per_site: dict[str, int] = field(default_factory=dict)

    def takes(self, placed: PlacedBalance) -> bool:
        if self.per_site.get(placed.site, 0) >= MAX_PER_SITE:
            message = f"SosSite {placed.site} already has {MAX_PER_SITE} balanced services"
            self.verdicts.reject(placed.service.origin, "spec.from.site", Reason.LIMIT_EXCEEDED, message, "remove some")
            return False
        if not self._free(placed):
            return False
        self.per_site[placed.site] = self.per_site.get(placed.site, 0) + 1
        return True

    def _free(self, placed: PlacedBalance) -> bool:
        """Check that no balance of another host uses the uplinks' addresses: the switch could not tell to which host a reply belongs."""
        for uplink, _ in placed.uplinks:
            holder, by = self.taken.get((placed.site, uplink.name), (placed.client, ""))
            if holder != placed.client:
                theirs = by.split("/")[0] != placed.service.origin.key.namespace
                other = "a host of another namespace's service" if theirs else f"{holder} (SosService {by})"
                message = f"the address of uplink {uplink.name} is already used for {other}"
                remedy = "use other uplinks, or the same host"
                self.verdicts.reject(placed.service.origin, "spec.balance.uplinks", Reason.DUPLICATE, message, remedy)
                return False
        self.taken.update({(placed.site, uplink.name): (placed.client, placed.service.id) for uplink, _ in placed.uplinks})
        return True
