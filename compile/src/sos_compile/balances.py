"""Which services with spec.balance are accepted, at which switch and over which uplinks (docs/adr/0013)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from sos_compile.model import Balance, Service, Site, Uplink
from sos_compile.network import PlacedBalance, PlacedSite
from sos_compile.objects import Objects
from sos_compile.problem import Reason
from sos_compile.services import MAX_SERVICES, Judge, in_order
from sos_compile.verdicts import Verdicts

MAX_PER_SITE = 64  # groups of one switch (spec/controller-config.md clause 5)
MAX_CONDITIONS = 1024  # prefixes times port ranges: each is an entry of the switch or more

Shares = tuple[tuple[Uplink, int], ...]
Taken = dict[tuple[str, str], tuple[IPv4Address, str]]
"""(site, uplink) -> the host that its address stands for, and the service that says so."""


def accept(objects: Objects, sites: Mapping[str, PlacedSite], release_namespace: str, verdicts: Verdicts) -> list[PlacedBalance]:
    """Return the balanced services that can be carried out, in the order in which they are tried."""
    judge = _BalanceJudge(Judge(objects, sites, release_namespace, verdicts), verdicts)
    found: list[PlacedBalance] = []
    for service in in_order(each for each in objects.services if each.balance is not None):
        if len(found) >= MAX_SERVICES:
            verdicts.reject(service.origin, "", Reason.LIMIT_EXCEEDED, f"there are {MAX_SERVICES} before it", "remove some")
        elif (placed := verdicts.attempt(service.origin, judge.place, service)) is not None:
            found.append(placed)
    return found


@dataclass
class _BalanceJudge:
    judge: Judge
    verdicts: Verdicts
    taken: Taken = field(default_factory=dict)
    per_site: dict[str, int] = field(default_factory=dict)

    def place(self, service: Service) -> PlacedBalance | None:
        source = self.judge.end(service, "from", service.source)
        if service.balance is None or source is None or not self.judge.permitted(service, source[0], "from"):
            return None
        placed = self.judge.sites[source[0].name]
        client, dpid = self._client(service), self._switch(service, placed)
        shares = self._shares(service, service.balance, placed.site)
        if client is None or dpid is None or shares is None or not self._bounded(service, placed.site):
            return None
        controller = self.judge.controller(service, placed.site)
        if controller is None:
            return None
        if not self._free(service, placed.site.name, client, shares):
            return None
        self.per_site[placed.site.name] = self.per_site.get(placed.site.name, 0) + 1
        return PlacedBalance(service, placed.site.name, client, dpid, shares, controller)

    def _client(self, service: Service) -> IPv4Address | None:
        prefixes = service.source.prefixes
        if len(prefixes) == 1 and prefixes[0].prefixlen == 32:
            return prefixes[0].network_address
        message = "an uplink's address can stand for one host only"
        self._reject(service, "spec.from.prefixes", Reason.INVALID, message, "name one host, like 10.0.0.11/32")
        return None

    def _switch(self, service: Service, placed: PlacedSite) -> str | None:
        """Return the datapath id of the one switch of the site: uplinks of several nodes would share an address."""
        dpids = [node.dpid for node in placed.nodes] + [dpid for dpid, _ in placed.site.switches]
        if len(dpids) == 1:
            return dpids[0]
        message = f"SosSite {placed.site.name} has {len(dpids)} switches; connections are spread at one"
        self._reject(service, "spec.from.site", Reason.INVALID, message, "make a site of each node")
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

    def _bounded(self, service: Service, site: Site) -> bool:
        conditions = len(service.target.prefixes) * len(service.ports)
        if conditions > MAX_CONDITIONS:
            message = f"{conditions} pairs of a prefix and a port range, and at most {MAX_CONDITIONS} fit a switch"
            self._reject(service, "spec.to.prefixes", Reason.LIMIT_EXCEEDED, message, "name wider prefixes or ranges")
            return False
        if self.per_site.get(site.name, 0) >= MAX_PER_SITE:
            message = f"SosSite {site.name} has {MAX_PER_SITE} balanced services before it"
            self._reject(service, "spec.from.site", Reason.LIMIT_EXCEEDED, message, "remove some")
            return False
        return True

    def _free(self, service: Service, site: str, client: IPv4Address, shares: Shares) -> bool:
        """Check that the uplinks' addresses stand for nobody else: answers could not be told apart."""
        for uplink, _ in shares:
            holder, by = self.taken.get((site, uplink.name), (client, ""))
            if holder != client:
                message = f"the address of uplink {uplink.name} stands for {holder} (SosService {by})"
                self._reject(service, "spec.balance.uplinks", Reason.DUPLICATE, message, "use other uplinks, or the same host")
                return False
        self.taken.update({(site, uplink.name): (client, service.id) for uplink, _ in shares})
        return True

    def _reject(self, service: Service, path: str, reason: Reason, message: str, remedy: str) -> None:
        self.verdicts.reject(service.origin, path, reason, message, remedy)
