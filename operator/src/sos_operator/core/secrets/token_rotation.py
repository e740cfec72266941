"""Rotation of a controller's bearer token on request: the controller accepts the new token first, then the operator sends it, then the old
token is removed.

The user sets the annotation `sos.network/rotate-token` of a controller's token Secret to a new text. A second annotation holds the
progress. The Secret holds `token`, which the operator sends, and between the steps `token-also`, which the controller also accepts. The
tokens are swapped while both files exist, because a kubelet updates the contents of existing files atomically, but creates new files one
after the other.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import datetime, timedelta

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.objects import Object
from sos_operator.core.secrets import key_rotation
from sos_operator.core.secrets.key_rotation import ANNOUNCED, DONE, IN_USE, State, build_patch, parse_state, request_of
from sos_operator.core.secrets.keys import TOKEN_FILE

REQUEST_ANNOTATION = "sos.network/rotate-token"
STATE_ANNOTATION = "sos.network/token-rotation"
ALSO_FILE = f"{TOKEN_FILE}-also"


def is_asked_for(secret: Secret) -> bool:
    """True while there is a rotation to continue or to begin."""
    return key_rotation.is_asked_for(secret, REQUEST_ANNOTATION, STATE_ANNOTATION)


def next_step(secret: Secret, now: datetime, overlap: timedelta, fresh: str) -> tuple[str, Object] | None:
    """Return the next step: a sentence for the log, and the merge patch of the Secret. None if nothing is due.

    `fresh`: 64 random hex digits for a new token. `overlap`: duration of a phase, which must be longer than a kubelet takes to see a
    changed Secret.
    """
    if not is_asked_for(secret):
        return None
    state = parse_state(secret, STATE_ANNOTATION)
    if not state.going:
        request = request_of(secret, REQUEST_ANNOTATION)
        return "a new token is announced", _patch(secret, State(request, ANNOUNCED, now), {ALSO_FILE: _encoded(fresh)})
    if state.since is None or state.since > now:
        # A time in the future was written by a clock that was ahead.
        return f"{state.phase}: its time starts now", _patch(secret, replace(state, since=now), {})
    if now - state.since < overlap:
        return None
    return _after(secret, state, now)


def _after(secret: Secret, state: State, now: datetime) -> tuple[str, Object]:
    """The step after a phase whose time is over."""
    data = secret.data
    if state.phase == IN_USE:
        return "the old token is gone", _patch(secret, State(state.request, DONE, now), {ALSO_FILE: None})
    if ALSO_FILE not in data:
        return "the new token was removed: no rotation", _patch(secret, State(state.request, DONE, now), {})
    swapped = {TOKEN_FILE: data[ALSO_FILE], ALSO_FILE: data.get(TOKEN_FILE)}
    return "the new token is in use", _patch(secret, State(state.request, IN_USE, now), swapped)


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _patch(secret: Secret, state: State, data: Object) -> Object:
    return build_patch(secret, state, data, STATE_ANNOTATION)
