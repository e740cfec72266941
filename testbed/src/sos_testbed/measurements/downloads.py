"""Concurrent downloads, each over its own connection, as by `ab -n COUNT -c CONCURRENCY`:

    python -m sos_testbed.measurements.downloads ADDRESS PATH COUNT CONCURRENCY FIRST_PORT

The local ports are FIRST_PORT and the following ports. Run inside a host's namespace; prints one line of JSON: seconds from the first
connect to the last byte, and for each download its local port and the number of received bytes.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 60.0


def fetch(address: str, path: str, port: int) -> tuple[int, int]:
    """Download once; return the local port and the number of received bytes."""
    connection = http.client.HTTPConnection(address, timeout=TIMEOUT_S, source_address=("", port))
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        answer = connection.getresponse()
        return port, len(answer.read()) if answer.status == http.HTTPStatus.OK else 0
    finally:
        connection.close()


def main(address: str, path: str, count: int, concurrency: int, first_port: int) -> None:
    """Download and report."""
    with ThreadPoolExecutor(concurrency) as pool:
        started = time.monotonic()
        done = list(pool.map(lambda port: fetch(address, path, port), range(first_port, first_port + count)))
        seconds = time.monotonic() - started
    print(json.dumps({"seconds": seconds, "downloads": done}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
