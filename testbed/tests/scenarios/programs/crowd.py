"""Open many connections, some busy and some idle, and compare every byte of their echoes. Run inside a host's namespace.

    crowd.py serve PORT...               echo server: echo every connection until its client has finished sending
    crowd.py hold ADDRESS PORT BUSY IDLE keep BUSY + IDLE connections open; read commands from standard input, one per line:
                                         `check`: exchange one block on every connection, including the idle connections
                                         `end`: the same, then close both directions of every connection and exit
    crowd.py knock ADDRESS PORT GAP      open a connection every GAP seconds for one word and its echo; `end`: wait for all, and exit

Each command prints one line of JSON. hold reports the number of intact connections, the errors of broken connections (`eof` = an unexpected
clean end), the longest wait for an echo since the previous command, and the client ports. knock reports for each connection its start
(monotonic seconds, the same clock for all programs of the machine), its duration and its error.
"""

import asyncio
import collections
import hashlib
import json
import sys
import time

BLOCK = 4096
PAUSE_S = 0.2  # between two blocks of a busy connection
CHECK_S = 30.0  # limit for one operation of a connection; longer than any silence that these tests allow
WORD = 1000


def block(number: int, count: int) -> bytes:
    """Block `count` of connection `number`; no two blocks are equal."""
    return hashlib.sha256(f"{number} {count}".encode()).digest() * (BLOCK // 32)


def name(error: BaseException) -> str:
    """Report name of the error that broke a connection."""
    if isinstance(error, asyncio.IncompleteReadError):
        return "eof"
    return "reset" if isinstance(error, ConnectionResetError | BrokenPipeError) else type(error).__name__


class Held:
    """One open connection of `hold`."""

    def __init__(self, number: int, busy: bool) -> None:
        self.number, self.busy = number, busy
        self.count, self.broken, self.pause_s = 0, "", 0.0
        self.port = 0  # client port
        self.turn = asyncio.Lock()

    async def open(self, address: str, port: int) -> None:
        """Connect and exchange the first block."""
        self.reader, self.writer = await asyncio.open_connection(address, port)
        self.port = self.writer.get_extra_info("sockname")[1]
        await self.say()

    async def say(self) -> None:
        """Send a block and compare its echo."""
        async with self.turn:
            if self.broken:
                return
            sent, began = block(self.number, self.count), time.monotonic()
            self.count += 1
            try:
                self.writer.write(sent)
                await self.writer.drain()
                if await self.reader.readexactly(BLOCK) != sent:
                    self.broken = "other bytes"
            except (OSError, asyncio.IncompleteReadError) as error:
                self.broken = name(error)
            self.pause_s = max(self.pause_s, time.monotonic() - began)

    async def chat(self) -> None:
        """Exchange blocks continuously."""
        while self.busy and not self.broken:
            await self.say()
            await asyncio.sleep(PAUSE_S)

    async def finish(self) -> None:
        """Close both directions in order."""
        async with self.turn:
            try:
                if not self.broken:
                    self.writer.write_eof()
                    self.broken = "" if await self.reader.read(1) == b"" else "other bytes"
            except OSError as error:
                self.broken = name(error)
            self.writer.close()


def tell(**what: object) -> None:
    """Print one line of JSON."""
    print(json.dumps(what), flush=True)


async def together(held: list[Held], waits: list) -> None:
    """Wait for all operations with a time limit, and report."""
    _, late = await asyncio.wait([asyncio.ensure_future(each) for each in waits], timeout=CHECK_S)
    for task in late:
        task.cancel()
    broken = collections.Counter(each.broken for each in held if each.broken)
    silent = len(late)
    pause_s = max((each.pause_s for each in held), default=0.0)
    ports = [each.port for each in held]
    tell(whole=len(held) - broken.total() - silent, broken=dict(broken), silent=silent, pause_s=round(pause_s, 2), ports=ports)
    for each in held:
        each.pause_s = 0.0


async def commands() -> asyncio.StreamReader:
    """Standard input."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def hold(address: str, port: int, busy: int, idle: int) -> None:
    """See the module's docstring."""
    held = [Held(number, number < busy) for number in range(busy + idle)]
    orders = await commands()
    await together(held, [each.open(address, port) for each in held])
    chats = [asyncio.ensure_future(each.chat()) for each in held if each.busy]
    while (await orders.readline()).strip() == b"check":
        await together(held, [each.say() for each in held])
    for each in held:
        each.busy = False
    await asyncio.gather(*chats)
    await together(held, [last(each) for each in held])


async def last(each: Held) -> None:
    """Exchange the last block of a connection and close it."""
    await each.say()
    await each.finish()


async def knock(address: str, port: int, gap_s: float) -> None:
    """See the module's docstring."""
    told: list[tuple[float, float, str]] = []
    orders, visits = asyncio.ensure_future((await commands()).readline()), []
    tell(ready=True)
    while not orders.done():
        visits.append(asyncio.ensure_future(visit(address, port, told)))
        await asyncio.wait([orders], timeout=gap_s)
    await asyncio.wait(visits)
    tell(visits=sorted(told))


async def visit(address: str, port: int, told: list) -> None:
    """Open one short connection and record its result."""
    began, wrong = time.monotonic(), ""
    try:
        async with asyncio.timeout(CHECK_S):
            reader, writer = await asyncio.open_connection(address, port)
            sent = block(int(began * 1e6), 0)[:WORD]
            writer.write(sent)
            writer.write_eof()
            got = await reader.read(-1)
            wrong = "" if got == sent else "eof" if sent.startswith(got) else "other bytes"
            writer.close()
    except (OSError, TimeoutError) as error:
        wrong = name(error)
    told.append((began, time.monotonic() - began, wrong))


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo one client."""
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()


async def serve(ports: list[int]) -> None:
    """Answer until standard input ends."""
    for port in ports:
        await asyncio.start_server(answer, "0.0.0.0", port, backlog=512)
    tell(ready=True)
    await (await commands()).read()


def main() -> None:
    """See the module's docstring."""
    command, *rest = sys.argv[1:]
    if command == "serve":
        asyncio.run(serve([int(port) for port in rest]))
    elif command == "hold":
        asyncio.run(hold(rest[0], int(rest[1]), int(rest[2]), int(rest[3])))
    elif command == "knock":
        asyncio.run(knock(rest[0], int(rest[1]), float(rest[2])))
    else:
        sys.exit(f"unknown: {command}")


if __name__ == "__main__":
    main()
