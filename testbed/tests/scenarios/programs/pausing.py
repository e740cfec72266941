"""Connections on which a host pauses. Run inside a host's namespace; the last line that `ask` prints is JSON.

pausing.py serve KIND PORT PAUSE_S          serve one connection
pausing.py ask KIND PORT PAUSE_S ADDRESS    connect to this server, and print {"error", "complete"}

Kinds: download (the client reads a little, pauses, and reads the rest), upload (the server reads so), idle (word, pause, word).
"""

import hashlib
import json
import socket
import sys
import time

SIZE = 24 << 20
"""Bytes of a transfer: more than the buffers of hosts, agents and network together, so that the sender has to wait, too."""
LITTLE = 100_000
WORD = b"hello"
PATIENCE_S = 60.0


def data() -> bytes:
    return hashlib.shake_128(b"pausing").digest(SIZE)


def read_with_pause(connection: socket.socket, pause_s: float) -> bool:
    """Read a little, pause, and read the rest; true if all data has arrived intact."""
    got = bytearray()
    while len(got) < LITTLE:
        got += connection.recv(4096)
    time.sleep(pause_s)
    while part := connection.recv(1 << 20):
        got += part
    return bytes(got) == data()


def talk(connection: socket.socket, pause_s: float, *, begins: bool) -> bool:
    """Exchange a word before and after the pause; true if both exchanges succeeded."""
    answers = []
    for wait_s in (0.0, pause_s):
        if begins:
            time.sleep(wait_s)
            connection.sendall(WORD)
        answers.append(connection.recv(len(WORD), socket.MSG_WAITALL))
        if not begins:
            connection.sendall(WORD)
    return answers == [WORD, WORD]


def serve(kind: str, port: int, pause_s: float) -> None:
    with socket.create_server(("", port)) as listener:
        connection, _ = listener.accept()
    with connection:
        if kind == "download":
            connection.sendall(data())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
        elif kind == "upload":
            connection.sendall(b"1" if read_with_pause(connection, pause_s) else b"0")
        else:
            talk(connection, pause_s, begins=False)


def ask(kind: str, port: int, pause_s: float, address: str) -> bool:
    with socket.create_connection((address, port), PATIENCE_S) as connection:
        connection.settimeout(pause_s + PATIENCE_S)
        if kind == "download":
            return read_with_pause(connection, pause_s)
        if kind == "upload":
            connection.sendall(data())
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(1) == b"1"
        return talk(connection, pause_s, begins=True)


def main(role: str, kind: str, port: str, pause_s: str, *address: str) -> None:
    if role == "serve":
        serve(kind, int(port), float(pause_s))
        return
    seen = {"error": "", "complete": False}
    try:
        seen["complete"] = ask(kind, int(port), float(pause_s), *address)
    except OSError as error:
        seen["error"] = type(error).__name__
    print(json.dumps(seen))


main(*sys.argv[1:])
