"""The command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from sos_controller import __version__

EVERYWHERE = "0.0.0.0"  # noqa: S104 - switches and the operator connect from other machines


def parser() -> argparse.ArgumentParser:
    """Return the parser; it exits with status 2 on wrong usage."""
    p = argparse.ArgumentParser(prog="sos-controller", description="OpenFlow controller of SOS (Steroid OpenFlow Service).")
    p.add_argument("--version", action="version", version=f"sos-controller {__version__}")
    p.add_argument(
        "--config", type=Path, metavar="FILE", help="controller-config document read at start; later ones come by PUT /v1/config"
    )
    p.add_argument("--keys", type=Path, metavar="DIR", help="folder of site keys, read again each second")
    p.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token for PUT /v1/config, read each second; FILE-also: a second token"
    )
    p.add_argument("--openflow-listen", type=_address, default=(EVERYWHERE, 6653), metavar="ADDR:PORT", help="for switches (0.0.0.0:6653)")
    p.add_argument(
        "--openflow-tls",
        type=Path,
        metavar="DIR",
        help="folder of tls.crt, tls.key and ca.crt for TLS with switches, read again each second; without it, TLS is refused",
    )
    p.add_argument("--api-listen", type=_address, default=(EVERYWHERE, 8080), metavar="ADDR:PORT", help="for the API (0.0.0.0:8080)")
    p.add_argument("--state", type=Path, metavar="DIR", help="folder that stores the epoch; without it, the epoch derives from the clock")
    p.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    p.add_argument("--log-format", default="text", choices=("text", "json"))
    p.add_argument(
        "--audit-log",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="log a record with addresses, at level info, for each session that has ended",
    )
    p.add_argument("--check", nargs="+", type=Path, metavar="FILE", help="check controller-config documents or custom resources, and exit")
    return p


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not ADDR:PORT")
    return host.strip("[]") or EVERYWHERE, int(port)
