"""Many connections with steady traffic, and the longest time for which one of them was silent. Run inside a host's namespace.

    stalls.py serve PORT...              send 500 bytes on each connection each 50 ms
    stalls.py watch ADDRESS PORT COUNT   open COUNT connections, send a byte on each of them each 100 ms

`watch` prints `connected`, then reads lines from its input: the first starts the measurement, each further line ends a phase, the end of
the input ends the last one. For each phase, it prints how many connections stand, and the longest silence that ended in the phase, or
lasted until its end. (For a connection that is still silent then, the silence counts in both phases.)
"""

import contextlib
import selectors
import socket
import sys
import time

SEND_S, SAY_S = 0.05, 0.1
PAYLOAD = b"x" * 500


def serve(ports: list[int]) -> None:
    """Serve until killed. One thread: a thread for each connection would keep a processor busy."""
    listeners = [socket.create_server(("", port), backlog=128) for port in ports]
    for listener in listeners:
        listener.setblocking(False)
    connections: list[socket.socket] = []
    while True:
        due = time.monotonic() + SEND_S
        for listener in listeners:
            connections.extend(accepted(listener))
        connections = [connection for connection in connections if sent(connection)]
        time.sleep(max(0.0, due - time.monotonic()))


def accepted(listener: socket.socket) -> list[socket.socket]:
    """Accept all waiting connections."""
    found = []
    while True:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return found
        connection.setblocking(False)
        found.append(connection)


def sent(connection: socket.socket) -> bool:
    """Send a payload, unless the buffer is full. Return False if the connection has ended."""
    try:
        connection.send(PAYLOAD)
    except BlockingIOError:
        return True
    except OSError:
        connection.close()
        return False
    return True


class Watch:
    """Open connections, and the time at which each of them was last read."""

    def __init__(self, address: str, port: int, count: int) -> None:
        self._at = selectors.DefaultSelector()
        self._last: dict[socket.socket, float] = {}
        for _ in range(count):
            connection = socket.create_connection((address, port), timeout=5)
            connection.setblocking(False)
            self._at.register(connection, selectors.EVENT_READ)
            self._last[connection] = 0.0

    def start(self) -> None:
        """Discard what has arrived while connections were opened, so that the measurement does not include that time."""
        for connection in list(self._last):
            self._read(connection)
        self._last = dict.fromkeys(self._last, time.monotonic())

    def phase(self, commands: selectors.DefaultSelector) -> tuple[bool, str]:
        """Exchange data until a line of input. Return whether there was one, and the result."""
        longest, said = 0.0, 0.0
        while True:
            now = time.monotonic()
            if now - said >= SAY_S:  # a switch learns a host's new port only from packets of the host, in plain forwarding, too
                said = now
                for connection in self._last:
                    self._say(connection)
            for key, _ in self._at.select(SAY_S / 4):
                longest = max(longest, self._read(key.fileobj))
            if commands.select(0):
                longest = max((longest, *(time.monotonic() - last for last in self._last.values())))
                return bool(sys.stdin.readline()), f"{len(self._last)} {longest:.3f}"

    def _say(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # an ended connection is found by reading
            connection.send(b"y")

    def _read(self, connection: socket.socket) -> float:
        """Read what has arrived; return the silence before it."""
        try:
            data = connection.recv(1 << 20)
        except BlockingIOError:
            return 0.0
        except OSError:
            data = b""
        silence = time.monotonic() - self._last[connection]
        if data:
            self._last[connection] = time.monotonic()
        else:
            self._at.unregister(connection)
            del self._last[connection]
        return silence


def watch(address: str, port: int, count: int) -> None:
    """Measure the phases that the input marks."""
    found = Watch(address, port, count)
    print("connected", flush=True)
    more = bool(sys.stdin.readline())
    found.start()
    commands = selectors.DefaultSelector()
    commands.register(sys.stdin, selectors.EVENT_READ)
    while more:
        more, result = found.phase(commands)
        print(result, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve([int(port) for port in sys.argv[2:]])
    else:
        watch(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
