"""Machines outside Kubernetes: their reports, and the configuration that this cluster offers them (spec/card.md section 5)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sos_compile.model.world import Json

MAX_REPORT_BYTES = 4096


class MachineReport(BaseModel):
    """State of a machine's agent: generation and hash of the configuration in force, 0 and "" without one.

    `problem`: why the newest configuration is not in force, "" if it is.
    """

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    version: Literal["v1alpha1"]
    software: Annotated[str, Field(max_length=63)]
    generation: Annotated[int, Field(ge=0, le=2**63 - 1)]
    hash: Annotated[str, Field(max_length=80)] = ""
    problem: Annotated[str, Field(max_length=300)] = ""


class ReportError(ValueError):
    """A report that cannot be used; the message names the field."""


def parse_report(text: bytes) -> MachineReport:
    """Parse a machine's report. Raises ReportError."""
    if len(text) > MAX_REPORT_BYTES:
        raise ReportError(f"it has {len(text)} bytes, more than {MAX_REPORT_BYTES}")
    try:
        return MachineReport.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise ReportError(f"{'.'.join(map(str, first['loc'])) or 'report'}: {first['msg']}") from None


@dataclass(frozen=True, slots=True)
class Configuration:
    """The agent-config that a machine is to have, as text."""

    text: str
    generation: int


def configuration(document: Json) -> Configuration:
    """Return the text of a machine's agent-config."""
    return Configuration(json.dumps(document, separators=(",", ":"), sort_keys=True), int(document["generation"]))
