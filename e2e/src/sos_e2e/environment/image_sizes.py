"""Size bounds of images. Every node pulls some of them, so a change that makes an image grow must fail."""

from collections.abc import Mapping

MB = 1_000_000
COPIES = 2
"""Copies of an image on a node: compressed layers and unpacked layers."""
# Upper bound of each image's size above its base: the size when the bound was set, plus 15 %. The base is not counted: its publisher
# controls its size, and nodes share it between images. docs/install.md has the same figures.
MOST_ADDED_MB = {"operator": 220, "controller": 135, "agent": 150, "node": 225, "ovs": 190}


def added_mb(image_bytes: int, base_bytes: int) -> float:
    """Size of an image above its base, in MB."""
    return (image_bytes - base_bytes) / MB


def outgrown(added: Mapping[str, float]) -> list[str]:
    """One sentence for every image above its bound."""
    return [
        f"image {image} adds {mb:.0f} MB to its base, {MOST_ADDED_MB[image]} are allowed: find what it gained, "
        "or raise the bound in sos_e2e/environment/image_sizes.py and docs/install.md and say why"
        for image, mb in added.items()
        if mb > MOST_ADDED_MB[image]
    ]


def no_room(copies: Mapping[str, tuple[int, int]], free_bytes: int) -> str:
    """Lack of disk space for images, from each image's size and its number of nodes; "" if there is enough.

    The nodes of a kind cluster share the engine's disk, so the needs of all must fit into the free space that one node sees.
    """
    need = sum(size * nodes * COPIES for size, nodes in copies.values())
    if need <= free_bytes:
        return ""
    largest = max(copies, key=lambda image: copies[image][0] * copies[image][1])
    return (
        f"the nodes have {free_bytes / MB:,.0f} MB left on the engine's disk, loading the images takes {need / MB:,.0f} MB "
        f"({largest} most of all): make room, `docker system df` says where it went"
    )
