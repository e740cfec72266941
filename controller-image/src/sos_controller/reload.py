"""Read keys, tokens and TLS files at start, and again each second."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable

from sos_controller.api.northbound import Api
from sos_controller.app import Controller
from sos_controller.files.key_files import read_keys, read_tokens
from sos_controller.files.tls_folder import TlsFolder, new_context, read_tls
from sos_controller.openflow.accept import Listener
from sos_controller.openflow.framework import eventlet

LOG = logging.getLogger("sos_controller.reload")

RELOAD_S = 1.0


class Reload:
    """Files that may change while the controller runs."""

    def __init__(self, controller: Controller, api: Api, listener: Listener, arguments: argparse.Namespace) -> None:
        self._controller, self._api, self._listener, self._arguments = controller, api, listener, arguments
        self._tls: TlsFolder | None = None
        self._parts: dict[str, Callable[[], None]] = {"keys and token": self._read_keys, "TLS files": self._read_tls}
        self._said = dict.fromkeys(self._parts, "")

    def read(self) -> None:
        """Read all files. Raise OSError or ValueError if one cannot be used."""
        for part in self._parts.values():
            part()

    def loop(self) -> None:
        """Apply changed files; if files cannot be used, keep the last valid ones, and log one message."""
        while True:
            eventlet.sleep(RELOAD_S)
            for name, part in self._parts.items():
                self._said[name] = self._reload(name, part)

    def _reload(self, name: str, part: Callable[[], None]) -> str:
        """Return the error that has been logged, empty if there is none."""
        said = self._said[name]
        try:
            part()
        except (OSError, ValueError) as error:
            if str(error) != said:
                LOG.warning("keeping the last good %s: %s", name, error)
            return str(error)
        except Exception as error:
            if str(error) != said:
                self._controller.bug("reload")
            return str(error)
        return ""

    def _read_keys(self) -> None:
        self._controller.keys(read_keys(self._arguments.keys))
        self._api.tokens = read_tokens(self._arguments.token_file)
        self._controller.flush()

    def _read_tls(self) -> None:
        folder = self._arguments.openflow_tls
        if folder is None:
            return
        contents = read_tls(folder)
        if contents != self._tls:
            self._listener.context = new_context(folder, contents)
            self._tls = contents
            LOG.info("TLS certificate of %s; new connections use it", folder)
