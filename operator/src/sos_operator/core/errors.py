"""Errors the operator knows how to handle; anything else is a bug and ends the process."""

from __future__ import annotations


class OperatorError(Exception):
    """Base of the errors below; the message is fit for a condition or a log line."""


class NotReady(OperatorError):
    """Something is not there yet or busy: try the pass again later."""


class Refused(OperatorError):
    """The API server will not have this object, however often it is sent (403, 422 and the like)."""


class KindMissing(OperatorError):
    """The cluster does not serve this kind, for example NetworkAttachmentDefinition without Multus."""
