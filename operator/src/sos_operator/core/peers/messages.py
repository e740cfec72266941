"""Offer and Answer of an exchange of site cards, as bytes (spec/card.md section 2)."""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from sos_compile.model.site_card import MAX_CARD_BYTES

MAGIC = b"SOSC"
VERSION = 1
OFFER, ANSWER = 1, 2
HEADER = struct.Struct(">4sBBH16s16s16sQB3xI")
TAG_BYTES = 32
NONCE_BYTES = 16
MAX_BYTES = HEADER.size + MAX_CARD_BYTES + TAG_BYTES
_OFFER_LABEL, _ANSWER_LABEL = b"sos/card/offer", b"sos/card/answer"


class MessageError(ValueError):
    """A message that is malformed, or not signed by the peer."""


class Status(IntEnum):
    """Verdict of an agent about an Offer."""

    STORED = 0
    NOT_NEWER = 1
    OTHER_INSTALLATION = 2


@dataclass(frozen=True, slots=True)
class Message:
    """An Offer or an Answer without its tag."""

    type: int
    key_id: int
    pairing: bytes
    installation: bytes
    nonce: bytes
    sequence: int
    card: bytes
    status: int = Status.STORED

    def encode(self) -> bytes:
        """Return all bytes before the tag."""
        head = (MAGIC, VERSION, self.type, self.key_id, self.pairing, self.installation, self.nonce, self.sequence, self.status)
        return HEADER.pack(*head, len(self.card)) + self.card


def sign_offer(offer: Message, key: bytes) -> bytes:
    """Return an Offer with its tag."""
    body = offer.encode()
    return body + _tag(key, _OFFER_LABEL, body)


def sign_answer(answer: Message, key: bytes, offer_tag: bytes) -> bytes:
    """Return an Answer with its tag."""
    body = answer.encode()
    return body + _tag(key, _ANSWER_LABEL, offer_tag, body)


def card_length(header: bytes) -> int:
    """Return the length of the card that follows a header. Raises MessageError for an invalid header, before the card is read."""
    return _parse(header).length


def open_offer(content: bytes, pairing: bytes, keys: Mapping[int, bytes]) -> Message:
    """Return a whole Offer that a key of this pairing has signed. Raises MessageError."""
    message, body, tag = _split(content, OFFER)
    if message.pairing != pairing or message.key_id not in keys:
        raise MessageError("signed by an unknown key")
    if not hmac.compare_digest(tag, _tag(keys[message.key_id], _OFFER_LABEL, body)):
        raise MessageError("its tag is wrong")
    return message


def open_answer(content: bytes, offer: Message, signed_offer: bytes, key: bytes) -> Message:
    """Return the Answer to an Offer. Raises MessageError."""
    message, body, tag = _split(content, ANSWER)
    if (message.pairing, message.key_id, message.nonce) != (offer.pairing, offer.key_id, offer.nonce):
        raise MessageError("it answers another Offer")
    if not hmac.compare_digest(tag, _tag(key, _ANSWER_LABEL, signed_offer[-TAG_BYTES:], body)):
        raise MessageError("its tag is wrong")
    return message


@dataclass(frozen=True, slots=True)
class _Header:
    message: Message
    length: int


def _parse(header: bytes) -> _Header:
    if len(header) < HEADER.size:
        raise MessageError(f"it has {len(header)} bytes, fewer than a header")
    magic, version, kind, key_id, pairing, installation, nonce, sequence, status, length = HEADER.unpack_from(header)
    if magic != MAGIC or version != VERSION or kind not in (OFFER, ANSWER):
        raise MessageError("it is not a message of this protocol")
    if status > (max(Status) if kind == ANSWER else Status.STORED) or key_id == 0:
        raise MessageError(f"invalid status {status} or key id {key_id}")
    if length > MAX_CARD_BYTES:
        raise MessageError(f"its card would have {length} bytes, more than {MAX_CARD_BYTES}")
    return _Header(Message(kind, key_id, pairing, installation, nonce, sequence, b"", status), length)


def _split(content: bytes, kind: int) -> tuple[Message, bytes, bytes]:
    """Return the message, its signed bytes and its tag."""
    header = _parse(content)
    if header.message.type != kind:
        raise MessageError("it has the wrong type")
    if len(content) != HEADER.size + header.length + TAG_BYTES:
        raise MessageError(f"it has {len(content)} bytes instead of {HEADER.size + header.length + TAG_BYTES}")
    body, tag = content[:-TAG_BYTES], content[-TAG_BYTES:]
    given = header.message
    card = body[HEADER.size :]
    whole = Message(kind, given.key_id, given.pairing, given.installation, given.nonce, given.sequence, card, given.status)
    return whole, body, tag


def _tag(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()
