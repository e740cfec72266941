"""Errors the operator knows how to handle; anything else is a bug (bugs.py)."""

from __future__ import annotations


class OperatorError(Exception):
    """Base of the errors below; the message is fit for a condition or a log line."""


class NotReady(OperatorError):  # noqa: N818 - the word of the house rules
    """Something is still missing or busy: retry the pass later."""


class Refused(OperatorError):  # noqa: N818 - says what happened
    """The API server permanently rejects this object (403, 422 and the like)."""


class KindMissing(OperatorError):  # noqa: N818 - says what happened
    """The cluster does not serve this kind, for example NetworkAttachmentDefinition without Multus."""
