"""Client of the controllers' API: curl inside the lab's control namespace."""

from __future__ import annotations

import json
from typing import Any

from sos_testbed.core import controllers
from sos_testbed.core.model import LabError
from sos_testbed.core.realise import LabPlan, inside
from sos_testbed.lifecycle.runner import run

_TIMEOUT_S = 5


def get(plan: LabPlan, path: str, controller: str = controllers.DEFAULT) -> Any:
    """JSON answer of a GET; raise LabError if the controller does not answer or reports an error."""
    return _request(plan, controller, path, ())


def put_config(plan: LabPlan, document: dict[str, Any], token: str) -> Any:
    """Push its configuration file to a controller (spec/northbound.md)."""
    controller = str(document["controller"]["name"])
    # pass the token by standard input, because command lines are visible to all users
    body = plan.root / controllers.config_file(controller)
    header = f'header = "Authorization: Bearer {token}"\n'
    arguments = ("-X", "PUT", "-H", "Content-Type: application/json", "--data-binary", f"@{body}", "--config", "-")
    answer = _request(plan, controller, "/v1/config", arguments, stdin=header)
    if answer.get("generation") != document["generation"]:
        raise LabError(f"{controllers.program(controller)} is at generation {answer.get('generation')} and not at {document['generation']}")
    return answer


def _request(plan: LabPlan, controller: str, path: str, arguments: tuple[str, ...], stdin: str = "") -> Any:
    name = controllers.program(controller)
    url = f"http://{controllers.addresses(plan.controllers)[controller]}:{controllers.API_PORT}{path}"
    argv = inside(plan.netns("ctl"), "curl", "-sS", "-m", str(_TIMEOUT_S), "-w", "\n%{http_code}", *arguments, url)
    text, _, status = run(argv, what=f"{name} {path}", timeout_s=_TIMEOUT_S + 5, stdin=stdin).rpartition("\n")
    try:
        answer = json.loads(text)
    except ValueError:
        raise LabError(f"{name} {path}: status {status}, not JSON: {text[:200]!r}") from None
    if status != "200":
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        raise LabError(f"{name} {path}: status {status}: {error.get('path', '')} {error.get('message', answer)}")
    return answer
