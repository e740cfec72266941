"""Reasons for plain TCP: one closed set."""

from __future__ import annotations

from sos_controller.core.plain.reason import WORDS, PlainReason, of_outcome


def test_every_reason_has_words_and_a_name_that_a_condition_takes() -> None:
    assert WORDS.keys() == set(PlainReason)
    labels = [reason.label for reason in PlainReason]
    assert len(set(labels)) == len(labels)
    assert all(label.isalpha() and label[0].isupper() for label in labels)


def test_an_agents_refusal_keeps_its_reason() -> None:
    assert of_outcome("refused-2") is PlainReason.AGENT_SESSIONS
    assert of_outcome("refused-999") is PlainReason.AGENT_REFUSED
    assert of_outcome("held") is None
