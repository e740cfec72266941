"""Access to a controller's measurements, and declaration of a changed service."""

import time
from typing import Any

from conftest import with_service
from sos_testbed.lifecycle import lab as labs
from sos_testbed.lifecycle import northbound
from sos_testbed.lifecycle.lab import Lab

DELAY_SLACK_MS = 2.0


def measurements(net: Lab) -> dict[str, Any]:
    found: dict[str, Any] = northbound.get(net.plan, "/v1/measurements")
    return {**found, "at": time.time()}


def declare(net: Lab, **spec: Any) -> None:
    net.declare(with_service(net.objects, **spec))
    labs.wait_ready(net, net.documents)
