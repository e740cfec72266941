"""Admission of OpenFlow channels (OpenFlow 1.3.5, 6.3): TLS or plain TCP, and the datapaths that a switch's certificate covers."""

from __future__ import annotations

from sos_controller.core.config import Config
from sos_controller.core.types import DatapathId


class ChannelPolicy:
    """Rules of one configuration. Without a configuration nothing is claimed, so a plain channel gets echoes only."""

    def __init__(self, config: Config | None) -> None:
        self._required = config is not None and config.controller.tls == "Required"
        self._sites: dict[DatapathId, str] = {}
        self._plain: set[DatapathId] = set()
        for site in config.sites if config is not None else ():
            for datapath in site.datapaths:
                self._sites[datapath.number] = site.name
                if datapath.tls == "Disabled":
                    self._plain.add(datapath.number)

    @property
    def admits_plain(self) -> bool:
        """Return whether any switch may connect without TLS."""
        return not self._required or bool(self._plain)

    def refusal(self, dpid: DatapathId, certified: str | None) -> str | None:
        """Return why a channel of a datapath is refused, or None. `certified`: site in the certificate of the switch, None without TLS."""
        site = self._sites.get(dpid)
        if certified is None:
            return "TLS is required, and the switch has no certificate" if self._required and dpid not in self._plain else None
        if site is not None and site != certified:
            return f"its certificate is for site {certified!r}, and the datapath belongs to site {site!r}"
        return None
