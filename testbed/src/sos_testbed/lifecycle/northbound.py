"""Client of the APIs of controllers and agents: curl inside a namespace of the lab."""

from __future__ import annotations

import json
from typing import Any

from sos_testbed.core import controllers
from sos_testbed.core.model import LabError
from sos_testbed.core.realise import LabPlan, inside
from sos_testbed.lifecycle.runner import run
from sos_testbed.lifecycle.time_factor import limit_s

_TIMEOUT_S = 5


def get(plan: LabPlan, path: str, controller: str = controllers.DEFAULT) -> Any:
    """JSON answer of a GET; raise LabError if the controller does not answer or reports an error."""
    return _request(plan, controller, path, ())


def put_config(plan: LabPlan, document: dict[str, Any], token: str) -> Any:
    """Push a controller's configuration file to the controller (spec/northbound.md)."""
    controller = str(document["controller"]["name"])
    # pass the token by standard input, because command lines are visible to all users
    body = plan.root / controllers.config_file(controller)
    header = f'header = "Authorization: Bearer {token}"\n'
    arguments = ("-X", "PUT", "-H", "Content-Type: application/json", "--data-binary", f"@{body}", "--config", "-")
    answer = _request(plan, controller, "/v1/config", arguments, stdin=header)
    if answer.get("generation") != document["generation"]:
        raise LabError(f"{controllers.program(controller)} is at generation {answer.get('generation')} and not at {document['generation']}")
    return answer


def agent_status(plan: LabPlan, agent: str, document: dict[str, Any]) -> Any:
    """Status of an agent with this configuration (spec/node-config.md clause 40); LabError if the agent does not answer."""
    port = str(document["metricsAddress"]).rpartition(":")[2]
    return _answer(plan.netns(agent), agent, f"http://127.0.0.1:{port}/status", ())


def _request(plan: LabPlan, controller: str, path: str, arguments: tuple[str, ...], stdin: str = "") -> Any:
    if controller not in plan.controllers:
        raise LabError(f"this lab has no controller {controller!r}")
    url = f"http://{controllers.addresses(plan.controllers)[controller]}:{controllers.API_PORT}{path}"
    return _answer(plan.netns("ctl"), controllers.program(controller), url, arguments, stdin)


def _answer(netns: str, name: str, url: str, arguments: tuple[str, ...], stdin: str = "") -> Any:
    path = "/" + url.split("/", 3)[3]
    argv = inside(netns, "curl", "-sS", "-m", f"{limit_s(_TIMEOUT_S):g}", "-w", "\n%{http_code}", *arguments, url)
    text, _, status = run(argv, what=f"{name} {path}", timeout_s=_TIMEOUT_S + 5, stdin=stdin).rpartition("\n")
    try:
        answer = json.loads(text)
    except ValueError:
        raise LabError(f"{name} {path}: status {status}, not JSON: {text[:200]!r}") from None
    if status != "200":
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        raise LabError(f"{name} {path}: status {status}: {error.get('path', '')} {error.get('message', answer)}")
    return answer
