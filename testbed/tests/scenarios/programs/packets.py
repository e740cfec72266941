"""Count the bytes of all TCP packets at an interface, and of UDP packets on the agents' stream ports. Run inside a namespace; prints one
JSON line when its input closes.

    packets.py INTERFACE
"""

import json
import sys

from sos_testbed.measurements.capture import passing

STREAM_PORTS = range(10_000, 10_008)
LAST_LOOK_S = 0.5


def kind(frame: bytes) -> str | None:
    """Counter of a frame: `tcp`, `udp`, or None for other frames."""
    if frame[12:14] != b"\x08\x00" or frame[23] not in (6, 17):
        return None
    l4 = 14 + (frame[14] & 15) * 4
    ports = {int.from_bytes(frame[at : at + 2], "big") for at in (l4, l4 + 2)}
    if frame[23] == 6:
        return "tcp"
    return "udp" if any(port in STREAM_PORTS for port in ports) else None


def main() -> None:
    seen = {"tcp": 0, "udp": 0}
    for tap in passing(sys.argv[1], last_look_s=LAST_LOOK_S):
        frame = tap.recv(1 << 17)
        found = kind(frame)
        if found is not None:
            seen[found] += len(frame)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
