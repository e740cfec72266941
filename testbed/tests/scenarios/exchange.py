"""Transfers both ways at once over many connections, each with a reader that stalls. Run inside a host's namespace.

    exchange.py serve PORT         takes part in what clients ask for, until it is ended
    exchange.py fetch ADDRESS PORT begins a transfer for each line of its standard input, and leaves after the last

An order is {"name", "begin_s", "client": SIDE, "server": SIDE} with SIDE = {"bytes", "rate", "stall_at_s", "stall_s"}: what that end sends
at how many bytes a second, and when and how long it does not read. The bytes are made from the name, so both ends know what is right.

One line of JSON for each transfer that has ended, at each end: {"client", "got", "right", "whole", "send_end", "end"}. `client` is the
client's address and port ("" if it never had one), `right` says that what came are the right bytes as far as they go, `whole` that they are
all there; `send_end` is `ok` when everything was sent with its end, and `end` is `eof`, or both name what went wrong.
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
GIVEN_UP_S = 40.0  # longer than all timeouts of an agent


def name(error: BaseException) -> str:
    """Error that broke a connection."""
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else type(error).__name__


def text(order: dict, sender: str) -> memoryview:
    """Data that an end sends."""
    return memoryview(random.Random(f"{order['name']} {sender}").randbytes(order[sender]["bytes"]))


def endpoint(address: tuple) -> str:
    """`10.0.0.11:40000`."""
    return f"{address[0]}:{address[1]}"


async def outcome(doing: Awaitable[None]) -> str:
    """`ok`, or the error."""
    try:
        await asyncio.wait_for(doing, GIVEN_UP_S)
    except OSError as error:  # TimeoutError, too
        return name(error)
    return "ok"


class Ended:
    """One end of a transfer."""

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
    """One line."""
    print(json.dumps({"client": client, **what}), flush=True)


def failed(error: BaseException) -> dict:
    """Report of an end that never started a transfer."""
    return {"got": 0, "right": True, "whole": False, "send_end": name(error), "end": name(error)}


async def fetch(address: str, port: int, order: dict) -> None:
    """One transfer at the client."""
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
    """One transfer at the server."""
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
    """Answer every client."""
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
    """See the module's text."""
    command, *rest = sys.argv[1:]
    if command == "serve":
        asyncio.run(serve(int(rest[0])))
    elif command == "fetch":
        asyncio.run(fetch_all(rest[0], int(rest[1]), [json.loads(line) for line in sys.stdin]))
    else:
        sys.exit(f"unknown: {command}")


if __name__ == "__main__":
    main()
