"""Test the reasons of the condition `Programmed`."""

from __future__ import annotations

import json

from sos_controller.core.tables.service_state import ProgrammedReason


def test_every_reason_except_programmed_leaves_a_service_pending() -> None:
    assert [reason for reason in ProgrammedReason if reason.state == "Programmed"] == [ProgrammedReason.PROGRAMMED]
    assert {reason.state for reason in ProgrammedReason} == {"Programmed", "Pending"}


def test_reasons_are_valid_condition_reasons_and_plain_text_in_json() -> None:
    assert all(reason.isalpha() and reason[0].isupper() for reason in ProgrammedReason)
    assert json.dumps(list(ProgrammedReason)) == json.dumps([reason.value for reason in ProgrammedReason])
