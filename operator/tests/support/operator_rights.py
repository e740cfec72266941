"""Rights granted by a chart and rights used by requests, in one form for comparison."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, in one namespace or (with an empty `namespace`) in all; `name` limits the right to one object."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""


def granted(objects: Iterable[Object], account: str) -> frozenset[Right]:
    """Rights of the roles that a chart's rendered objects bind to a service account."""
    roles = {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in objects if o["kind"].endswith("Role")}
    found: set[Right] = set()
    for binding in (o for o in objects if o["kind"].endswith("RoleBinding")):
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        namespace = binding["metadata"].get("namespace", "")
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        role = roles[kind, "" if kind == "ClusterRole" else namespace, name]
        found.update(right for rule in role["rules"] for right in _of_rule(rule, namespace))
    return frozenset(found)


def _of_rule(rule: Object, namespace: str) -> Iterator[Right]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or [""]:
                    yield Right(namespace, group, resource, verb, name)


def used(audit: Iterable[Object], account: str, rights: frozenset[Right]) -> tuple[frozenset[Right], frozenset[str]]:
    """Granted rights that requests of the account have used, and requests that no right covers."""
    exercised: set[Right] = set()
    uncovered: set[str] = set()
    for event in audit:
        if not event["user"]["username"].endswith(f":{account}") or "objectRef" not in event:
            continue  # a request without an object is discovery, which is allowed for every account
        for verb in _verbs(event):
            found = _covering(event["objectRef"], verb, rights)
            exercised |= {found} if found else set()
            if found is None or event.get("responseStatus", {}).get("code") == 403:
                uncovered.add(f"{verb} {event['requestURI']}")
    return frozenset(exercised), frozenset(uncovered)


def _verbs(event: Object) -> list[str]:
    # An apply that creates its object is a patch that also needs the right to create.
    made = event["verb"] == "patch" and event.get("responseStatus", {}).get("code") == 201
    return [event["verb"], *(["create"] if made else [])]


def _covering(ref: Object, verb: str, rights: frozenset[Right]) -> Right | None:
    """Find the narrowest right that allows a request."""
    resource = ref["resource"] + (f"/{ref['subresource']}" if ref.get("subresource") else "")
    group, namespace, name = ref.get("apiGroup", ""), ref.get("namespace", ""), ref.get("name", "")
    for where in (namespace, "") if namespace else ("",):
        for which in (name, ""):
            right = Right(where, group, resource, verb, which)
            if right in rights:
                return right
    return None
