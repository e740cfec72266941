"""Run simultaneous bidirectional transfers over many connections, whose readers may stall. Run inside a host's namespace.

    exchange.py serve PORT         serve the transfers that clients order, until the program is killed
    exchange.py fetch ADDRESS PORT start a transfer for each line of standard input, and exit after the last transfer

An order is {"name", "begin_s", "client": SIDE, "server": SIDE} with SIDE = {"bytes", "rate", "stall_at_s", "stall_s"}: the number of bytes
that this host sends, their rate in bytes a second, and the start and length of the pause in its reading. The bytes are generated from the
name, so each host knows the expected bytes.

Each host prints one line of JSON for each transfer that has ended: {"client", "got", "right", "whole", "send_end", "end"}. `client` is the
client's address and port ("" without a connection). `right` is true if all received bytes are correct, `whole` if also no byte is missing.
`send_end` is `ok` if all bytes and the FIN were sent, else the error. `end` is `eof` after a clean end, else the error.
"""

import asyncio
import json
import random
import socket
import sys
import time
from collections.abc import Awaitable

CHUNK = 65536
HEADER = 512
GIVEN_UP_S = 40.0  # limit for one operation; longer than all timeouts of an agent


def name(error: BaseException) -> str:
    """Report name of the error that broke a connection."""
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else type(error).__name__


def text(order: dict, sender: str) -> memoryview:
    """Data that one host sends."""
    return memoryview(random.Random(f"{order['name']} {sender}").randbytes(order[sender]["bytes"]))


def endpoint(address: tuple) -> str:
    """Address and port as text, such as `10.0.0.11:40000`."""
    return f"{address[0]}:{address[1]}"


async def outcome(doing: Awaitable[None]) -> str:
    """Result of an operation: `ok`, or the name of its error."""
    try:
        await asyncio.wait_for(doing, GIVEN_UP_S)
    except OSError as error:  # TimeoutError, too
        return name(error)
    return "ok"


class Ended:
    """One host's half of a transfer."""

    def __init__(self, connection: socket.socket, order: dict, own: str, other: str) -> None:
        self._loop, self._connection = asyncio.get_running_loop(), connection
        self._side, self._sent, self._expected = order[own], text(order, own), text(order, other)
        self._began = time.monotonic()
        self.got, self.right = 0, True

    async def run(self) -> dict:
        """Send and receive until both directions end."""
        send_end, end = await asyncio.gather(outcome(self._send()), outcome(self._receive()))
        whole = self.right and self.got == len(self._expected)
        return {"got": self.got, "right": self.right, "whole": whole, "send_end": send_end, "end": "eof" if end == "ok" else end}

    async def _send(self) -> None:
        for at in range(0, len(self._sent), CHUNK):
            await self._loop.sock_sendall(self._connection, self._sent[at : at + CHUNK])
            await asyncio.sleep(self._began + at / self._side["rate"] - time.monotonic())
        self._connection.shutdown(socket.SHUT_WR)

    async def _receive(self) -> None:
        stalls = True
        while data := await self._loop.sock_recv(self._connection, CHUNK):
            self.right &= self._expected[self.got : self.got + len(data)] == data
            self.got += len(data)
            if stalls and time.monotonic() - self._began >= self._side["stall_at_s"]:
                stalls = False
                await asyncio.sleep(self._side["stall_s"])


def tell(client: str, **what: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"client": client, **what}), flush=True)


def failed(error: BaseException) -> dict:
    """Report of a host whose transfer never started."""
    return {"got": 0, "right": True, "whole": False, "send_end": name(error), "end": name(error)}


async def fetch(address: str, port: int, order: dict) -> None:
    """Run one transfer at the client."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(order["begin_s"])
    with socket.socket() as connection:
        connection.setblocking(False)
        own = ""
        try:
            await asyncio.wait_for(loop.sock_connect(connection, (address, port)), GIVEN_UP_S)
            own = endpoint(connection.getsockname())
            await loop.sock_sendall(connection, json.dumps(order).encode().ljust(HEADER))
        except OSError as error:
            tell(own, **failed(error))
            return
        tell(own, **await Ended(connection, order, "client", "server").run())


async def answer(connection: socket.socket, client: str) -> None:
    """Run one transfer at the server."""
    loop, header = asyncio.get_running_loop(), b""
    with connection:
        try:
            while len(header) < HEADER:
                data = await asyncio.wait_for(loop.sock_recv(connection, HEADER - len(header)), GIVEN_UP_S)
                if not data:
                    raise EOFError
                header += data
        except (OSError, EOFError) as error:
            tell(client, **failed(error))
            return
        tell(client, **await Ended(connection, json.loads(header), "server", "client").run())


async def serve(port: int) -> None:
    """Serve every client."""
    loop, tasks = asyncio.get_running_loop(), set()
    with socket.create_server(("0.0.0.0", port)) as listener:
        listener.setblocking(False)
        while True:
            connection, client = await loop.sock_accept(listener)
            tasks.add(task := asyncio.ensure_future(answer(connection, endpoint(client))))
            task.add_done_callback(tasks.discard)


async def fetch_all(address: str, port: int, orders: list[dict]) -> None:
    """Run all ordered transfers."""
    await asyncio.gather(*(fetch(address, port, order) for order in orders))


def main() -> None:
    """See the module's docstring."""
    command, *rest = sys.argv[1:]
    if command == "serve":
        asyncio.run(serve(int(rest[0])))
    elif command == "fetch":
        asyncio.run(fetch_all(rest[0], int(rest[1]), [json.loads(line) for line in sys.stdin]))
    else:
        sys.exit(f"unknown: {command}")


if __name__ == "__main__":
    main()
