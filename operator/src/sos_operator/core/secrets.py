"""The Secrets: random ones that are made once, and the key folders derived from the master key."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sos_compile
from sos_compile import naming

from sos_operator.core import keys
from sos_operator.core.kinds import CONTROLLER, SECRET, SITE
from sos_operator.core.options import Settings
from sos_operator.core.plan import Ref
from sos_operator.core.world import PREFIX, Object, Seen, leaving

MASTER = naming.child(PREFIX, "master")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Secret that must exist but whose content nobody may change once it does: `file` is the key that holds the random value."""

    name: str
    file: str


def labels(settings: Settings, component: str) -> dict[str, str]:
    """Labels of what the operator makes itself (`sos_compile` labels the rest in the same way)."""
    return {
        "app.kubernetes.io/name": "sos",
        "app.kubernetes.io/instance": settings.release,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "sos",
        "app.kubernetes.io/managed-by": "sos-operator",
    }


def wanted_secrets(seen: Seen) -> tuple[Wanted, ...]:
    """The master key, and the bearer token of every controller that runs here."""
    managed = sorted(
        o["metadata"]["name"]
        for o in seen.of(CONTROLLER.kind)
        if (o.get("spec") or {}).get("type", "Managed") == "Managed" and not leaving(o)
    )
    tokens = tuple(Wanted(naming.controller_token(PREFIX, name), keys.TOKEN_FILE) for name in managed)
    return (Wanted(MASTER, keys.master_file(keys.FIRST_KEY_ID)), *tokens)


def external_tokens(seen: Seen) -> set[str]:
    """Names of the Secrets that users made for External controllers."""
    externals = [(o.get("spec") or {}).get("external") or {} for o in seen.of(CONTROLLER.kind)]
    return {str(external["tokenSecretName"]) for external in externals if external.get("tokenSecretName")}


def build_secret(settings: Settings, name: str, component: str, files: Mapping[str, str]) -> Object:
    """A Secret manifest with the given files."""
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels(settings, component)},
        "type": "Opaque",
        "data": {file: base64.b64encode(text.encode()).decode() for file, text in sorted(files.items())},
    }


def secret_files(secret: Object | None) -> dict[str, bytes]:
    """The content of a Secret; what is not base64 is left out."""
    found = {}
    for name, text in ((secret or {}).get("data") or {}).items():
        try:
            found[name] = base64.b64decode(text, validate=True)
        except binascii.Error:
            continue
    return found


def derived_secrets(compiled: sos_compile.Compiled, masters: keys.Masters, settings: Settings, seen: Seen) -> tuple[Object, ...]:
    """The key folders that agents and controllers mount, each with its own keys only."""
    # Keys with every site that has hosts, not only with today's peers: a new service then changes no Secret.
    ids = {f.number for key, f in compiled.facts.items() if key.kind == SITE.kind and f.number and f.text.get("prefixes")}
    own = {document["site"]["name"]: document["site"]["id"] for document in compiled.agents.values()}
    found = [
        build_secret(settings, naming.site_keys(PREFIX, name), "agent", masters.site_files(number, ids))
        for name, number in sorted(own.items())
    ]
    here = {secret.name for secret in wanted_secrets(seen)}
    for controller, document in sorted(compiled.controllers.items()):
        if naming.controller_token(PREFIX, controller) in here:
            served = [site["id"] for site in document["sites"] if not site["transit"]]
            files = masters.controller_files(served)
            found.append(build_secret(settings, naming.controller_keys(PREFIX, controller), "controller", files))
    return tuple(found)


def secret_refs(settings: Settings, wanted: tuple[Wanted, ...]) -> frozenset[Ref]:
    """References of the Secrets that are made once, which the plan must not delete."""
    return frozenset(Ref(SECRET.kind, settings.namespace, secret.name) for secret in wanted)


def token_of(secrets: Mapping[str, Any], controller: Object) -> str | None:
    """The bearer token for a controller, from Secrets by name; None if it is not there (yet)."""
    spec = controller.get("spec") or {}
    external = (spec.get("external") or {}).get("tokenSecretName")
    name = external if spec.get("type") == "External" else naming.controller_token(PREFIX, controller["metadata"]["name"])
    content = secret_files(secrets.get(name or "")).get(keys.TOKEN_FILE, b"")
    text = content.decode("ascii", "ignore").strip()
    return text or None
