"""Send one request from the client, with a chosen source port and protocol."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from sos_testbed.lifecycle.lab import Lab
from sos_testbed.measurements import measure

MPTCP = 262
"""IPPROTO_MPTCP: the SYN has the MPTCP option; if the server does not support it, the connection falls back to regular TCP."""

CONNECT = """
import json, socket, sys
address, port, own, protocol = sys.argv[1], *map(int, sys.argv[2:])
end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
end.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
end.bind(("", own))
end.settimeout(10)
try:
    end.connect((address, port))
    end.sendall(b"GET /none HTTP/1.0\\r\\n\\r\\n")
    print(json.dumps({"answer": end.recv(12).decode()}))
except OSError as error:
    print(json.dumps({"answer": type(error).__name__}))
"""


def answer(net: Lab, port: int, own: int = 0, protocol: int = 0) -> str:
    """First bytes of the web server's response to a client, or the connection's error."""
    argv = net.exec_argv("client", (sys.executable, "-c", CONNECT, measure.address(net, "server"), str(port), str(own), str(protocol)))
    said: dict[str, Any] = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30).stdout)
    return str(said["answer"])
