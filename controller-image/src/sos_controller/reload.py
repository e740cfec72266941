"""Reload keys and tokens each second."""

from __future__ import annotations

import logging
from pathlib import Path

from sos_controller.api.northbound import Api
from sos_controller.app import Controller
from sos_controller.files.key_files import read_keys, read_tokens
from sos_controller.openflow.framework import eventlet

LOG = logging.getLogger("sos_controller.reload")

RELOAD_S = 1.0


def reload_loop(controller: Controller, api: Api, keys: Path, token: Path) -> None:
    """Apply changed keys and tokens; if they cannot be read, keep the last valid keys and tokens, and log one message."""
    said = ""
    while True:
        eventlet.sleep(RELOAD_S)
        try:
            controller.keys(read_keys(keys))
            api.tokens = read_tokens(token)
            controller.flush()
            said = ""
        except (OSError, ValueError) as error:
            if str(error) != said:
                said = str(error)
                LOG.warning("keeping the last good keys and token: %s", said)
        except Exception as error:
            if str(error) != said:
                said = str(error)
                controller.bug("reload")
