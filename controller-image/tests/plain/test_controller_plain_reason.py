"""Test the closed set of reasons for plain TCP."""

from __future__ import annotations

from sos_controller.core.plain.reason import WORDS, PlainReason, of_outcome


def test_every_reason_has_a_text_and_a_valid_condition_name() -> None:
    assert WORDS.keys() == set(PlainReason)
    labels = [reason.label for reason in PlainReason]
    assert len(set(labels)) == len(labels)
    assert all(label.isalpha() and label[0].isupper() for label in labels)


def test_refusal_by_an_agent_keeps_its_reason() -> None:
    assert of_outcome("refused-2") is PlainReason.AGENT_SESSIONS
    assert of_outcome("refused-999") is PlainReason.AGENT_REFUSED
    assert of_outcome("held") is None
