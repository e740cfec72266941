"""Start the controller: read arguments and files, open listeners, run loops. Makes no decisions."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import NoReturn

from sos_controller.cli import parser

LEAVE_S = 2.0
"""Time limit of each step of a graceful shutdown (`app.Controller.leave`). Leases whose deletion a switch has not acknowledged expire by
themselves."""


def main() -> NoReturn:
    """Entry point of `sos-controller`."""
    arguments = parser().parse_args()
    if arguments.check:
        from sos_controller.files.check import check

        lines, well = check(arguments.check)
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.exit(0 if well else 1)
    if arguments.keys is None or arguments.token_file is None:
        parser().error("--keys and --token-file are needed")
    from sos_controller.logs import setup

    setup(arguments.log_level, arguments.log_format, audit=arguments.audit_log)
    sys.exit(run(arguments))


def run(arguments: argparse.Namespace) -> int:
    """Run until a signal; return 1 if an argument or file cannot be used."""
    from sos_controller.openflow.framework import eventlet, start_handshake

    start_handshake()
    from sos_controller.api.northbound import Api, serve
    from sos_controller.app import MAX_CONNECTIONS, Controller
    from sos_controller.core.engine import Engine
    from sos_controller.files.config import ConfigError
    from sos_controller.files.identity import new_identity
    from sos_controller.openflow.accept import Listener
    from sos_controller.reload import Reload

    started_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    try:
        controller = Controller(Engine(new_identity(arguments.state)))
        api = Api(controller, started_at)
        listener = Listener(controller, MAX_CONNECTIONS)
        files = Reload(controller, api, listener, arguments)
        files.read()
        controller.offers_tls = arguments.openflow_tls is not None
        if arguments.config is not None:
            controller.configure(arguments.config.read_bytes())
        switches = eventlet.listen(arguments.openflow_listen, family=_family(arguments.openflow_listen[0]), backlog=1024)
        clients = eventlet.listen(arguments.api_listen, family=_family(arguments.api_listen[0]))
    except ConfigError as error:
        sys.stderr.write(f"{arguments.config}: {error}\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"sos-controller: {error}\n")
        return 1
    controller.settle()
    stop = eventlet.event.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: eventlet.hubs.get_hub().schedule_call_global(0, _stop, stop))
    threads = [
        eventlet.spawn(controller.tick_loop),
        eventlet.spawn(listener.loop, switches),
        eventlet.spawn(serve, api, clients),
        eventlet.spawn(files.loop),
    ]
    for thread in threads:
        thread.link(lambda ended: _stop(stop, ended))
    stop.wait()
    controller.leave(LEAVE_S)
    return 0


def _stop(stop: object, _ended: object = None) -> None:
    if not stop.ready():  # type: ignore[attr-defined]
        stop.send(None)  # type: ignore[attr-defined]


def _family(host: str) -> int:
    import socket

    return socket.AF_INET6 if ":" in host else socket.AF_INET


if __name__ == "__main__":
    main()
