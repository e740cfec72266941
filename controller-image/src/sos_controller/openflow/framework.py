"""Let eventlet patch the standard library, and make Ryu importable; no other module does. Import this before anything that opens sockets.

Ryu 4.34 imports a name that current eventlet no longer has, and reads options from a global that has to be initialised once.
"""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("EVENTLET_NO_GREENDNS", "yes")  # nothing here resolves names, and dnspython is a third of eventlet's import
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import eventlet

    eventlet.monkey_patch()
    import eventlet.wsgi

    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = b""
    from ryu import cfg
    from ryu.base import app_manager
    from ryu.controller import ofp_handler
    from ryu.ofproto import ofproto_v1_3

SOCKET_TIMEOUT_S = 5.0
"""A switch that accepts no bytes for this long is disconnected; also the interval at which an idle connection is checked."""


class Handshake(ofp_handler.OFPHandler):  # type: ignore[misc]
    """Ryu's handshake for OpenFlow 1.3 (hello, features, ports). It never listens by itself: `start` is not called."""

    OFP_VERSIONS = (ofproto_v1_3.OFP_VERSION,)


def start_handshake() -> None:
    """Prepare Ryu's handshake for connections of this process; called once."""
    cfg.CONF(args=[], project="sos-controller", version="")
    cfg.CONF.set_override("socket_timeout", SOCKET_TIMEOUT_S)
    app_manager.AppManager.get_instance().instantiate(Handshake)


__all__ = ["eventlet", "start_handshake"]
