"""Replacement of the CA of OpenFlow channels, on request and before its end: trust the new CA everywhere, certify with it, then forget the
old one.

The user sets the annotation `sos.network/rotate-openflow-ca` of the CA Secret to a new text. As with the master key, a step's time starts
only when every TLS folder in the cluster has the step's content (`key_rotation.handed_out`), so no switch meets a certificate that it
does not trust.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sos_compile import certificates
from sos_compile.certificates import Certified

from sos_operator.core.model.cluster_objects import Secret
from sos_operator.core.model.objects import Object
from sos_operator.core.secrets import key_rotation
from sos_operator.core.secrets.certificates import Authorities, ca_files
from sos_operator.core.secrets.key_rotation import ANNOUNCED, DONE, IN_USE, State, build_patch, parse_state, request_of

REQUEST_ANNOTATION = "sos.network/rotate-openflow-ca"
STATE_ANNOTATION = "sos.network/openflow-ca-rotation"


def is_asked_for(secret: Secret) -> bool:
    """True while there is a rotation to continue or to begin."""
    return key_rotation.is_asked_for(secret, REQUEST_ANNOTATION, STATE_ANNOTATION)


def authorities(secret: Secret, known: Mapping[int, Certified]) -> Authorities:
    """The CAs with the one that certifies: the newest, or the previous one while the newest is only announced."""
    ordered = sorted(known)
    announced = len(ordered) > 1 and parse_state(secret, STATE_ANNOTATION).phase == ANNOUNCED
    return Authorities(known, ordered[-2] if announced else ordered[-1])


def next_step(
    secret: Secret, known: Mapping[int, Certified], now: datetime, overlap: timedelta, *, everywhere: bool
) -> tuple[str, Object] | None:
    """Return the next step: a sentence for the log, and the merge patch of the CA Secret. None if nothing is due.

    `overlap`: duration of every phase, which must be longer than a kubelet takes to see a changed Secret. `everywhere`: True if every TLS
    folder in the cluster has the content of the current phase.
    """
    state = parse_state(secret, STATE_ANNOTATION)
    if not state.going:
        return _begin(secret, state, known, now)
    if not everywhere:
        return None
    if state.since is None or state.since > now:
        # A time in the future was written by a clock that was ahead.
        return f"{state.phase}: handed out to everybody", _patch(secret, replace(state, since=now), {})
    return _after(secret, state, known, now) if now - state.since >= overlap else None


def _begin(secret: Secret, state: State, known: Mapping[int, Certified], now: datetime) -> tuple[str, Object] | None:
    request, newest = request_of(secret, REQUEST_ANNOTATION), max(known)
    if request in ("", state.request) and not certificates.ca_is_due(known[newest], now):
        return None
    added = {name: base64.b64encode(text.encode()).decode() for name, text in ca_files(newest + 1, certificates.new_ca(now)).items()}
    return f"CA {newest + 1} is announced", _patch(secret, State(request, ANNOUNCED), added)


def _after(secret: Secret, state: State, known: Mapping[int, Certified], now: datetime) -> tuple[str, Object]:
    """The step after a phase whose time is over."""
    newest = max(known)
    if state.phase == ANNOUNCED:
        return f"CA {newest} certifies", _patch(secret, State(state.request, IN_USE), {})
    gone = {f"ca-{number}.{end}": None for number in sorted(known)[:-1] for end in ("crt", "key")}
    return f"CAs before {newest} are gone", _patch(secret, State(state.request, DONE, now), gone)


def _patch(secret: Secret, state: State, data: Object) -> Object:
    return build_patch(secret, state, data, STATE_ANNOTATION)
