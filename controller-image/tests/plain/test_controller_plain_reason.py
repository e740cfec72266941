"""Test the closed set of reasons for plain TCP."""

from __future__ import annotations

import json

from sos_controller.core.plain.outcome import AgentRefusal, Outcome
from sos_controller.core.plain.reason import WORDS, PlainReason


def test_every_reason_has_a_text_and_a_valid_condition_name() -> None:
    assert WORDS.keys() == set(PlainReason)
    labels = [reason.label for reason in PlainReason]
    assert len(set(labels)) == len(labels)
    assert all(label.isalpha() and label[0].isupper() for label in labels)


def test_refusal_by_an_agent_keeps_its_reason() -> None:
    assert AgentRefusal(2).reason is PlainReason.AGENT_SESSIONS
    assert AgentRefusal(999).reason is PlainReason.AGENT_REFUSED
    assert AgentRefusal(999).text == "refused-999"


def test_outcome_of_an_accelerated_connection_has_no_reason_for_plain_tcp() -> None:
    assert Outcome.HELD.reason is None and Outcome.BEGUN.reason is None and Outcome.ENDED.reason is None
    assert Outcome.EGRESS_DATAPATH.reason is Outcome.INGRESS_DATAPATH.reason is PlainReason.DATAPATH_NOT_READY


def test_outcomes_have_distinct_texts_that_metrics_and_audit_records_show_unchanged() -> None:
    assert json.dumps({outcome.text: outcome for outcome in Outcome}) == json.dumps({outcome.value: outcome.value for outcome in Outcome})
    assert all(type(outcome.text) is str and outcome.text == f"{outcome}" for outcome in Outcome)
