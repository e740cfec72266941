"""New master keys on request: announced to everybody first, then used, and only then is the old one taken away.

Somebody sets the annotation `sos.network/rotate-keys` of the master Secret to a text it did not have before. How far the operator is
stands in an annotation beside it, so that another operator goes on where this one ended.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sos_compile.keys import MAX_KEY_ID

from sos_operator.core.keys import master_file, parse_masters
from sos_operator.core.secrets import secret_files
from sos_operator.core.world import Object

REQUEST_ANNOTATION = "sos.network/rotate-keys"
STATE_ANNOTATION = "sos.network/key-rotation"
REQUEST_MAX = 256
_STAMP = "%Y-%m-%dT%H:%M:%SZ"

ANNOUNCED = "Announced"
"""Everybody has the new key or is getting it; nobody signs with it."""
IN_USE = "InUse"
"""Everybody signs with it, and still takes what is signed with the old one."""
DONE = "Done"


_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class State:
    """How far the rotation is that was asked for last."""

    request: str = ""
    phase: str = DONE
    since: datetime = _NEVER

    @property
    def going(self) -> bool:
        """True while two keys are about."""
        return self.phase != DONE


def parse_state(master: Object) -> State:
    """What the master Secret says; an annotation that was tampered with counts as none."""
    try:
        found = json.loads((master["metadata"].get("annotations") or {}).get(STATE_ANNOTATION) or "{}")
        since = datetime.strptime(found["since"], _STAMP).replace(tzinfo=UTC)
        phase = found["phase"]
    except (ValueError, KeyError, TypeError):
        return State()
    return State(str(found.get("request") or ""), phase, since) if phase in (ANNOUNCED, IN_USE, DONE) else State()


def sending(master: Object, ids: Collection[int]) -> int:
    """The id of the key that everybody signs with: the newest, but the one before it while that is only announced."""
    ordered = sorted(ids)
    return ordered[-2] if len(ordered) > 1 and parse_state(master).phase == ANNOUNCED else ordered[-1]


def next_step(master: Object, now: datetime, overlap: timedelta, fresh: str) -> tuple[str, Object] | None:
    """What to do now: a sentence for the log, and the merge patch of the master Secret. None if nothing is due.

    `fresh`: 64 random hex digits for a new key. `overlap`: how long every phase lasts, which must be longer than the slowest
    machine takes to see a changed Secret.
    """
    ids = sorted(parse_masters(secret_files(master)))
    state = parse_state(master)
    if not ids:
        return None
    if not state.going:
        return _begin(master, state, ids[-1], now, fresh)
    if now - state.since < overlap:
        return None
    if state.phase == ANNOUNCED:
        return f"key {ids[-1]} is in use", _patch(master, State(state.request, IN_USE, now), {})
    gone = {master_file(key_id): None for key_id in ids[:-1]}
    return f"keys before {ids[-1]} are gone", _patch(master, State(state.request, DONE, now), gone)


def _begin(master: Object, state: State, newest: int, now: datetime, fresh: str) -> tuple[str, Object] | None:
    request = str((master["metadata"].get("annotations") or {}).get(REQUEST_ANNOTATION) or "")[:REQUEST_MAX]
    if not request or request == state.request:
        return None
    if newest >= MAX_KEY_ID:
        return "key ids are used up: no rotation", _patch(master, State(request, DONE, now), {})
    added = {master_file(newest + 1): base64.b64encode(fresh.encode()).decode()}
    return f"key {newest + 1} is announced", _patch(master, State(request, ANNOUNCED, now), added)


def _patch(master: Object, state: State, data: Object) -> Object:
    text = json.dumps({"request": state.request, "phase": state.phase, "since": state.since.strftime(_STAMP)})
    # The resource version: of two operators only one may make a key.
    meta = {"resourceVersion": master["metadata"]["resourceVersion"], "annotations": {STATE_ANNOTATION: text}}
    return {"metadata": meta, **({"data": data} if data else {})}
