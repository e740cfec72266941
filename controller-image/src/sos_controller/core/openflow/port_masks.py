"""Port ranges as masked matches: the fewest aligned blocks that cover a range exactly."""

from __future__ import annotations

from sos_controller.core.openflow.flow_entries import Masked


def masks(first: int, last: int) -> list[Masked]:
    """Return (value, mask) pairs covering first..last exactly; at most 30 pairs for 16 bits. Raise ValueError for an invalid range."""
    if not 0 <= first <= last <= 0xFFFF:
        raise ValueError(f"not a port range: {first}-{last}")
    blocks: list[Masked] = []
    while first <= last:
        size = first & -first or 0x10000
        while size > last - first + 1:
            size >>= 1
        blocks.append((first, 0xFFFF & ~(size - 1)))
        first += size
    return blocks
