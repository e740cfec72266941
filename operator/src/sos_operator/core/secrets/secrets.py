"""Random Secrets, created once, and the key folders derived from the master key."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import sos_compile
from sos_compile.manifests import naming

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.custom_resources import MANAGED, SosController, SosSite
from sos_operator.core.model.kinds import SECRET, SITE
from sos_operator.core.model.objects import Object, Ref, Resource
from sos_operator.core.model.options import Settings
from sos_operator.core.model.world import PREFIX, Seen
from sos_operator.core.plan import owned
from sos_operator.core.secrets import keys

MASTER = naming.child(PREFIX, "master")
OPENFLOW_CA = naming.openflow_ca(PREFIX)


CA_FILE = "ca-1.crt"
"""First certificate in the CA Secret."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Secret that must exist; after its creation, only a rotation changes its content."""

    name: str
    file: str | None
    """Name of the Secret's entry with the random value; None if users create the Secret."""
    owner: Resource | None = None
    """Object that uses the Secret and owns it if the operator created it; None if it belongs to the release."""


def labels(component: str) -> dict[str, str]:
    """Labels of objects that the operator creates itself.

    `sos_compile` labels all other objects in the same way, and with `app.kubernetes.io/instance`. Objects without an owner must not have
    that label: Argo CD, if it tracks objects by label, would take them for objects of the release that are in no template, and prune them.
    """
    return {
        "app.kubernetes.io/name": "sos",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": "sos",
        "app.kubernetes.io/managed-by": "sos-operator",
    }


def wanted_secrets(seen: Seen) -> tuple[Wanted, ...]:
    """The master key, the CA of OpenFlow channels, and the bearer token of every controller that runs here."""
    managed = {o.name: o for o in seen.of(SosController) if o.type == MANAGED and not o.leaving}
    tokens = tuple(Wanted(naming.controller_token(PREFIX, name), keys.TOKEN_FILE, o) for name, o in sorted(managed.items()))
    return (Wanted(MASTER, keys.master_file(keys.FIRST_KEY_ID)), Wanted(OPENFLOW_CA, CA_FILE), *tokens)


def is_token(secret: Secret) -> bool:
    """True for the token of a managed controller, which the operator may change."""
    return owned(secret) and secret.name.startswith(naming.controller_token(PREFIX, ""))


def external_tokens(seen: Seen) -> tuple[Wanted, ...]:
    """The Secrets that users create for External controllers."""
    return tuple(Wanted(o.token_secret, None, o) for o in seen.of(SosController) if o.token_secret)


def owned_by(owner: Resource | None) -> Object:
    """Metadata by which the cluster removes an object with its owner, even if no operator runs."""
    if owner is None:
        return {}
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.meta.uid, "controller": True}
    return {"ownerReferences": [reference]}


def adoption(secret: Secret, wanted: Wanted) -> Object | None:
    """Patch that corrects a missing or stale owner reference of one of our Secrets; None if the reference is right, or the Secret is not
    ours."""
    right = owned_by(wanted.owner)
    there = [owner.uid for owner in secret.meta.owners]
    return {"metadata": right} if right and owned(secret) and there != [right["ownerReferences"][0]["uid"]] else None


def build_secret(settings: Settings, name: str, component: str, files: Mapping[str, str], owner: Resource | None = None) -> Object:
    """A Secret manifest with the given files."""
    own = {"name": name, "namespace": settings.namespace, "labels": labels(component)}
    return {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": own | owned_by(owner),
        "type": "Opaque",
        "data": {file: base64.b64encode(text.encode()).decode() for file, text in sorted(files.items())},
    }


def secret_files(secret: Secret | None) -> dict[str, bytes]:
    """The content of a Secret; values that are not base64 are left out."""
    found = {}
    for name, text in (secret.data if secret else {}).items():
        try:
            found[name] = base64.b64decode(text, validate=True)
        except ValueError:
            continue
    return found


def derived_secrets(
    compiled: sos_compile.Compiled,
    masters: keys.Masters,
    settings: Settings,
    seen: Seen,
    for_peers: Mapping[int, Mapping[str, str]] | None = None,
) -> tuple[Object, ...]:
    """The key folders that agents and controllers mount, each with its own keys only. `for_peers`: key files for peers, by site id."""
    for_peers = for_peers or {}
    # Include keys shared with every site that has hosts, not only with current peers: a new service then changes no Secret.
    ids = {f.number for key, f in compiled.facts.items() if key.kind == SITE.kind and f.number and f.text.get("prefixes")}
    own = {document["site"]["name"]: document["site"]["id"] for document in compiled.agents.values()}
    sites = {site.name: site for site in seen.of(SosSite)}
    found = []
    for name, number in sorted(own.items()):
        # A peer's key never replaces a key of this cluster.
        files = {**for_peers.get(number, {}), **masters.site_files(number, ids)}
        found.append(build_secret(settings, naming.site_keys(PREFIX, name), "agent", files, sites.get(name)))
    here = {secret.name: secret.owner for secret in wanted_secrets(seen)}
    for controller, document in sorted(compiled.controllers.items()):
        token = naming.controller_token(PREFIX, controller)
        if token in here:
            served = [site["id"] for site in document["sites"] if not site["transit"]]
            files = masters.controller_files(served)
            found.append(build_secret(settings, naming.controller_keys(PREFIX, controller), "controller", files, here[token]))
    return tuple(found)


def secret_refs(settings: Settings, wanted: tuple[Wanted, ...]) -> frozenset[Ref]:
    """References of the Secrets that are created once, which the plan must not delete."""
    return frozenset(Ref(SECRET.kind, settings.namespace, secret.name) for secret in wanted)


def token_of(secrets: Mapping[str, Secret], controller: SosController) -> str | None:
    """The bearer token for a controller, from Secrets by name; None if the token is missing."""
    name = controller.token_secret if controller.external else naming.controller_token(PREFIX, controller.name)
    content = secret_files(secrets.get(name)).get(keys.TOKEN_FILE, b"")
    text = content.decode("ascii", "ignore").strip()
    return text or None
