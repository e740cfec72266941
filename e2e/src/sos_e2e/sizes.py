"""How large images may be. Every node pulls some of them, so what grows has to be noticed by whoever lets it grow."""

from collections.abc import Mapping

MB = 1_000_000
COPIES = 2
"""What a node keeps of an image: its layers as they came, and unpacked."""
# What each image adds to its base, at most: 15 % more than it did when the bound was set. The base's own size is its publisher's, and
# nodes share it between images. docs/install.md has the same figures.
MOST_ADDED_MB = {"operator": 220, "controller": 135, "agent": 150, "node": 225, "ovs": 190}


def added_mb(image_bytes: int, base_bytes: int) -> float:
    """What an image adds to its base, in MB."""
    return (image_bytes - base_bytes) / MB


def outgrown(added: Mapping[str, float]) -> list[str]:
    """A sentence for every image that adds more than it may."""
    return [
        f"image {image} adds {mb:.0f} MB to its base, {MOST_ADDED_MB[image]} are allowed: find what it gained, "
        "or raise the bound in sos_e2e/sizes.py and docs/install.md and say why"
        for image, mb in added.items()
        if mb > MOST_ADDED_MB[image]
    ]


def no_room(copies: Mapping[str, tuple[int, int]], free_bytes: int) -> str:
    """What is wrong with the room for images: each by its size and the number of nodes that take it. "" if there is enough.

    The nodes of a kind cluster share the engine's disk, so what all of them take has to fit into what one of them sees.
    """
    need = sum(size * nodes * COPIES for size, nodes in copies.values())
    if need <= free_bytes:
        return ""
    largest = max(copies, key=lambda image: copies[image][0] * copies[image][1])
    return (
        f"the nodes have {free_bytes / MB:,.0f} MB left on the engine's disk, loading the images takes {need / MB:,.0f} MB "
        f"({largest} most of all): make room, `docker system df` says where it went"
    )
