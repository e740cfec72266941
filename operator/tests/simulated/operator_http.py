"""HTTP servers in threads, which answer for the containers of test pods."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def http_servers(address: str, handlers: Mapping[str, type[BaseHTTPRequestHandler]]) -> Iterator[dict[str, int]]:
    """Serve each handler at a free port of the address; yield the ports by the handlers' names."""
    servers = {name: ThreadingHTTPServer((address, 0), handler) for name, handler in handlers.items()}
    for server in servers.values():
        threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {name: int(server.server_address[1]) for name, server in servers.items()}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()
