"""Rotation of the master key on request: distribute the new key, then sign with it, then remove the old key.

The user sets the annotation `sos.network/rotate-keys` of the master Secret to a new text. A second annotation holds the progress, so that
another operator can continue the rotation.

The time of a step starts only when every derived Secret in the cluster has the step's keys. If the operator was down or a Secret could not
be written, the step takes longer, and no agent is locked out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from sos_compile.keys import MAX_KEY_ID

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.kinds import SECRET
from sos_operator.core.model.objects import Object, Resource
from sos_operator.core.secrets.keys import master_file, parse_masters
from sos_operator.core.secrets.secrets import secret_files

REQUEST_ANNOTATION = "sos.network/rotate-keys"
STATE_ANNOTATION = "sos.network/key-rotation"
REQUEST_MAX = 256
_STAMP = "%Y-%m-%dT%H:%M:%SZ"

ANNOUNCED = "Announced"
"""The new key is being distributed; it signs nothing yet."""
IN_USE = "InUse"
"""Processes sign with the new key once they have received the keys of this phase, and still accept signatures of the old key."""
DONE = "Done"


@dataclass(frozen=True, slots=True)
class State:
    """Progress of the last requested rotation."""

    request: str = ""
    phase: str = DONE
    since: datetime | None = None
    """Time at which the keys of this phase had been distributed; None before."""

    @property
    def going(self) -> bool:
        """True while two keys exist."""
        return self.phase != DONE


def parse_state(secret: Secret, annotation: str = STATE_ANNOTATION) -> State:
    """Parse the state in a Secret; an invalid annotation counts as none."""
    try:
        found = json.loads(secret.meta.annotations.get(annotation) or "{}")
        since = datetime.strptime(found["since"], _STAMP).replace(tzinfo=UTC) if found["since"] is not None else None
        phase = found["phase"]
    except (ValueError, KeyError, TypeError):
        return State()
    return State(str(found.get("request") or ""), phase, since) if phase in (ANNOUNCED, IN_USE, DONE) else State()


def sending(master: Secret, ids: Collection[int]) -> int:
    """The id of the key to sign with: the newest, or the previous one while the newest is only announced."""
    ordered = sorted(ids)
    return ordered[-2] if len(ordered) > 1 and parse_state(master).phase == ANNOUNCED else ordered[-1]


def is_asked_for(secret: Secret, request: str = REQUEST_ANNOTATION, state: str = STATE_ANNOTATION) -> bool:
    """True while there is a rotation to continue or to begin, according to the annotations of these names."""
    found = parse_state(secret, state)
    return found.going or request_of(secret, request) not in ("", found.request)


def handed_out(derived: Iterable[Object], children: Iterable[Resource], held: Iterable[tuple[str, str]]) -> bool:
    """True if every derived Secret in the cluster has its wanted content.

    A `held` Secret, whose site or controller is currently invalid, gets no new keys: the rotation waits until the site or controller is
    valid again.
    """
    shown = {o.name: o.data for o in children if isinstance(o, Secret)}
    wanted = {secret["metadata"]["name"]: secret["data"] for secret in derived}
    waiting = {name for kind, name in held if kind == SECRET.kind and name in shown} - set(wanted)
    return not waiting and all(data.items() <= shown.get(name, {}).items() for name, data in wanted.items())


def next_step(master: Secret, now: datetime, overlap: timedelta, fresh: str, *, everywhere: bool) -> tuple[str, Object] | None:
    """Return the next step: a sentence for the log, and the merge patch of the master Secret. None if nothing is due.

    `fresh`: 64 random hex digits for a new key. `overlap`: duration of every phase, which must be longer than the slowest
    machine takes to see a changed Secret. `everywhere`: result of `handed_out` for the current phase.
    """
    ids = sorted(parse_masters(secret_files(master)))
    state = parse_state(master)
    if not ids or (state.going and not everywhere):
        return None
    if not state.going:
        return _begin(master, state, ids[-1], now, fresh)
    if state.since is None or state.since > now:
        # A time in the future was written by a clock that was ahead.
        return f"{state.phase}: handed out to everybody", build_patch(master, replace(state, since=now), {})
    if now - state.since < overlap:
        return None
    if state.phase == ANNOUNCED:
        return f"key {ids[-1]} is in use", build_patch(master, State(state.request, IN_USE), {})
    gone = {master_file(key_id): None for key_id in ids[:-1]}
    return f"keys before {ids[-1]} are gone", build_patch(master, State(state.request, DONE, now), gone)


def request_of(secret: Secret, annotation: str = REQUEST_ANNOTATION) -> str:
    """Return the text of the request annotation, empty if there is none."""
    return secret.meta.annotations.get(annotation, "")[:REQUEST_MAX]


def _begin(master: Secret, state: State, newest: int, now: datetime, fresh: str) -> tuple[str, Object] | None:
    request = request_of(master)
    if request in ("", state.request):
        return None
    if newest >= MAX_KEY_ID:
        return "key ids are used up: no rotation", build_patch(master, State(request, DONE, now), {})
    added = {master_file(newest + 1): base64.b64encode(fresh.encode()).decode()}
    return f"key {newest + 1} is announced", build_patch(master, State(request, ANNOUNCED), added)


def build_patch(secret: Secret, state: State, data: Object, annotation: str = STATE_ANNOTATION) -> Object:
    """The merge patch for a step: the Secret's new state annotation and data."""
    since = state.since.strftime(_STAMP) if state.since else None
    text = json.dumps({"request": state.request, "phase": state.phase, "since": since})
    # With the resource version, only one of two operators can create a key.
    meta = {"resourceVersion": secret.meta.resource_version, "annotations": {annotation: text}}
    return {"metadata": meta, **({"data": data} if data else {})}
