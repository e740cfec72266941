"""Certificates of OpenFlow channels: the CA Secret, and the TLS folders of controllers and sites (docs/adr/0070)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import sos_compile
from sos_compile import certificates
from sos_compile.certificates import Certified
from sos_compile.manifests import naming

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.custom_resources import SosController, SosSite
from sos_operator.core.model.objects import Object, Resource
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.secrets.secrets import OPENFLOW_CA, build_secret, secret_files

FIRST_CA_ID = 1
_CA_FILE = re.compile(r"ca-([1-9][0-9]{0,4})\.crt")

Certify = Callable[[Certified, str, datetime], Certified]


@dataclass(frozen=True, slots=True)
class Authorities:
    """CAs by id (two while the CA is being replaced), and the id of the CA that certifies."""

    known: Mapping[int, Certified]
    certifying: int

    @property
    def current(self) -> Certified:
        """The CA that certifies."""
        return self.known[self.certifying]

    def trusted(self) -> list[Certified]:
        """All CAs, the oldest first."""
        return [self.known[number] for number in sorted(self.known)]


def ca_files(number: int, ca: Certified) -> dict[str, str]:
    """Entries of a CA in its Secret."""
    return {f"ca-{number}.crt": ca.certificate, f"ca-{number}.key": ca.key}


def parse_authorities(secret: Secret) -> dict[int, Certified]:
    """CAs by id from the CA Secret; invalid entries are left out."""
    files = {name: content.decode("ascii", "ignore") for name, content in secret_files(secret).items()}
    found = {}
    for name, text in files.items():
        match = _CA_FILE.fullmatch(name)
        ca = Certified(text, files.get(name.removesuffix("crt") + "key", ""))
        if match is not None and certificates.is_ca(ca):
            found[int(match[1])] = ca
    return found


@dataclass(slots=True)
class Issuer:
    """Certificates that were issued. They are kept until they are due, since a listing may be older than the last write."""

    issued: dict[str, Certified] = field(default_factory=dict)

    def folders(
        self, compiled: sos_compile.Compiled, authorities: Authorities, settings: Settings, seen: Seen, now: datetime
    ) -> tuple[Object, ...]:
        """The TLS folder of every controller and of every site with switches, as Secrets."""
        known, kept = {o.name: o for o in seen.children if isinstance(o, Secret)}, {}
        found = []
        for name, subject, certify, component, owner in _subjects(compiled, seen):
            certified = self._current(known.get(name), name, subject, authorities.current, now) or certify(
                authorities.current, subject, now
            )
            kept[name] = certified
            found.append(build_secret(settings, name, component, certificates.tls_files(certified, authorities.trusted()), owner))
        self.issued = kept
        return tuple(found)

    def _current(self, secret: Secret | None, name: str, subject: str, ca: Certified, now: datetime) -> Certified | None:
        """The certificate in the Secret, or the certificate last issued; None if neither is current."""
        files = {file: content.decode("ascii", "ignore") for file, content in secret_files(secret).items()}
        there = Certified(files.get(certificates.CERTIFICATE_FILE, ""), files.get(certificates.KEY_FILE, ""))
        candidates = (there, self.issued.get(name, Certified("", "")))
        return next((each for each in candidates if certificates.is_current(each, ca, subject, now)), None)


def _subjects(compiled: sos_compile.Compiled, seen: Seen) -> Iterator[tuple[str, str, Certify, str, Resource | None]]:
    """Secret, common name, kind of certificate, component and owner of each TLS folder."""
    controllers = {o.name: o for o in seen.of(SosController)}
    for name in sorted(compiled.controllers):
        secret = naming.controller_certificate(PREFIX, name)
        yield secret, name, certificates.certify_controller, "controller", controllers.get(name)
    sites = {o.name: o for o in seen.of(SosSite)}
    for name in sorted(_sites_with_switches(compiled)):
        yield naming.site_certificate(PREFIX, name), name, certificates.certify_switches, "node", sites.get(name)


def _sites_with_switches(compiled: sos_compile.Compiled) -> set[str]:
    found = {str(document["site"]) for document in compiled.nodes.values()}
    return found.union(site["name"] for document in compiled.controllers.values() for site in document["sites"] if site["datapaths"])


__all__ = ["FIRST_CA_ID", "OPENFLOW_CA", "Authorities", "Issuer", "ca_files", "parse_authorities"]
