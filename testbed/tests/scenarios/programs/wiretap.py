"""Search TCP packets at an interface for peer.py's data. Run inside a namespace; prints one JSON line when its input closes.

    wiretap.py INTERFACE BYTES

`data`: packets with payload. `readable`: number of these packets that contain a part of the first BYTES of the pattern in cleartext.
"""

import hashlib
import json
import sys

from sos_testbed.measurements.capture import passing

CHUNK, DIGEST = 65536, 32  # as in peer.py: each chunk repeats the digest of the chunk's number
LEAST = 4 * DIGEST  # shorter payloads are control frames without data
LAST_LOOK_S = 0.5


def payload(frame: bytes) -> bytes:
    """Payload of a TCP packet; empty for any other packet."""
    if frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return b""
    l4 = 14 + (frame[14] & 15) * 4
    end = 14 + int.from_bytes(frame[16:18], "big")
    return frame[l4 + (frame[l4 + 12] >> 4) * 4 : end]


def is_readable(data: bytes, digests: list[bytes]) -> bool:
    """True if the payload contains the pattern, at any offset."""
    at = len(data) // 2
    block = data[at : at + DIGEST]
    return block == data[at + DIGEST : at + 2 * DIGEST] and any(digest in block + block for digest in digests)


def main() -> None:
    digests = [hashlib.sha256(number.to_bytes(8)).digest() for number in range(int(sys.argv[2]) // CHUNK + 1)]
    seen, readable = 0, 0
    for tap in passing(sys.argv[1], last_look_s=LAST_LOOK_S):
        data = payload(tap.recv(1 << 17))
        if len(data) >= LEAST:
            seen += 1
            readable += is_readable(data, digests)
    print(json.dumps({"data": seen, "readable": readable}), flush=True)


if __name__ == "__main__":
    main()
